//! Run-time mutants: deliberate faults, chosen by number, that the tests must notice.
//!
//! A hook reads `if mutant(31) { wrong } else { right }`. Without the feature `mutants` the
//! function is a constant `false` and the wrong branch is compiled away. `cargo xtask mutants`
//! builds once with the feature, runs the tests once per number and fails if one survives.

#[cfg(feature = "mutants")]
mod on {
    use std::sync::atomic::{AtomicU32, Ordering};

    static ACTIVE: AtomicU32 = AtomicU32::new(0);

    /// Whether the fault with this number (from 1) is switched on.
    #[must_use]
    #[inline]
    pub fn mutant(id: u32) -> bool {
        ACTIVE.load(Ordering::Relaxed) == id
    }

    /// Switches one fault on, 0 for none. Process-wide: call it before any work starts.
    pub fn activate(id: u32) {
        ACTIVE.store(id, Ordering::Relaxed);
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
