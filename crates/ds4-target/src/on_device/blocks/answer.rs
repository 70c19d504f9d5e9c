//! Rows on their way from a device to the host.

use device::Download;
use device::driver::Driver;
use engine_core::Fault;

/// Rows on their way to the host.
#[derive(Debug)]
pub struct Answer<R: Driver> {
    pub(super) download: Download<R>,
    pub(super) device: String,
    /// Values in all: two rows of each.
    pub(super) values: usize,
}

impl<R: Driver> Answer<R> {
    /// Whether waiting would not take time.
    ///
    /// # Errors
    /// `Lost`.
    pub fn is_here(&self) -> Result<bool, Fault> {
        let done = self.download.event().is_done();
        done.map_err(|e| self.lost(&e))
    }

    /// Waits for the rows before and after the last norm, `[n, n_embd]` f32 each.
    ///
    /// # Errors
    /// `Lost`.
    pub fn wait(self) -> Result<[Vec<f32>; 2], Fault> {
        let Self {
            download,
            device,
            values,
        } = self;
        let landed = download.wait().map_err(|e| Fault::Lost {
            what: device,
            why: e.to_string(),
        })?;
        let words = landed.bytes()[..4 * values].as_chunks::<4>().0;
        let half = |from: usize| {
            let words = words[from..from + values / 2].iter();
            words.map(|w| f32::from_le_bytes(*w)).collect()
        };
        Ok([half(0), half(values / 2)])
    }

    fn lost(&self, why: &device::Fault) -> Fault {
        Fault::Lost {
            what: self.device.clone(),
            why: why.to_string(),
        }
    }
}
