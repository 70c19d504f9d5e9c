//! What passes of a loaded model take: prompts, steps at a depth, widths of a verify, many sequences at once.
//! The target alone is measured, through the seam every other part uses; nothing is sampled but the pass's own
//! greedy token.
//!
//! Must not know: drafters, schedulers, how a report is shown.

mod passes;
mod reads;

use std::time::Instant;

use engine_core::seams::TargetInfo;
use engine_core::{Fault, Target};

use passes::Bench;
pub use reads::device_bandwidth;

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BenchPlan {
    /// Prompts of so many tokens, in chunks of the target's longest span.
    pub prefill: Vec<usize>,
    /// Positions before the steps.
    pub depths: Vec<usize>,
    /// Rows of a step: 1 is plain decoding.
    pub widths: Vec<usize>,
    /// Sequences in one pass, each with one row.
    pub streams: Vec<usize>,
    /// Samples of each step; a prompt is run three times, or as often as this if that is fewer.
    pub rounds: usize,
}

impl Default for BenchPlan {
    /// The table of the project's records.
    fn default() -> Self {
        Self {
            prefill: vec![512, 2048, 8192, 32_768],
            depths: vec![0, 2048, 8192, 32_768],
            widths: (1..=6).collect(),
            streams: vec![1, 8, 32],
            rounds: 20,
        }
    }
}

/// Positions of each sequence where many run at once.
pub const STREAM_DEPTH: usize = 64;

impl BenchPlan {
    /// Positions that the whole plan needs.
    #[must_use]
    pub fn positions(&self) -> usize {
        let most = |list: &[usize]| list.iter().copied().max().unwrap_or(0);
        let steps = most(&self.depths).saturating_add(most(&self.widths));
        let streams = STREAM_DEPTH + 1;
        most(&self.prefill).max(steps).max(streams)
    }

    /// Sequences that the whole plan needs.
    #[must_use]
    pub fn sequences(&self) -> usize {
        self.streams.iter().copied().max().unwrap_or(1).max(1)
    }

    /// Everything to measure, in order.
    fn whats(&self) -> Vec<What> {
        let prompts = self
            .prefill
            .iter()
            .map(|tokens| What::Prefill { tokens: *tokens });
        let step = |depth: &usize| {
            let depth = *depth;
            let of = move |width: &usize| What::Step {
                depth,
                width: *width,
            };
            self.widths.iter().map(of).collect::<Vec<_>>()
        };
        let streams = self.streams.iter().map(|n| What::Streams { sequences: *n });
        prompts
            .chain(self.depths.iter().flat_map(step))
            .chain(streams)
            .collect()
    }
}

/// One thing measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A prompt.
    Prefill {
        /// Its tokens.
        tokens: usize,
    },
    /// A pass of one sequence.
    Step {
        /// Positions before it.
        depth: usize,
        /// Its rows.
        width: usize,
    },
    /// A pass of many sequences, [`STREAM_DEPTH`] positions each.
    Streams {
        /// How many.
        sequences: usize,
    },
}

impl What {
    /// Tokens that one sample moves.
    #[must_use]
    pub const fn tokens(self) -> usize {
        match self {
            Self::Prefill { tokens } => tokens,
            Self::Step { width, .. } => width,
            Self::Streams { sequences } => sequences,
        }
    }

    /// Why this target cannot be asked for it.
    fn refused(self, info: &TargetInfo) -> Option<String> {
        let positions = match self {
            Self::Prefill { tokens } => tokens,
            Self::Step { depth, width } => depth.saturating_add(width),
            Self::Streams { .. } => STREAM_DEPTH + 1,
        };
        if positions as u64 > info.n_ctx {
            return Some(format!(
                "needs {positions} positions, the context has {}",
                info.n_ctx
            ));
        }
        match self {
            Self::Prefill { tokens: 0 } | Self::Streams { sequences: 0 } => {
                Some("nothing to run".to_owned())
            }
            Self::Step { width, .. } if width == 0 || width > info.verify_max => {
                Some(format!("{width} rows: a step has 1 to {}", info.verify_max))
            }
            Self::Streams { sequences } if sequences > info.n_seq_max => Some(format!(
                "needs {sequences} sequences, {} may be open",
                info.n_seq_max
            )),
            _ => None,
        }
    }
}

/// Seconds of the samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// Lower quartile, median, upper quartile.
    pub quartiles: [f64; 3],
    /// How many samples.
    pub samples: usize,
    /// Bytes of weights read by a sample, where the target counts them.
    pub weight_bytes: Option<u64>,
    /// Launches of a sample, where the target counts.
    pub launches: Option<u64>,
    /// What one pass spends its launches and its time on, the longest first; of a prompt its last chunk. `None` where
    /// the target times none. Launches are timed one by one, gaps included: shares are meant, not sums.
    pub families: Option<Vec<Family>>,
}

/// The kernels of one source.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Name of the source, as `grouped`.
    pub name: String,
    /// Launches of a pass.
    pub launches: u64,
    /// What they take together.
    pub microseconds: f64,
}

impl Timing {
    /// The median, in seconds.
    #[must_use]
    pub const fn median(&self) -> f64 {
        self.quartiles[1]
    }
}

/// A row of the report.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// What was measured.
    pub what: What,
    /// What it took, or why it was left out.
    pub timing: Result<Timing, String>,
}

impl Cell {
    /// Tokens a second at the median.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        let seconds = self.timing.as_ref().ok()?.median();
        (seconds > 0.0).then(|| self.what.tokens() as f64 / seconds)
    }
}

/// Measures everything of a plan; `done` is told each row as it is there. Sequences are opened and closed
/// again: the target must have none open.
///
/// # Errors
/// Any fault of a pass.
pub fn bench(
    target: &mut dyn Target,
    plan: &BenchPlan,
    done: &mut dyn FnMut(&Cell),
) -> Result<Vec<Cell>, Fault> {
    let mut bench = Bench::new(target, plan.rounds);
    let mut cells = Vec::new();
    for what in plan.whats() {
        let timing = match what.refused(bench.info()) {
            Some(why) => Err(why),
            None => Ok(bench.measure(what)?),
        };
        let cell = Cell { what, timing };
        done(&cell);
        cells.push(cell);
    }
    bench.close();
    Ok(cells)
}

/// Bytes a second that `threads` threads read of memory, each of its own part of a buffer far larger than a
/// cache: the best of three.
#[must_use]
pub fn read_bandwidth(threads: usize) -> f64 {
    const BYTES: usize = 512 << 20;
    let words = vec![1u64; BYTES / 8];
    let part = words.len().div_ceil(threads.max(1));
    let read = || {
        let begin = Instant::now();
        let sums: Vec<u64> = std::thread::scope(|scope| {
            let parts = words.chunks(part);
            let reader = |words: &'_ [u64]| words.iter().fold(0u64, |sum, w| sum.wrapping_add(*w));
            let all: Vec<_> = parts.map(|p| scope.spawn(move || reader(p))).collect();
            all.into_iter().filter_map(|t| t.join().ok()).collect()
        });
        let seconds = begin.elapsed().as_secs_f64();
        // Every word was read: each is one.
        assert_eq!(sums.iter().sum::<u64>(), words.len() as u64);
        BYTES as f64 / seconds
    };
    (0..3).map(|_| read()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_says_what_it_needs() {
        let plan = BenchPlan::default();
        assert_eq!((plan.positions(), plan.sequences()), (32_774, 32));
        assert_eq!(plan.whats().len(), 4 + 4 * 6 + 3);
        let none = BenchPlan {
            prefill: vec![],
            depths: vec![],
            widths: vec![],
            streams: vec![],
            rounds: 1,
        };
        assert_eq!((none.positions(), none.sequences()), (65, 1));
        assert_eq!(none.whats(), []);
    }
}
