//! What a row of the table says.

use std::fmt;

/// What a switch may do to output bits: the classes of the arithmetic contract (ADR 0001).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Not a bit: another path, order of work or memory, the same result.
    Equal,
    /// Other bits of the same model. Needs a quality gate and a label.
    Near,
    /// Another model (for example fewer experts). Needs a label and a score.
    Approx,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Equal => "equal",
            Self::Near => "near",
            Self::Approx => "approx",
        })
    }
}

/// What values a switch takes. Nothing else is accepted: no spaces, no other spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `0` off, `1` on.
    Flag,
    /// A decimal number from `.0` to `.1`, without sign or leading zero.
    Count(u64, u64),
    /// One of these words.
    Word(&'static [&'static str]),
}

impl Kind {
    /// Whether `value` is one of this kind.
    #[must_use]
    pub fn admits(self, value: &str) -> bool {
        match self {
            Self::Flag => matches!(value, "0" | "1"),
            Self::Count(low, high) => {
                let plain = value.bytes().all(|b| b.is_ascii_digit());
                let shown = value == "0" || !value.starts_with('0');
                let number = value.parse::<u64>().ok().filter(|_| plain && shown);
                number.is_some_and(|n| (low..=high).contains(&n))
            }
            Self::Word(words) => words.contains(&value),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("0 or 1"),
            Self::Count(low, high) => write!(f, "a number from {low} to {high}"),
            Self::Word(words) => f.write_str(&words.join(", ")),
        }
    }
}

/// A variable of the reference engine that means this switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alias {
    /// The same values.
    Same(&'static str),
    /// `1` there is `0` here.
    Inverted(&'static str),
}

impl Alias {
    /// The variable.
    #[must_use]
    pub const fn variable(self) -> &'static str {
        match self {
            Self::Same(name) | Self::Inverted(name) => name,
        }
    }

    /// Its value in this project's words; one that has no translation stays as it is, and is refused
    /// with the switch's own rule.
    #[must_use]
    pub fn translate(self, value: &str) -> String {
        match (self, value) {
            (Self::Inverted(_), "0") => "1".to_owned(),
            (Self::Inverted(_), "1") => "0".to_owned(),
            _ => value.to_owned(),
        }
    }
}

/// Whether this build has what the switch switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has an effect.
    Live,
    /// No build has it yet: the row keeps the name, and any value but the default and the kill value
    /// is refused.
    Planned,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Switch {
    /// Stable name, `part.what`.
    pub name: &'static str,
    /// Its variable, `FOURSPARK_..`.
    pub variable: &'static str,
    /// Variables of the reference engine that are read as this one.
    pub aliases: &'static [Alias],
    /// What it does.
    pub meaning: &'static str,
    /// What it may do to output bits.
    pub class: Class,
    /// What values it takes.
    pub kind: Kind,
    /// The value when unset.
    pub default: &'static str,
    /// When it has an effect.
    pub eligible: &'static str,
    /// The value that takes it out of the way.
    pub kill: &'static str,
    /// The file that acts on it; for a planned one, the crate that will.
    pub owner: &'static str,
    /// The test that shows its class; for a planned one, the one it must come with.
    pub test: &'static str,
    /// When to decide whether it stays, ISO date.
    pub review: &'static str,
    /// Whether this build has it.
    pub state: State,
    /// Review defects of the reference engine that are open where it is on (numbers of
    /// `docs/qualify.md`): a measurement with such a switch on cannot be qualified.
    pub defects: &'static [u8],
}
