//! A drafter and how it is used. All of it changes speed and nothing else.

use dspark_draft::width::Policy;
use engine_core::Drafter;

/// Speculation of an engine.
pub struct Speculation {
    /// Proposes tokens.
    pub drafter: Box<dyn Drafter + Send>,
    /// How many of them are verified.
    pub policy: Policy,
    /// Most candidates to ask for; the target's widest verify bounds it further.
    pub depth: usize,
    /// Positions at the end of a prompt whose features the drafter is shown: its window.
    pub tap_window: usize,
    /// Whether the next draft is begun while the target verifies.
    pub overlap: bool,
    /// Seconds that measuring passes and drafts may take before the first request; 0 measures none, and
    /// what they cost is learned from the first texts.
    pub warm_up: f64,
}

impl Speculation {
    /// A drafter with the loop's own settings.
    #[must_use]
    pub fn new(drafter: Box<dyn Drafter + Send>) -> Self {
        let defaults = dspark_draft::speculate::Config::default();
        Self {
            drafter,
            policy: defaults.policy,
            depth: defaults.depth,
            tap_window: defaults.tap_window,
            overlap: defaults.overlap,
            warm_up: 0.0,
        }
    }
}

impl std::fmt::Debug for Speculation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Speculation({:?}, depth {})", self.policy, self.depth)
    }
}
