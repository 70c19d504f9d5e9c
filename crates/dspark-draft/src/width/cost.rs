//! What passes cost, by their rows, as measured on this run.

/// Most rows told apart; wider passes are extrapolated.
const ROWS_MAX: usize = 256;

/// Samples after which old ones fade.
const MEMORY: f64 = 16.0;

/// A sample this many times off is not taken at its word: a page fault, a busy machine.
const ODD: f64 = 3.0;

/// What a second row adds when nothing is known, as a share of the first (spec/dspark.md 13).
const SHARE: f64 = 0.35;

/// A running mean that forgets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Mean {
    pub(crate) n: u32,
    value: f64,
    /// When it was last fed.
    pub(crate) at: u64,
}

impl Mean {
    pub(crate) fn get(&self) -> Option<f64> {
        (self.n > 0).then_some(self.value)
    }

    pub(crate) fn observe(&mut self, sample: f64, at: u64) {
        // NaN and negative times come from clocks that are not clocks.
        if !(sample >= 0.0 && sample.is_finite()) {
            return;
        }
        self.at = at;
        if self.n > 0 && sample * ODD < self.value {
            // What was held for the mean was the odd one.
            self.n = 0;
        }
        let sample = if self.n > 0 {
            sample.min(ODD * self.value)
        } else {
            sample
        };
        self.n = self.n.saturating_add(1);
        self.value += (sample - self.value) / f64::from(self.n).min(MEMORY);
    }
}

/// Seconds of a pass by its rows.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    /// Index: rows.
    of: Vec<Mean>,
}

impl Costs {
    /// Starts from a table of (rows, seconds), measured before; it is refined like anything else.
    #[must_use]
    pub fn seeded(table: &[(usize, f64)]) -> Self {
        let mut costs = Self::default();
        for (rows, seconds) in table {
            for _ in 0..2 {
                costs.observe(*rows, *seconds, 0);
            }
        }
        costs
    }

    /// Takes a pass of `rows` rows at step `at`.
    pub fn observe(&mut self, rows: usize, seconds: f64, at: u64) {
        if (1..=ROWS_MAX).contains(&rows) {
            if self.of.len() <= rows {
                self.of.resize(rows + 1, Mean::default());
            }
            self.of[rows].observe(seconds, at);
        }
    }

    /// Takes a pass of `rows` rows of which only the fastest counts, for it met no cold memory. Such a
    /// time is known, and real ones soon outweigh it.
    pub(crate) fn observe_least(&mut self, rows: usize, seconds: f64) {
        let least = self.of.get(rows).and_then(Mean::get);
        let seconds = least.map_or(seconds, |least| seconds.min(least));
        if let Some(mean) = self.of.get_mut(rows) {
            *mean = Mean::default();
        }
        self.observe(rows, seconds, 0);
        self.observe(rows, seconds, 0);
    }

    /// How often passes of `rows` rows were measured, and when last.
    pub(crate) fn known(&self, rows: usize) -> (u32, u64) {
        self.of.get(rows).map_or((0, 0), |m| (m.n, m.at))
    }

    /// Seconds of a pass of `rows` rows: measured, between measured neighbours, or beyond them along
    /// their slope. `None` if nothing was measured yet.
    #[must_use]
    pub fn estimate(&self, rows: usize) -> Option<f64> {
        let value = |n: usize| self.of.get(n).and_then(Mean::get);
        if let Some(seconds) = value(rows) {
            return Some(seconds);
        }
        let below = (1..rows.min(self.of.len()))
            .rev()
            .find_map(|n| Some((n, value(n)?)));
        let above = (rows + 1..self.of.len()).find_map(|n| Some((n, value(n)?)));
        let shape = |n: usize| 1.0 + SHARE * (n as f64 - 1.0);
        match (below, above) {
            (Some((a, x)), Some((b, y))) => Some(x + (y - x) * (rows - a) as f64 / (b - a) as f64),
            (None, Some((b, y))) => Some(y * shape(rows) / shape(b)),
            (Some((a, x)), None) => {
                let before = (1..a).rev().find_map(|n| Some((n, value(n)?)));
                let slope = match before {
                    Some((n, w)) => ((x - w) / (a - n) as f64).max(0.0),
                    None => SHARE * x / shape(a),
                };
                Some(x + slope * (rows - a) as f64)
            }
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_widths_are_estimated_from_their_neighbours() {
        let mut c = Costs::default();
        assert_eq!(c.estimate(3), None);
        c.observe(1, 10.0, 1);
        assert_eq!(c.estimate(1), Some(10.0));
        assert!((c.estimate(3).unwrap() - 17.0).abs() < 1e-9);
        c.observe(4, 16.0, 2);
        assert_eq!(c.estimate(2), Some(12.0));
        assert_eq!(c.estimate(6), Some(20.0));
        let only_wide = Costs::seeded(&[(3, 17.0)]);
        assert!((only_wide.estimate(1).unwrap() - 10.0).abs() < 1e-9);
        // Falling times are not continued below anything.
        let falling = Costs::seeded(&[(1, 10.0), (2, 8.0)]);
        assert_eq!(falling.estimate(5), Some(8.0));
        assert_eq!(c.estimate(100_000), Some(16.0 + 2.0 * 99_996.0));
    }

    #[test]
    fn one_slow_pass_does_not_decide() {
        let mut c = Costs::default();
        for first in [1000.0, 10.0] {
            c.observe(2, first, 0);
            for at in 0..8 {
                c.observe(2, 10.0, at);
            }
            assert!((c.estimate(2).unwrap() - 10.0).abs() < 1e-9);
        }
        c.observe(2, 1e9, 9);
        assert!(c.estimate(2).unwrap() < 13.0);
        for odd in [f64::NAN, f64::INFINITY, -1.0] {
            c.observe(2, odd, 9);
        }
        assert!(c.estimate(2).unwrap() < 13.0);
    }

    #[test]
    fn times_that_grow_with_the_context_are_followed() {
        let mut c = Costs::default();
        for at in 0..200u32 {
            c.observe(2, 10.0 + f64::from(at) * 0.1, u64::from(at));
        }
        let got = c.estimate(2).unwrap();
        assert!((27.0..29.9).contains(&got), "{got}");
    }
}
