//! Weights into their slots: once, through pinned memory or, where they are made up, made there; put into tile order on
//! the device.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use device::driver::Driver;
use device::{Place, View};
use ds4_kernels::KernelError;
use ds4_kernels::launch::synth;
use ds4_kernels::launch::tiled::{self, Stack};
use engine_core::mutant::mutant;
use fpx_quant::validate_row_data;

use super::arena::Slot;
use super::gpu::Gpu;
use super::weights::{Plan, What};
use crate::error::LoadError;

/// Bytes in file order that a device holds beside the weights while they are loaded, unless one matrix is larger.
#[cfg(not(test))]
const RAW: u64 = 64 << 20;
/// So that stacks of small models come in parts too.
#[cfg(test)]
const RAW: u64 = 64 << 10;

/// Bytes of the device's memory that [`run`] needs beside the arenas.
pub(crate) fn extra(plan: &Plan<'_>) -> u64 {
    RAW.max(plan.largest_matrix())
}

/// Threads that check blocks ahead of the copies.
const CHECKERS: usize = 8;

/// Uploads everything; blocks are checked on threads ahead of the copies. With `read_back` what was sent or made there is read
/// back and compared with what it is here, before anything is made of it. `progress` hears of bytes done and bytes in all.
///
/// # Errors
/// `BadBlocks` for a scale byte that no writer produces (of the first such tensor), `Upload` for a byte that is not the
/// one that was sent, `Kernel`.
pub(crate) fn run<R: Driver>(
    gpu: &mut Gpu<R>,
    plan: &Plan<'_>,
    read_back: bool,
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
        upload(gpu, plan, &mut Verdicts::new(reports), read_back, progress)
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
    read_back: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), LoadError> {
    let raw = gpu.device().alloc(Place::Device, extra(plan));
    let raw = raw.map_err(KernelError::from)?;
    let total = plan.bytes();
    let mut done = 0;
    for (slot, what) in &plan.items {
        verdicts.of(*slot)?;
        let source = Sent {
            plan,
            what,
            read_back,
        };
        match what {
            What::Tiles(_, stack) => tiles(gpu, &source, stack, *slot, &raw.view())?,
            _ => source.put(gpu, 0..what.len(), &gpu.view(*slot)?)?,
        }
        done += slot.len;
        progress(done, total);
    }
    gpu.stream.sync().map_err(KernelError::from)?;
    Ok(())
}

/// What is put into a slot.
struct Sent<'a> {
    plan: &'a Plan<'a>,
    what: &'a What<'a>,
    /// Whether it is read back and compared.
    read_back: bool,
}

impl Sent<'_> {
    /// Puts a range of its bytes there: sent, or made by the device.
    fn put<R: Driver>(
        &self,
        gpu: &mut Gpu<R>,
        range: Range<usize>,
        to: &View<R>,
    ) -> Result<(), LoadError> {
        match self.what.made() {
            Some(made) => {
                let start = if mutant(385) { 0 } else { range.start };
                let call = synth::fill(made, start as u64, range.len() as u64)?;
                gpu.kernels.put(&gpu.stream, &call, &[to])?;
            }
            None => gpu.write_view(&self.what.part(range.clone()), to)?,
        }
        match self.read_back {
            true => self.compare(gpu, range.start, to),
            false => Ok(()),
        }
    }

    /// Reads back what was put there from byte `start` on, and compares it with what it is here.
    fn compare<R: Driver>(
        &self,
        gpu: &Gpu<R>,
        start: usize,
        to: &View<R>,
    ) -> Result<(), LoadError> {
        let (mut at, mut wrong) = (start, None);
        gpu.fetch_view(to, |got| {
            let sent = self.what.part(at..at + got.len());
            let here = difference(&sent, got).map(|i| (at + i, sent[i], got[i]));
            wrong = wrong.or(here);
            at += got.len();
        })?;
        wrong
            .filter(|_| !mutant(377))
            .map_or(Ok(()), |(at, expected, got)| {
                let (file, tensor) = self.name();
                Err(LoadError::Upload {
                    file,
                    tensor,
                    device: gpu.device().id().to_string(),
                    at: at as u64,
                    expected,
                    got,
                })
            })
    }

    /// The file and the tensor; vectors, which were decoded, are named by their place among the others.
    fn name(&self) -> (String, String) {
        let tensor = |what: &What<'_>| match what {
            What::File(t) | What::Tiles(t, _) => Some((t.file.to_string(), t.name.to_string())),
            What::Floats(_) | What::Words(_) => None,
        };
        let near = || {
            let items = self.plan.items.iter();
            let at = items.clone().position(|(_, w)| std::ptr::eq(w, self.what));
            let before = items.take(at.unwrap_or(0)).rev();
            let (file, name) = before
                .filter_map(|(_, w)| tensor(w))
                .next()
                .unwrap_or_default();
            let n = self.what.len() / 4;
            (file, format!("a vector of {n} values behind {name:?}"))
        };
        tensor(self.what).unwrap_or_else(near)
    }
}

/// Where two ranges of one length differ first.
fn difference(a: &[u8], b: &[u8]) -> Option<usize> {
    if a == b {
        return None;
    }
    a.iter().zip(b).position(|(a, b)| a != b)
}

/// The kernels take scale bytes as they are.
fn check(what: &What<'_>) -> Result<(), LoadError> {
    let tensor = match what {
        What::Floats(_) | What::Words(_) => return Ok(()),
        What::File(tensor) | What::Tiles(tensor, _) => tensor,
    };
    if tensor.stored().made().is_some() {
        // Valid by their definition, and not there.
        return Ok(());
    }
    validate_row_data(tensor.format, tensor.bytes()).map_err(|why| LoadError::BadBlocks {
        tensor: tensor.name.to_string(),
        why,
    })
}

/// As many matrices at a time as the raw buffer holds. The stream's order keeps a buffer in use from being
/// overwritten.
fn tiles<R: Driver>(
    gpu: &mut Gpu<R>,
    source: &Sent<'_>,
    stack: &Stack,
    slot: Slot,
    raw: &View<R>,
) -> Result<(), LoadError> {
    let one = source.what.len() / stack.matrices;
    let packed = (slot.len / stack.matrices as u64) as usize;
    // A grid has at most 65,535 rows.
    let each = ((raw.len() / one as u64) as usize).clamp(1, 65_535);
    let mut first = 0;
    while first < stack.matrices {
        let count = each.min(stack.matrices - first);
        let range = first * one..(first + count) * one;
        let here = raw.part(0, range.len() as u64).map_err(KernelError::from)?;
        source.put(gpu, range, &here)?;
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

#[cfg(test)]
mod tests {
    use super::difference;

    #[cfg(feature = "host-exec")]
    #[test]
    fn parts_of_a_stack_are_made_from_their_own_place() {
        use std::sync::Arc;

        use crate::on_device::{DeviceTarget, Settings};
        use crate::synth::SynthSource;
        use crate::{Model, Options};

        // The raw buffer also holds the largest matrix in tile order: dense ones are floats, which are not.
        let source = SynthSource::new(&"synth:tiny,recipe=fp2-fp3-bf16".parse().unwrap());
        let model = Arc::new(Model::load(&source).unwrap());
        let gate = &model.weights.layers[0].moe.gate;
        let (stack, one) = (
            gate.stored().len() as u64,
            gate.stored().len() / model.meta.n_expert,
        );
        assert!(stack > 2 * super::RAW, "{stack} bytes fit at once");
        assert!(
            one as u64 <= super::RAW,
            "{one} bytes make the buffer larger"
        );
        let device = device::cpu::runtime(1 << 30).open(0).unwrap();
        let options = Options {
            n_ctx: 64,
            n_seq_max: 1,
            span_max: 16,
            ..Options::default()
        };
        let settings = Settings {
            cache: None,
            progress: &mut |_, _| {},
            graph_tokens: 0,
            check: true,
        };
        DeviceTarget::new(model, options, &device, settings).unwrap();
    }

    #[test]
    fn a_difference_is_found_wherever_it_is() {
        let sent = [7u8; 100];
        assert_eq!(difference(&sent, &sent), None);
        for at in [0, 1, 63, 64, 99] {
            let mut got = sent;
            (got[at], got[99]) = (8, 9);
            assert_eq!(difference(&sent, &got), Some(at));
        }
        // The same bytes elsewhere are others.
        assert_eq!(difference(&[1, 2], &[2, 1]), Some(0));
    }
}
