//! Starts that fail: each is named by its step, and a worker that is not what was asked for is refused by
//! the field that differs.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_core::seams::{Ask, Backbone};
use engine_core::{Epoch, SeqId};
use ipc_transport::error::{LinkError, StartError, Step};
use ipc_transport::frame::{Header, Op, Status};
use ipc_transport::handshake::{Configure, Dims, Hello, Place, Ready, Transport, refusal};
use ipc_transport::launch::{Process, Threads};
use ipc_transport::link::{Link, Side};
use ipc_transport::probe::Probe;
use ipc_transport::remote::{Choice, Plan, RemoteBackbone};
use ipc_transport::worker::{self, Layers, Loaded};
use proptest::prelude::*;

use crate::common::{threads, toy_plan, toys};
use crate::toy::{self, Toy};

/// A worker that says what it is told to.
#[derive(Clone, Default)]
struct Script {
    hello: Option<fn(&mut Hello)>,
    ready: Option<fn(&mut Ready)>,
    /// Another operation in place of the last message.
    op: Option<Op>,
    refuse: Option<(Status, &'static str)>,
    /// Ends after so many messages were sent.
    silent_after: Option<usize>,
    /// Keeps the channel open when it is silent.
    holds: bool,
}

fn play(script: &Script, control: OwnedFd) -> Result<(), LinkError> {
    let until = Some(Instant::now() + Duration::from_secs(20));
    let mut link = Link::new(control, Side::Worker, Probe::default());
    let pause = |link: &mut Link| {
        if script.holds {
            // Until the parent lets go.
            let _ = link.receive_frame(until, None);
        }
        Ok(())
    };
    if script.silent_after == Some(0) {
        return pause(&mut link);
    }
    let mut hello = Hello::here();
    script.hello.inspect(|change| change(&mut hello));
    link.send_frame(
        &Header::request(Op::Hello, 1, 0),
        &hello.encode(),
        &[],
        until,
    )?;
    let (asked, _) = link.receive_frame(until, None)?;
    let asked = Configure::decode(&asked.body)?;
    if script.silent_after == Some(1) {
        return pause(&mut link);
    }
    if let Some((status, why)) = script.refuse {
        let header = Header {
            status,
            ..Header::request(Op::Failed, 2, 0)
        };
        return link.send_frame(&header, &refusal(why), &[], until);
    }
    let mut ready = Ready {
        nonce: asked.nonce,
        transport: asked.transport,
        dims: asked.dims,
        device: "script".to_owned(),
    };
    script.ready.inspect(|change| change(&mut ready));
    let op = script.op.unwrap_or(Op::Ready);
    link.send_frame(&Header::request(op, 2, 0), &ready.encode(), &[], until)?;
    let _ = link.receive_frame(until, None);
    Ok(())
}

fn start(script: Script, plan: Plan) -> Result<RemoteBackbone, StartError> {
    let threads = Threads::new(move |control, _| {
        // The parent may be gone at any point of a start that failed.
        let _ = play(&script, control);
    });
    RemoteBackbone::start(plan, Box::new(threads))
}

fn refused(script: Script) -> (Step, String) {
    let error = start(script, toy_plan(Choice::Shared)).unwrap_err();
    (error.step, error.why)
}

fn becoming(ready: fn(&mut Ready)) -> (Step, String) {
    refused(Script {
        ready: Some(ready),
        ..Script::default()
    })
}

fn saying(hello: fn(&mut Hello)) -> (Step, String) {
    refused(Script {
        hello: Some(hello),
        ..Script::default()
    })
}

/// every field that differs is a refusal of its own, with both values.
#[test]
fn a_21_every_field_of_the_handshake_is_compared() {
    start(Script::default(), toy_plan(Choice::Shared)).unwrap();
    type Change = fn(&mut Ready);
    let cases: [(Change, &str); 8] = [
        (|r| r.dims.n_embd = 8, "embedding_length: expected 6, got 8"),
        (
            |r| r.dims.captures = 2,
            "captured layers: expected 3, got 2",
        ),
        (|r| r.dims.block = 5, "block_size: expected 3, got 5"),
        (|r| r.dims.ring = 32, "ring rows: expected 16, got 32"),
        (|r| r.dims.n_seq_max = 7, "sequences: expected 8, got 7"),
        (
            |r| r.dims.fingerprint[31] = 9,
            "draft fingerprint: expected 0707",
        ),
        (|r| r.nonce[0] ^= 1, "nonce: expected "),
        (
            |r| r.transport = Transport::Stream,
            "transport: expected shared, got stream",
        ),
    ];
    for (change, want) in cases {
        let (step, why) = becoming(change);
        assert_eq!(step, Step::Ready);
        assert!(why.starts_with(want), "{why}");
    }
    let (step, why) = saying(|h| h.major = 2);
    assert_eq!(
        (step, why.as_str()),
        (Step::Hello, "protocol: expected 3, got 2")
    );
    let (step, why) = saying(|h| h.order = h.order.swap_bytes());
    assert_eq!(
        (step, why.as_str()),
        (Step::Hello, "byte order: expected 04030201, got 01020304")
    );
    let minor = Script {
        hello: Some(|h| h.minor = 9),
        ..Script::default()
    };
    start(minor, toy_plan(Choice::Shared)).unwrap();
}

/// a start that cannot be says which step failed.
#[test]
fn a_12_a_start_that_fails_names_its_step() {
    let quiet = |after, holds| {
        let mut plan = toy_plan(Choice::Shared);
        plan.timeouts.load = Duration::from_millis(100);
        let script = Script {
            silent_after: Some(after),
            holds,
            ..Script::default()
        };
        let error = start(script, plan).unwrap_err();
        (error.step, error.why)
    };
    let closed = "the other side closed the channel".to_owned();
    let late = "a message: nothing within the deadline".to_owned();
    assert_eq!(quiet(0, false), (Step::Hello, closed.clone()));
    assert_eq!(quiet(0, true), (Step::Hello, late.clone()));
    assert_eq!(quiet(1, false), (Step::Load, closed));
    assert_eq!(quiet(1, true), (Step::Load, late));
    let refusing = |status, why| {
        refused(Script {
            refuse: Some((status, why)),
            ..Script::default()
        })
    };
    assert_eq!(
        refusing(Status::Failed, "no file"),
        (Step::Load, "no file".to_owned())
    );
    assert_eq!(
        refusing(Status::BadRequest, "what?"),
        (Step::Configure, "what?".to_owned())
    );
    assert_eq!(
        refusing(Status::BadState, "no memory"),
        (Step::Region, "no memory".to_owned())
    );
    let other = refused(Script {
        op: Some(Op::Ping),
        ..Script::default()
    });
    assert_eq!(
        other,
        (
            Step::Ready,
            "operation: expected Ready, got Ping".to_owned()
        )
    );
    let mut plan = toy_plan(Choice::Shared);
    plan.shape.dims.n_embd = u32::MAX;
    plan.shape.dims.ring = u32::MAX;
    assert_eq!(
        start(Script::default(), plan).unwrap_err().step,
        Step::Sizes
    );
}

/// programs that are not there, or are no worker.
#[test]
fn a_12_a_program_that_is_no_worker_is_named() {
    let nowhere = Process {
        program: "/nowhere/fourspark".into(),
        args: Vec::new(),
        env: Vec::new(),
    };
    let error = RemoteBackbone::start(toy_plan(Choice::Auto), Box::new(nowhere)).unwrap_err();
    assert_eq!(error.step, Step::Spawn);
    assert!(
        error
            .to_string()
            .starts_with("the draft worker did not start: step spawn: "),
        "{error}"
    );
    // A program that speaks no protocol.
    let dumb = Process {
        program: "/bin/true".into(),
        args: Vec::new(),
        env: Vec::new(),
    };
    let error = RemoteBackbone::start(toy_plan(Choice::Auto), Box::new(dumb)).unwrap_err();
    assert_eq!(error.step, Step::Hello, "{error}");
}

/// A worker that cannot use shared memory gets a stream where that was left open, which is said.
#[test]
fn a_09_where_shared_memory_is_refused_a_stream_is_used_and_said() {
    let launch = || {
        Threads::new(move |control, local| {
            let mut probe_region = true;
            let load = |c: &Configure| {
                probe_region = c.transport == Transport::Shared;
                toys(c)
            };
            // Like a worker in a place where the region cannot be mapped.
            let _ = refusing_shared(control, local, load);
        })
    };
    let remote = RemoteBackbone::start(toy_plan(Choice::Auto), Box::new(launch())).unwrap();
    let shown = remote.watch().to_string();
    let want =
        "draft worker up, transport=stream (shared not possible: no mapping here), toy; pinned ";
    assert!(shown.starts_with(want), "{shown}");
    let error = RemoteBackbone::start(toy_plan(Choice::Shared), Box::new(launch())).unwrap_err();
    assert_eq!(
        (error.step, error.why.as_str()),
        (Step::Region, "no mapping here")
    );
}

fn refusing_shared(
    control: OwnedFd,
    local: Option<Arc<ipc_transport::region::Region>>,
    load: impl FnOnce(&Configure) -> Result<Loaded, String>,
) -> Result<(), LinkError> {
    let until = Some(Instant::now() + Duration::from_secs(20));
    // The first start of a pair is the one with shared memory: look without taking the message.
    use std::sync::atomic::{AtomicUsize, Ordering};
    static STARTS: AtomicUsize = AtomicUsize::new(0);
    if STARTS.fetch_add(1, Ordering::SeqCst) == 1 {
        return worker::run(control, local, Probe::default(), load).map(|_| ());
    }
    let mut link = Link::new(control, Side::Worker, Probe::default());
    let hello = Header::request(Op::Hello, 1, 0);
    link.send_frame(&hello, &Hello::here().encode(), &[], until)?;
    link.receive_frame(until, None)?;
    let header = Header {
        status: Status::BadState,
        ..Header::request(Op::Failed, 2, 0)
    };
    link.send_frame(&header, &refusal("no mapping here"), &[], until)
}

/// what the worker says of a file it cannot load reaches the one who asked.
#[test]
fn a_04_a_file_that_is_no_drafter_is_refused_by_the_worker() {
    let models = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let mut plan = toy_plan(Choice::Shared);
    for (file, want) in [("tiny.gguf", "deepseek4"), ("none.gguf", "none.gguf")] {
        plan.shape.file = models.join(file);
        let (threads, _) = threads(worker::load, Probe::default());
        let error = RemoteBackbone::start(plan.clone(), Box::new(threads)).unwrap_err();
        assert_eq!(error.step, Step::Load);
        assert!(error.why.contains(want), "{error}");
    }
    // A drafter, but another one.
    plan.shape.file = models.join("tiny-draft.gguf");
    let (threads, _) = threads(worker::load, Probe::default());
    let error = RemoteBackbone::start(plan, Box::new(threads)).unwrap_err();
    assert_eq!(error.step, Step::Ready, "{error}");
}

/// A worker without a region of this process cannot be given one.
#[test]
fn descriptors_that_are_missing_are_refused() {
    let launch = Threads::new(|control, _| {
        let _ = worker::run(control, None, Probe::default(), |_| {
            Ok(Loaded {
                backbone: Layers::Here(Box::new(Toy::new(toy::dims()))),
                dims: toy::dims(),
                device: String::new(),
            })
        });
    });
    let error = RemoteBackbone::start(toy_plan(Choice::Local), Box::new(launch)).unwrap_err();
    assert_eq!(error.step, Step::Region);
    assert!(
        error.why.contains("given the means for, got local"),
        "{error}"
    );
}

fn any_dims() -> impl Strategy<Value = Dims> {
    let word = || prop_oneof![0u32..5, any::<u32>(), Just(u32::MAX)];
    (word(), word(), word(), word(), word()).prop_map(
        |(n_embd, captures, block, ring, n_seq_max)| Dims {
            n_embd,
            captures,
            block,
            ring,
            n_seq_max,
            fingerprint: [0; 32],
        },
    )
}

proptest! {
    /// no sizes wrap: they fit, exactly, or are refused.
    #[test]
    fn a_29_extreme_shapes_are_computed_or_refused(dims in any_dims()) {
        let wide = |parts: &[u32]| parts.iter().map(|p| u128::from(*p)).product::<u128>() * 4;
        let rows = wide(&[dims.n_seq_max, dims.block, dims.n_embd]);
        let want = (wide(&[dims.ring, dims.captures, dims.n_embd]) + rows).max(2 * rows);
        match dims.payload_bytes() {
            Ok(bytes) => prop_assert_eq!(bytes as u128, want),
            Err(error) => {
                let zero = [dims.n_embd, dims.captures, dims.block, dims.ring, dims.n_seq_max].contains(&0);
                let many = dims.n_seq_max > 256 || want > 1 << 62;
                prop_assert!(zero || many, "{error}: {dims:?}");
            }
        }
    }

    /// What is no handshake is refused and never panics; what is survives the way.
    #[test]
    fn bodies_of_the_handshake_are_read_back_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Hello::decode(&bytes);
        let _ = Configure::decode(&bytes);
        let configure = Configure {
            nonce: [bytes.first().copied().unwrap_or(3); 16],
            transport: Transport::Stream,
            capacity: 1 << 20,
            dims: toy::dims(),
            verify_max: 8,
            kv_round: bytes.len().is_multiple_of(2),
            threads: bytes.len() as u32,
            file: String::from_utf8_lossy(&bytes).into_owned().into(),
            place: Place {
                device: format!("cuda:{}", bytes.len()),
                images: String::from_utf8_lossy(&bytes).into_owned().into(),
                graphs: bytes.len().is_multiple_of(3),
                early_launch: bytes.len().is_multiple_of(5),
            },
        };
        let body = configure.encode().unwrap();
        prop_assert_eq!(&Configure::decode(&body).unwrap(), &configure);
        for cut in 0..body.len() {
            prop_assert!(Configure::decode(&body[..cut]).is_err());
        }
        let _ = Ready::decode(&bytes, &configure);
    }
}

/// A start that nobody waits for any more is given up at once, not when the model would have to be loaded.
#[test]
fn a_start_that_is_not_wanted_any_more_is_given_up() {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    let (armed, starts) = (Arc::new(AtomicBool::new(false)), AtomicUsize::new(0));
    let ends = Arc::new(Mutex::new(Vec::new()));
    let (trip, seen) = (Arc::clone(&armed), Arc::clone(&ends));
    let launch = Threads::new(move |control, local| {
        if starts.fetch_add(1, Ordering::SeqCst) == 0 {
            let trip = Arc::clone(&trip);
            let probe = Probe::new(move |_| match trip.swap(false, Ordering::SeqCst) {
                true => Err(std::io::Error::other("made to fail")),
                false => Ok(()),
            });
            let _ = worker::run(control, local, probe, toys);
            return;
        }
        // The second one never says a word.
        let mut link = Link::new(control, Side::Worker, Probe::default());
        let until = Some(Instant::now() + Duration::from_secs(30));
        let end = link.receive_frame(until, None).unwrap_err();
        seen.lock().unwrap().push(end.to_string());
    });
    let mut plan = toy_plan(Choice::Shared);
    plan.timeouts.load = Duration::from_hours(1);
    let mut remote = RemoteBackbone::start(plan, Box::new(launch)).unwrap();
    let dims = toy::dims();
    remote
        .observe(SeqId(0), 0, &vec![1.0; dims.feature_width()])
        .unwrap();
    armed.store(true, Ordering::SeqCst);
    let ask = Ask {
        seq: SeqId(0),
        epoch: Epoch(0),
        pos: 1,
        ahead: 0,
        seed: 0,
        depth: 1,
    };
    let ticket = remote
        .submit(&[ask], &vec![0.0; dims.block_width()])
        .unwrap();
    assert_eq!(remote.poll(ticket, None).unwrap().rows, [0]);
    drop(remote);
    // The channel may be closed before the second worker was even started.
    let ends = ends.lock().unwrap();
    assert!(
        ends.iter()
            .all(|e| e == "the other side closed the channel"),
        "{ends:?}"
    );
}
