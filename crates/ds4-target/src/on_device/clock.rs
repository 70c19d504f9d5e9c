//! A clock of launches: an event behind each, so that a pass can be told apart by kernel. Launches are not replayed as
//! a graph then, and what lies between two events holds a launch's gap too: shares are meant, not sums.
//!
//! Must not know: what is launched.

use device::driver::Driver;
use device::{Event, Stream};
use ds4_kernels::KernelError;
use ds4_kernels::launch::Call;
pub use engine_core::seams::Clocked;

/// Events between launches.
#[derive(Debug)]
pub(crate) struct Clock<R: Driver> {
    start: Event<R>,
    launches: Vec<([&'static str; 2], [u32; 3], Event<R>)>,
}

impl<R: Driver> Clock<R> {
    pub(crate) fn new(stream: &Stream<R>) -> Result<Self, KernelError> {
        Ok(Self {
            start: stream.record_timed()?,
            launches: Vec::new(),
        })
    }

    /// Marks the end of a launch.
    pub(crate) fn after(&mut self, call: &Call, stream: &Stream<R>) -> Result<(), KernelError> {
        let event = stream.record_timed()?;
        let names = [call.source, call.kernel];
        self.launches.push((names, call.grid, event));
        Ok(())
    }

    /// Waits for the launches; those of a kernel and grid together, the longest first.
    pub(crate) fn read(self) -> Result<Vec<Clocked>, KernelError> {
        let mut all = Vec::new();
        let mut before = self.start;
        for ([source, kernel], grid, event) in self.launches {
            event.wait()?;
            all.push(Clocked {
                source,
                kernel,
                grid,
                launches: 1,
                millis: f64::from(event.millis_since(&before)?),
            });
            before = event;
        }
        Ok(together(all))
    }
}

/// Launches of a kernel and grid as one, the longest first.
pub(super) fn together(each: Vec<Clocked>) -> Vec<Clocked> {
    let mut all: Vec<Clocked> = Vec::new();
    for one in each {
        let known = all
            .iter_mut()
            .find(|c| (c.kernel, c.grid) == (one.kernel, one.grid));
        match known {
            Some(c) => {
                (c.launches, c.millis) = (c.launches + one.launches, c.millis + one.millis);
            }
            None => all.push(one),
        }
    }
    all.sort_by(|a, b| b.millis.total_cmp(&a.millis));
    all
}
