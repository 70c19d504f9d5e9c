//! Time, so that tests can hold it still.

use std::time::Instant;

/// A clock that never goes back.
pub trait Clock {
    /// Seconds since some moment.
    fn seconds(&self) -> f64;
}

/// The system's.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic(Instant);

impl Default for Monotonic {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for Monotonic {
    fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}
