//! Whether the drafter's layers run in a process of their own, and what became of that.
//!
//! A worker that is not possible is an error where it is required, and otherwise a drafter in this process,
//! which is said: in the features, in `/props`, in every answer's usage. Must not know: frames, sockets.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

pub use ipc_transport::error::{StartError, Step};
pub use ipc_transport::report::{MEMORY_UNUSED, Reach, Report, Standing, State, Transport, Watch};

/// Whether to use a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerMode {
    /// The drafter runs in this process.
    #[default]
    Off,
    /// A worker, or else this process.
    Auto,
    /// A worker or nothing.
    Required,
}

impl WorkerMode {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::Required => "required",
        }
    }
}

impl FromStr for WorkerMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [Self::Off, Self::Auto, Self::Required]
            .into_iter()
            .find(|m| m.name() == name)
            .ok_or_else(|| format!("expected off, auto or required, got {name:?}"))
    }
}

/// How rows travel between this process and the worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerTransport {
    /// Shared memory, or else a stream.
    #[default]
    Auto,
    /// Shared memory or nothing.
    Shared,
    /// A stream.
    Stream,
}

impl WorkerTransport {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Shared => "shared",
            Self::Stream => "stream",
        }
    }
}

impl FromStr for WorkerTransport {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [Self::Auto, Self::Shared, Self::Stream]
            .into_iter()
            .find(|t| t.name() == name)
            .ok_or_else(|| format!("expected auto, shared or stream, got {name:?}"))
    }
}

/// A program whose `main` calls [`run_worker`] with its last argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments; the id of this process is added.
    pub args: Vec<OsString>,
    /// All of its environment.
    pub env: Vec<(OsString, OsString)>,
}

/// How to use a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerOptions {
    /// Whether to.
    pub mode: WorkerMode,
    /// How rows travel.
    pub transport: WorkerTransport,
    /// Whether it begins the next draft while the target verifies.
    pub overlap: bool,
    /// What to start; refused without a worker.
    pub command: Option<WorkerCommand>,
}

/// A worker that was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerInfo {
    /// How much it was asked for.
    pub mode: WorkerMode,
    /// Whether it was asked to begin the next draft while the target verifies.
    pub overlap: bool,
    /// What became of it, as of now.
    pub watch: Watch,
}

impl fmt::Display for WorkerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.watch.fmt(f)?;
        match self.serial() {
            None => f.write_str(", drafting while the target verifies"),
            Some(_) => Ok(()),
        }
    }
}

impl WorkerInfo {
    /// Why no draft is begun while the target verifies; `None` if drafts are.
    #[must_use]
    pub fn serial(&self) -> Option<String> {
        if !self.overlap {
            return Some("not asked for".to_owned());
        }
        let state = self.watch.report().state;
        (state != State::Up).then(|| format!("the draft worker: {}", state.name()))
    }

    /// Why no request can be taken: a worker is required and there is none now.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        let report = self.watch.report();
        let missing = self.mode == WorkerMode::Required && report.state != State::Up;
        missing.then(|| self.to_string())
    }
}

/// A drafter in this process where a worker was asked for, and why.
pub(super) fn instead(why: &StartError) -> Watch {
    Watch::of(Report {
        state: State::InProcess,
        reason: Some(why.to_string()),
        fallbacks: 1,
        ..Report::default()
    })
}

/// Serves the process `parent` as its draft worker, on standard input. Call it before the program opens
/// anything or starts a thread.
///
/// # Errors
/// Why the worker ended, for people.
#[cfg(target_os = "linux")]
pub fn run_worker(parent: u32) -> Result<(), String> {
    ipc_transport::worker::run_process(parent).map(|_| ())
}

/// As on Linux, where workers are.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn run_worker(_: u32) -> Result<(), String> {
    Err("draft workers need Linux".to_owned())
}

#[cfg(target_os = "linux")]
mod start {
    use std::path::Path;
    use std::sync::Arc;

    use crate::placement::{DeviceChoice, DeviceOptions, Placed};
    use dspark_draft::backbone::{LocalBackbone, Options};
    use dspark_draft::weights::DraftModel;
    use engine_core::Fault;
    use engine_core::seams::Backbone;
    use ipc_transport::handshake::Place;
    use ipc_transport::launch::Process;
    use ipc_transport::remote::{Choice, Plan, RemoteBackbone, Shape};
    use ipc_transport::worker::dims;

    use super::{StartError, Step, Watch, WorkerMode, WorkerOptions, WorkerTransport};

    type Started = (Box<dyn Backbone + Send>, Watch);

    /// Where a worker's layers are to run.
    pub(crate) fn place(choice: DeviceChoice, how: &DeviceOptions) -> Place {
        Place {
            device: choice.to_string(),
            images: how.images.clone().unwrap_or_default(),
            graphs: how.graphs,
            early_launch: how.early_launch,
        }
    }

    /// Starts a worker over the draft model in `file`, with as many threads as the target has.
    pub(crate) fn start(
        worker: &WorkerOptions,
        file: &Path,
        model: &Arc<DraftModel>,
        placed: &Placed,
        options: &Options,
        place: Place,
    ) -> Result<Started, StartError> {
        let Some(command) = worker.command.clone() else {
            return Err(StartError::at(Step::Spawn)("no program was named"));
        };
        let plan = plan(worker.transport, file, model, placed, options, place)?;
        let process = Process {
            program: command.program,
            args: command.args,
            env: command.env,
        };
        let mut remote = RemoteBackbone::start(plan, Box::new(process))?;
        if worker.mode != WorkerMode::Required {
            let (model, pool) = (Arc::clone(model), Arc::clone(&placed.pool));
            let options = options.clone();
            remote = remote.with_fallback(Box::new(move || {
                let local = LocalBackbone::new(model, pool, options);
                let local = local.map_err(|error| Fault::Lost {
                    what: "draft backbone".to_owned(),
                    why: error.to_string(),
                })?;
                Ok(Box::new(local))
            }));
        }
        let watch = remote.watch();
        Ok((Box::new(remote), watch))
    }

    fn plan(
        transport: WorkerTransport,
        file: &Path,
        model: &DraftModel,
        placed: &Placed,
        options: &Options,
        place: Place,
    ) -> Result<Plan, StartError> {
        // The worker looks for it from a place of its own.
        let file = std::path::absolute(file).map_err(StartError::at(Step::Configure))?;
        let word = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let shape = Shape {
            dims: dims(model, options),
            verify_max: word(options.verify_max),
            kv_round: options.kv_round,
            threads: word(placed.pool.threads()),
            file,
            place,
        };
        Ok(Plan {
            transport: match transport {
                WorkerTransport::Auto => Choice::Auto,
                WorkerTransport::Shared => Choice::Shared,
                WorkerTransport::Stream => Choice::Stream,
            },
            device: placed.there.clone(),
            ..Plan::new(shape)
        })
    }
}

#[cfg(target_os = "linux")]
pub(super) use start::{place, start};

/// As on Linux, where workers are.
#[cfg(not(target_os = "linux"))]
pub(super) fn place(_: crate::DeviceChoice, _: &crate::DeviceOptions) {}

/// As on Linux, where workers are.
#[cfg(not(target_os = "linux"))]
pub(super) fn start(
    _: &WorkerOptions,
    _: &std::path::Path,
    _: &std::sync::Arc<dspark_draft::weights::DraftModel>,
    _: &crate::placement::Placed,
    _: &dspark_draft::backbone::Options,
    (): (),
) -> Result<(Box<dyn engine_core::seams::Backbone + Send>, Watch), StartError> {
    Err(StartError::at(Step::Spawn)("draft workers need Linux"))
}
