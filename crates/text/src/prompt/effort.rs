//! How hard the model is asked to think, in the two published generations of the prompt format
//! (spec/ds4-architecture.md 8.3). The prefixes are part of the format, byte for byte.

/// Which published encoder a model was trained with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// The preview release: the only prefix is for maximum effort.
    Preview,
    /// The release of 07-31: two prefixes, the old one now meaning high.
    V0731,
}

impl Generation {
    /// The generation of a model file's version (`general.base_model.0.version`): absent, empty or
    /// `preview` is the preview. `None` for a version this build does not know: the caller chooses
    /// and says so.
    #[must_use]
    pub fn from_version(version: Option<&str>) -> Option<Self> {
        match version.map(|v| v.trim().to_ascii_lowercase()).as_deref() {
            None | Some("" | "preview") => Some(Self::Preview),
            Some(v) if v.contains("0731") || v.contains("07-31") => Some(Self::V0731),
            Some(_) => None,
        }
    }

    /// What stands after BOS in thinking mode.
    pub(super) const fn prefix(self, effort: Effort) -> &'static str {
        match (self, effort) {
            (Self::Preview, Effort::Max) | (Self::V0731, Effort::High) => ABSOLUTE_MAXIMUM,
            (Self::V0731, Effort::Max) => BEYOND_MAXIMUM,
            (Self::Preview, Effort::Low | Effort::High) | (Self::V0731, Effort::Low) => "",
        }
    }
}

/// Degrees of thinking the format knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Effort {
    /// No prefix in either generation: the format's own default.
    #[default]
    Low,
    /// A prefix in the second generation.
    High,
    /// A prefix in both.
    Max,
}

/// Whether the model thinks before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Thinking {
    /// Answers at once ("chat mode").
    #[default]
    Off,
    /// Thinks first.
    On(Effort),
}

impl Thinking {
    /// The meaning of an API's effort name; `None` for an unknown one (the caller's default).
    ///
    /// The format knows three degrees. `minimal` and `low` are the lowest, `medium` is high as on
    /// the maker's own service, `xhigh` is max as in the second generation's encoder.
    #[must_use]
    pub fn from_effort_name(name: &str) -> Option<Self> {
        Some(match name {
            "none" | "off" => Self::Off,
            "minimal" | "low" => Self::On(Effort::Low),
            "medium" | "high" => Self::On(Effort::High),
            "xhigh" | "max" => Self::On(Effort::Max),
            _ => return None,
        })
    }

    /// Whether it thinks.
    #[must_use]
    pub const fn is_on(self) -> bool {
        matches!(self, Self::On(_))
    }
}

const ABSOLUTE_MAXIMUM: &str = "Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.

";

const BEYOND_MAXIMUM: &str = "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying cause rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no assumption remains unchecked and no error remains undiscovered.

";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_name_generations() {
        let cases = [
            (None, Some(Generation::Preview)),
            (Some(""), Some(Generation::Preview)),
            (Some(" Preview "), Some(Generation::Preview)),
            (Some("0731"), Some(Generation::V0731)),
            (Some("V4-Flash-0731"), Some(Generation::V0731)),
            (Some("2026-07-31"), Some(Generation::V0731)),
            (Some("0915"), None),
        ];
        for (version, want) in cases {
            assert_eq!(Generation::from_version(version), want, "{version:?}");
        }
    }

    #[test]
    fn effort_names_map_to_degrees_and_prefixes() {
        let cases = [
            ("none", None),
            ("minimal", Some(("", ""))),
            ("low", Some(("", ""))),
            ("medium", Some(("", ABSOLUTE_MAXIMUM))),
            ("high", Some(("", ABSOLUTE_MAXIMUM))),
            ("xhigh", Some((ABSOLUTE_MAXIMUM, BEYOND_MAXIMUM))),
            ("max", Some((ABSOLUTE_MAXIMUM, BEYOND_MAXIMUM))),
        ];
        for (name, want) in cases {
            let prefixes = match Thinking::from_effort_name(name) {
                Some(Thinking::On(e)) => {
                    Some((Generation::Preview.prefix(e), Generation::V0731.prefix(e)))
                }
                Some(Thinking::Off) => None,
                None => panic!("{name} is not known"),
            };
            assert_eq!(prefixes, want, "{name}");
        }
        assert_eq!(Thinking::from_effort_name("extreme"), None);
        assert_eq!(Thinking::On(Effort::default()), Thinking::On(Effort::Low));
    }
}
