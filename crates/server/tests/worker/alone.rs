//! A worker started by this test: signals, what it has open and what it maps.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use ds4_target::GgufSource;
use ds4_target::pool::Pool;
use dspark_draft::backbone::{LocalBackbone, Options};
use dspark_draft::weights::DraftModel;
use engine_core::seams::{Ask, Backbone};
use engine_core::{Epoch, Fault, SeqId};
use gguf::{Gguf, OpenOptions};
use ipc_transport::handshake::Place;
use ipc_transport::launch::{Grace, Process};
use ipc_transport::remote::{Choice, Plan, RemoteBackbone, Restarts, Shape};
use ipc_transport::report::{State, Transport};
use ipc_transport::worker;

use crate::{eventually, exists, models, names, open_files, signal};

struct Draft {
    model: Arc<DraftModel>,
    options: Options,
}

impl Draft {
    fn new() -> Self {
        let file = models().join("tiny-draft.gguf");
        let file = Gguf::open(file, &OpenOptions::default()).unwrap();
        let model = Arc::new(DraftModel::load(&GgufSource::new(file)).unwrap());
        let options = Options::default();
        Self { model, options }
    }

    fn plan(&self, choice: Choice) -> Plan {
        let shape = Shape {
            dims: worker::dims(&self.model, &self.options),
            verify_max: self.options.verify_max as u32,
            kv_round: false,
            threads: 1,
            file: models().join("tiny-draft.gguf"),
            place: Place::default(),
        };
        Plan {
            transport: choice,
            restarts: Restarts {
                delays: vec![Duration::ZERO; 3],
                within: Duration::from_hours(1),
            },
            ..Plan::new(shape)
        }
    }

    fn local(&self) -> LocalBackbone {
        let pool = Arc::new(Pool::new(1));
        LocalBackbone::new(Arc::clone(&self.model), pool, self.options.clone()).unwrap()
    }

    fn rows(&self, n: usize) -> Vec<f32> {
        let values = n * self.model.meta.feature_width();
        (0..values)
            .map(|v| ((v * 37) % 101) as f32 - 50.0)
            .collect()
    }

    /// What a backbone answers for sequence 0, which stands at `pos`: counts, and the bits of both blocks.
    fn ask(&self, backbone: &mut dyn Backbone, pos: u32) -> (Vec<usize>, Vec<u32>) {
        let ask = Ask {
            seq: SeqId(0),
            epoch: Epoch(1),
            pos,
            ahead: 0,
            seed: 0,
            depth: 5,
        };
        let block = vec![0.5; self.model.meta.block * self.model.meta.stage.n_embd];
        let ticket = backbone.submit(&[ask], &block).unwrap();
        let rows = backbone.poll(ticket, None).unwrap();
        let both = rows.normed.iter().chain(&rows.pre_norm);
        (rows.rows, both.map(|v| v.to_bits()).collect())
    }
}

fn process() -> Process {
    Process {
        program: env!("CARGO_BIN_EXE_fourspark").into(),
        args: vec!["draft-worker".into()],
        env: vec![("FOURSPARK_CPU_ISA".into(), "auto".into())],
    }
}

fn start(plan: Plan) -> (RemoteBackbone, u32) {
    let remote = RemoteBackbone::start(plan, Box::new(process())).unwrap();
    let pid = remote.watch().report().pid.unwrap();
    (remote, pid)
}

fn soon() -> std::time::Instant {
    std::time::Instant::now() + Duration::from_secs(60)
}

/// in a process of its own, over shared memory and over a stream, the bytes of a backbone
/// here; then the worker ends when it is let go of, and is taken off the list.
#[test]
fn a_11_a_worker_process_gives_the_same_bits() {
    let draft = Draft::new();
    let mut local = draft.local();
    local.observe(SeqId(0), 4, &draft.rows(40)).unwrap();
    let want = draft.ask(&mut local, 44);
    assert_eq!(want.0, [5]);
    for (choice, transport) in [
        (Choice::Auto, Transport::Shared),
        (Choice::Shared, Transport::Shared),
        (Choice::Stream, Transport::Stream),
    ] {
        let (mut remote, pid) = start(draft.plan(choice));
        remote.observe(SeqId(0), 4, &draft.rows(40)).unwrap();
        assert_eq!(draft.ask(&mut remote, 44), want);
        assert_eq!(remote.watch().report().transport, Some(transport));
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        remote.save(SeqId(0), &mut theirs).unwrap();
        local.save(SeqId(0), &mut ours).unwrap();
        assert_eq!(theirs, ours);
        drop(remote);
        assert!(!exists(pid), "{choice:?}");
    }
    assert_eq!(names(), Vec::<std::path::PathBuf>::new());
}

/// the worker maps the draft file and its region, and of this process it has its end of the
/// channel alone, although a descriptor was left open to it.
#[test]
fn a_24_the_worker_inherits_nothing_and_maps_the_draft_only() {
    let draft = Draft::new();
    let careless = std::fs::File::open(models().join("tiny.gguf")).unwrap();
    rustix::io::fcntl_setfd(&careless, rustix::io::FdFlags::empty()).unwrap();
    let (mut remote, pid) = start(draft.plan(Choice::Shared));
    remote.observe(SeqId(0), 0, &draft.rows(3)).unwrap();
    assert_eq!(draft.ask(&mut remote, 3).0, [5]);
    let open = open_files(pid);
    let known = |f: &String| f.starts_with("socket:") || f == "/dev/null" || is_stderr(f);
    let others: Vec<&String> = open.iter().filter(|f| !known(f)).collect();
    assert!(others.is_empty(), "{others:?}");
    let sockets = open.iter().filter(|f| f.starts_with("socket:"));
    assert!(sockets.count() <= 3, "{open:?}");
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let models: Vec<&str> = maps
        .lines()
        .filter_map(|l| l.rsplit_once('/').map(|(_, name)| name))
        .filter(|name| name.contains(".gguf"))
        .collect();
    assert!(
        !models.is_empty() && models.iter().all(|m| *m == "tiny-draft.gguf"),
        "{models:?}"
    );
    assert!(maps.contains("memfd:fourspark-draft"), "{maps}");
    assert!(!maps.contains("/dev/shm"), "{maps}");
    let env = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    assert_eq!(env, "FOURSPARK_CPU_ISA=auto\0");
    assert!(careless.as_raw_fd() > 2);
    // A group of its own, so that Ctrl-C at a terminal does not reach it.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, after) = stat.rsplit_once(") ").unwrap();
    assert_eq!(
        after.split(' ').nth(2),
        Some(pid.to_string().as_str()),
        "{stat}"
    );
}

/// The test runner's own standard error, which the worker shares so that its words are seen.
fn is_stderr(file: &str) -> bool {
    std::fs::read_link("/proc/self/fd/2").is_ok_and(|t| t.to_string_lossy() == file)
}

/// a worker that is killed, idle or with a request in it, is replaced, sent the rows it needs, and
/// answers the same; nothing of the dead one is left.
#[test]
fn a_23_a_killed_worker_is_replaced() {
    let draft = Draft::new();
    let mut local = draft.local();
    local.observe(SeqId(0), 0, &draft.rows(60)).unwrap();
    let want = draft.ask(&mut local, 60);
    for choice in [Choice::Shared, Choice::Stream] {
        let (mut remote, first) = start(draft.plan(choice));
        remote.observe(SeqId(0), 0, &draft.rows(60)).unwrap();
        assert_eq!(draft.ask(&mut remote, 60), want);
        signal(first, "-KILL");
        let open = open_files(std::process::id()).len();
        assert_eq!(draft.ask(&mut remote, 60).0, [0], "nothing, at once");
        remote.wait_until_settled(soon());
        assert_eq!(draft.ask(&mut remote, 60), want, "{choice:?}");
        let report = remote.watch().report();
        assert_eq!(
            (report.lost, report.restarts, report.state),
            (1, 1, State::Up)
        );
        let second = report.pid.unwrap();
        assert!(second != first && !exists(first));
        // Another test of this process may have files of its own open.
        let sockets = || open_files(std::process::id()).len().abs_diff(open);
        eventually("descriptors of the dead worker", || sockets() < 8);
        drop(remote);
        assert!(!exists(second));
    }
}

/// a worker that stands still is let go of at its deadline; by force, since a stopped process hears
/// nothing else.
#[test]
fn a_22_a_stopped_worker_is_let_go_of() {
    let draft = Draft::new();
    let mut plan = draft.plan(Choice::Shared);
    plan.timeouts.step = Duration::from_millis(300);
    plan.timeouts.first = Duration::from_secs(30);
    let (mut remote, first) = start(plan);
    remote.observe(SeqId(0), 0, &draft.rows(9)).unwrap();
    let want = draft.ask(&mut remote, 9);
    assert_eq!(want.0, [5]);
    signal(first, "-STOP");
    assert_eq!(draft.ask(&mut remote, 9).0, [0]);
    let why = remote.health().unwrap_err().to_string();
    assert!(why.contains("nothing within the deadline"), "{why}");
    remote.wait_until_settled(soon());
    assert_eq!(draft.ask(&mut remote, 9), want);
    assert!(!exists(first));
}

/// Stopped while it is told to end: it is forced, within the grace it was given.
#[test]
fn a_stopped_worker_does_not_hold_up_the_end() {
    let draft = Draft::new();
    let mut plan = draft.plan(Choice::Shared);
    plan.timeouts.grace = Grace {
        quit: Duration::from_millis(50),
        term: Duration::from_millis(50),
    };
    let (remote, pid) = start(plan);
    signal(pid, "-STOP");
    drop(remote);
    assert!(!exists(pid));
}

/// A worker of another parent than the one that started it does not serve.
#[test]
fn a_27_a_worker_serves_its_own_parent_only() {
    let output = crate::program()
        .args(["draft-worker", "1"])
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.contains("the parent is process") && said.contains("expected 1"),
        "{said}"
    );
    let mine = std::process::id().to_string();
    let output = crate::program()
        .args(["draft-worker", &mine])
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert_eq!(
        output.status.code(),
        Some(1),
        "standard input is no channel"
    );
}

/// After the last start there is none: the caller is told, with the reason.
#[test]
fn a_worker_that_dies_too_often_is_lost() {
    let draft = Draft::new();
    let mut plan = draft.plan(Choice::Shared);
    plan.restarts.delays = vec![Duration::ZERO];
    let (mut remote, first) = start(plan);
    remote.observe(SeqId(0), 0, &draft.rows(2)).unwrap();
    signal(first, "-KILL");
    assert_eq!(draft.ask(&mut remote, 2).0, [0]);
    remote.wait_until_settled(soon());
    let second = remote.watch().report().pid.unwrap();
    signal(second, "-KILL");
    assert_eq!(draft.ask(&mut remote, 2).0, [0]);
    let Err(Fault::Lost { what, why }) = remote.health() else {
        panic!("it must be lost");
    };
    assert_eq!(what, "draft worker");
    assert!(why.contains("closed") || why.contains("ended"), "{why}");
    assert_eq!(remote.watch().report().state, State::Lost);
}
