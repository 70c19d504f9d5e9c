//! What changes single logits before anything is compared: bias, then penalties.

use engine_core::{Penalties, SamplePlan, TokenId};

/// Counts of tokens, emptied without touching the whole vocabulary.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    of: Vec<u32>,
}

impl Counts {
    pub(crate) fn new(n_vocab: usize) -> Self {
        Self {
            of: vec![0; n_vocab],
        }
    }

    /// The width of the vocabulary.
    pub(crate) fn len(&self) -> usize {
        self.of.len()
    }
}

/// Adjusts a row in place: bias added in list order; then for each token among the last `window` of
/// `history`: divided by `repeat` where positive, else multiplied; minus count times `frequency`;
/// minus `presence`. Every step rounds once. Tokens outside the row are ignored.
pub(crate) fn adjust(plan: &SamplePlan, history: &[TokenId], counts: &mut Counts, row: &mut [f32]) {
    for (token, bias) in plan.bias.iter() {
        if let Some(logit) = row.get_mut(*token as usize) {
            *logit += bias;
        }
    }
    let penalties = &plan.penalties;
    if penalties.is_neutral() {
        return;
    }
    let window = history.len().saturating_sub(penalties.window as usize);
    let seen = &history[window..];
    for token in seen {
        if let Some(count) = counts.of.get_mut(*token as usize) {
            *count += 1;
        }
    }
    // Each token is handled where it first appears; its count is then 0 again.
    for token in seen {
        let index = *token as usize;
        let count = counts.of.get_mut(index).map_or(0, std::mem::take);
        if count > 0
            && let Some(logit) = row.get_mut(index)
        {
            *logit = penalised(*logit, count, penalties);
        }
    }
}

fn penalised(logit: f32, count: u32, penalties: &Penalties) -> f32 {
    let logit = if logit > 0.0 {
        logit / penalties.repeat
    } else {
        logit * penalties.repeat
    };
    logit - count as f32 * penalties.frequency - penalties.presence
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn run(plan: &SamplePlan, history: &[TokenId], row: &[f32]) -> Vec<f32> {
        let mut counts = Counts::new(row.len());
        let mut row = row.to_vec();
        adjust(plan, history, &mut counts, &mut row);
        assert!(counts.of.iter().all(|c| *c == 0), "counts are left empty");
        row
    }

    #[test]
    fn penalties_have_their_hand_computed_values() {
        let mut plan = SamplePlan::greedy();
        plan.penalties = Penalties {
            repeat: 2.0,
            presence: 0.5,
            frequency: 0.25,
            window: 4,
        };
        let row = [4.0, -4.0, 1.0, 0.0, 7.0];
        // Only the last four count: token 4 fell out of the window, token 9 is not of this row.
        let history = [4, 4, 0, 1, 0, 9];
        let want = [4.0 / 2.0 - 0.5 - 0.5, -8.0 - 0.25 - 0.5, 1.0, 0.0, 7.0];
        assert_eq!(run(&plan, &history, &row), want);
        plan.penalties.window = 100;
        let want = [1.0, -8.75, 1.0, 0.0, 7.0 / 2.0 - 0.5 - 0.5];
        assert_eq!(run(&plan, &history, &row), want);
        plan.penalties.window = 0;
        assert_eq!(run(&plan, &history, &row), row);
    }

    #[test]
    fn each_penalty_works_alone() {
        let row = [2.0, -2.0];
        let cases = [
            (
                Penalties {
                    repeat: 4.0,
                    window: 9,
                    ..Penalties::default()
                },
                [0.5, -8.0],
            ),
            (
                Penalties {
                    presence: 1.0,
                    window: 9,
                    ..Penalties::default()
                },
                [1.0, -3.0],
            ),
            (
                Penalties {
                    frequency: 1.0,
                    window: 9,
                    ..Penalties::default()
                },
                [0.0, -3.0],
            ),
        ];
        for (penalties, want) in cases {
            let plan = SamplePlan {
                penalties,
                ..SamplePlan::greedy()
            };
            assert_eq!(run(&plan, &[0, 1, 0], &row), want);
        }
    }

    #[test]
    fn bias_adds_in_order_and_bans() {
        let bias: Arc<[(TokenId, f32)]> =
            Arc::from([(0, 1.0), (1, f32::NEG_INFINITY), (0, 0.5), (99, 1.0)]);
        let plan = SamplePlan {
            bias,
            ..SamplePlan::greedy()
        };
        assert_eq!(
            run(&plan, &[], &[1.0, 5.0, 2.0]),
            [2.5, f32::NEG_INFINITY, 2.0]
        );
    }
}
