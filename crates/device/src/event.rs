//! Events: points in a stream's work that others wait for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::driver::Driver;
use crate::fault::{DeviceId, Fault};
use crate::owned::Mark;

/// A point in a stream's work.
#[derive(Debug)]
pub struct Event<R: Driver>(pub(crate) Arc<Mark<R>>);

impl<R: Driver> Clone for Event<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R: Driver> Event<R> {
    /// The device whose stream recorded it.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.0.device.id
    }

    /// Whether everything before it is done.
    ///
    /// # Errors
    /// `Call`; `Lost`, also for a failure of the work itself.
    pub fn is_done(&self) -> Result<bool, Fault> {
        self.0.done()
    }

    /// Waits until everything before it is done.
    ///
    /// # Errors
    /// As [`Event::is_done`].
    pub fn wait(&self) -> Result<(), Fault> {
        self.0.sync()
    }

    /// Waits, but not longer than `limit`. For work of which nobody knows whether it ends.
    ///
    /// # Errors
    /// `Deadline`; as [`Event::is_done`].
    pub fn wait_for(&self, limit: Duration) -> Result<(), Fault> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(5);
        while !self.0.done()? {
            if start.elapsed() >= limit {
                return Err(Fault::Deadline {
                    device: self.device(),
                    millis: limit.as_millis() as u64,
                });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Milliseconds from `start` to this event; both were recorded with a clock and are done.
    ///
    /// # Errors
    /// `WrongDevice`, `Call`; `Argument` for an event without a clock.
    pub fn millis_since(&self, start: &Self) -> Result<f32, Fault> {
        self.0.device.same("an event", start.device())?;
        for (index, event) in [start, self].into_iter().enumerate() {
            if !event.0.timed {
                return Err(Fault::Argument {
                    kernel: "time between events".into(),
                    index,
                    expected: "an event with a clock".into(),
                    got: "one without".into(),
                });
            }
        }
        self.0.millis_since(&start.0)
    }
}
