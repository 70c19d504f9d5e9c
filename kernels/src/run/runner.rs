//! The case lists on a device of any runtime.

use device::driver::Driver;
use device::{Buffer, Place, Stream, View};

use super::Kernels;
use crate::KernelError;
use crate::cases;
use crate::launch::Call;

/// A device that runs cases, one launch after the other.
#[derive(Debug)]
pub struct Runner<R: Driver> {
    kernels: Kernels<R>,
    stream: Stream<R>,
    views: Vec<View<R>>,
}

impl<R: Driver> Runner<R> {
    /// A runner on a stream of its own.
    ///
    /// # Errors
    /// `Device`.
    pub fn new(kernels: Kernels<R>) -> Result<Self, KernelError> {
        Ok(Self {
            stream: kernels.device().stream()?,
            kernels,
            views: Vec::new(),
        })
    }

    fn buffer(&mut self, len: usize, skew: usize) -> Result<(usize, View<R>), KernelError> {
        let bytes = (len + skew).max(1) as u64;
        let buffer: Buffer<R> = self.kernels.device().alloc(Place::Device, bytes)?;
        let view = buffer.part(skew as u64, len as u64)?;
        self.views.push(view.clone());
        Ok((self.views.len() - 1, view))
    }
}

impl<R: Driver> cases::Runner for Runner<R> {
    type Buffer = usize;

    fn load(&mut self, data: &[u8], skew: usize) -> Result<usize, KernelError> {
        let (id, view) = self.buffer(data.len(), skew)?;
        self.stream.write_now(data, &view)?;
        Ok(id)
    }

    fn poisoned(&mut self, len: usize) -> Result<usize, KernelError> {
        let (id, view) = self.buffer(len, 0)?;
        self.stream.fill(&view, 0xff)?;
        Ok(id)
    }

    fn launch(&mut self, call: &Call, buffers: &[usize]) -> Result<(), KernelError> {
        let views: Vec<&View<R>> = buffers.iter().map(|b| &self.views[*b]).collect();
        self.kernels.put(&self.stream, call, &views)?;
        Ok(self.stream.sync()?)
    }

    fn read(&mut self, buffer: usize) -> Result<Vec<u8>, KernelError> {
        let view = &self.views[buffer];
        let mut data = vec![0; view.len() as usize];
        self.stream.read_now(view, &mut data)?;
        Ok(data)
    }

    fn reset(&mut self) {
        self.views.clear();
    }

    fn width(&self) -> usize {
        self.kernels.width()
    }
}
