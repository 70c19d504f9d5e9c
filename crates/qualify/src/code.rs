//! Why something may not be claimed: stable codes, each with what was found.

use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Code {
            $($(#[$doc])* $name,)*
        }

        /// Every code, in order.
        pub const CODES: &[Code] = &[$(Code::$name,)*];
    };
}

codes! {
    /// The profile needs a GPU and there is none.
    NoGpu,
    /// Another architecture than the profile's.
    ArchMismatch,
    /// An arm names something that no build has.
    ArmAbsent,
    /// An artefact has no digest.
    ArtefactHashMissing,
    /// An artefact is not the profile's, or the arms used different ones.
    ArtefactMismatch,
    /// The prompt's ids are not those frozen in the profile, or differ between runs.
    PromptMismatch,
    /// The tree had changes that no commit holds, or its commit is unknown.
    DirtyTree,
    /// Variables were set that could have been meant for the engine.
    EnvNotClean,
    /// The arms differ in more than what they compare.
    EnvDiffersBeyondSwitch,
    /// A switch was asked for and not in force.
    SwitchNotResolved,
    /// The path an arm is named for was not taken.
    PathNotTaken,
    /// Something fell back.
    FallbackTaken,
    /// A count that shows the path was not kept.
    CounterMissing,
    /// A prompt came from a cache.
    CacheHit,
    /// Speculation was asked for and did not happen, or could not be known to.
    SpecSilentlyOff,
    /// Runs carry the other arm's command.
    ArmsSwapped,
    /// Fewer pairs than planned or than five.
    TooFewPairs,
    /// Runs did not alternate.
    NotAlternating,
    /// The base was not compared with itself.
    NoAaControl,
    /// The base differs from itself by too much, or the effect is within twice that.
    NoiseTooHigh,
    /// The interval holds 1.
    IntervalIncludesOne,
    /// A run has no digest of its output.
    OutputHashMissing,
    /// Outputs differ where they must not.
    OutputHashDiffers,
    /// Outputs may differ and no quality gate stands for them, or it failed.
    QualityGateMissing,
    /// Clocks moved.
    ClockDrift,
    /// The machine was throttled.
    Thermal,
    /// Whether the machine was throttled is not known.
    ThermalUnrecorded,
    /// Clocks are not known.
    ClockUnrecorded,
    /// Something else ran.
    CoTenant,
    /// Memory was swapped.
    SwapActivity,
    /// A run failed.
    RunFailed,
    /// A defect that is open where a switch in force is on.
    OpenDefect,
    /// Another model was computed.
    ApproximateModel,
    /// A figure of another campaign, binary or machine was used as a base.
    ForeignBaseline,
    /// A context that was planned is not there, or one that was not is.
    ContextMissing,
    /// The bytes of a report are not those its id names.
    ReportEdited,
    /// What a report concludes does not follow from its runs.
    VerdictNotDerived,
    /// A report does not follow the schema.
    SchemaViolated,
    /// Percentages were to be combined.
    StackingRefused,
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

/// A code with its evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disqualifier {
    /// The code.
    pub code: Code,
    /// What was found; of `OpenDefect` the defect's number first.
    pub found: String,
}

impl Disqualifier {
    /// A code with what was found.
    pub fn new(code: Code, found: impl Into<String>) -> Self {
        Self {
            code,
            found: found.into(),
        }
    }
}

impl std::fmt::Display for Disqualifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.found)
    }
}
