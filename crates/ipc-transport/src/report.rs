//! What may be known of a worker from anywhere: its state, how payload travels, and counts.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How payload travels, on the wire and in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A sealed memfd.
    Shared,
    /// A socket.
    Stream,
    /// Memory of this process: a worker on a thread.
    Local,
}

impl Transport {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Stream => "stream",
            Self::Local => "local",
        }
    }
}

/// Whether something is so, and why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is.
    Yes,
    /// It is not, and why.
    No(String),
}

impl Default for Standing {
    fn default() -> Self {
        Self::No("there is no worker".to_owned())
    }
}

impl Standing {
    /// Not so, and why.
    pub fn no(why: impl fmt::Display) -> Self {
        Self::No(why.to_string())
    }

    /// Whether it is so.
    #[must_use]
    pub const fn is_yes(&self) -> bool {
        matches!(self, Self::Yes)
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes => f.write_str("yes"),
            Self::No(why) => write!(f, "no, {why}"),
        }
    }
}

/// What the two sides of a worker have beside host memory that both map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Whether the model's device has pinned the shared memory.
    pub pinned_here: Standing,
    /// Whether the worker's device has: then it copies rows from there and to there by itself.
    pub pinned_there: Standing,
    /// Whether the worker's device sees memory of the model's device, by a probe.
    pub memory: Standing,
}

/// Why rows do not go through the memory of a device, whatever the probe says.
pub const MEMORY_UNUSED: &str = "rows start and end in the host's memory: the target gives its features there, and \
    candidates are drawn from rows there";

/// Where drafting stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// The worker answers.
    #[default]
    Up,
    /// It was lost and is being started again; meanwhile nothing is drafted.
    Restarting,
    /// It was lost for good, and drafting goes on in this process.
    InProcess,
    /// It was lost for good, and nothing is drafted.
    Lost,
}

impl State {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Restarting => "restarting",
            Self::InProcess => "in process",
            Self::Lost => "lost",
        }
    }
}

/// A worker's state and counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Where drafting stands.
    pub state: State,
    /// How payload travels; `None` without a worker.
    pub transport: Option<Transport>,
    /// Why it is not the transport that was tried first.
    pub degraded: Option<String>,
    /// The worker's process.
    pub pid: Option<u32>,
    /// What it runs on.
    pub device: String,
    /// What the sides have beside host memory that both map.
    pub reach: Reach,
    /// Whether the caller is awake when a reply is likely, or sleeps until it comes.
    pub awake: Standing,
    /// Why the worker was last lost, or could not be started.
    pub reason: Option<String>,
    /// Requests sent, a step each.
    pub steps: u64,
    /// Feature rows sent, those of a restart included.
    pub rows: u64,
    /// Bytes of payload sent and received.
    pub bytes_out: u64,
    /// Bytes of payload received.
    pub bytes_in: u64,
    /// Nanoseconds the worker worked.
    pub worker_nanos: u64,
    /// Asks answered with nothing because the worker was away, or its step was refused.
    pub unanswered: u64,
    /// Steps the worker refused.
    pub refused: u64,
    /// Times the worker was lost.
    pub lost: u64,
    /// Times it was started again.
    pub restarts: u64,
    /// Times drafting fell back to this process.
    pub fallbacks: u64,
    /// Steps whose rows the worker's device copied from the shared memory and to it by itself.
    pub direct: u64,
    /// Sides that have a device and could not pin the shared memory with it, over all starts: their rows are copied
    /// once more.
    pub unpinned: u64,
    /// Replies that came while the caller was awake for them.
    pub met: u64,
    /// Replies that came after that, so that it was awake in vain and slept then.
    pub vain: u64,
}

impl Report {
    /// The counts, by name.
    #[must_use]
    pub fn numbers(&self) -> [(&'static str, u64); 14] {
        [
            ("steps", self.steps),
            ("rows", self.rows),
            ("bytes_out", self.bytes_out),
            ("bytes_in", self.bytes_in),
            ("worker_nanos", self.worker_nanos),
            ("unanswered", self.unanswered),
            ("refused", self.refused),
            ("lost", self.lost),
            ("restarts", self.restarts),
            ("fallbacks", self.fallbacks),
            ("direct", self.direct),
            ("unpinned", self.unpinned),
            ("met", self.met),
            ("vain", self.vain),
        ]
    }
}

/// A report that others fill in.
#[derive(Clone, Debug, Default)]
pub struct Watch(Arc<Mutex<Report>>);

impl Watch {
    /// A report of something else than a worker in use.
    #[must_use]
    pub fn of(report: Report) -> Self {
        Self(Arc::new(Mutex::new(report)))
    }

    /// As of now.
    #[must_use]
    pub fn report(&self) -> Report {
        self.lock().clone()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Report> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PartialEq for Watch {
    /// Whether it is the report of the same worker.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Display for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.lock();
        write!(f, "draft worker {}", report.state.name())?;
        if let Some(transport) = report.transport {
            write!(f, ", transport={}", transport.name())?;
        }
        if let Some(why) = &report.degraded {
            write!(f, " ({why})")?;
        }
        if !report.device.is_empty() {
            write!(f, ", {}", report.device)?;
        }
        if let Some(why) = &report.reason {
            write!(f, ", {why}")?;
        }
        let Reach {
            pinned_here: here,
            pinned_there: there,
            ..
        } = &report.reach;
        match report.transport {
            None => Ok(()),
            Some(_) if here == there => write!(f, "; pinned on both sides: {here}"),
            Some(_) => write!(f, "; pinned here: {here}; pinned in the worker: {there}"),
        }
    }
}
