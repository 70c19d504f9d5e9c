//! The passes that are timed.

use std::sync::Arc;
use std::time::Instant;

use engine_core::seams::{Clocked, Counters, TargetInfo};
use engine_core::{Fault, Out, Pos, SamplePlan, SeqId, Span, Tap, Target, TokenId, Want};

use super::{Family, STREAM_DEPTH, Timing, What};

/// Samples of a prompt: one takes long enough.
const PROMPTS: usize = 3;

/// Runs before the samples: first uses compile kernels and build graphs.
const WARM: usize = 2;

pub(super) struct Bench<'a> {
    target: &'a mut dyn Target,
    info: TargetInfo,
    plan: Arc<SamplePlan>,
    rounds: usize,
    /// The sequence of steps, which only grows.
    deep: Option<SeqId>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(target: &'a mut dyn Target, rounds: usize) -> Self {
        Self {
            info: target.info().clone(),
            target,
            plan: Arc::new(SamplePlan::greedy()),
            rounds: rounds.max(1),
            deep: None,
        }
    }

    pub(super) const fn info(&self) -> &TargetInfo {
        &self.info
    }

    pub(super) fn measure(&mut self, what: What) -> Result<Timing, Fault> {
        match what {
            What::Prefill { tokens } => {
                self.close();
                let rounds = self.rounds.min(PROMPTS);
                let timing = self.samples(rounds, |bench| {
                    let seq = bench.target.open()?;
                    let ran = bench.grow(seq, tokens);
                    bench.target.close(seq);
                    ran
                })?;
                let seq = self.target.open()?;
                self.grow(seq, (tokens - 1) / self.info.span_max * self.info.span_max)?;
                let families = self.families(|bench| bench.grow(seq, tokens));
                self.target.close(seq);
                let families = families?;
                Ok(Timing { families, ..timing })
            }
            What::Step { depth, width } => {
                let seq = self.deep_to(depth)?;
                self.steps(&[seq], depth, width)
            }
            What::Streams { sequences } => {
                self.close();
                let mut seqs = Vec::new();
                for _ in 0..sequences {
                    let seq = self.target.open()?;
                    seqs.push(seq);
                    self.grow(seq, STREAM_DEPTH)?;
                }
                let timing = self.steps(&seqs, STREAM_DEPTH, 1);
                seqs.into_iter().for_each(|seq| self.target.close(seq));
                timing
            }
        }
    }

    /// Closes the sequence of steps.
    pub(super) fn close(&mut self) {
        if let Some(seq) = self.deep.take() {
            self.target.close(seq);
        }
    }

    /// The sequence of steps, standing at `depth`.
    fn deep_to(&mut self, depth: usize) -> Result<SeqId, Fault> {
        let stands = |bench: &Self, seq: SeqId| bench.target.pos(seq).map_or(0, |p| p as usize);
        if self.deep.is_some_and(|seq| stands(self, seq) > depth) {
            self.close();
        }
        let seq = match self.deep {
            Some(seq) => seq,
            None => self.target.open()?,
        };
        self.deep = Some(seq);
        self.grow(seq, depth)?;
        Ok(seq)
    }

    /// Tokens that differ, so that experts do.
    fn token(&self, pos: usize) -> TokenId {
        let mixed = (pos as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
        (mixed % self.info.n_vocab.max(1) as u64) as TokenId
    }

    /// Runs a sequence's prompt up to `to`, in chunks.
    fn grow(&mut self, seq: SeqId, to: usize) -> Result<(), Fault> {
        let mut pos = self.target.pos(seq).map_or(0, |p| p as usize);
        while pos < to {
            let n = (to - pos).min(self.info.span_max);
            let tokens: Vec<TokenId> = (pos..pos + n).map(|p| self.token(p)).collect();
            let out = if pos + n == to { Out::Last } else { Out::None };
            let ticket = self
                .target
                .submit(&tokens, &[self.span(seq, pos, 0..n, out)])?;
            self.target.wait(ticket, None)?;
            pos += n;
            self.target.commit(seq, pos as Pos);
        }
        Ok(())
    }

    /// A pass of `width` rows for each sequence, none of which becomes state.
    fn step(&mut self, seqs: &[SeqId], depth: usize, width: usize) -> Result<(), Fault> {
        let mut tokens = Vec::with_capacity(seqs.len() * width);
        let mut spans = Vec::with_capacity(seqs.len());
        for (at, seq) in seqs.iter().enumerate() {
            tokens.extend((0..width).map(|k| self.token(depth + k + 977 * at)));
            let range = at * width..(at + 1) * width;
            spans.push(self.span(*seq, depth, range, Out::All));
        }
        let ticket = self.target.submit(&tokens, &spans)?;
        self.target.wait(ticket, None)?;
        for seq in seqs {
            self.target.commit(*seq, depth as Pos);
        }
        Ok(())
    }

    fn span(&self, seq: SeqId, pos: usize, range: std::ops::Range<usize>, out: Out) -> Span {
        Span {
            seq,
            pos: pos as Pos,
            range,
            out,
            want: Want::Ids(Arc::clone(&self.plan)),
            tap: Tap::default(),
        }
    }

    /// Times steps, and one of them launch by launch.
    fn steps(&mut self, seqs: &[SeqId], depth: usize, width: usize) -> Result<Timing, Fault> {
        let rounds = self.rounds;
        let timing = self.samples(rounds, |bench| bench.step(seqs, depth, width))?;
        let families = self.families(|bench| bench.step(seqs, depth, width))?;
        Ok(Timing { families, ..timing })
    }

    /// What `run` spends its launches and its time on.
    fn families(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<(), Fault>,
    ) -> Result<Option<Vec<Family>>, Fault> {
        if !self.target.clock()? {
            return Ok(None);
        }
        let ran = run(self);
        // Also after a fault: the clock must not go on.
        let clocked = self.target.clocked()?;
        ran?;
        Ok(Some(by_family(&clocked)))
    }

    /// Times `run` after a few unmeasured runs.
    fn samples(
        &mut self,
        rounds: usize,
        mut run: impl FnMut(&mut Self) -> Result<(), Fault>,
    ) -> Result<Timing, Fault> {
        for _ in 0..WARM.min(rounds) {
            run(self)?;
        }
        let before = self.target.counters();
        let mut seconds = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let begin = Instant::now();
            run(self)?;
            seconds.push(begin.elapsed().as_secs_f64());
        }
        let counted = |of: fn(&Counters) -> Option<u64>| {
            let (before, after) = (before.as_ref(), self.target.counters());
            let all = of(after.as_ref()?)?.checked_sub(of(before?)?)?;
            Some(all / rounds as u64)
        };
        Ok(Timing {
            weight_bytes: counted(|c| c.weight_bytes),
            launches: counted(|c| Some(c.launches)),
            families: None,
            samples: rounds,
            quartiles: quartiles(seconds),
        })
    }
}

/// Launches and times by source, the longest first.
fn by_family(clocked: &[Clocked]) -> Vec<Family> {
    let mut all: Vec<Family> = Vec::new();
    for c in clocked {
        let name = c.source.trim_end_matches(".cu");
        let at = all.iter().position(|f| f.name == name);
        let at = at.unwrap_or_else(|| {
            all.push(Family {
                name: name.to_owned(),
                launches: 0,
                microseconds: 0.0,
            });
            all.len() - 1
        });
        all[at].launches += c.launches;
        all[at].microseconds += 1e3 * c.millis;
    }
    all.sort_by(|a, b| b.microseconds.total_cmp(&a.microseconds));
    all
}

/// Lower quartile, median, upper quartile; of two in the middle the mean.
fn quartiles(mut of: Vec<f64>) -> [f64; 3] {
    of.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let place = share * (of.len() - 1) as f64;
        let (low, high) = (of[place.floor() as usize], of[place.ceil() as usize]);
        low + (high - low) * place.fract()
    };
    [at(0.25), at(0.5), at(0.75)]
}

#[cfg(test)]
mod tests {
    use engine_core::seams::Clocked;

    use super::{by_family, quartiles};

    #[test]
    fn launches_are_added_up_by_source() {
        let of = |source, kernel, launches, millis| Clocked {
            source,
            kernel,
            grid: [1, 1, 1],
            launches,
            millis,
        };
        let all = by_family(&[
            of("a.cu", "x", 2, 0.5),
            of("b.cu", "y", 1, 0.75),
            of("a.cu", "z", 3, 0.125),
        ]);
        let all: Vec<_> = all
            .iter()
            .map(|f| (f.name.as_str(), f.launches, f.microseconds))
            .collect();
        assert_eq!(all, [("b", 1, 750.0), ("a", 5, 625.0)]);
    }

    #[test]
    fn quartiles_lie_between_samples() {
        assert_eq!(quartiles(vec![3.0]), [3.0; 3]);
        assert_eq!(quartiles(vec![4.0, 1.0]), [1.75, 2.5, 3.25]);
        assert_eq!(quartiles(vec![5.0, 1.0, 2.0, 4.0, 3.0]), [2.0, 3.0, 4.0]);
    }
}
