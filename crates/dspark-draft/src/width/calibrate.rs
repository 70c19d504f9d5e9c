//! What a confidence is worth: for each depth, a logistic regression of acceptance on the drafter's
//! log-odds, learned while running. The published heads are overconfident and were trained for another
//! event than exact acceptance, so their numbers are inputs, not probabilities (spec/dspark.md 3).

/// 1 / (1 + exp(-x)).
pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Log-odds taken for acceptance when nothing is known: a probability of 0.75 (spec/dspark.md 8.5).
const PRIOR: f64 = 1.098_612_3;

/// Beyond these log-odds a drafter is simply sure.
const SURE: f64 = 8.0;

/// Variances before any observation: of the intercept, of the slope.
const DOUBT: [f64; 2] = [0.2, 0.05];

/// Share of its weight that an observation keeps when the next one comes.
const MEMORY: f64 = 0.9985;

/// Acceptance at one depth, given that all before it were accepted: log-odds = a + b x, by a Kalman
/// filter on (a, b).
#[derive(Clone, Debug)]
struct Depth {
    /// a, b.
    mean: [f64; 2],
    /// Their covariance: variance of a, covariance, variance of b.
    var: [f64; 3],
}

impl Depth {
    /// `told`: whether the drafter gives log-odds.
    fn new(told: bool) -> Self {
        Self {
            mean: [if told { 0.0 } else { PRIOR }, 1.0],
            var: [DOUBT[0], 0.0, DOUBT[1]],
        }
    }

    fn log_odds(&self, x: f64) -> f64 {
        self.mean[0] + self.mean[1] * x
    }

    /// Standard deviation of the log-odds.
    fn doubt(&self, x: f64) -> f64 {
        let [aa, ab, bb] = self.var;
        (aa + 2.0 * ab * x + bb * x * x).max(0.0).sqrt()
    }

    fn observe(&mut self, x: f64, accepted: bool) {
        let forget = |v: f64, most: f64| (v / MEMORY).min(most);
        self.var = [
            forget(self.var[0], DOUBT[0]),
            self.var[1],
            forget(self.var[2], DOUBT[1]),
        ];
        let p = sigmoid(self.log_odds(x));
        let spread = (p * (1.0 - p)).max(1e-3);
        let [aa, ab, bb] = self.var;
        let gain = [aa + ab * x, ab + bb * x];
        let scale = spread / (1.0 + spread * (gain[0] + gain[1] * x));
        let error = (f64::from(u8::from(accepted)) - p) / spread;
        for (mean, gain) in self.mean.iter_mut().zip(gain) {
            *mean += gain * scale * error;
        }
        self.var = [
            aa - gain[0] * gain[0] * scale,
            ab - gain[0] * gain[1] * scale,
            bb - gain[1] * gain[1] * scale,
        ];
        // A larger confidence never means less.
        self.mean[1] = self.mean[1].max(0.0);
    }
}

/// Acceptance by depth, for drafters with confidences and without.
#[derive(Clone, Debug, Default)]
pub struct Calibration {
    told: Vec<Depth>,
    untold: Vec<Depth>,
}

impl Calibration {
    /// Fills `out` with `depth` survivals: the probability that candidate k and all before it are
    /// accepted. `logits`: the drafter's log-odds, empty if it gives none. `hope`: standard deviations
    /// to be on the bright side by; 0 for what is likeliest.
    pub fn survival(&self, logits: &[f32], depth: usize, hope: f64, out: &mut Vec<f64>) {
        out.clear();
        let mut product = 1.0;
        for k in 0..depth {
            let (list, x) = self.side(logits, k);
            let fresh = Depth::new(!logits.is_empty());
            // A depth never seen is taken to be like the last one that was.
            let depth = list.get(k).or(list.last()).unwrap_or(&fresh);
            product *= sigmoid(depth.log_odds(x) + hope * depth.doubt(x));
            out.push(product);
        }
    }

    fn side(&self, logits: &[f32], k: usize) -> (&[Depth], f64) {
        match logits.get(k) {
            Some(l) => (&self.told, input(*l)),
            None => (&self.untold, 0.0),
        }
    }

    /// Log-odds of acceptance at depth `k` for the drafter's log-odds `logit`.
    #[must_use]
    pub fn log_odds(&self, logit: f32, k: usize) -> f64 {
        let fresh = Depth::new(true);
        let depth = self.told.get(k).or(self.told.last()).unwrap_or(&fresh);
        depth.log_odds(input(logit))
    }

    /// Learns from a proposal: of its candidates the first `matched` were right; of the others only
    /// the next is known to be wrong, and only if there are `known` of them.
    pub fn observe(&mut self, logits: &[f32], matched: usize, known: usize) {
        for k in 0..known.min(matched + 1) {
            let told = k < logits.len();
            let x = if told { input(logits[k]) } else { 0.0 };
            let list = if told {
                &mut self.told
            } else {
                &mut self.untold
            };
            while list.len() <= k {
                let like = list.last().cloned().unwrap_or_else(|| Depth::new(told));
                list.push(Depth {
                    var: [DOUBT[0], 0.0, DOUBT[1]],
                    ..like
                });
            }
            list[k].observe(x, k < matched);
        }
    }
}

fn input(logit: f32) -> f64 {
    // NaN is no confidence at all.
    if logit.is_nan() {
        return -SURE;
    }
    f64::from(logit).clamp(-SURE, SURE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::rng::Rng;

    /// Feeds `n` proposals of depth `depth`; `truth(k, x)` is the probability of acceptance.
    fn learn(n: usize, told: bool, truth: impl Fn(usize, f64) -> f64) -> Calibration {
        let mut rng = Rng::new(5);
        let mut c = Calibration::default();
        for _ in 0..n {
            let logits: Vec<f32> = (0..5).map(|_| (rng.normal() * 1.5) as f32).collect();
            let matched = (0..5)
                .take_while(|k| rng.unit() < truth(*k, f64::from(logits[*k])))
                .count();
            let known = (matched + 1).min(5);
            c.observe(if told { &logits } else { &[] }, matched, known);
        }
        c
    }

    #[test]
    fn a_skewed_overconfident_head_is_corrected_at_each_depth() {
        let truth = |k: usize, x: f64| sigmoid(0.6 * x + 1.0 - 0.3 * k as f64);
        let c = learn(3000, true, truth);
        for k in 0..3 {
            for x in [-2.0f32, 0.0, 2.0] {
                let got = sigmoid(c.log_odds(x, k));
                let want = truth(k, f64::from(x));
                assert!(
                    (got - want).abs() < 0.06,
                    "depth {k}, {x}: {got} want {want}"
                );
            }
        }
    }

    #[test]
    fn without_confidences_the_rate_of_each_depth_is_learned() {
        let c = learn(2000, false, |k, _| if k == 0 { 0.9 } else { 0.5 });
        let mut a = Vec::new();
        c.survival(&[], 3, 0.0, &mut a);
        for (got, want) in a.iter().zip([0.9, 0.45, 0.225]) {
            assert!((got - want).abs() < 0.06, "{a:?}");
        }
    }

    #[test]
    fn a_change_of_the_text_is_followed() {
        let mut c = learn(2000, true, |_, _| 0.2);
        for _ in 0..300 {
            c.observe(&[0.0, 0.0], 2, 2);
        }
        let mut a = Vec::new();
        c.survival(&[0.0, 0.0], 2, 0.0, &mut a);
        assert!(a[0] > 0.55 && a[1] > 0.3, "{a:?}");
    }

    #[test]
    fn odd_log_odds_do_no_harm() {
        let mut c = Calibration::default();
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30] {
            for right in [0, 1] {
                c.observe(&[odd], right, 1);
            }
        }
        let mut a = Vec::new();
        c.survival(&[f32::NAN, 3.0], 3, 0.0, &mut a);
        assert!(a.iter().all(|a| (0.0..=1.0).contains(a)), "{a:?}");
    }
}
