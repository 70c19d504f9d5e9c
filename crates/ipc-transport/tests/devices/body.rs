//! A worker whose layers run on a device, held against the processor's layers: every bit of every answer, while what
//! both sides map is overwritten as soon as a reply has come. For any device; also the child of tests that start
//! processes.
#![allow(dead_code, reason = "each binary uses some")]

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use device::AnyDevice;
use ds4_target::GgufSource;
use ds4_target::pool::Pool;
use dspark_draft::backbone::{LocalBackbone, Options};
use dspark_draft::weights::DraftModel;
use engine_core::seams::{Ask, Backbone, DraftRows};
use engine_core::{Epoch, Pos, SeqId};
use gguf::{Gguf, OpenOptions};
use ipc_transport::handshake::Place;
use ipc_transport::launch::{Launch, Process, Threads};
use ipc_transport::probe::Probe;
use ipc_transport::region::Region;
use ipc_transport::remote::{Choice, Plan, RemoteBackbone, Restarts, Shape, Timeouts};
use ipc_transport::report::Report;
use ipc_transport::worker;
use testkit::rng::Rng;

fn file() -> PathBuf {
    const NAME: &str = "models/tiny-draft.gguf";
    let built = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    // A binary that was built elsewhere runs at the root of a checkout.
    match built.join(NAME) {
        there if there.is_file() => there,
        _ => std::path::absolute(NAME).unwrap(),
    }
}

/// The draft model, with room for so many sequences.
pub(crate) struct Draft {
    model: Arc<DraftModel>,
    options: Options,
}

impl Draft {
    pub(crate) fn new(sequences: usize) -> Self {
        let file = Gguf::open(file(), &OpenOptions::default()).unwrap();
        let model = Arc::new(DraftModel::load(&GgufSource::new(file)).unwrap());
        let options = Options {
            n_seq_max: sequences,
            ..Options::default()
        };
        Self { model, options }
    }

    /// Asks that a pass on a device takes.
    pub(crate) fn asks_of_a_pass(&self) -> usize {
        64 / self.model.meta.block
    }

    /// A worker on `device`.
    pub(crate) fn plan(&self, choice: Choice, device: &str) -> Plan {
        let shape = Shape {
            dims: worker::dims(&self.model, &self.options),
            verify_max: self.options.verify_max as u32,
            kv_round: false,
            threads: 1,
            file: file(),
            place: Place {
                device: device.to_owned(),
                graphs: true,
                early_launch: true,
                ..Place::default()
            },
        };
        Plan {
            transport: choice,
            restarts: Restarts {
                delays: Vec::new(),
                within: Duration::from_hours(1),
            },
            timeouts: Timeouts {
                first: Duration::from_mins(5),
                step: Duration::from_mins(2),
                ..Timeouts::default()
            },
            ..Plan::new(shape)
        }
    }
}

/// A worker on a thread, and the region it was given, if that is of this process.
pub(crate) type Given = Arc<Mutex<Option<Arc<Region>>>>;

pub(crate) fn thread(
    load: impl Fn(&ipc_transport::handshake::Configure) -> Result<worker::Loaded, String>
    + Send
    + Sync
    + 'static,
) -> (Box<dyn Launch>, Given) {
    let given = Given::default();
    let seen = Arc::clone(&given);
    let threads = Threads::new(move |control, local| {
        seen.lock().unwrap().clone_from(&local);
        let ended = worker::run(control, local, Probe::default(), &load);
        ended.unwrap();
    });
    (Box::new(threads), given)
}

/// The name of the test that is the child.
pub(crate) const CHILD: &str = "the_worker_of_these_tests";

/// A worker in a process: this binary, at its test of that name.
pub(crate) fn process(env: Vec<(OsString, OsString)>) -> Box<dyn Launch> {
    Box::new(Process {
        program: std::env::current_exe().unwrap(),
        args: [CHILD, "--exact", "--nocapture"]
            .map(OsString::from)
            .to_vec(),
        env,
    })
}

/// The child's part: nothing, unless a parent's number is the last argument.
pub(crate) fn child() {
    let parent = std::env::args().next_back().and_then(|a| a.parse().ok());
    if let Some(parent) = parent {
        worker::run_process(parent).unwrap();
    }
}

/// Random calls to the worker and to the processor's layers.
pub(crate) struct Pair {
    local: LocalBackbone,
    pub(crate) remote: RemoteBackbone,
    rng: Rng,
    /// Where each sequence stands.
    ends: Vec<Option<Pos>>,
    width: usize,
    block: usize,
    each: usize,
    ring: usize,
    /// Overwritten after every reply.
    region: Option<Arc<Region>>,
    poison: Vec<u8>,
    number: u32,
}

impl Pair {
    pub(crate) fn new(draft: &Draft, plan: Plan, launch: Box<dyn Launch>, given: &Given) -> Self {
        let (model, options) = (Arc::clone(&draft.model), draft.options.clone());
        let dims = plan.shape.dims;
        let local = LocalBackbone::new(model, Arc::new(Pool::new(1)), options).unwrap();
        let remote = RemoteBackbone::start(plan, launch).unwrap();
        let region = given.lock().unwrap().clone();
        let bytes = region.as_ref().map_or(0, |r| r.capacity());
        Self {
            local,
            remote,
            rng: Rng::new(5),
            ends: vec![None; dims.n_seq_max as usize],
            width: dims.feature_width(),
            block: dims.block as usize,
            each: dims.block_width(),
            ring: dims.ring as usize,
            region,
            poison: vec![0xff; bytes],
            number: 0,
        }
    }

    pub(crate) fn report(&self) -> Report {
        self.remote.watch().report()
    }

    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.rng.normal() as f32).collect()
    }

    /// What the other side was told is the parent's again: nothing may still read it.
    fn poison(&self) {
        if let Some(region) = &self.region {
            region.write(0, &self.poison).unwrap();
        }
    }

    /// Rows of one sequence, now and then after a few were taken back, or of more than a ring.
    fn observe(&mut self) {
        let at = self.rng.below(self.ends.len());
        let seq = SeqId(at as u32);
        let mut pos = self.ends[at].unwrap_or(40);
        if self.ends[at].is_some() && self.rng.below(4) == 0 {
            pos -= self.rng.below(4) as Pos;
            self.local.truncate(seq, pos);
            self.remote.truncate(seq, pos);
        }
        let n = match self.rng.below(60) {
            0 => self.ring + 3,
            _ => 1 + self.rng.below(4),
        };
        let rows = self.values(n * self.width);
        self.local.observe(seq, pos, &rows).unwrap();
        self.remote.observe(seq, pos, &rows).unwrap();
        self.ends[at] = Some(pos + n as Pos);
    }

    fn asks(&mut self, all: bool) -> Vec<Ask> {
        let mut asks = Vec::new();
        for at in 0..self.ends.len() {
            if let Some(pos) = self.ends[at].filter(|_| all || self.rng.below(3) == 0) {
                self.number += 1;
                asks.push(Ask {
                    seq: SeqId(at as u32),
                    epoch: Epoch(self.number),
                    pos,
                    ahead: 0,
                    seed: 0,
                    depth: 1 + self.rng.below(self.block) as u32,
                });
            }
        }
        asks
    }

    /// One step: rows, then drafts; both answers are the same.
    pub(crate) fn step(&mut self, number: usize, all: bool) {
        for _ in 0..=self.rng.below(3) {
            self.observe();
        }
        let asks = self.asks(all);
        let block = self.values(asks.len() * self.each);
        let mut answers = Vec::new();
        let both: [&mut dyn Backbone; 2] = [&mut self.local, &mut self.remote];
        for backbone in both {
            let ticket = backbone.submit(&asks, &block).unwrap();
            answers.push(bits(&backbone.poll(ticket, None).unwrap()));
        }
        self.poison();
        let [want, got] = [&answers[0], &answers[1]];
        assert!(got == want, "step {number}: {:?} of {:?}", got.0, want.0);
    }

    /// Many steps; nothing may have been refused or lost.
    pub(crate) fn run(&mut self, steps: usize) -> Report {
        for number in 0..steps {
            self.step(number, false);
        }
        let report = self.report();
        assert_eq!((report.lost, report.refused), (0, 0), "{report:?}");
        assert_eq!(report.unanswered, 0, "{report:?}");
        report
    }

    /// Every sequence has rows and asks at once: more than a pass takes.
    pub(crate) fn crowd(&mut self) {
        while self.ends.iter().any(Option::is_none) {
            self.observe();
        }
        for number in 0..3 {
            self.step(number, true);
        }
    }
}

fn bits(rows: &DraftRows) -> (Vec<usize>, Vec<u32>) {
    let both = rows.normed.iter().chain(&rows.pre_norm);
    (rows.rows.clone(), both.map(|v| v.to_bits()).collect())
}

/// Pinned on the worker's side, rows copied straight, every reply's memory overwritten at once.
pub(crate) fn reuse(device: &str, steps: usize, load: Load) {
    for eager in [false, true] {
        let draft = Draft::new(4);
        let (launch, given) = thread(load);
        let mut plan = draft.plan(Choice::Local, device);
        plan.eager = eager;
        let mut pair = Pair::new(&draft, plan, launch, &given);
        let report = pair.run(steps / 2);
        assert_eq!(report.reach.pinned_there.to_string(), "yes");
        let why = "no, the model runs on the processor";
        assert_eq!(report.reach.pinned_here.to_string(), why);
        assert!(
            report.direct > 0 && report.direct == report.steps,
            "{report:?}"
        );
        assert_eq!(report.unpinned, 0);
    }
}

/// How a worker loads the model.
pub(crate) type Load = fn(&ipc_transport::handshake::Configure) -> Result<worker::Loaded, String>;

/// More asks than a pass takes.
pub(crate) fn crowd(device: &str, load: Load) {
    let per_pass = Draft::new(1).asks_of_a_pass();
    let draft = Draft::new(per_pass + 3);
    let (launch, given) = thread(load);
    let plan = draft.plan(Choice::Local, device);
    let mut pair = Pair::new(&draft, plan, launch, &given);
    pair.crowd();
    assert_eq!(pair.report().lost, 0, "{:?}", pair.report());
}

/// Two processes, a device on each side: both pin the region, and the probe of memory is told.
pub(crate) fn processes(
    here: Arc<dyn AnyDevice>,
    there: &str,
    env: Vec<(OsString, OsString)>,
    steps: usize,
) -> Report {
    let draft = Draft::new(4);
    let mut plan = draft.plan(Choice::Shared, there);
    plan.device = Some(here);
    let mut pair = Pair::new(&draft, plan, process(env), &Given::default());
    let report = pair.run(steps);
    assert_eq!(report.reach.pinned_here.to_string(), "yes");
    assert_eq!(report.reach.pinned_there.to_string(), "yes");
    assert_eq!((report.unpinned, report.direct), (0, report.steps));
    let shown = pair.remote.watch().to_string();
    assert!(shown.ends_with("; pinned on both sides: yes"), "{shown}");
    report
}
