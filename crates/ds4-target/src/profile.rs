//! Where the time of passes goes, by family of work. Compiled in with the feature `profile` only:
//! `cargo run --release -p ds4-target --features profile --example speed`.
//!
//! A pass is a sequence of laps: the end of each names the family that its time belongs to. Only the
//! caller's clock is read, so a lap is wall time of the pass, whatever the threads did.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Families of work, in the order of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Family {
    Embedding,
    HyperConnections,
    Projections,
    Compressors,
    Selection,
    KeyLists,
    Attention,
    Router,
    Experts,
    RoutedSum,
    Head,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 11] = [
        Self::Embedding,
        Self::HyperConnections,
        Self::Projections,
        Self::Compressors,
        Self::Selection,
        Self::KeyLists,
        Self::Attention,
        Self::Router,
        Self::Experts,
        Self::RoutedSum,
        Self::Head,
    ];
}

/// Sums of laps; all zero without the feature, where a lap is no code.
#[derive(Debug)]
pub(crate) struct Laps {
    start: Instant,
    last: AtomicU64,
    nanos: [AtomicU64; Family::ALL.len()],
}

impl Default for Laps {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            last: AtomicU64::new(0),
            nanos: Default::default(),
        }
    }
}

impl Laps {
    /// Starts a pass.
    #[inline]
    pub(crate) fn begin(&self) {
        if cfg!(feature = "profile") {
            let now = self.start.elapsed().as_nanos() as u64;
            self.last.store(now, Ordering::Relaxed);
        }
    }

    /// Ends a lap of `family`.
    #[inline]
    pub(crate) fn lap(&self, family: Family) {
        if cfg!(feature = "profile") {
            let now = self.start.elapsed().as_nanos() as u64;
            let lap = now - self.last.swap(now, Ordering::Relaxed);
            self.nanos[family as usize].fetch_add(lap, Ordering::Relaxed);
        }
    }

    /// Nanoseconds of each family since the start.
    pub(crate) fn nanos(&self) -> [u64; Family::ALL.len()] {
        std::array::from_fn(|i| self.nanos[i].load(Ordering::Relaxed))
    }
}
