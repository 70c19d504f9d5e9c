//! Losing and starting again: back-off, rows sent anew, counts, and nothing left behind.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use engine_core::seams::{Ask, Backbone};
use engine_core::{Epoch, Fault, SeqId};
use ipc_transport::probe::{Point, Probe};
use ipc_transport::remote::{Choice, RemoteBackbone};
use ipc_transport::report::State;

use crate::common::{CHOICES, Call, perform, soon, threads, toy_plan, toys};
use crate::toy::{self, Toy};

fn rows(n: usize, from: f32) -> Vec<f32> {
    let values = n * toy::dims().feature_width();
    (0..values).map(|v| v as f32 + from).collect()
}

fn ask(seq: u32, pos: u32) -> Ask {
    Ask {
        seq: SeqId(seq),
        epoch: Epoch(pos),
        pos,
        ahead: 0,
        seed: 0,
        depth: 3,
    }
}

fn block(n: usize) -> Vec<f32> {
    vec![0.25; n * toy::dims().block_width()]
}

/// Fails the first time it is asked after `armed` is set.
fn once(armed: &Arc<AtomicBool>) -> Probe {
    let armed = Arc::clone(armed);
    Probe::new(move |_: Point| match armed.swap(false, Ordering::SeqCst) {
        true => Err(io::Error::other("made to fail")),
        false => Ok(()),
    })
}

/// a new worker is sent the rows that are kept, and then answers what the old one would have.
#[test]
fn a_23_a_restarted_worker_answers_as_the_old_one() {
    for choice in CHOICES {
        let armed = Arc::new(AtomicBool::new(false));
        let (threads, ends) = threads(toys, once(&armed));
        let mut remote = RemoteBackbone::start(toy_plan(choice), Box::new(threads)).unwrap();
        let mut local = Toy::new(toy::dims());
        for backbone in [&mut remote as &mut dyn Backbone, &mut local] {
            backbone.observe(SeqId(0), 3, &rows(30, 0.0)).unwrap();
            backbone.observe(SeqId(5), 0, &rows(4, 9.0)).unwrap();
            backbone.truncate(SeqId(0), 29);
        }
        let call = Call::Ask(vec![ask(0, 29), ask(5, 4)], block(2));
        let want = perform(&mut local, &call);
        assert_eq!(perform(&mut remote, &call), want);
        armed.store(true, Ordering::SeqCst);
        let nothing = perform(&mut remote, &call).unwrap();
        assert_eq!(nothing, [vec![0, 0], vec![], vec![]], "{choice:?}");
        let why = remote.health().unwrap_err().to_string();
        assert!(why.starts_with("draft worker failed: "), "{why}");
        remote.wait_until_settled(soon());
        remote.health().unwrap();
        assert_eq!(perform(&mut remote, &call), want, "{choice:?}");
        let report = remote.watch().report();
        assert_eq!((report.lost, report.restarts, report.unanswered), (1, 1, 2));
        assert_eq!(report.state, State::Up);
        drop(remote);
        assert_eq!(ends.lock().unwrap().len(), 2, "every worker has ended");
    }
}

/// While the worker is away asks are answered with nothing, at once, and the wait before the next start
/// grows; after the last one it is over.
#[test]
fn restarts_back_off_and_end() {
    let armed = Arc::new(AtomicBool::new(false));
    let (threads, _) = threads(toys, once(&armed));
    let mut plan = toy_plan(Choice::Shared);
    plan.restarts.delays = vec![Duration::ZERO, Duration::from_hours(2)];
    let mut remote = RemoteBackbone::start(plan, Box::new(threads)).unwrap();
    remote.observe(SeqId(0), 0, &rows(1, 0.0)).unwrap();
    let call = Call::Ask(vec![ask(0, 1)], block(1));
    let fail = |remote: &mut RemoteBackbone| {
        armed.store(true, Ordering::SeqCst);
        perform(remote, &call).unwrap()[0].clone()
    };
    assert_eq!(fail(&mut remote), [0]);
    remote.wait_until_settled(soon());
    assert_eq!(perform(&mut remote, &call).unwrap()[0], [3]);
    assert_eq!(fail(&mut remote), [0]);
    // Two hours are not waited for.
    remote.wait_until_settled(Instant::now() + Duration::from_millis(5));
    for _ in 0..3 {
        assert_eq!(perform(&mut remote, &call).unwrap()[0], [0]);
    }
    let report = remote.watch().report();
    assert_eq!(
        (report.state, report.lost, report.restarts),
        (State::Restarting, 2, 1)
    );
    assert_eq!(report.unanswered, 5);
}

/// A start that fails is a loss like any other.
#[test]
fn a_restart_that_fails_counts() {
    let (armed, starts) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let seen = Arc::clone(&starts);
    let make = move |c: &_| match seen.fetch_add(1, Ordering::SeqCst) {
        0 => toys(c),
        _ => Err("no second one".to_owned()),
    };
    let (threads, _) = threads(make, once(&armed));
    let mut remote = RemoteBackbone::start(toy_plan(Choice::Stream), Box::new(threads)).unwrap();
    remote.observe(SeqId(0), 0, &rows(1, 0.0)).unwrap();
    armed.store(true, Ordering::SeqCst);
    let call = Call::Ask(vec![ask(0, 1)], block(1));
    assert_eq!(perform(&mut remote, &call).unwrap()[0], [0]);
    // Three starts, without a wait between them.
    remote.wait_until_settled(soon());
    assert_eq!(starts.load(Ordering::SeqCst), 4);
    let report = remote.watch().report();
    assert_eq!(
        (report.state, report.lost, report.restarts),
        (State::Lost, 4, 0)
    );
    let lost = perform(&mut remote, &call).unwrap_err();
    assert!(lost.contains("step load: no second one"), "{lost}");
    let Err(Fault::Lost { what, .. }) = remote.health() else {
        panic!("health must say that it is lost");
    };
    assert_eq!(what, "draft worker");
}

/// Steps that the worker refuses cost their drafts; three in a row cost the worker.
#[test]
fn refused_steps_are_forgiven_twice() {
    let (mut remote, _) = crate::common::toy_remote(toy_plan(Choice::Shared));
    remote.observe(SeqId(0), 0, &rows(2, 0.0)).unwrap();
    let call = Call::Ask(vec![ask(0, 2)], block(1));
    assert_eq!(perform(&mut remote, &call).unwrap()[0], [3]);
    // Bytes that the worker cannot load are told apart from a loss.
    let bad = remote.load(SeqId(1), &mut &[0u8; 8 + 3][..]);
    assert!(bad.is_ok(), "an empty context");
    let worse = remote.load(SeqId(1), &mut &[1u8; 3][..]).unwrap_err();
    assert!(
        matches!(
            worse,
            Fault::BadState {
                field: "header",
                ..
            }
        ),
        "{worse}"
    );
    let many = remote.observe(SeqId(8), 0, &rows(1, 0.0)).unwrap_err();
    assert!(
        matches!(
            many,
            Fault::Exhausted {
                wanted: 9,
                limit: 8,
                ..
            }
        ),
        "{many}"
    );
    assert_eq!(perform(&mut remote, &call).unwrap()[0], [3]);
    assert_eq!(remote.watch().report().refused, 0);
}

/// An answer later than the caller waits is not lost, and asks meanwhile are not confused with it.
#[test]
fn a_late_answer_is_taken_when_it_comes() {
    let gate = Arc::new(AtomicBool::new(true));
    let theirs = Arc::clone(&gate);
    let probe = Probe::new(move |point| {
        while point == Point::CopyIn && !theirs.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        Ok(())
    });
    let (threads, _) = threads(toys, probe);
    let mut remote = RemoteBackbone::start(toy_plan(Choice::Shared), Box::new(threads)).unwrap();
    let mut local = Toy::new(toy::dims());
    for backbone in [&mut remote as &mut dyn Backbone, &mut local] {
        backbone.observe(SeqId(0), 0, &rows(2, 0.0)).unwrap();
        backbone.observe(SeqId(1), 0, &rows(2, 5.0)).unwrap();
    }
    gate.store(false, Ordering::SeqCst);
    let first = remote.submit(&[ask(0, 2)], &block(1)).unwrap();
    let late = remote.poll(first, Some(Instant::now())).unwrap_err();
    assert!(matches!(late, Fault::Deadline), "{late}");
    let second = remote.submit(&[ask(1, 2)], &block(1)).unwrap();
    let late = remote.poll(second, Some(Instant::now())).unwrap_err();
    assert!(matches!(late, Fault::Deadline), "{late}");
    gate.store(true, Ordering::SeqCst);
    let got = remote.poll(second, None).unwrap();
    let mine = local.submit(&[ask(1, 2)], &block(1)).unwrap();
    assert_eq!(got.normed, local.poll(mine, None).unwrap().normed);
    let got = remote.poll(first, None).unwrap();
    let mine = local.submit(&[ask(0, 2)], &block(1)).unwrap();
    assert_eq!(got.normed, local.poll(mine, None).unwrap().normed);
    // One that waited and whose sequence went on meanwhile gets nothing.
    gate.store(false, Ordering::SeqCst);
    let first = remote.submit(&[ask(0, 2)], &block(1)).unwrap();
    let stale = remote.submit(&[ask(1, 2)], &block(1)).unwrap();
    remote.observe(SeqId(1), 2, &rows(1, 7.0)).unwrap();
    gate.store(true, Ordering::SeqCst);
    assert_eq!(remote.poll(stale, None).unwrap().rows, [0]);
    assert_eq!(remote.poll(first, None).unwrap().rows, [3]);
    assert_eq!(remote.watch().report().unanswered, 1);
}

/// The caller is awake for replies only where two processors are left beside the worker's threads; the answers are the
/// same.
#[test]
fn a_caller_is_awake_only_where_processors_are_left() {
    let processors = std::thread::available_parallelism().unwrap().get() as u32;
    let two = processors > 1;
    let mut told = Vec::new();
    for threads in [processors - 1, processors.saturating_sub(2)] {
        let mut plan = toy_plan(Choice::Shared);
        plan.shape.threads = threads;
        let (mut remote, _) = crate::common::toy_remote(plan);
        let mut local = Toy::new(toy::dims());
        for pos in 0..64 {
            let call = Call::Ask(vec![ask(0, pos + 1)], block(1));
            for backbone in [&mut remote as &mut dyn Backbone, &mut local] {
                let row = rows(1, pos as f32);
                backbone.observe(SeqId(0), pos, &row).unwrap();
            }
            assert_eq!(perform(&mut remote, &call), perform(&mut local, &call));
        }
        let report = remote.watch().report();
        assert_eq!(report.steps, 64);
        assert!(report.met + report.vain < 64, "{report:?}");
        told.push((report.awake.is_yes(), report.met + report.vain > 0));
    }
    assert_eq!(told, [(false, false), (two, two)]);
}
