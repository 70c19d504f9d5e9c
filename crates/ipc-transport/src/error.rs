//! What can go wrong between parent and worker, with the step, the field and both values.

use std::fmt;
use std::io;

/// Why a message could not be sent or received. After any of these the link is not used again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The system refused a call.
    #[error("{what}: {source}")]
    Io {
        /// Which call.
        what: &'static str,
        /// Its own words.
        source: io::Error,
    },
    /// The other side closed its end.
    #[error("the other side closed the channel")]
    Closed,
    /// The worker's process ended.
    #[error("the process ended")]
    Exited,
    /// Nothing came, or nothing was taken, in time.
    #[error("{what}: nothing within the deadline")]
    Deadline {
        /// What was waited for.
        what: &'static str,
    },
    /// What came is not what the protocol allows here.
    #[error("{field}: expected {expected}, got {got}")]
    Corrupt {
        /// Which field.
        field: &'static str,
        /// What was expected.
        expected: String,
        /// What came.
        got: String,
    },
}

impl LinkError {
    /// A wrong field.
    pub fn corrupt(field: &'static str, expected: impl ToString, got: impl ToString) -> Self {
        Self::Corrupt {
            field,
            expected: expected.to_string(),
            got: got.to_string(),
        }
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn io(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn sys(what: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Self::Io {
            what,
            source: errno.into(),
        }
    }
}

/// Where a start stands. Stable names: they are what a failed start is told by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Sizes of the exchange.
    Sizes,
    /// The payload region.
    Region,
    /// The socket pair.
    Channel,
    /// Starting the process.
    Spawn,
    /// The worker's first message.
    Hello,
    /// Telling it what to do.
    Configure,
    /// The worker loading the draft model.
    Load,
    /// Comparing what it loaded with what was asked for.
    Ready,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sizes => "sizes",
            Self::Region => "region",
            Self::Channel => "channel",
            Self::Spawn => "spawn",
            Self::Hello => "hello",
            Self::Configure => "configure",
            Self::Load => "load",
            Self::Ready => "ready",
        })
    }
}

/// A worker that did not come up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the draft worker did not start: step {step}: {why}")]
pub struct StartError {
    /// Where it stood.
    pub step: Step,
    /// What went wrong.
    pub why: String,
}

impl StartError {
    /// From anything that says what went wrong.
    pub fn at<E: fmt::Display>(step: Step) -> impl Fn(E) -> Self {
        move |why| Self {
            step,
            why: why.to_string(),
        }
    }
}
