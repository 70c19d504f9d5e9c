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
mod means;
#[cfg(target_os = "linux")]
mod mortal;
mod pair;
mod script;
mod subject;
mod there;
mod worker;

use serde::{Deserialize, Serialize};

pub use arm::{Arm, Batch, Forced, Looped, Place, Plan, Policy, Source, Transport, Way, Worker};
pub use base::{Base, Size};
pub use matrix::{full, small};
pub use means::{Choice, Means, Named, On, Vendor, Wish};
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
    size: &Size,
    pin: Option<&str>,
    tell: &mut dyn FnMut(&Row),
) -> Result<Outcome, Error> {
    let base = Base::make(pair, size)?;
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
        _ if base.first.is_some() => base
            .first
            .clone()
            .map_or(Status::Equal, |first| Status::Differs { first }),
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
    /// A device cannot be used.
    #[error("device {device}: {why}")]
    Device {
        /// Which.
        device: &'static str,
        /// Why.
        why: String,
    },
    /// A worker cannot be started.
    #[error("the draft worker cannot be started: {why}")]
    Worker {
        /// Why.
        why: String,
    },
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

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, status: Status) -> Row {
        Row {
            arm: name.to_owned(),
            ids: String::new(),
            state: String::new(),
            evidence: String::new(),
            status,
        }
    }

    fn outcome(statuses: Vec<Status>) -> Outcome {
        Outcome {
            base: String::new(),
            rows: statuses.into_iter().map(|s| row("x", s)).collect(),
        }
    }

    /// A base that is not the pinned one is a difference, even if all arms agree with it.
    #[test]
    fn c_32_another_base_than_the_pinned_one_is_named() {
        let text = base::Text {
            prompt: vec![1],
            ids: vec![2, 3],
            state: [0; 32],
            row: [1; 32],
        };
        let base = Base {
            greedy: text.clone(),
            sampled: text,
            five: Vec::new(),
            rows: vec![[2; 32]],
            states: vec![[3; 32]],
            first: None,
        };
        let digest = base.digest();
        assert_eq!(
            base_row(&base, &digest, Some(&digest)).status,
            Status::Equal
        );
        let Status::Differs { first } = base_row(&base, &digest, Some("00")).status else {
            panic!("not noticed")
        };
        assert_eq!((first.what, first.got), (What::Pin, digest.clone()));
        let mut split = base.clone();
        split.first = Some(arm::off_path("a", "b"));
        let status = base_row(&split, &digest, Some(&digest)).status;
        assert!(
            matches!(status, Status::Differs { .. }),
            "a base that is two"
        );
        let mut other = base;
        other.rows[0][31] ^= 1;
        assert_ne!(other.digest(), digest, "one bit of one row");
    }

    /// The comparer objects to each kind of difference, and names the first.
    #[test]
    fn c_32_the_first_difference_is_named() {
        let want = base::Text {
            prompt: vec![5; 10],
            ids: vec![1, 2, 3],
            state: [7; 32],
            row: [8; 32],
        };
        let found = |ids: &[u32], state, row| arm::compare(2, &want, ids, &state, &row);
        assert_eq!(found(&[1, 2, 3], [7; 32], [8; 32]), None);
        let first = found(&[1, 9, 9], [0; 32], [0; 32]).unwrap();
        assert_eq!(
            (first.what, first.sequence, first.position),
            (What::Ids, 2, Some(11))
        );
        assert_eq!((first.expected.as_str(), first.got.as_str()), ("2", "9"));
        let first = found(&[1, 2], [7; 32], [8; 32]).unwrap();
        assert_eq!((first.position, first.got.as_str()), (Some(12), "no token"));
        assert_eq!(
            found(&[1, 2, 3], [0; 32], [8; 32]).unwrap().what,
            What::State
        );
        assert_eq!(
            found(&[1, 2, 3], [7; 32], [0; 32]).unwrap().what,
            What::Logits
        );
    }

    #[test]
    fn nothing_compared_is_no_pass() {
        let absent = Status::Absent {
            reason: "none".to_owned(),
        };
        let differs = Status::Differs {
            first: arm::off_path("a", "b"),
        };
        assert!(outcome(vec![Status::Equal, Status::Equal, absent.clone()]).passed());
        assert!(!outcome(vec![Status::Equal, absent]).passed());
        assert!(!outcome(vec![Status::Equal, Status::Equal, differs]).passed());
        assert!(!outcome(vec![]).passed());
    }
}
