//! Run-time mutants: deliberate faults, chosen by number, that the tests must notice.
//!
//! A hook reads `if mutant(31) { wrong } else { right }`. Without the feature `mutants` the
//! function is a constant `false` and the wrong branch is compiled away. `cargo xtask mutants`
//! builds once with the feature, runs the tests once per number and fails if one survives.

#[cfg(feature = "mutants")]
mod on {
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Holds the number, or this until it has been read.
    const UNREAD: u32 = u32::MAX;
    static ACTIVE: AtomicU32 = AtomicU32::new(UNREAD);

    /// Whether the fault with this number (from 1) is switched on.
    #[must_use]
    #[inline]
    pub fn mutant(id: u32) -> bool {
        match ACTIVE.load(Ordering::Relaxed) {
            UNREAD => read() == id,
            active => active == id,
        }
    }

    /// Switches one fault on, 0 for none. Process-wide: call it before any work starts.
    pub fn activate(id: u32) {
        ACTIVE.store(id, Ordering::Relaxed);
    }

    /// The number that the runner of the tests put into `FOURSPARK_MUTANT`. Read here, so that no
    /// test can forget to: the unit tests of many crates have no place where all of them start.
    #[cold]
    #[allow(
        clippy::disallowed_methods,
        reason = "test builds only; this module has no other form"
    )]
    fn read() -> u32 {
        let id = match std::env::var("FOURSPARK_MUTANT") {
            Ok(text) => text.parse().expect("FOURSPARK_MUTANT is a number"),
            Err(_) => 0,
        };
        ACTIVE.store(id, Ordering::Relaxed);
        id
    }
}

#[cfg(feature = "mutants")]
pub use on::{activate, mutant};

/// Whether the fault with this number is switched on: never, in this build.
#[cfg(not(feature = "mutants"))]
#[must_use]
#[inline(always)]
pub const fn mutant(_id: u32) -> bool {
    false
}
