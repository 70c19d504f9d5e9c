//! Notices a drafter that does not fit its target although it was accepted: what it proposes is hardly
//! ever right (spec/dspark.md 15, trap 32).
//!
//! Proposals are judged by the text, not by what was verified, so a policy that stopped drafting does not
//! hide it. Only proposals with confidences count: a copy of the context knows nothing of the target.

use std::collections::VecDeque;

use engine_core::mutant::mutant;

/// Proposals looked back at.
const WINDOW: usize = 200;
/// Tokens a step below which something is wrong, the target's own included.
const LEAST: f64 = 1.2;

/// The last proposals' worth.
#[derive(Clone, Debug, Default)]
pub(super) struct Alarm {
    /// Candidates that were right, by proposal.
    recent: VecDeque<usize>,
    sum: usize,
    raised: bool,
}

impl Alarm {
    /// Takes a proposal of which `matched` candidates were right; whether this raises the alarm.
    pub(super) fn observe(&mut self, matched: usize) -> bool {
        self.recent.push_back(matched);
        self.sum += matched;
        if self.recent.len() > WINDOW {
            self.sum -= self.recent.pop_front().unwrap_or(0);
        }
        let was = self.raised;
        self.raised = self.length().is_some_and(|l| l < LEAST) && !mutant(264);
        self.raised && !was
    }

    /// Tokens a step that the last proposals were worth; none before there are enough of them.
    fn length(&self) -> Option<f64> {
        (self.recent.len() == WINDOW).then(|| 1.0 + self.sum as f64 / WINDOW as f64)
    }

    /// The reason while it is raised.
    pub(super) fn reason(&self) -> Option<String> {
        let length = self.length().filter(|_| self.raised)?;
        Some(format!(
            "{length:.2} tokens a draft over the last {WINDOW} (expected at least {LEAST}): was this drafter \
             made for this target?"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drafter_that_is_hardly_ever_right_raises_it_once_and_recovers() {
        let mut alarm = Alarm::default();
        // One in six: 1.17 tokens a step.
        let raised: Vec<usize> = (0..300)
            .filter(|at| alarm.observe(usize::from(at % 6 == 0)))
            .collect();
        assert_eq!(raised, [WINDOW - 1], "when the window is full, and once");
        let reason = alarm.reason().unwrap_or_default();
        assert!(reason.starts_with("1.17 tokens a draft"), "{reason}");
        assert!(!(0..20).any(|_| alarm.observe(3)));
        assert_eq!(alarm.reason(), None);
        assert_eq!((0..400).filter(|_| alarm.observe(0)).count(), 1, "again");
    }

    #[test]
    fn a_drafter_that_is_worth_something_never_does() {
        let mut alarm = Alarm::default();
        // One in four: 1.25 tokens a step.
        assert!(!(0..1000).any(|at| alarm.observe(usize::from(at % 4 == 0))));
        assert_eq!(alarm.reason(), None);
    }
}
