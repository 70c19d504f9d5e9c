//! How a pass is divided among sequences. A pure function: who gets how many tokens decides only
//! when an answer comes, never what it says.

use dspark_draft::speculate::Need;

/// The bounds of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    /// Prompt tokens of a pass in which nobody generates.
    pub alone: usize,
    /// Prompt tokens of a pass in which somebody does: their next token waits for these.
    pub beside_decode: usize,
    /// Longest span of one sequence.
    pub span_max: usize,
}

/// Prompt tokens for each sequence. Those that generate have none to run and always get their rows. The
/// budget is divided evenly, what one cannot use going to the others, so that a short prompt does not wait for a
/// long one and neither stands still.
pub(crate) fn shares(needs: &[Need], budget: Budget) -> Vec<usize> {
    let decodes = needs.iter().any(|n| matches!(n, Need::Decode));
    let mut left = if decodes {
        budget.beside_decode
    } else {
        budget.alone
    };
    let mut shares = vec![0; needs.len()];
    let mut open: Vec<(usize, usize)> = Vec::new();
    for (at, need) in needs.iter().enumerate() {
        match *need {
            Need::Decode => {}
            Need::Prompt(tokens) => open.push((tokens.min(budget.span_max), at)),
        }
    }
    // Smallest first: whoever needs less than an even share leaves the rest to those after it. The
    // sort is stable, so that of equals the oldest comes first.
    open.sort_by_key(|(tokens, _)| *tokens);
    let mut waiting = open.len();
    for (tokens, at) in open {
        let even = left.div_ceil(waiting);
        shares[at] = tokens.min(even);
        left -= shares[at];
        waiting -= 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Budget = Budget {
        alone: 100,
        beside_decode: 10,
        span_max: 64,
    };

    #[test]
    fn shares_have_their_hand_computed_values() {
        use Need::{Decode, Prompt};
        let cases: [(&[Need], &[usize]); 9] = [
            (&[], &[]),
            (&[Decode, Decode], &[0, 0]),
            (&[Prompt(5)], &[5]),
            (&[Prompt(1000)], &[64]),
            (&[Prompt(1000), Prompt(1000)], &[50, 50]),
            (&[Prompt(1000), Prompt(3)], &[64, 3]),
            (&[Prompt(1000), Prompt(40), Prompt(1000)], &[33, 34, 33]),
            (&[Decode, Prompt(1000)], &[0, 10]),
            (
                &[Prompt(1000), Decode, Prompt(1000), Prompt(1)],
                &[5, 0, 4, 1],
            ),
        ];
        for (needs, want) in cases {
            assert_eq!(shares(needs, BUDGET), want, "{needs:?}");
        }
    }

    #[test]
    fn more_prompts_than_tokens_serve_the_oldest() {
        let needs = [Need::Decode; 1].into_iter().chain([Need::Prompt(9); 12]);
        let got = shares(&needs.collect::<Vec<_>>(), BUDGET);
        assert_eq!(got, [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]);
    }

    #[test]
    fn the_budget_is_used_up_and_never_exceeded() {
        for n in 1..30 {
            for tokens in [1, 2, 7, 50, 1000] {
                let needs = vec![Need::Prompt(tokens); n];
                let got = shares(&needs, BUDGET);
                let wanted = n * tokens.min(BUDGET.span_max);
                assert_eq!(got.iter().sum::<usize>(), wanted.min(BUDGET.alone));
                assert!(got.iter().all(|s| *s <= tokens.min(BUDGET.span_max)));
            }
        }
    }
}
