//! Giving the model up and taking it back: how it is loaded again, what is ordered, what came of it.
//!
//! Must not know: files, devices, how anything is loaded or freed.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use engine_core::Target;
use engine_core::seams::{Resident, TargetInfo};

use crate::speculation::Speculation;

/// Where the model of an engine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// It is loaded.
    #[default]
    Loaded,
    /// It is to be given up: answers in progress end, others are not begun.
    Parking,
    /// It was given up.
    Parked,
    /// It is being loaded again.
    Loading,
}

impl Phase {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::Parking => "parking",
            Self::Parked => "parked",
            Self::Loading => "loading",
        }
    }
}

/// What an engine runs.
pub struct Loaded {
    /// The model.
    pub target: Box<dyn Target + Send>,
    /// What proposes tokens to it, if anything.
    pub speculation: Option<Speculation>,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loaded({:?})", self.target.info())
    }
}

/// Why a model could not be loaded again. Shared by all requests that waited for it.
#[derive(Clone, Debug)]
pub struct LoadFailure(Arc<dyn Error + Send + Sync>);

impl LoadFailure {
    /// A failure for a reason.
    #[must_use]
    pub fn new(reason: impl Error + Send + Sync + 'static) -> Self {
        Self(Arc::new(reason))
    }

    /// The reason.
    #[must_use]
    pub fn reason(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0
    }
}

impl fmt::Display for LoadFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for LoadFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// Loads the model again: the same one, in the same way as at first.
pub type Load = Box<dyn FnMut() -> Result<Loaded, LoadFailure> + Send>;

/// How an engine may give its model up.
pub struct Parking {
    /// Loads it again. It runs on the engine's thread.
    pub load: Load,
    /// Without a request for so long the engine parks by itself; `None`: never.
    pub idle: Option<Duration>,
}

impl fmt::Debug for Parking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parking(idle: {:?})", self.idle)
    }
}

/// A model that was given up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parked {
    /// Whether it was before.
    pub already: bool,
    /// What took memory until then; nothing if it was given up before.
    pub before: Vec<Resident>,
    /// What could not be freed, and why.
    pub left: Vec<Resident>,
    /// From the end of the last answer until all was freed.
    pub took: Duration,
}

/// A model that is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unparked {
    /// Whether it was before.
    pub already: bool,
    /// What takes memory now.
    pub now: Vec<Resident>,
    /// Of loading it.
    pub took: Duration,
}

/// Why a model is not given up.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParkError {
    /// Answers are in progress, and their end is not to be waited for.
    #[error("{in_progress} requests are in progress")]
    Busy {
        /// How many, those that wait for a slot included.
        in_progress: usize,
    },
    /// Nobody could load it again.
    #[error("this engine was made of parts: nothing could load its model again")]
    Unable,
    /// The engine has stopped, or is stopping.
    #[error("the engine has stopped")]
    Stopped,
}

/// Why a model is not loaded.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnparkError {
    /// It could not be loaded. The next request tries again.
    #[error("the model could not be loaded: {0}")]
    Load(LoadFailure),
    /// The engine has stopped, or is stopping.
    #[error("the engine has stopped")]
    Stopped,
}

/// A model that is not the one that was given up.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the model is another one than before: {field}: expected {expected}, got {got}")]
pub(crate) struct Other {
    field: &'static str,
    expected: String,
    got: String,
}

/// Refuses a target that differs from what requests were checked against.
pub(crate) fn same(was: &TargetInfo, is: &TargetInfo) -> Result<(), LoadFailure> {
    let hex = |digest: &[u8; 32]| digest.iter().map(|b| format!("{b:02x}")).collect();
    let number = |n: usize| n.to_string();
    let pairs: [(&'static str, String, String); 6] = [
        ("fingerprint", hex(&was.fingerprint), hex(&is.fingerprint)),
        ("vocabulary", number(was.n_vocab), number(is.n_vocab)),
        ("context", was.n_ctx.to_string(), is.n_ctx.to_string()),
        ("sequences", number(was.n_seq_max), number(is.n_seq_max)),
        ("longest span", number(was.span_max), number(is.span_max)),
        ("class", was.class.to_string(), is.class.to_string()),
    ];
    let other = pairs.into_iter().find(|(_, was, is)| was != is);
    other.map_or(Ok(()), |(field, expected, got)| {
        Err(LoadFailure::new(Other {
            field,
            expected,
            got,
        }))
    })
}

/// Who waits for the model to be given up.
pub(crate) type ParkReply = Sender<Result<Parked, ParkError>>;
/// Who waits for the model.
pub(crate) type UnparkReply = Sender<Result<Unparked, UnparkError>>;

/// What is ordered and not done.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    /// Requests up to this number are answered before the model is given up.
    pub(crate) before: u64,
    pub(crate) park: Vec<ParkReply>,
    pub(crate) unpark: Vec<UnparkReply>,
}

impl Orders {
    /// Whether a request may be begun.
    pub(crate) fn admits(&self, number: u64) -> bool {
        self.park.is_empty() || number <= self.before
    }
}
