//! A draft worker for an arm: a process of its own, over the transport that the arm names, which an arm
//! may kill in the middle of a text.
//!
//! Must not know: texts, tokens.

use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use dspark_draft::backbone::Options;
use dspark_draft::weights::DraftModel;
use engine_core::seams::{Ask, Backbone, DraftRows};
use engine_core::{Fault, Pos, SeqId, Ticket};
use ipc_transport::handshake::Place;
use ipc_transport::launch::Process;
use ipc_transport::remote::{Choice, Plan, RemoteBackbone, Restarts, Shape};
use ipc_transport::report::Watch;
use ipc_transport::worker::dims;
use rustix::process::{Pid, Signal, kill_process};

use super::Error;
use super::arm::{Transport, Worker};
use super::worker::KILLED_AT;

/// The longest wait for a worker that is started again.
const PATIENCE: Duration = Duration::from_secs(60);

/// A backbone in a worker, which is killed once if it is to be. A loss is waited out, so that a short
/// text sees the worker that takes its place.
#[derive(Debug)]
pub(crate) struct Mortal {
    remote: RemoteBackbone,
    watch: Watch,
    /// Whether it is to be killed, and was not yet.
    kill: bool,
}

/// Starts a worker over the draft model in `file`, with its layers at `place`.
pub(crate) fn start(
    program: &Path,
    file: &Path,
    model: &DraftModel,
    options: &Options,
    how: Worker,
    place: Place,
) -> Result<(Mortal, Watch), Error> {
    let word = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let failed = |why: String| Error::Worker { why };
    let shape = Shape {
        dims: dims(model, options),
        verify_max: word(options.verify_max),
        kv_round: options.kv_round,
        threads: 1,
        file: std::path::absolute(file).map_err(|e| failed(e.to_string()))?,
        place,
    };
    let plan = Plan {
        transport: match how.transport {
            Transport::Shared => Choice::Shared,
            Transport::Stream => Choice::Stream,
        },
        restarts: Restarts {
            delays: vec![Duration::ZERO; 3],
            ..Restarts::default()
        },
        ..Plan::new(shape)
    };
    let process = Process {
        program: program.to_path_buf(),
        args: vec!["draft-worker".into()],
        env: Vec::new(),
    };
    let remote =
        RemoteBackbone::start(plan, Box::new(process)).map_err(|e| failed(e.to_string()))?;
    let watch = remote.watch();
    let mortal = Mortal {
        remote,
        watch: watch.clone(),
        kill: how.killed,
    };
    Ok((mortal, watch))
}

impl Mortal {
    fn kill(&mut self) -> Result<(), Fault> {
        self.kill = false;
        let lost = |why: String| Fault::Lost {
            what: "the worker that was to be killed".to_owned(),
            why,
        };
        let pid = self.watch.report().pid;
        let pid = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let pid = pid.ok_or_else(|| lost("it has no process".to_owned()))?;
        // Its number is its own: only the backbone takes it off the system's list, and does not run now.
        kill_process(pid, Signal::KILL).map_err(|e| lost(e.to_string()))
    }
}

impl Backbone for Mortal {
    fn observe(&mut self, seq: SeqId, pos: Pos, features: &[f32]) -> Result<(), Fault> {
        self.remote.observe(seq, pos, features)
    }

    fn submit(&mut self, asks: &[Ask], block: &[f32]) -> Result<Ticket, Fault> {
        self.remote.wait_until_settled(Instant::now() + PATIENCE);
        if self.kill && self.watch.report().steps >= KILLED_AT {
            self.kill()?;
        }
        self.remote.submit(asks, block)
    }

    fn poll(&mut self, ticket: Ticket, deadline: Option<Instant>) -> Result<DraftRows, Fault> {
        self.remote.poll(ticket, deadline)
    }

    fn truncate(&mut self, seq: SeqId, pos: Pos) {
        self.remote.truncate(seq, pos);
    }

    fn close(&mut self, seq: SeqId) {
        self.remote.close(seq);
    }

    fn save(&self, seq: SeqId, to: &mut dyn Write) -> Result<(), Fault> {
        self.remote.save(seq, to)
    }

    fn load(&mut self, seq: SeqId, from: &mut dyn Read) -> Result<(), Fault> {
        self.remote.load(seq, from)
    }

    fn health(&self) -> Result<(), Fault> {
        self.remote.health()
    }
}
