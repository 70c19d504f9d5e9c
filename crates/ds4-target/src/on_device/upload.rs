//! Weights into their slots: once, through pinned memory, put into tile order on the device.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use device::driver::Driver;
use device::{Place, View};
use ds4_kernels::KernelError;
use ds4_kernels::launch::tiled::{self, Stack};
use fpx_quant::validate_row_data;

use super::arena::Slot;
use super::gpu::Gpu;
use super::weights::{Plan, What};
use crate::error::LoadError;
use crate::tensor::Tensor;

/// Bytes in file order that a device holds beside the weights while they are loaded, unless one matrix is larger.
const RAW: u64 = 64 << 20;

/// Bytes of the device's memory that [`run`] needs beside the arenas.
pub(crate) fn extra(plan: &Plan<'_>) -> u64 {
    RAW.max(plan.largest_matrix())
}

/// Threads that check blocks ahead of the copies.
const CHECKERS: usize = 8;

/// Uploads everything; blocks are checked on threads ahead of the copies. `progress` hears of bytes done and bytes in
/// all.
///
/// # Errors
/// `BadBlocks` for a scale byte that no writer produces (of the first such tensor), `Kernel`.
pub(crate) fn run<R: Driver>(
    gpu: &mut Gpu<R>,
    plan: &Plan<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), LoadError> {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (report, reports) = mpsc::channel();
        let threads = thread::available_parallelism().map_or(1, |n| n.get().min(CHECKERS));
        for _ in 0..threads {
            let (report, next) = (report.clone(), &next);
            scope.spawn(move || {
                let take = || plan.items.get(next.fetch_add(1, Ordering::Relaxed));
                while let Some((slot, what)) = take() {
                    // Nobody listens once the upload has failed.
                    if report.send((slot.start, check(what))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(report);
        upload(gpu, plan, &mut Verdicts::new(reports), progress)
    })
}

/// What the checks found, by the start of an item's slot.
struct Verdicts {
    reports: Receiver<(u64, Result<(), LoadError>)>,
    early: Vec<(u64, Result<(), LoadError>)>,
}

impl Verdicts {
    fn new(reports: Receiver<(u64, Result<(), LoadError>)>) -> Self {
        Self {
            reports,
            early: Vec::new(),
        }
    }

    /// Waits for an item's.
    fn of(&mut self, slot: Slot) -> Result<(), LoadError> {
        if let Some(at) = self
            .early
            .iter()
            .position(|(start, _)| *start == slot.start)
        {
            return self.early.swap_remove(at).1;
        }
        for (start, verdict) in &self.reports {
            if start == slot.start {
                return verdict;
            }
            self.early.push((start, verdict));
        }
        Err(LoadError::Kernel(KernelError::Runtime {
            runtime: "device",
            message: "a check of weights ended without a result".into(),
        }))
    }
}

fn upload<R: Driver>(
    gpu: &mut Gpu<R>,
    plan: &Plan<'_>,
    verdicts: &mut Verdicts,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), LoadError> {
    let raw = gpu.device().alloc(Place::Device, extra(plan));
    let raw = raw.map_err(KernelError::from)?;
    let total = plan.items.iter().map(|(slot, _)| slot.len).sum();
    let mut done = 0;
    for (slot, what) in &plan.items {
        verdicts.of(*slot)?;
        match what {
            What::Floats(values) => gpu.write(bytemuck::cast_slice(values), *slot)?,
            What::Words(values) => gpu.write(bytemuck::cast_slice(values), *slot)?,
            What::File(tensor) => gpu.write(tensor.bytes(), *slot)?,
            What::Tiles(tensor, stack) => tiles(gpu, tensor, stack, *slot, &raw.view())?,
        }
        done += slot.len;
        progress(done, total);
    }
    gpu.stream.sync().map_err(KernelError::from)?;
    Ok(())
}

/// The kernels take scale bytes as they are.
fn check(what: &What<'_>) -> Result<(), LoadError> {
    let tensor = match what {
        What::Floats(_) | What::Words(_) => return Ok(()),
        What::File(tensor) | What::Tiles(tensor, _) => tensor,
    };
    validate_row_data(tensor.format, tensor.bytes()).map_err(|why| LoadError::BadBlocks {
        tensor: tensor.name.to_string(),
        why,
    })
}

/// As many matrices at a time as the raw buffer holds. The stream's order keeps a buffer in use from being
/// overwritten.
fn tiles<R: Driver>(
    gpu: &mut Gpu<R>,
    tensor: &Tensor,
    stack: &Stack,
    slot: Slot,
    raw: &View<R>,
) -> Result<(), LoadError> {
    let bytes = tensor.bytes();
    let one = bytes.len() / stack.matrices;
    let packed = (slot.len / stack.matrices as u64) as usize;
    // A grid has at most 65,535 rows.
    let each = ((raw.len() / one as u64) as usize).clamp(1, 65_535);
    let mut first = 0;
    while first < stack.matrices {
        let count = each.min(stack.matrices - first);
        let part = &bytes[first * one..(first + count) * one];
        let here = raw.part(0, part.len() as u64).map_err(KernelError::from)?;
        gpu.write_view(part, &here)?;
        let some = Stack {
            matrices: count,
            ..*stack
        };
        let to = gpu.view(slot.rows(first, count, packed))?;
        let call = tiled::repack(&some)?;
        gpu.kernels.put(&gpu.stream, &call, &[&here, &to])?;
        first += count;
    }
    Ok(())
}
