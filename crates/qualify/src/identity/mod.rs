//! One result, as a command: every way to run the shipped pair against one base way, token ids and
//! state by equality.
//!
//! The base is the plainest way there is: one thread, the portable kernels, one token a pass, no
//! drafter. Its digest is pinned in the profile, since the arithmetic fixes it for every machine; so a
//! change that moves all arms alike is noticed too. An arm that did not take the path it names fails:
//! a fallback that gives the right tokens is still a fallback.
//!
//! Must not know: clocks, statistics, the command line.

mod arm;
mod base;
mod forced;
mod looped;
mod matrix;
mod pair;
mod script;

use serde::{Deserialize, Serialize};

pub use arm::{Arm, Batch, Forced, Looped, Plan, Policy, Source, Way};
pub use base::Base;
pub use matrix::{full, small};
pub use pair::Pair;

/// What an arm can differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A token of the text.
    Ids,
    /// A row of logits.
    Logits,
    /// The saved state.
    State,
    /// It did not do what it is named for.
    Path,
    /// It failed.
    Fault,
    /// The base is not the pinned one.
    Pin,
}

/// The first thing in which an arm differs from the base.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// What.
    pub what: What,
    /// Which of the arm's sequences, from 0.
    pub sequence: usize,
    /// At which position of the sequence.
    pub position: Option<usize>,
    /// The base's.
    pub expected: String,
    /// The arm's.
    pub got: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = match self.position {
            Some(position) => format!("sequence {}, position {position}", self.sequence),
            None => format!("sequence {}", self.sequence),
        };
        let Self {
            what,
            expected,
            got,
            ..
        } = self;
        write!(f, "{what:?} at {place}: expected {expected}, got {got}")
    }
}

/// How an arm came out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Status {
    /// Equal to the base.
    Equal,
    /// Not equal.
    Differs {
        /// Where first.
        first: Difference,
    },
    /// There is no such thing in this build or on this machine.
    Absent {
        /// Why.
        reason: String,
    },
}

/// One arm of a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Its name, stable.
    pub arm: String,
    /// Token ids and rows seen, hexadecimal digest; empty for one that is absent.
    pub ids: String,
    /// State at the end.
    pub state: String,
    /// What shows that the path was taken.
    pub evidence: String,
    /// How it came out.
    pub status: Status,
}

/// All arms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Digest of the base: its text, all its rows and all its states.
    pub base: String,
    /// The arms in the order they ran.
    pub rows: Vec<Row>,
}

impl Outcome {
    /// Whether nothing differs and something was compared.
    #[must_use]
    pub fn passed(&self) -> bool {
        let equal = |r: &&Row| r.status == Status::Equal;
        let differs = |r: &Row| matches!(r.status, Status::Differs { .. });
        !self.rows.iter().any(differs) && self.rows.iter().filter(equal).count() > 1
    }

    /// The arms that differ.
    pub fn different(&self) -> impl Iterator<Item = (&str, &Difference)> {
        self.rows.iter().filter_map(|row| match &row.status {
            Status::Differs { first } => Some((row.arm.as_str(), first)),
            _ => None,
        })
    }
}

/// Runs a matrix. `pin`: the digest that the base must have. `tell` hears each row as it comes.
///
/// # Errors
/// The base itself fails.
pub fn run(
    pair: &Pair,
    arms: &[Arm],
    pin: Option<&str>,
    tell: &mut dyn FnMut(&Row),
) -> Result<Outcome, Error> {
    let base = Base::make(pair)?;
    let digest = base.digest();
    let mut rows = Vec::new();
    let mut add = |row: Row| {
        tell(&row);
        rows.push(row);
    };
    add(base_row(&base, &digest, pin));
    for arm in arms {
        add(arm::run(pair, &base, arm));
    }
    Ok(Outcome { base: digest, rows })
}

fn base_row(base: &Base, digest: &str, pin: Option<&str>) -> Row {
    let status = match pin {
        Some(pin) if pin != digest => Status::Differs {
            first: Difference {
                what: What::Pin,
                sequence: 0,
                position: None,
                expected: pin.to_owned(),
                got: digest.to_owned(),
            },
        },
        _ => Status::Equal,
    };
    Row {
        arm: "base".to_owned(),
        ids: base.greedy.ids_digest(),
        state: hex(&base.greedy.state),
        evidence: "1 thread, portable kernels, one token a pass, no drafter".to_owned(),
        status,
    }
}

/// Why there is nothing to compare with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file is not what it should be.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// The model cannot be loaded.
    #[error(transparent)]
    Model(#[from] ds4_target::LoadError),
    /// The drafter cannot be loaded.
    #[error(transparent)]
    Draft(#[from] dspark_draft::error::DraftError),
    /// The target refused something.
    #[error(transparent)]
    Fault(#[from] engine_core::Fault),
    /// The loop refused a request.
    #[error(transparent)]
    Admit(#[from] dspark_draft::speculate::AdmitError),
    /// A text ended before its length.
    #[error("{arm}: the text ended after {got} of {expected} tokens: {reason}")]
    Short {
        /// The arm.
        arm: String,
        /// Tokens asked for.
        expected: usize,
        /// Tokens that came.
        got: usize,
        /// Why it ended.
        reason: String,
    },
    /// The prompt does not fit the model.
    #[error("the prompt has {got} tokens, the matrix needs at least {expected}")]
    Prompt {
        /// Tokens needed.
        expected: usize,
        /// Tokens given.
        got: usize,
    },
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
