//! Counters of speculation (spec/dspark.md 10).
//!
//! Plain numbers that add up: every field of a sum is the sum of the fields, so that threads, sequences
//! and runs can be merged, and [`Stats::numbers`] lists them for whoever writes JSON or a table. Rates
//! are methods. The acceptance rate rises when a policy narrows its widths, so it is never to be shown
//! without the accepted length.

use engine_core::seams::AheadCounts;

/// Depths told apart; deeper candidates are counted in the last.
pub const DEPTHS: usize = 15;

/// Bins of predicted probability.
pub const BINS: usize = 20;

/// Phases of the positions in a width histogram: windows of four positions are compressed.
pub const PHASES: usize = 4;

/// Seconds by phase of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// Asking the drafter.
    pub draft: f64,
    /// Choosing widths and laying out the pass.
    pub choose: f64,
    /// The target's pass.
    pub pass: f64,
    /// Drawing, comparing, emitting.
    pub accept: f64,
    /// Showing the drafter what became state.
    pub observe: f64,
    /// Moving the target's sequences.
    pub commit: f64,
}

/// One depth's predictions, sorted into bins of predicted probability.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bins {
    /// Predictions.
    pub n: [u64; BINS],
    /// Those that came true.
    pub hits: [u64; BINS],
    /// Sum of predicted probabilities.
    pub predicted: [f64; BINS],
    /// Sum of squared errors, over all bins.
    pub squared: f64,
}

impl Bins {
    fn observe(&mut self, p: f64, hit: bool) {
        let p = p.clamp(0.0, 1.0);
        let bin = ((p * BINS as f64) as usize).min(BINS - 1);
        self.n[bin] += 1;
        self.hits[bin] += u64::from(hit);
        self.predicted[bin] += p;
        self.squared += (p - f64::from(u8::from(hit))).powi(2);
    }

    /// All predictions.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.n.iter().sum()
    }

    /// Mean predicted and mean observed probability.
    #[must_use]
    pub fn means(&self) -> Option<(f64, f64)> {
        let n = self.count() as f64;
        let (predicted, hits) = (
            self.predicted.iter().sum::<f64>(),
            self.hits.iter().sum::<u64>(),
        );
        (n > 0.0).then(|| (predicted / n, hits as f64 / n))
    }

    /// Mean squared error.
    #[must_use]
    pub fn brier(&self) -> Option<f64> {
        ratio(self.squared, self.count() as f64)
    }

    /// Expected calibration error: mean distance of predicted and observed, over bins.
    #[must_use]
    pub fn ece(&self) -> Option<f64> {
        let gaps = self.predicted.iter().zip(&self.hits);
        ratio(
            gaps.map(|(p, h)| (p - *h as f64).abs()).sum(),
            self.count() as f64,
        )
    }

    /// Area under the ROC curve: how often a hit was predicted with more than a miss was; predictions
    /// of one bin count half.
    #[must_use]
    pub fn auc(&self) -> Option<f64> {
        let (mut below, mut won) = (0.0, 0.0);
        for (n, hits) in self.n.iter().zip(&self.hits) {
            let (misses, hits) = ((n - hits) as f64, *hits as f64);
            won += hits * (below + misses / 2.0);
            below += misses;
        }
        ratio(won, below * self.hits.iter().sum::<u64>() as f64)
    }

    fn merge(&mut self, other: &Self) {
        add(&mut self.n, &other.n);
        add(&mut self.hits, &other.hits);
        for (a, b) in self.predicted.iter_mut().zip(&other.predicted) {
            *a += b;
        }
        self.squared += other.squared;
    }
}

/// What the loop counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Passes of the target.
    pub passes: u64,
    /// Calls of [`crate::speculate::Speculator::step`] that had something to do.
    pub turns: u64,
    /// Verified spans (of width 1 too): one a sequence and pass.
    pub steps: u64,
    /// Rows of verified spans: the sum of widths.
    pub rows: u64,
    /// Prompt tokens that became state.
    pub prompt_tokens: u64,
    /// First tokens, drawn from a prompt's last row.
    pub first_tokens: u64,
    /// Tokens emitted by verified spans; with the first tokens, all.
    pub emitted: u64,
    /// Candidates verified.
    pub offered: u64,
    /// Candidates emitted.
    pub matched: u64,
    /// Calls of the drafter.
    pub drafts: u64,
    /// Sequences asked for in them.
    pub asked: u64,
    /// Sequences that got candidates without a draft.
    pub free: u64,
    /// Candidates proposed.
    pub proposed: u64,
    /// Proposals cut because they did not fit: too deep, or tokens outside the vocabulary.
    pub misfits: u64,
    /// Times the drafter's last proposals were so seldom right that it seems not to fit the target.
    pub alarms: u64,
    /// Faults of the drafter.
    pub drafter_faults: u64,
    /// Faults of the target's passes.
    pub pass_faults: u64,
    /// Rows that gave no token.
    pub row_faults: u64,
    /// Per depth: steps that verified the candidate.
    pub reached: [u64; DEPTHS],
    /// Per depth: steps that verified it after all before it were accepted.
    pub tried: [u64; DEPTHS],
    /// Per depth: steps that accepted it.
    pub accepted: [u64; DEPTHS],
    /// Steps by position of the seed modulo 4 and by width, 1 at index 0.
    pub widths: [[u64; DEPTHS + 1]; PHASES],
    /// Per depth: the drafter's confidence of a candidate against its acceptance after all before it.
    pub confidence: [Bins; DEPTHS],
    /// Per depth: the product of confidences against acceptance of the whole prefix.
    pub product: [Bins; DEPTHS],
    /// Drafts that were begun while the target verified.
    pub ahead: AheadCounts,
    /// Seconds.
    pub times: Times,
}

/// A verified span, for the counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verified {
    pub(crate) pos: u32,
    pub(crate) offered: usize,
    pub(crate) matched: usize,
    pub(crate) emitted: usize,
}

impl Stats {
    pub(crate) fn observe_verify(&mut self, v: Verified) {
        self.steps += 1;
        self.rows += v.offered as u64 + 1;
        self.emitted += v.emitted as u64;
        self.offered += v.offered as u64;
        self.matched += v.matched as u64;
        self.widths[v.pos as usize % PHASES][v.offered.min(DEPTHS)] += 1;
        for k in 0..v.offered.min(DEPTHS) {
            // A text that ended within its accepted candidates says nothing of the later ones.
            if k >= v.emitted {
                break;
            }
            self.reached[k] += 1;
            self.accepted[k] += u64::from(k < v.matched);
            self.tried[k] += u64::from(k <= v.matched);
        }
        // Rejected earlier: reached, not tried.
        if v.emitted > v.matched {
            for k in v.emitted..v.offered.min(DEPTHS) {
                self.reached[k] += 1;
            }
        }
    }

    /// Takes what the text proved: `logits` of a proposal of which `matched` were right and `known` are
    /// settled one after the other.
    pub(crate) fn observe_outcome(&mut self, logits: &[f32], matched: usize, known: usize) {
        let mut product = 1.0;
        for (k, logit) in logits.iter().enumerate().take(DEPTHS) {
            let c = 1.0 / (1.0 + (-f64::from(*logit)).exp());
            product *= c;
            if k < known {
                self.confidence[k].observe(c, k < matched);
            }
            // A prefix with a wrong candidate is wrong.
            if k < known || known > matched {
                self.product[k].observe(product, k < matched);
            }
        }
    }

    /// Candidates accepted of those verified.
    #[must_use]
    pub fn acceptance_rate(&self) -> Option<f64> {
        ratio(self.matched as f64, self.offered as f64)
    }

    /// Tokens a verified span emitted: the accepted length, the target's own token included.
    #[must_use]
    pub fn accepted_length(&self) -> Option<f64> {
        ratio(self.emitted as f64, self.steps as f64)
    }

    /// Mean verify width.
    #[must_use]
    pub fn mean_width(&self) -> Option<f64> {
        ratio(self.rows as f64, self.steps as f64)
    }

    /// Share of steps that verified candidate `k` (from 0) and accepted it.
    #[must_use]
    pub fn survival(&self, k: usize) -> Option<f64> {
        ratio(*self.accepted.get(k)? as f64, *self.reached.get(k)? as f64)
    }

    /// The same among steps that accepted all candidates before it.
    #[must_use]
    pub fn conditional(&self, k: usize) -> Option<f64> {
        ratio(*self.accepted.get(k)? as f64, *self.tried.get(k)? as f64)
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Self) {
        for (a, b) in self.scalars_mut().into_iter().zip(other.scalars()) {
            *a += b.1;
        }
        add(&mut self.reached, &other.reached);
        add(&mut self.tried, &other.tried);
        add(&mut self.accepted, &other.accepted);
        for (a, b) in self.widths.iter_mut().zip(&other.widths) {
            add(a, b);
        }
        for (a, b) in self.confidence.iter_mut().zip(&other.confidence) {
            a.merge(b);
        }
        for (a, b) in self.product.iter_mut().zip(&other.product) {
            a.merge(b);
        }
        self.ahead.merge(&other.ahead);
        for (a, b) in self.times.list_mut().into_iter().zip(other.times.list()) {
            *a += b.1;
        }
    }

    fn scalars(&self) -> [(&'static str, u64); 18] {
        [
            ("passes", self.passes),
            ("turns", self.turns),
            ("steps", self.steps),
            ("rows", self.rows),
            ("prompt_tokens", self.prompt_tokens),
            ("first_tokens", self.first_tokens),
            ("emitted", self.emitted),
            ("offered", self.offered),
            ("matched", self.matched),
            ("drafts", self.drafts),
            ("asked", self.asked),
            ("free", self.free),
            ("proposed", self.proposed),
            ("misfits", self.misfits),
            ("alarms", self.alarms),
            ("drafter_faults", self.drafter_faults),
            ("pass_faults", self.pass_faults),
            ("row_faults", self.row_faults),
        ]
    }

    fn scalars_mut(&mut self) -> [&mut u64; 18] {
        [
            &mut self.passes,
            &mut self.turns,
            &mut self.steps,
            &mut self.rows,
            &mut self.prompt_tokens,
            &mut self.first_tokens,
            &mut self.emitted,
            &mut self.offered,
            &mut self.matched,
            &mut self.drafts,
            &mut self.asked,
            &mut self.free,
            &mut self.proposed,
            &mut self.misfits,
            &mut self.alarms,
            &mut self.drafter_faults,
            &mut self.pass_faults,
            &mut self.row_faults,
        ]
    }

    /// Everything as names and numbers, counts first; rates that have no value yet are left out. Names
    /// are stable: they are what records and pages show.
    #[must_use]
    pub fn numbers(&self) -> Vec<(String, f64)> {
        let mut out: Vec<(String, f64)> = Vec::new();
        let mut put = |name: String, value: Option<f64>| out.extend(value.map(|v| (name, v)));
        for (name, value) in self.scalars() {
            put(name.to_owned(), Some(value as f64));
        }
        for (name, value) in self.ahead.list() {
            put(format!("ahead.{name}"), Some(value as f64));
        }
        put("ahead.kappa".to_owned(), self.ahead.kappa(1));
        for (name, value) in self.times.list() {
            put(format!("seconds.{name}"), Some(value));
        }
        put("acceptance_rate".to_owned(), self.acceptance_rate());
        put("accepted_length".to_owned(), self.accepted_length());
        put("mean_width".to_owned(), self.mean_width());
        for k in (0..DEPTHS).filter(|k| self.reached[*k] > 0) {
            put(format!("reached.{}", k + 1), Some(self.reached[k] as f64));
            put(format!("survival.{}", k + 1), self.survival(k));
            put(format!("conditional.{}", k + 1), self.conditional(k));
        }
        for (phase, widths) in self.widths.iter().enumerate() {
            for (at, n) in widths.iter().enumerate().filter(|(_, n)| **n > 0) {
                put(format!("width.{phase}.{}", at + 1), Some(*n as f64));
            }
        }
        for (what, list) in [("confidence", &self.confidence), ("product", &self.product)] {
            for (k, bins) in list.iter().enumerate() {
                let name = |of: &str| format!("{what}.{}.{of}", k + 1);
                put(name("predicted"), bins.means().map(|m| m.0));
                put(name("observed"), bins.means().map(|m| m.1));
                put(name("ece"), bins.ece());
                put(name("brier"), bins.brier());
                put(name("auc"), bins.auc());
            }
        }
        out
    }
}

impl Times {
    fn list(&self) -> [(&'static str, f64); 6] {
        [
            ("draft", self.draft),
            ("choose", self.choose),
            ("pass", self.pass),
            ("accept", self.accept),
            ("observe", self.observe),
            ("commit", self.commit),
        ]
    }

    fn list_mut(&mut self) -> [&mut f64; 6] {
        [
            &mut self.draft,
            &mut self.choose,
            &mut self.pass,
            &mut self.accept,
            &mut self.observe,
            &mut self.commit,
        ]
    }
}

fn ratio(a: f64, b: f64) -> Option<f64> {
    (b > 0.0).then(|| a / b)
}

fn add(a: &mut [u64], b: &[u64]) {
    for (a, b) in a.iter_mut().zip(b) {
        *a += b;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(pos: u32, offered: usize, matched: usize, emitted: usize) -> Verified {
        Verified {
            pos,
            offered,
            matched,
            emitted,
        }
    }

    fn three() -> Stats {
        let mut s = Stats::default();
        s.observe_verify(step(4, 3, 3, 4));
        s.observe_verify(step(8, 3, 1, 2));
        s.observe_verify(step(10, 0, 0, 1));
        s
    }

    #[test]
    fn survival_is_among_all_that_verified_and_conditional_among_those_that_came_so_far() {
        let s = three();
        assert_eq!((s.offered, s.matched, s.emitted, s.rows), (6, 4, 7, 9));
        assert_eq!(s.acceptance_rate(), Some(4.0 / 6.0));
        assert_eq!(s.accepted_length(), Some(7.0 / 3.0));
        let survival: Vec<_> = (0..4).map(|k| s.survival(k)).collect();
        assert_eq!(survival, [Some(1.0), Some(0.5), Some(0.5), None]);
        let conditional: Vec<_> = (0..4).map(|k| s.conditional(k)).collect();
        assert_eq!(conditional, [Some(1.0), Some(0.5), Some(1.0), None]);
        assert_eq!(s.widths[0][3], 2);
        assert_eq!(s.widths[2][0], 1);
    }

    #[test]
    fn a_text_that_ends_inside_a_step_says_nothing_of_what_follows() {
        let mut s = Stats::default();
        s.observe_verify(step(0, 4, 2, 2));
        assert_eq!(s.reached[..4], [1, 1, 0, 0]);
        assert_eq!(s.tried[..4], [1, 1, 0, 0]);
        assert_eq!(s.accepted[..4], [1, 1, 0, 0]);
        assert_eq!((s.emitted, s.matched, s.offered), (2, 2, 4));
    }

    #[test]
    fn merging_is_adding() {
        let mut a = three();
        a.observe_outcome(&[1.0, -1.0], 1, 2);
        a.times.pass = 2.0;
        let mut both = a.clone();
        both.merge(&a);
        let (one, two) = (a.numbers(), both.numbers());
        assert_eq!(one.len(), two.len());
        for ((name, x), (other, y)) in one.iter().zip(&two) {
            assert_eq!(name, other);
            // Sums double, averages stay.
            let averages = [
                "survival",
                "conditional",
                "confidence",
                "product",
                "acc",
                "mean",
            ];
            let count = !averages.iter().any(|a| name.starts_with(a));
            assert_eq!(*y, if count { 2.0 * x } else { *x }, "{name}");
        }
    }

    #[test]
    fn calibration_figures_have_their_hand_computed_values() {
        let mut bins = Bins::default();
        for (p, hit) in [(0.9, true), (0.9, false), (0.1, false), (0.1, false)] {
            bins.observe(p, hit);
        }
        let near = |got: Option<f64>, want: f64| (got.unwrap() - want).abs() < 1e-12;
        assert!(near(bins.ece(), (0.8 + 0.2) / 4.0), "{:?}", bins.ece());
        assert!(near(bins.brier(), (0.01 + 0.81 + 0.01 + 0.01) / 4.0));
        // One hit against three misses: two lower, one equal.
        assert!(near(bins.auc(), 2.5 / 3.0));
        assert_eq!(Bins::default().auc(), None);
    }

    #[test]
    fn a_wrong_candidate_settles_all_prefixes_that_hold_it() {
        let mut s = Stats::default();
        s.observe_outcome(&[0.0, 0.0, 0.0], 1, 2);
        let counts = |list: &[Bins]| {
            [0, 1, 2].map(|k| {
                (
                    list[k].count(),
                    list[k].hits[10] + list[k].hits[5] + list[k].hits[2],
                )
            })
        };
        assert_eq!(counts(&s.confidence), [(1, 1), (1, 0), (0, 0)]);
        assert_eq!(counts(&s.product), [(1, 1), (1, 0), (1, 0)]);
        // Cut by the end of the text: nothing is known of the rest.
        let mut cut = Stats::default();
        cut.observe_outcome(&[0.0, 0.0, 0.0], 1, 1);
        assert_eq!(counts(&cut.product), [(1, 1), (0, 0), (0, 0)]);
    }
}
