//! Names of policies, as command lines and pages write them.

use std::fmt;
use std::str::FromStr;

use super::{Policy, RewardOptions};

/// A name of no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected fixed:N (N: verify width, 1 to 16), thresholds, ewma or reward, got {got:?}")]
pub struct PolicyNameError {
    /// What was given.
    pub got: String,
}

impl FromStr for Policy {
    type Err = PolicyNameError;

    /// The policy of a name, with its published or default constants.
    fn from_str(name: &str) -> Result<Self, PolicyNameError> {
        let bad = || PolicyNameError {
            got: name.to_owned(),
        };
        if let Some(width) = name.strip_prefix("fixed:") {
            let width = width.parse().map_err(|_| bad())?;
            return match width {
                1..=16 => Ok(Self::Fixed(width)),
                _ => Err(bad()),
            };
        }
        match name {
            "thresholds" => Ok(Self::threshold()),
            "ewma" => Ok(Self::Ewma),
            "reward" => Ok(Self::AverageReward(RewardOptions::default())),
            _ => Err(bad()),
        }
    }
}

/// The name; constants that differ from the default are not shown.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(width) => write!(f, "fixed:{width}"),
            Self::Threshold { .. } => f.write_str("thresholds"),
            Self::Ewma => f.write_str("ewma"),
            Self::AverageReward(_) => f.write_str("reward"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_refused() {
        for name in ["fixed:1", "fixed:16", "thresholds", "ewma", "reward"] {
            assert_eq!(name.parse::<Policy>().unwrap().to_string(), name);
        }
        for bad in [
            "", "fixed", "fixed:", "fixed:0", "fixed:17", "fixed:x", "Reward",
        ] {
            let error = bad.parse::<Policy>().unwrap_err();
            assert_eq!(error.got, bad);
        }
    }
}
