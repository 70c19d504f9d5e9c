//! The shipped pair with its drafter in a worker: the text is that of plain decoding, whatever fails.

use std::io;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ds4_target::{CpuTarget, GgufSource, Model, Options};
use dspark_draft::drafter::DsparkDrafter;
use dspark_draft::speculate::{Config, Emitted, Flow, Request, Sink, Speculator, generate};
use dspark_draft::width::Policy;
use engine_core::seams::{Ask, Backbone, DraftRows};
use engine_core::{Drafter, Fault, Pos, SamplePlan, SeqId, Target, Ticket, TokenId};
use gguf::{Gguf, OpenOptions};
use ipc_transport::probe::{Point, Probe};
use ipc_transport::remote::{Choice, Plan, RemoteBackbone};
use ipc_transport::report::{Report, State, Watch};
use ipc_transport::worker;
use testkit::rng::Rng;

use crate::common::{CHOICES, plan, soon, threads};
use crate::conformance::{self, shipped};

pub(crate) fn target() -> CpuTarget {
    static MODEL: OnceLock<Arc<Model>> = OnceLock::new();
    let model = MODEL.get_or_init(|| {
        let models = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models");
        let file = Gguf::open(models.join("tiny.gguf"), &OpenOptions::default()).unwrap();
        Arc::new(Model::load(&GgufSource::new(file)).unwrap())
    });
    let options = Options {
        n_ctx: 512,
        n_seq_max: 8,
        threads: 1,
        ..Options::default()
    };
    CpuTarget::new(Arc::clone(model), options).unwrap()
}

/// A worker's backbone that waits for a restart before it is asked, so that a short text sees one.
pub(crate) struct Patient(RemoteBackbone);

impl Backbone for Patient {
    fn observe(&mut self, seq: SeqId, pos: Pos, features: &[f32]) -> Result<(), Fault> {
        self.0.observe(seq, pos, features)
    }
    fn submit(&mut self, asks: &[Ask], block: &[f32]) -> Result<Ticket, Fault> {
        self.0.wait_until_settled(soon());
        self.0.submit(asks, block)
    }
    fn poll(
        &mut self,
        ticket: Ticket,
        deadline: Option<std::time::Instant>,
    ) -> Result<DraftRows, Fault> {
        self.0.poll(ticket, deadline)
    }
    fn truncate(&mut self, seq: SeqId, pos: Pos) {
        self.0.truncate(seq, pos);
    }
    fn close(&mut self, seq: SeqId) {
        self.0.close(seq);
    }
    fn save(&self, seq: SeqId, to: &mut dyn io::Write) -> Result<(), Fault> {
        self.0.save(seq, to)
    }
    fn load(&mut self, seq: SeqId, from: &mut dyn io::Read) -> Result<(), Fault> {
        self.0.load(seq, from)
    }
    fn health(&self) -> Result<(), Fault> {
        self.0.health()
    }
    fn is_apart(&self) -> bool {
        self.0.is_apart()
    }
}

#[derive(Default)]
struct Tokens(Vec<TokenId>);

impl Sink for Tokens {
    fn token(&mut self, emitted: Emitted) -> Flow {
        self.0.push(emitted.token);
        Flow::Go
    }
}

pub(crate) struct Case {
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) plan: Arc<SamplePlan>,
    pub(crate) budget: u32,
}

impl Case {
    pub(crate) fn new(prompt: usize, temperature: f32, budget: u32) -> Self {
        let prompts = testkit::prompts::prompts().unwrap();
        let plan = SamplePlan {
            temperature,
            seed: 31,
            ..SamplePlan::greedy()
        };
        Self {
            prompt: prompts[prompt % prompts.len()].ids.clone(),
            plan: Arc::new(plan),
            budget,
        }
    }

    fn run(
        &self,
        target: &mut CpuTarget,
        drafter: Option<&mut dyn Drafter>,
        width: usize,
    ) -> Vec<TokenId> {
        let config = Config {
            policy: Policy::Fixed(width),
            ..Config::default()
        };
        let mut speculator = Speculator::new(target.info(), config);
        let request = Request {
            plan: Arc::clone(&self.plan),
            ..Request::greedy(self.prompt.clone(), self.budget)
        };
        let mut tokens = Tokens::default();
        generate(&mut speculator, target, drafter, request, &mut tokens).unwrap();
        tokens.0
    }

    fn plain(&self) -> Vec<TokenId> {
        self.run(&mut target(), None, 1)
    }
}

pub(crate) fn shipped_plan(choice: Choice) -> Plan {
    let dims = worker::dims(&shipped().model, &conformance::options());
    let mut plan = plan(dims, choice, worker::saved_range);
    plan.shape.file.clone_from(&shipped().file);
    plan
}

/// A drafter over a worker on a thread, with a probe on either side.
pub(crate) fn drafter(
    plan: Plan,
    theirs: Probe,
    target: &CpuTarget,
) -> (DsparkDrafter<Patient>, Watch) {
    let (threads, _) = threads(worker::load, theirs);
    let remote = RemoteBackbone::start(plan, Box::new(threads)).unwrap();
    let watch = remote.watch();
    let model = Arc::clone(&shipped().model);
    let pool = Arc::clone(target.pool());
    let drafter = DsparkDrafter::new(model, Patient(remote), target.info(), pool).unwrap();
    (drafter, watch)
}

/// A probe that fails at point `at` after the handshake, if it comes there, and whether it did.
pub(crate) fn trip(at: usize, handshake: usize) -> (Probe, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&count);
    let probe =
        Probe::new(
            move |_: Point| match seen.fetch_add(1, Ordering::SeqCst) == handshake + at {
                true => Err(io::Error::other("made to fail")),
                false => Ok(()),
            },
        );
    (probe, count)
}

/// Points of a handshake, on either side: what comes after is of a step.
pub(crate) const PARENT_SHAKE: usize = 3;
pub(crate) const WORKER_SHAKE: usize = 3;

fn speculative(case: &Case, plan: Plan, theirs: Probe, width: usize) -> (Vec<TokenId>, Report) {
    let mut target = target();
    let (mut drafter, watch) = drafter(plan, theirs, &target);
    let tokens = case.run(&mut target, Some(&mut drafter), width);
    (tokens, watch.report())
}

/// widths fixed and greedy or sampled, on every transport; the drafter is in use.
#[test]
fn a_33_text_is_that_of_plain_decoding_on_every_transport() {
    for (n, choice) in CHOICES.into_iter().enumerate() {
        for temperature in [0.0, 1.0] {
            let case = Case::new(7 * n, temperature, 40);
            let (tokens, report) = speculative(&case, shipped_plan(choice), Probe::default(), 4);
            assert_eq!(tokens, case.plain(), "{choice:?} at {temperature}");
            assert!(report.steps > 3 && report.lost == 0, "{report:?}");
        }
    }
}

/// The texts of faults at every point of either side until a point is not reached; how many were.
fn faults_everywhere(case: &Case, choice: Choice, stride: usize) -> usize {
    let plain = case.plain();
    let mut reached = 0;
    for worker_side in [false, true] {
        for at in (0..).step_by(stride) {
            let shake = if worker_side {
                WORKER_SHAKE
            } else {
                PARENT_SHAKE
            };
            let (probe, count) = trip(at, shake);
            let mut plan = shipped_plan(choice);
            let theirs = match worker_side {
                true => probe,
                false => {
                    plan.probe = probe;
                    Probe::default()
                }
            };
            let (tokens, report) = speculative(case, plan, theirs, 4);
            assert_eq!(
                tokens, plain,
                "{choice:?}, worker {worker_side}, point {at}"
            );
            if count.load(Ordering::SeqCst) <= shake + at {
                break;
            }
            reached += 1;
            // The last point may lie in the farewell, and a worker lost at the last draft of a text is not
            // asked for again.
            let up = report.state == State::Up || report.restarts == 0;
            assert!(
                report.lost <= 1 && up && report.state != State::Lost,
                "{at}: {report:?}"
            );
        }
    }
    reached
}

/// a fault at every send, receive and copy, of either side, on every transport: the text is
/// that of plain decoding, and a worker that was started again drafts on.
#[test]
fn a_05_a_fault_at_any_point_changes_no_token() {
    for choice in CHOICES {
        let reached = faults_everywhere(&Case::new(3, 0.0, 10), choice, 5);
        assert!(reached >= 6, "{choice:?}: {reached} points");
    }
}

#[test]
#[ignore = "soak: a fault at every single point of many texts, and random faults over 200 generations"]
fn soak_faults_everywhere() {
    for choice in CHOICES {
        for (prompt, temperature) in [(3, 0.0), (20, 1.0), (40, 0.0)] {
            let reached = faults_everywhere(&Case::new(prompt, temperature, 16), choice, 1);
            println!(
                "soak: {choice:?}, prompt {prompt}: {reached} points, each failed once, text equal"
            );
        }
    }
    let mut rng = Rng::new(7);
    let mut lost = 0;
    for n in 0..200 {
        let case = Case::new(n, if n % 2 == 0 { 0.0 } else { 1.0 }, 24);
        let (probe, _) = trip(rng.below(60), WORKER_SHAKE);
        let choice = CHOICES[n % 3];
        let (tokens, report) = speculative(&case, shipped_plan(choice), probe, 2 + n % 5);
        assert_eq!(tokens, case.plain(), "generation {n}");
        lost += report.lost;
    }
    println!("soak: 200 generations with random faults, {lost} workers lost, text equal");
}

/// A worker that is lost for good: this process goes on drafting with the rows that are kept.
#[test]
fn a_13_a_worker_lost_for_good_is_replaced_in_process() {
    let case = Case::new(3, 0.0, 40);
    for fallback in [true, false] {
        let mut target = target();
        let mut plan = shipped_plan(Choice::Shared);
        plan.restarts.delays.clear();
        // In the middle of the text.
        let (probe, _) = trip(17, WORKER_SHAKE);
        let (threads, _) = threads(worker::load, probe);
        let mut remote = RemoteBackbone::start(plan, Box::new(threads)).unwrap();
        if fallback {
            remote = remote.with_fallback(Box::new(|| Ok(Box::new(conformance::local()))));
        }
        let watch = remote.watch();
        let model = Arc::clone(&shipped().model);
        let pool = Arc::clone(target.pool());
        let mut drafter = DsparkDrafter::new(model, remote, target.info(), pool).unwrap();
        let tokens = case.run(&mut target, Some(&mut drafter), 4);
        assert_eq!(tokens, case.plain());
        let (report, asks) = (watch.report(), drafter.stats().asks);
        assert_eq!((report.lost, report.restarts), (1, 0));
        assert_eq!(report.transport, None);
        let (state, fallbacks) = match fallback {
            true => (State::InProcess, 1),
            false => (State::Lost, 0),
        };
        assert_eq!(
            (report.state, report.fallbacks),
            (state, fallbacks),
            "{report:?}"
        );
        assert_eq!(drafter.backbone().health().is_ok(), fallback);
        let drafted = drafter.stats().candidates;
        assert!(
            drafted > 0 && asks > report.steps,
            "{asks} asks, {} steps",
            report.steps
        );
        assert!(watch.to_string().contains(state.name()), "{watch}");
    }
}

/// a worker that does not answer in time is let go of; the text goes on.
#[test]
fn a_22_a_worker_that_hangs_is_let_go_of() {
    let case = Case::new(3, 0.0, 24);
    let hangs = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&hangs);
    let probe = Probe::new(move |point| {
        // The second step of the first worker.
        if point == Point::CopyIn && seen.fetch_add(1, Ordering::SeqCst) == 1 {
            std::thread::sleep(Duration::from_secs(3));
        }
        Ok(())
    });
    let mut plan = shipped_plan(Choice::Shared);
    plan.timeouts.step = Duration::from_millis(300);
    let (tokens, report) = speculative(&case, plan, probe, 4);
    assert_eq!(tokens, case.plain());
    assert_eq!(
        (report.lost, report.restarts, report.state),
        (1, 1, State::Up)
    );
    let why = report.reason.unwrap();
    assert!(why.contains("nothing within the deadline"), "{why}");
}
