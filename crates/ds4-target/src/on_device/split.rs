//! Which layers run on which device: shares that were asked for are checked, or made equal by bytes.
//!
//! Must not know: runtimes, what a layer does.

use std::ops::Range;

use device::driver::Driver;
use device::{Device, DeviceId};

use super::chain::Markov;
use super::state::State;
use super::weights::Plan;
use crate::error::LoadError;
use crate::state::StateShape;
use crate::target::{Model, Options};

/// A device and the layers that it runs.
#[derive(Debug)]
pub struct Share<R: Driver> {
    /// The device.
    pub device: Device<R>,
    /// Numbers of its layers, from 0.
    pub layers: Range<usize>,
}

/// Why layers cannot be shared so. Every variant names both values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SplitError {
    /// Nobody to run them.
    #[error("a split needs a device for {layers} layers, got none")]
    Empty {
        /// Layers of the model.
        layers: usize,
    },
    /// A device that would have nothing to do.
    #[error("{devices} devices share {layers} layers: each needs one at least")]
    Devices {
        /// Devices.
        devices: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// Devices of two runtimes: their memory does not meet.
    #[error("{first} and {other} are of two runtimes: layers are shared by devices of one")]
    Runtimes {
        /// The first device.
        first: String,
        /// One of another runtime.
        other: String,
    },
    /// One device twice: its layers would not be consecutive.
    #[error("{device} is named as device {first} and as device {again} of the split")]
    Twice {
        /// The device.
        device: String,
        /// Its place in the list, from 1.
        first: usize,
        /// And the other one.
        again: usize,
    },
    /// A layer that nobody runs, or two devices run.
    #[error("{device} begins with layer {got}, expected layer {expected}: {why}")]
    Begins {
        /// The device.
        device: String,
        /// The layer that is next.
        expected: usize,
        /// The one that was asked for.
        got: usize,
        /// Which of the two it is.
        why: String,
    },
    /// The last device does not end where the model does, or one ends before it begins.
    #[error("{device} ends with layer {got}, expected {expected}")]
    Ends {
        /// The device.
        device: String,
        /// What is possible.
        expected: String,
        /// The one that was asked for.
        got: String,
    },
}

/// Refuses devices that cannot share, and shares that leave a layer out or give one twice.
///
/// # Errors
/// `Split`.
pub(super) fn check<R: Driver>(shares: &[Share<R>], layers: usize) -> Result<(), SplitError> {
    let ids: Vec<DeviceId> = shares.iter().map(|s| s.device.id()).collect();
    let named: Vec<_> = ids.iter().zip(shares.iter().map(|s| &s.layers)).collect();
    together(&ids, layers)?;
    let mut next = 0;
    for (at, (id, range)) in named.iter().enumerate() {
        let device = id.to_string();
        if range.start != next {
            return Err(SplitError::Begins {
                device,
                expected: next,
                got: range.start,
                why: begins(range.start, next),
            });
        }
        let last = at + 1 == named.len();
        if range.is_empty() || range.end > layers || (last && range.end != layers) {
            let expected = match last {
                true => format!("{}, the model's last", layers - 1),
                false => format!("{} to {}", range.start, layers - 1),
            };
            let got = range.end.checked_sub(1);
            return Err(SplitError::Ends {
                device,
                expected,
                got: got.map_or_else(|| "none".to_owned(), |n| n.to_string()),
            });
        }
        next = range.end;
    }
    Ok(())
}

fn begins(got: usize, expected: usize) -> String {
    let missing = expected..got;
    match (expected, missing.len()) {
        (_, 0) => format!("layer {got} is the device's before"),
        (_, 1) => format!("nobody runs layer {expected}"),
        (_, _) => format!("nobody runs layers {expected} to {}", got - 1),
    }
}

/// Refuses devices that cannot share so many layers.
fn together(ids: &[DeviceId], layers: usize) -> Result<(), SplitError> {
    let Some(first) = ids.first() else {
        return Err(SplitError::Empty { layers });
    };
    if ids.len() > layers {
        let devices = ids.len();
        return Err(SplitError::Devices { devices, layers });
    }
    for (at, id) in ids.iter().enumerate() {
        if (id.kind, id.instance) != (first.kind, first.instance) {
            return Err(SplitError::Runtimes {
                first: first.to_string(),
                other: id.to_string(),
            });
        }
        if let Some(before) = ids[..at].iter().position(|other| other == id) {
            return Err(SplitError::Twice {
                device: id.to_string(),
                first: before + 1,
                again: at + 1,
            });
        }
    }
    Ok(())
}

/// Shares of `devices` devices: consecutive layers, the largest share as small as can be by bytes of weights and state.
/// The embedding table counts for the first, the output matrix and a drafter's matrices for the last.
///
/// # Errors
/// `Split` for more devices than layers, or none; `NoKernel`, `Kernel`.
pub fn equal_shares(
    model: &Model,
    options: &Options,
    markov: Option<Markov<'_>>,
    devices: usize,
) -> Result<Vec<Range<usize>>, LoadError> {
    let m = &model.meta;
    let layers = m.n_layer;
    if devices == 0 {
        return Err(SplitError::Empty { layers }.into());
    }
    if devices > layers {
        return Err(SplitError::Devices { devices, layers }.into());
    }
    let whole = 0..layers;
    if devices == 1 {
        return Ok(vec![whole]);
    }
    let shape = StateShape::new(m, options.n_ctx, options.verify_max, options.kv_sim);
    let weight = |layers: Range<usize>| -> Result<u64, LoadError> {
        let (plan, _) = Plan::of(m, &model.weights, &layers)?;
        let state = State::new(&shape, &layers, options.n_seq_max, options.span_max)?;
        Ok(plan.layout.bytes().saturating_add(state.layout.bytes()))
    };
    let each = (0..layers).map(|at| weight(at..at + 1));
    let mut each = each.collect::<Result<Vec<u64>, _>>()?;
    if let (Some(last), Some(markov)) = (each.last_mut(), markov) {
        *last += (markov.first.bytes().len() + markov.second.bytes().len()) as u64;
    }
    Ok(cut(&each, devices))
}

/// Cuts a row of sizes, none of them alone, into `parts` parts whose largest sum is as small as can be.
fn cut(sizes: &[u64], parts: usize) -> Vec<Range<usize>> {
    let sum = |range: Range<usize>| sizes[range].iter().fold(0u64, |a, b| a.saturating_add(*b));
    let n = sizes.len();
    // Largest sum of the first `i` sizes in one part, and where that part begins.
    let mut rows: Vec<Vec<(u64, usize)>> = vec![(0..=n).map(|i| (sum(0..i), 0)).collect()];
    for part in 1..parts {
        let before = &rows[part - 1];
        let best = |i: usize| {
            let cuts = part..i;
            let with = cuts.map(|from| (before[from].0.max(sum(from..i)), from));
            with.min().unwrap_or((u64::MAX, part))
        };
        rows.push((0..=n).map(best).collect());
    }
    let mut end = n;
    let mut ranges = Vec::with_capacity(parts);
    for row in rows.iter().rev() {
        let start = row[end].1;
        ranges.push(start..end);
        end = start;
    }
    ranges.reverse();
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::fake;

    fn shares(devices: &[(u32, Range<usize>)]) -> Vec<Share<impl Driver>> {
        let runtime = fake::runtime(&fake::Settings {
            devices: 4,
            ..fake::Settings::default()
        });
        let share = |(n, layers): &(u32, Range<usize>)| Share {
            device: runtime.open(*n).expect("a device"),
            layers: layers.clone(),
        };
        devices.iter().map(share).collect()
    }

    fn refusal(devices: &[(u32, Range<usize>)]) -> String {
        let refused = check(&shares(devices), 7);
        refused.expect_err("refused").to_string()
    }

    #[test]
    fn shares_that_leave_nothing_out_are_taken() {
        for all in [
            &[(0, 0..7)][..],
            &[(1, 0..1), (0, 1..7)],
            &[(0, 0..3), (1, 3..5), (2, 5..7)],
        ] {
            assert_eq!(check(&shares(all), 7), Ok(()));
        }
    }

    #[test]
    fn shares_that_cannot_be_are_refused_with_both_values() {
        for (all, want) in [
            (&[][..], "a split needs a device for 7 layers, got none"),
            (
                &[(0, 0..3), (1, 4..7)],
                "fake:1 begins with layer 4, expected layer 3: nobody runs layer 3",
            ),
            (
                &[(0, 0..3), (1, 5..7)],
                "fake:1 begins with layer 5, expected layer 3: nobody runs layers 3 to 4",
            ),
            (
                &[(0, 0..4), (1, 3..7)],
                "fake:1 begins with layer 3, expected layer 4: layer 3 is the device's before",
            ),
            (
                &[(0, 1..7)],
                "fake:0 begins with layer 1, expected layer 0: nobody runs layer 0",
            ),
            (
                &[(0, 0..3), (1, 3..6)],
                "fake:1 ends with layer 5, expected 6, the model's last",
            ),
            (
                &[(0, 0..3), (1, 3..8)],
                "fake:1 ends with layer 7, expected 6, the model's last",
            ),
            (
                &[(0, 0..0), (1, 0..7)],
                "fake:0 ends with layer none, expected 0 to 6",
            ),
            (
                &[(2, 0..3), (2, 3..7)],
                "fake:2 is named as device 1 and as device 2 of the split",
            ),
        ] {
            assert_eq!(refusal(all), want);
        }
        let ids = |n: u32| (0..n).map(|at| shares(&[(at % 4, 0..1)])[0].device.id());
        let many: Vec<DeviceId> = ids(3).collect();
        let twin = "fake:0 and fake:1 are of two runtimes: layers are shared by devices of one";
        assert_eq!(together(&many, 7).unwrap_err().to_string(), twin);
        let few = together(&many, 2).unwrap_err().to_string();
        assert_eq!(few, "3 devices share 2 layers: each needs one at least");
    }

    #[test]
    fn parts_are_cut_where_the_largest_is_smallest() {
        assert_eq!(cut(&[1, 1, 1, 1], 2), [0..2, 2..4]);
        assert_eq!(cut(&[9, 1, 1, 1], 2), [0..1, 1..4]);
        assert_eq!(cut(&[1, 1, 1, 9], 2), [0..3, 3..4]);
        assert_eq!(cut(&[1, 2, 3, 4, 5, 6], 3), [0..3, 3..5, 5..6]);
        assert_eq!(cut(&[5, 5, 5], 3), [0..1, 1..2, 2..3]);
        assert_eq!(cut(&[5, 5, 5], 1), vec![Range { start: 0, end: 3 }]);
        // Nobody is left without a layer, however large one is.
        assert_eq!(cut(&[0, 0, 100], 3), [0..1, 1..2, 2..3]);
        assert_eq!(cut(&[100, 0, 0], 3), [0..1, 1..2, 2..3]);
    }
}
