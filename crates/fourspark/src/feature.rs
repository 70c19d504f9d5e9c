//! What of the engine is on, what is off, and why. Shown at start-up, in `/props` and by `doctor`:
//! nothing is silently off.

use std::borrow::Cow;

/// A feature's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Its name, stable.
    pub name: &'static str,
    /// Whether it is in use.
    pub on: bool,
    /// Why: for one that is on, in which form.
    pub reason: Cow<'static, str>,
}

impl Feature {
    /// A feature in use.
    pub fn on(name: &'static str, reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            name,
            on: true,
            reason: reason.into(),
        }
    }

    /// A feature not in use.
    pub fn off(name: &'static str, reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            name,
            on: false,
            reason: reason.into(),
        }
    }
}

impl std::fmt::Display for Feature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = if self.on { "on" } else { "off" };
        write!(f, "{} {state}: {}", self.name, self.reason)
    }
}
