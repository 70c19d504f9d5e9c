//! Giving the model up between answers and loading it again: who waits for whom, what is counted, what a failure costs.

#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{request, run, submit};
use scheduler::{
    Failure, FinishReason, Limits, Load, LoadFailure, Loaded, ParkError, Parking, Phase, Scheduler,
    Stats, UnparkError,
};
use testkit::fake::{FakeTarget, Watch};

fn target() -> FakeTarget {
    FakeTarget::new(10, 64, 1)
}

/// An engine whose models are known.
struct Bench {
    scheduler: Scheduler,
    /// One a model so far.
    watches: Arc<Mutex<Vec<Arc<Watch>>>>,
}

fn loaded(target: FakeTarget) -> Loaded {
    Loaded {
        target: Box::new(target),
        speculation: None,
    }
}

impl Bench {
    /// The first model is made as later ones are.
    fn new(make: impl FnMut(usize) -> Result<FakeTarget, LoadFailure> + Send + 'static) -> Self {
        Self::with(None, make)
    }

    fn with(
        idle: Option<Duration>,
        mut make: impl FnMut(usize) -> Result<FakeTarget, LoadFailure> + Send + 'static,
    ) -> Self {
        let watches = Arc::<Mutex<Vec<Arc<Watch>>>>::default();
        let theirs = Arc::clone(&watches);
        let mut calls = 0;
        let mut load: Load = Box::new(move || {
            calls += 1;
            let target = make(calls)?;
            theirs.lock().unwrap().push(target.watch());
            Ok(loaded(target))
        });
        let first = load().unwrap();
        let parking = Some(Parking { load, idle });
        let scheduler = Scheduler::start_with(first, parking, Limits::default()).unwrap();
        Self { scheduler, watches }
    }

    fn watch(&self, at: usize) -> Arc<Watch> {
        Arc::clone(&self.watches.lock().unwrap()[at])
    }

    /// Prompts that a model saw, one a pass that began one.
    fn prompts(&self, at: usize) -> Vec<Vec<u32>> {
        let passes = self.watch(at).passes();
        let spans = passes.into_iter().flatten();
        let firsts = spans.filter(|s| s.pos == 0);
        firsts.map(|s| s.tokens).collect()
    }

    /// Waits for counters, far beyond the time it takes.
    fn until(&self, done: impl Fn(&Stats) -> bool) -> Stats {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let stats = self.scheduler.stats();
            if done(&stats) {
                return stats;
            }
            assert!(Instant::now() < end, "waited in vain: {stats:?}");
            std::thread::yield_now();
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the disk is gone")]
struct Gone;

fn gone() -> LoadFailure {
    LoadFailure::new(Gone)
}

#[test]
fn a_request_loads_the_model_again_and_is_answered_as_before() {
    let bench = Bench::new(|_| Ok(target()));
    let (before, usage) = run(&bench.scheduler, request(&[3], 4));
    assert_eq!(usage.usage.loading, Duration::ZERO);
    let parked = bench.scheduler.park(true).unwrap();
    assert!(!parked.already && parked.left.is_empty());
    let what: Vec<_> = parked.before.iter().map(|r| (r.what, r.bytes)).collect();
    assert_eq!(what, [("target caches", Some(FakeTarget::BYTES))]);
    // Nobody but the test knows the first model any more.
    assert_eq!(Arc::strong_count(&bench.watch(0)), 2);
    let stats = bench.scheduler.stats();
    assert_eq!(
        (stats.phase, stats.parks, stats.unparks),
        (Phase::Parked, 1, 0)
    );
    assert!(stats.residents.is_empty());
    let (after, finish) = run(&bench.scheduler, request(&[3], 4));
    assert_eq!(after, before);
    let usage = finish.usage;
    assert!(usage.loading > Duration::ZERO && usage.loading <= usage.queued);
    // It was loaded for the first one alone.
    let (_, finish) = run(&bench.scheduler, request(&[3], 4));
    assert_eq!(finish.usage.loading, Duration::ZERO);
    let stats = bench.scheduler.stats();
    assert_eq!(
        (stats.phase, stats.unparks, stats.waited_for_load),
        (Phase::Loaded, 1, 1)
    );
    assert_eq!(stats.residents.len(), 1);
}

#[test]
fn counts_go_on_over_a_park() {
    let bench = Bench::new(|_| Ok(target()));
    run(&bench.scheduler, request(&[3], 4));
    let before = bench.scheduler.stats();
    bench.scheduler.park(true).unwrap();
    let parked = bench.scheduler.stats();
    assert_eq!(parked.speculation.passes, before.speculation.passes);
    assert_eq!(parked.target, before.target);
    run(&bench.scheduler, request(&[3], 4));
    let after = bench.scheduler.stats();
    assert_eq!(after.passes, 2 * before.passes);
    assert_eq!(after.speculation.passes, 2 * before.speculation.passes);
    let launches = |s: &Stats| s.target.unwrap().launches;
    assert_eq!(launches(&after), 2 * launches(&before));
    assert!(launches(&before) > 0);
}

#[test]
fn earlier_requests_are_answered_first_and_later_ones_load_it_again() {
    let bench = Bench::new(|_| Ok(target().gated()));
    let first = submit(&bench.scheduler, request(&[1], 2));
    let second = submit(&bench.scheduler, request(&[2], 2));
    bench.watch(0).await_passes(1);
    match bench.scheduler.park(false) {
        Err(ParkError::Busy { in_progress: 2 }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(
        bench.scheduler.stats().phase,
        Phase::Loaded,
        "nothing was ordered"
    );
    std::thread::scope(|scope| {
        let park = scope.spawn(|| bench.scheduler.park(true).unwrap());
        bench.until(|s| s.phase == Phase::Parking);
        let third = submit(&bench.scheduler, request(&[3], 2));
        bench.watch(0).release();
        assert_eq!(first.finish().0, [2, 3]);
        assert_eq!(second.finish().0, [3, 4]);
        assert!(!park.join().unwrap().already);
        bench.until(|s| s.unparks == 1);
        bench.watch(1).release();
        assert_eq!(third.finish().0, [4, 5]);
    });
    assert_eq!(bench.prompts(0), [[1], [2]]);
    assert_eq!(bench.prompts(1), [[3]]);
}

#[test]
fn two_orders_to_park_are_both_answered() {
    let bench = Bench::new(|_| Ok(target().gated()));
    let running = submit(&bench.scheduler, request(&[1], 2));
    bench.watch(0).await_passes(1);
    std::thread::scope(|scope| {
        let parks = [(); 2].map(|()| scope.spawn(|| bench.scheduler.park(true).unwrap()));
        bench.until(|s| s.phase == Phase::Parking);
        bench.watch(0).release();
        assert_eq!(running.finish().0, [2, 3]);
        let parked = parks.map(|p| p.join().unwrap());
        assert!(parked.iter().any(|p| !p.already));
    });
    assert_eq!(bench.scheduler.stats().parks, 1);
}

#[test]
fn a_model_is_given_up_and_loaded_once() {
    let bench = Bench::new(|_| Ok(target()));
    assert!(bench.scheduler.unpark().unwrap().already);
    assert!(!bench.scheduler.park(false).unwrap().already);
    let again = bench.scheduler.park(true).unwrap();
    assert!(again.already && again.before.is_empty() && again.left.is_empty());
    assert!(bench.scheduler.park(false).unwrap().already);
    let unparked = bench.scheduler.unpark().unwrap();
    assert!(!unparked.already && unparked.now.len() == 1);
    assert!(bench.scheduler.unpark().unwrap().already);
    let stats = bench.scheduler.stats();
    assert_eq!(
        (stats.parks, stats.unparks, stats.waited_for_load),
        (1, 1, 0)
    );
}

#[test]
fn a_load_that_fails_is_told_and_tried_again() {
    let bench = Bench::new(|call| match call {
        2 | 3 => Err(gone()),
        _ => Ok(target()),
    });
    bench.scheduler.park(true).unwrap();
    match bench.scheduler.unpark() {
        Err(UnparkError::Load(why)) => {
            assert!(why.reason().downcast_ref::<Gone>().is_some());
        }
        other => panic!("{other:?}"),
    }
    let stats = bench.scheduler.stats();
    assert_eq!(stats.phase, Phase::Parked);
    assert_eq!(stats.load_error.as_deref(), Some("the disk is gone"));
    match run(&bench.scheduler, request(&[3], 4)).1.reason {
        FinishReason::Failed(failure @ Failure::Load(_)) => {
            let said = failure.to_string();
            assert_eq!(said, "the model could not be loaded: the disk is gone");
        }
        other => panic!("{other:?}"),
    }
    assert!(bench.scheduler.park(true).unwrap().already);
    assert_eq!(run(&bench.scheduler, request(&[3], 2)).0, [4, 5]);
    let stats = bench.scheduler.stats();
    assert_eq!((stats.failed_loads, stats.unparks, stats.failed), (2, 1, 1));
    assert_eq!(stats.load_error, None);
}

#[test]
fn another_model_is_refused() {
    let bench = Bench::new(|call| Ok(FakeTarget::new(10, 63 + call as u64, 1)));
    bench.scheduler.park(true).unwrap();
    let why = bench.scheduler.unpark().unwrap_err().to_string();
    assert!(why.ends_with("context: expected 64, got 65"), "{why}");
    assert_eq!(Arc::strong_count(&bench.watch(1)), 2, "it is not kept");
}

/// An engine whose second load waits until it is told to go on.
fn slow() -> (Bench, Receiver<()>, Sender<()>) {
    let (began, begun) = channel();
    let (go, gate) = channel::<()>();
    let bench = Bench::new(move |call| {
        if call == 2 {
            began.send(()).unwrap();
            // A test that failed has gone: the load must end.
            let _ = gate.recv();
        }
        Ok(target())
    });
    bench.scheduler.park(true).unwrap();
    (bench, begun, go)
}

#[test]
fn a_park_during_a_load_follows_it() {
    let (bench, begun, go) = slow();
    let waiting = submit(&bench.scheduler, request(&[3], 2));
    begun.recv().unwrap();
    assert_eq!(bench.scheduler.stats().phase, Phase::Loading);
    assert!(matches!(
        bench.scheduler.park(false),
        Err(ParkError::Busy { in_progress: 1 })
    ));
    std::thread::scope(|scope| {
        let parked = scope.spawn(|| bench.scheduler.park(true).unwrap());
        go.send(()).unwrap();
        assert_eq!(waiting.finish().0, [4, 5]);
        assert!(!parked.join().unwrap().already);
    });
    let stats = bench.scheduler.stats();
    assert_eq!(
        (stats.phase, stats.parks, stats.unparks),
        (Phase::Parked, 2, 1)
    );
}

#[test]
fn whoever_leaves_during_a_load_is_not_answered() {
    let (bench, begun, go) = slow();
    let leaves = submit(&bench.scheduler, request(&[3], 2));
    let stays = submit(&bench.scheduler, request(&[5], 2));
    begun.recv().unwrap();
    leaves.handle.cancel();
    // At once, although the engine's thread is at work.
    assert!(matches!(leaves.end(), FinishReason::Cancelled));
    go.send(()).unwrap();
    assert_eq!(stays.finish().0, [6, 7]);
    assert_eq!(bench.prompts(1), [[5]]);
}

#[test]
fn an_end_during_a_load_leaves_nobody_waiting() {
    let (bench, begun, go) = slow();
    let waiting = submit(&bench.scheduler, request(&[3], 2));
    begun.recv().unwrap();
    std::thread::scope(|scope| {
        let unpark = scope.spawn(|| bench.scheduler.unpark());
        let park = scope.spawn(|| bench.scheduler.park(true));
        bench.scheduler.stop();
        assert!(matches!(
            bench.scheduler.park(true),
            Err(ParkError::Stopped)
        ));
        go.send(()).unwrap();
        assert!(matches!(waiting.end(), FinishReason::Cancelled));
        // Those that came before the end of the load may have been told of it.
        assert!(!matches!(unpark.join().unwrap(), Err(UnparkError::Load(_))));
        assert!(matches!(park.join().unwrap(), Err(ParkError::Stopped)));
    });
}

#[test]
fn an_engine_ends_while_parked() {
    let bench = Bench::new(|_| Ok(target()));
    bench.scheduler.park(true).unwrap();
    bench.scheduler.stop();
    bench.until(|s| s.dead);
    assert!(matches!(
        bench.scheduler.unpark(),
        Err(UnparkError::Stopped)
    ));
    let watches = Arc::clone(&bench.watches);
    drop(bench);
    assert_eq!(
        watches.lock().unwrap().len(),
        1,
        "nothing was loaded for it"
    );
}

#[test]
fn a_load_that_panics_ends_the_engine_and_is_told() {
    let bench = Bench::new(|call| {
        assert!(call < 2, "planned");
        Ok(target())
    });
    bench.scheduler.park(true).unwrap();
    assert!(matches!(
        bench.scheduler.unpark(),
        Err(UnparkError::Stopped)
    ));
    assert!(bench.scheduler.stats().dead);
}

#[test]
fn an_engine_that_nobody_asks_parks_by_itself() {
    let loads = Arc::new(AtomicUsize::new(0));
    let theirs = Arc::clone(&loads);
    let bench = Bench::with(Some(Duration::from_millis(1)), move |_| {
        theirs.fetch_add(1, Ordering::SeqCst);
        Ok(target())
    });
    bench.until(|s| s.phase == Phase::Parked);
    // However often it parks in between.
    for prompt in [1, 5] {
        let (tokens, _) = run(&bench.scheduler, request(&[prompt], 2));
        assert_eq!(tokens, [prompt + 1, prompt + 2]);
    }
    let stats = bench.until(|s| s.phase == Phase::Parked);
    assert_eq!(stats.parks, stats.idle_parks);
    assert_eq!(stats.unparks + 1, loads.load(Ordering::SeqCst) as u64);
}

#[test]
fn an_answer_in_progress_is_not_idleness() {
    let bench = Bench::with(Some(Duration::from_millis(1)), |call| match call {
        1 => Ok(target()),
        _ => Ok(target().gated()),
    });
    bench.until(|s| s.phase == Phase::Parked);
    let waiting = submit(&bench.scheduler, request(&[1], 2));
    bench.until(|s| s.unparks == 1);
    bench.watch(1).await_passes(1);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(bench.scheduler.stats().phase, Phase::Loaded);
    bench.watch(1).release();
    assert_eq!(waiting.finish().0, [2, 3]);
}

#[test]
fn an_engine_of_parts_is_never_given_up() {
    let scheduler = common::start(target());
    assert!(matches!(scheduler.park(true), Err(ParkError::Unable)));
    assert!(scheduler.unpark().unwrap().already);
    assert_eq!(run(&scheduler, request(&[3], 2)).0, [4, 5]);
}
