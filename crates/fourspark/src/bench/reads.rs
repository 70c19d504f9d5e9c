//! What a device's memory gives when it is only read: what the bytes of a step's weights are compared with.
//!
//! Must not know: models.

use device::driver::Driver;
use device::{Device, Place};
use ds4_kernels::KernelError;
use ds4_kernels::launch::bench;
use ds4_kernels::run::Kernels;
use ds4_target::LoadError;

use crate::error::Error;
use crate::placement::{DeviceOptions, Opened, Visit, open};

/// The most that is read at once: far larger than any cache.
const MOST: u64 = 2 << 30;
/// What is read first: emulated devices take long for more.
const FIRST: u64 = 1 << 20;
/// Milliseconds from which a read is long enough to be told apart from its launch.
const LONG: f32 = 20.0;
/// Timed reads.
const ROUNDS: usize = 9;

/// Bytes a second that a kernel reads of a device's memory, the median of nine; of several devices the slowest's, since they take
/// turns in a pass; `None` on the processor itself. To be asked before a model takes the memory.
///
/// # Errors
/// As a model's placement: `Absent`, `Device`, `Images`, `Model`.
pub fn device_bandwidth(how: &DeviceOptions) -> Result<Option<f64>, Error> {
    open(how.choice.all(), how, Reads)
}

struct Reads;

impl Visit for Reads {
    type Out = f64;

    fn visit<R: Driver>(self, opened: Opened<'_, R>) -> Result<f64, Error> {
        let mut slowest = f64::INFINITY;
        for device in &opened.devices {
            let kernels = Kernels::new(device, opened.cache()?);
            let rate = rate(device, kernels).map_err(LoadError::from)?;
            slowest = slowest.min(rate);
        }
        Ok(slowest)
    }
}

fn rate<R: Driver>(device: &Device<R>, mut kernels: Kernels<R>) -> Result<f64, KernelError> {
    let free = device.memory()?.free;
    let mut bytes = FIRST;
    loop {
        let millis = read(device, &mut kernels, bytes)?;
        let twice = bytes * 2;
        if millis >= LONG || twice > MOST || twice > free / 2 {
            return Ok(bytes as f64 / (1e-3 * f64::from(millis)));
        }
        bytes = twice;
    }
}

/// Milliseconds of a read.
fn read<R: Driver>(
    device: &Device<R>,
    kernels: &mut Kernels<R>,
    bytes: u64,
) -> Result<f32, KernelError> {
    let (from, sink) = (
        device.alloc(Place::Device, bytes)?,
        device.alloc(Place::Device, 16)?,
    );
    let stream = device.stream()?;
    stream.fill(&from.view(), 1)?;
    // Two blocks a processor fill it.
    let call = bench::read(bytes as usize, 2 * device.facts().processors.max(1))?;
    // The first launch compiles the kernel.
    kernels.put(&stream, &call, &[&from.view(), &sink.view()])?;
    stream.sync()?;
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 0..ROUNDS {
        let begin = stream.record_timed()?;
        kernels.put(&stream, &call, &[&from.view(), &sink.view()])?;
        let end = stream.record_timed()?;
        end.wait()?;
        let millis = end.millis_since(&begin)?;
        if millis >= LONG && round == 0 {
            // Long enough to be believed at once.
            return Ok(millis);
        }
        times.push(millis);
    }
    times.sort_by(f32::total_cmp);
    Ok(times[ROUNDS / 2].max(f32::MIN_POSITIVE))
}
