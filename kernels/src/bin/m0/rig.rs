//! A device with buffers that live until a reset, and clocks: what cases and measurements run on.
//!
//! For qualification and measurements: every launch here waits or is captured in a graph.

use std::rc::Rc;

use device::driver::Driver;
use device::{Device, Event, Place, Resources, Stream, View};
use ds4_kernels::KernelError;
use ds4_kernels::cases::Runner;
use ds4_kernels::launch::Call;
use ds4_kernels::run::Kernels;

/// A part of a buffer of a [`Rig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffer {
    id: usize,
    start: usize,
    len: usize,
}

impl Buffer {
    /// Bytes.
    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// A part of this buffer.
    ///
    /// # Panics
    /// If it ends outside.
    pub(crate) fn part(self, offset: usize, len: usize) -> Self {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        let start = self.start + offset;
        Self { start, len, ..self }
    }
}

/// The device.
#[derive(Debug)]
pub(crate) struct Rig<R: Driver> {
    kernels: Kernels<R>,
    /// Shared, so that a capture can run what borrows all of this.
    stream: Rc<Stream<R>>,
    memory: Vec<View<R>>,
}

impl<R: Driver> Rig<R> {
    pub(crate) fn new(device: &Device<R>) -> Result<Self, KernelError> {
        Ok(Self {
            stream: Rc::new(device.stream()?),
            kernels: Kernels::new(device, None),
            memory: Vec::new(),
        })
    }

    /// Name, and multiprocessors.
    pub(crate) fn describe(&self) -> (String, u32) {
        let facts = self.kernels.device().facts();
        (facts.name.clone(), facts.processors)
    }

    /// Registers and memory of a launch's kernel.
    pub(crate) fn resources(&mut self, call: &Call) -> Result<Resources, KernelError> {
        self.kernels.resources(call)
    }

    fn view(&self, buffer: Buffer) -> Result<View<R>, KernelError> {
        let (start, len) = (buffer.start as u64, buffer.len as u64);
        Ok(self.memory[buffer.id].part(start, len)?)
    }

    /// Puts a launch into the stream without waiting for it.
    pub(crate) fn submit(&mut self, call: &Call, buffers: &[Buffer]) -> Result<(), KernelError> {
        let views = buffers.iter().map(|b| self.view(*b));
        let views = views.collect::<Result<Vec<_>, _>>()?;
        let views: Vec<&View<R>> = views.iter().collect();
        self.kernels.put(&self.stream, call, &views)
    }

    /// Waits for everything submitted.
    pub(crate) fn wait(&self) -> Result<(), KernelError> {
        Ok(self.stream.sync()?)
    }

    /// Captures what `submit` puts into the stream and replays it: milliseconds of each replay between two
    /// events, after one that does not count. `submit` runs once before that, so that its kernels are loaded.
    pub(crate) fn time(
        &mut self,
        replays: usize,
        mut submit: impl FnMut(&mut Self) -> Result<(), KernelError>,
    ) -> Result<Vec<f32>, KernelError> {
        submit(self)?;
        self.wait()?;
        let stream = Rc::clone(&self.stream);
        let mut submitted = Ok(());
        let graph = stream.capture(|_| {
            submitted = submit(self);
            Ok(())
        });
        submitted?;
        let graph = graph?;
        let mut times = Vec::with_capacity(replays);
        for replay in 0..=replays {
            let start = self.stream.record_timed()?;
            self.stream.launch_graph(&graph)?;
            let end = self.stream.record_timed()?;
            if replay > 0 {
                times.push(millis(&start, &end)?);
            }
        }
        Ok(times)
    }

    /// Milliseconds of each of several repetitions put straight into the stream, after one that does not
    /// count.
    pub(crate) fn time_direct(
        &mut self,
        repetitions: usize,
        mut submit: impl FnMut(&mut Self) -> Result<(), KernelError>,
    ) -> Result<Vec<f32>, KernelError> {
        let mut times = Vec::with_capacity(repetitions);
        for repetition in 0..=repetitions {
            let start = self.stream.record_timed()?;
            submit(self)?;
            let end = self.stream.record_timed()?;
            if repetition > 0 {
                times.push(millis(&start, &end)?);
            }
        }
        Ok(times)
    }

    /// A buffer whose contents do not matter yet.
    pub(crate) fn raw(&mut self, len: usize) -> Result<Buffer, KernelError> {
        let buffer = self
            .kernels
            .device()
            .alloc(Place::Device, len.max(1) as u64)?;
        self.memory.push(buffer.view());
        Ok(Buffer {
            id: self.memory.len() - 1,
            start: 0,
            len,
        })
    }

    /// Fills a buffer from host memory of the same length and waits.
    pub(crate) fn fill_from(&mut self, data: &[u8], to: Buffer) -> Result<(), KernelError> {
        Ok(self.stream.write_now(data, &self.view(to)?)?)
    }

    /// Copies a buffer onto another one of the same length, without waiting.
    pub(crate) fn copy(&mut self, from: Buffer, to: Buffer) -> Result<(), KernelError> {
        Ok(self.stream.copy(&self.view(from)?, &self.view(to)?)?)
    }
}

fn millis<R: Driver>(start: &Event<R>, end: &Event<R>) -> Result<f32, KernelError> {
    end.wait()?;
    Ok(end.millis_since(start)?)
}

impl<R: Driver> Runner for Rig<R> {
    type Buffer = Buffer;

    fn load(&mut self, data: &[u8], skew: usize) -> Result<Buffer, KernelError> {
        let buffer = self.raw(data.len() + skew)?.part(skew, data.len());
        self.fill_from(data, buffer)?;
        Ok(buffer)
    }

    fn poisoned(&mut self, len: usize) -> Result<Buffer, KernelError> {
        let buffer = self.raw(len)?;
        self.stream.fill(&self.view(buffer)?, 0xff)?;
        Ok(buffer)
    }

    fn launch(&mut self, call: &Call, buffers: &[Buffer]) -> Result<(), KernelError> {
        self.submit(call, buffers)?;
        self.wait()
    }

    fn read(&mut self, buffer: Buffer) -> Result<Vec<u8>, KernelError> {
        let mut data = vec![0; buffer.len];
        self.stream.read_now(&self.view(buffer)?, &mut data)?;
        Ok(data)
    }

    fn reset(&mut self) {
        self.memory.clear();
    }

    fn width(&self) -> usize {
        self.kernels.width()
    }
}
