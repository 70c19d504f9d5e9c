//! One suite over every transport: what a worker answers is what the same backbone answers here.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use ds4_target::GgufSource;
use ds4_target::pool::Pool;
use dspark_draft::backbone::{LocalBackbone, Options};
use dspark_draft::weights::DraftModel;
use engine_core::SeqId;
use engine_core::seams::{Ask, Backbone};
use gguf::{Gguf, OpenOptions};
use ipc_transport::handshake::{Dims, Transport};
use ipc_transport::probe::Probe;
use ipc_transport::remote::{Choice, RemoteBackbone};
use ipc_transport::worker::{self, End, Layers, Loaded};

use crate::common::{CHOICES, Call, Caller, Out, perform, plan, threads, toy_plan, toy_remote};
use crate::toy::{self, Toy};

/// The first difference, in a line.
fn differ(call: &Call, got: &Out, want: &Out) -> String {
    let short = |out: &Out| match out {
        Ok(parts) => format!("{:?}", parts.first()),
        Err(why) => why.clone(),
    };
    let call = format!("{call:?}");
    let call = &call[..call.len().min(300)];
    format!("{call}: got {}, expected {}", short(got), short(want))
}

/// Calls until an ask was answered with rows, and how many were.
fn agree(
    remote: &mut dyn Backbone,
    local: &mut dyn Backbone,
    caller: &mut Caller,
    calls: usize,
) -> usize {
    let mut answered = 0;
    for n in 0..calls {
        let call = caller.next();
        let (want, got) = (perform(local, &call), perform(remote, &call));
        assert!(
            got == want,
            "call {n}: {}; {:?}",
            differ(&call, &got, &want),
            remote.health()
        );
        let rows =
            |out: &[Vec<u32>]| matches!(call, Call::Ask(..)) && out[0].iter().any(|n| *n > 0);
        answered += usize::from(want.is_ok_and(|out| rows(&out)));
    }
    answered
}

/// over shared memory, a stream and the memory of this process, with rows sent at once
/// or with the ask, eight interleaved sequences get the bytes of both blocks that they get in process.
#[test]
fn a_11_every_transport_gives_the_answers_of_a_backbone_here() {
    for choice in CHOICES {
        for eager in [false, true] {
            let mut remote_plan = toy_plan(choice);
            remote_plan.eager = eager;
            let (mut remote, ends) = toy_remote(remote_plan);
            let mut local = Toy::new(toy::dims());
            let mut caller = Caller::new(11, toy::dims(), toy::saved_range);
            let answered = agree(&mut remote, &mut local, &mut caller, 1500);
            assert!(answered > 100, "{answered}");
            let report = remote.watch().report();
            assert_eq!((report.lost, report.refused, report.unanswered), (0, 0, 0));
            drop(remote);
            let ends = ends.lock().unwrap();
            assert!(matches!(ends.as_slice(), [Ok(End::Quit)]), "{ends:?}");
        }
    }
}

/// what is chosen by itself is shared memory, and it is said.
#[test]
fn a_09_shared_memory_is_the_first_choice_and_shown() {
    let (remote, _) = toy_remote(toy_plan(Choice::Auto));
    let watch = remote.watch();
    assert_eq!(watch.report().transport, Some(Transport::Shared));
    let pinned = "pinned here: no, the model runs on the processor; pinned in the worker: no, the drafter's layers run on \
                  the processor";
    let want = format!("draft worker up, transport=shared, toy; {pinned}");
    assert_eq!(watch.to_string(), want);
}

/// whatever the number of sequences and captured layers, a commit is one frame and one reply.
#[test]
fn a_06_one_frame_a_step_for_all_layers_and_sequences() {
    for captures in [1, 3, 7] {
        let dims = Dims {
            captures,
            ..toy::dims()
        };
        let make = move |_: &_| {
            Ok(Loaded {
                backbone: Layers::Here(Box::new(Toy::new(dims))),
                dims,
                device: "toy".to_owned(),
            })
        };
        let (threads, _) = threads(make, Probe::default());
        let plan = plan(dims, Choice::Shared, toy::saved_range);
        let mut remote = RemoteBackbone::start(plan, Box::new(threads)).unwrap();
        for step in 0..10u32 {
            let rows = vec![1.0; dims.feature_width()];
            (0..8).for_each(|seq| remote.observe(SeqId(seq), step, &rows).unwrap());
            let ask = |seq| Ask {
                seq: SeqId(seq),
                epoch: engine_core::Epoch(step),
                pos: step + 1,
                ahead: 0,
                seed: 0,
                depth: 3,
            };
            let asks: Vec<Ask> = (0..8).map(ask).collect();
            let block = vec![0.5; 8 * dims.block_width()];
            let ticket = remote.submit(&asks, &block).unwrap();
            assert_eq!(remote.poll(ticket, None).unwrap().rows, [3; 8]);
        }
        let report = remote.watch().report();
        assert_eq!((report.steps, report.rows), (10, 80), "{captures}");
        let out = 80 * (dims.feature_width() + dims.block_width());
        assert_eq!(report.bytes_out, 4 * out as u64);
        assert_eq!(report.bytes_in, 4 * 2 * 80 * dims.block_width() as u64);
    }
}

pub(crate) struct Shipped {
    pub(crate) model: Arc<DraftModel>,
    pub(crate) file: PathBuf,
}

pub(crate) fn shipped() -> &'static Shipped {
    static SHIPPED: OnceLock<Shipped> = OnceLock::new();
    SHIPPED.get_or_init(|| {
        let models = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models");
        let file = models.join("tiny-draft.gguf");
        let gguf = Gguf::open(&file, &OpenOptions::default()).unwrap();
        let model = Arc::new(DraftModel::load(&GgufSource::new(gguf)).unwrap());
        Shipped { model, file }
    })
}

pub(crate) fn options() -> Options {
    Options {
        n_seq_max: 8,
        ..Options::default()
    }
}

pub(crate) fn local() -> LocalBackbone {
    let model = Arc::clone(&shipped().model);
    LocalBackbone::new(model, Arc::new(Pool::new(1)), options()).unwrap()
}

fn remote(choice: Choice) -> RemoteBackbone {
    let dims = worker::dims(&shipped().model, &options());
    let mut plan = plan(dims, choice, worker::saved_range);
    plan.shape.file.clone_from(&shipped().file);
    let (threads, _) = threads(worker::load, Probe::default());
    RemoteBackbone::start(plan, Box::new(threads)).unwrap()
}

/// the shipped drafter over random rings; saved contexts are equal too, so the worker's
/// rows are those of a backbone here.
#[test]
fn a_14_the_shipped_drafter_gives_the_same_bits() {
    for choice in CHOICES {
        let (mut remote, mut local) = (remote(choice), local());
        let dims = worker::dims(&shipped().model, &options());
        let mut caller = Caller::new(14, dims, worker::saved_range);
        assert!(agree(&mut remote, &mut local, &mut caller, 60) > 3);
        let mut contexts = 0;
        for seq in (0..8).map(SeqId) {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            if remote.save(seq, &mut theirs).is_ok() {
                local.save(seq, &mut ours).unwrap();
                assert_eq!(ours, theirs, "{seq}");
                contexts += 1;
            }
        }
        assert!(contexts > 3, "{contexts}");
    }
}

#[test]
#[ignore = "soak: ten thousand drafts over random rings on every transport"]
fn soak_random_rings_are_bit_equal() {
    for (choice, seed) in CHOICES.into_iter().zip(1..) {
        let (mut remote, mut local) = (remote(choice), local());
        let dims = worker::dims(&shipped().model, &options());
        let mut caller = Caller::new(seed, dims, worker::saved_range);
        let mut answered = 0;
        while answered < 10_000 {
            answered += agree(&mut remote, &mut local, &mut caller, 100);
        }
        println!("soak: {choice:?}: {answered} drafts of up to 8 sequences, equal");
    }
}

/// Answers that come late are not lost, and not taken for others.
#[test]
fn tickets_are_answered_in_any_order() {
    let (mut remote, _) = toy_remote(toy_plan(Choice::Shared));
    let dims = toy::dims();
    let mut local = Toy::new(dims);
    let rows: Vec<f32> = (0..4 * dims.feature_width()).map(|v| v as f32).collect();
    let asks = |seq| {
        [Ask {
            seq: SeqId(seq),
            epoch: engine_core::Epoch(seq),
            pos: 4,
            ahead: 0,
            seed: 0,
            depth: 2,
        }]
    };
    let block = vec![2.0; dims.block_width()];
    let mut tickets = Vec::new();
    for seq in 0..3 {
        remote.observe(SeqId(seq), 0, &rows).unwrap();
        local.observe(SeqId(seq), 0, &rows).unwrap();
    }
    for seq in 0..3 {
        tickets.push((seq, remote.submit(&asks(seq), &block).unwrap()));
    }
    for (seq, ticket) in tickets.into_iter().rev() {
        let got = remote.poll(ticket, None).unwrap();
        let mine = local.submit(&asks(seq), &block).unwrap();
        let want = local.poll(mine, None).unwrap();
        assert_eq!((got.rows, got.normed), (want.rows, want.normed), "{seq}");
        let again = remote.poll(ticket, None).unwrap_err();
        assert!(
            matches!(again, engine_core::Fault::NoSuchTicket(_)),
            "{again}"
        );
    }
}

/// More sequences and longer rings than one payload holds are sent in several.
#[test]
fn what_does_not_fit_one_payload_is_sent_before() {
    let (mut remote, _) = toy_remote(toy_plan(Choice::Shared));
    let dims = toy::dims();
    let mut local = Toy::new(dims);
    let rows: Vec<f32> = (0..40 * dims.feature_width())
        .map(|v| (v % 97) as f32)
        .collect();
    for seq in (0..8).map(SeqId) {
        remote.observe(seq, 5, &rows).unwrap();
        local.observe(seq, 5, &rows).unwrap();
    }
    let ask = |seq| Ask {
        seq: SeqId(seq),
        epoch: engine_core::Epoch(0),
        pos: 45,
        ahead: 0,
        seed: 0,
        depth: 3,
    };
    let call = Call::Ask((0..8).map(ask).collect(), vec![1.5; 8 * dims.block_width()]);
    assert_eq!(perform(&mut remote, &call), perform(&mut local, &call));
    assert!(remote.watch().report().steps > 1);
    assert_eq!(remote.watch().report().rows, 8 * 16);
}

/// A worker that serves one backbone of another shape than it says.
#[test]
fn rows_that_do_not_belong_to_the_ask_lose_the_worker() {
    let make = |_: &_| {
        let mut toy = Toy::new(toy::dims());
        toy.one_row_more = true;
        Ok(Loaded {
            backbone: Layers::Here(Box::new(toy)),
            dims: toy::dims(),
            device: "liar".to_owned(),
        })
    };
    let (threads, _) = threads(make, Probe::default());
    let mut remote = RemoteBackbone::start(toy_plan(Choice::Shared), Box::new(threads)).unwrap();
    remote
        .observe(SeqId(0), 0, &vec![1.0; toy::dims().feature_width()])
        .unwrap();
    let ask = Ask {
        seq: SeqId(0),
        epoch: engine_core::Epoch(0),
        pos: 1,
        ahead: 0,
        seed: 0,
        depth: 2,
    };
    let ticket = remote
        .submit(&[ask], &vec![0.0; toy::dims().block_width()])
        .unwrap();
    assert_eq!(remote.poll(ticket, None).unwrap().rows, [0]);
    let report = remote.watch().report();
    assert_eq!((report.lost, report.unanswered), (1, 1));
    assert!(
        report
            .reason
            .unwrap()
            .starts_with("answer: expected at most 2 rows")
    );
}
