//! Which plans are sound.

use engine_core::SamplePlan;

/// The lowest temperature that is not 0: below it logits of ordinary size would overflow.
pub const MIN_TEMPERATURE: f32 = 1e-6;

/// A value of a plan that cannot be meant.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{what} is {got}, expected {expected}")]
pub struct PlanError {
    /// The value's name.
    pub what: &'static str,
    /// What it is.
    pub got: f32,
    /// What it may be.
    pub expected: &'static str,
}

/// Checks a plan against a vocabulary. Sound plans never make [`crate::Sampler::draw`] panic; nor do
/// others, but what they draw is not defined.
///
/// # Errors
/// [`PlanError`] for the first value that is not sound.
pub fn validate(plan: &SamplePlan, n_vocab: usize) -> Result<(), PlanError> {
    let penalties = &plan.penalties;
    let t = plan.temperature;
    let checks = [
        (
            "temperature",
            t,
            t == 0.0 || (t >= MIN_TEMPERATURE && t.is_finite()),
            "0, or at least 1e-6",
        ),
        (
            "top_p",
            plan.top_p,
            plan.top_p > 0.0 && plan.top_p <= 1.0,
            "above 0, at most 1",
        ),
        (
            "min_p",
            plan.min_p,
            plan.min_p >= 0.0 && plan.min_p <= 1.0,
            "from 0 to 1",
        ),
        (
            "repeat penalty",
            penalties.repeat,
            penalties.repeat > 0.0 && penalties.repeat.is_finite(),
            "above 0",
        ),
        (
            "presence penalty",
            penalties.presence,
            penalties.presence.is_finite(),
            "finite",
        ),
        (
            "frequency penalty",
            penalties.frequency,
            penalties.frequency.is_finite(),
            "finite",
        ),
    ];
    for (what, got, sound, expected) in checks {
        if !sound {
            return Err(PlanError {
                what,
                got,
                expected,
            });
        }
    }
    for (token, bias) in plan.bias.iter() {
        if *token as usize >= n_vocab {
            return Err(PlanError {
                what: "token of a bias",
                got: *token as f32,
                expected: "within the vocabulary",
            });
        }
        if bias.is_nan() || *bias == f32::INFINITY {
            return Err(PlanError {
                what: "bias",
                got: *bias,
                expected: "finite, or minus infinity to ban a token",
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    type Change = fn(&mut SamplePlan);

    #[test]
    fn values_that_cannot_be_meant_are_named() {
        let cases: [(Change, &str); 14] = [
            (|p| p.temperature = -0.5, "temperature"),
            (|p| p.temperature = f32::NAN, "temperature"),
            (|p| p.temperature = f32::INFINITY, "temperature"),
            (|p| p.temperature = 1e-9, "temperature"),
            (|p| p.top_p = 0.0, "top_p"),
            (|p| p.top_p = 1.01, "top_p"),
            (|p| p.top_p = f32::NAN, "top_p"),
            (|p| p.min_p = -0.1, "min_p"),
            (|p| p.min_p = f32::NAN, "min_p"),
            (|p| p.penalties.repeat = 0.0, "repeat penalty"),
            (|p| p.penalties.presence = f32::NAN, "presence penalty"),
            (
                |p| p.penalties.frequency = f32::INFINITY,
                "frequency penalty",
            ),
            (|p| p.bias = Arc::from([(10, 1.0)]), "token of a bias"),
            (|p| p.bias = Arc::from([(9, f32::INFINITY)]), "bias"),
        ];
        for (change, what) in cases {
            let mut plan = SamplePlan::greedy();
            change(&mut plan);
            assert_eq!(validate(&plan, 10).unwrap_err().what, what);
        }
        let mut plan = SamplePlan::greedy();
        plan.temperature = MIN_TEMPERATURE;
        plan.bias = Arc::from([(9, f32::NEG_INFINITY)]);
        assert_eq!(validate(&plan, 10), Ok(()));
    }
}
