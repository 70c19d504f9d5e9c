//! A comparison's report: what ran, on what, and what follows. Whole numbers with their unit in the
//! name, so that the text is the same wherever it is written.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical::canonical;
use crate::card::Card;
use crate::claims::ExternalClaim;
use crate::code::Disqualifier;
use crate::hash;
use crate::profile::{Label, Profile};

pub use crate::run::{Heat, Kind, Run};

/// Version of the layout.
pub const SCHEMA: u32 = 2;

/// What is left of a claim that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Headline {
    /// Median of the pairs' ratios B / A of the rate, parts per million.
    pub median_ratio_ppm: u64,
    /// Its 95 % interval.
    pub ci95_ppm: (u64, u64),
    /// How far the base's interval against itself reaches from 1.
    pub aa_spread_ppm: u64,
    /// Median rate of A, thousandths of a token per second.
    pub a_median_mtok_s: u64,
    /// Of B.
    pub b_median_mtok_s: u64,
    /// Pairs.
    pub pairs: u64,
    /// Whether outputs are identical or only quality-gated.
    pub identical_output: bool,
}

/// Figures of a cell that may not be claimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observations {
    /// Median of the pairs' ratios.
    pub b_over_a_median_ppm: u64,
    /// Lower end of the 95 % interval.
    pub b_over_a_low_ppm: u64,
    /// Upper end.
    pub b_over_a_high_ppm: u64,
    /// As in a headline.
    pub aa_spread_ppm: u64,
    /// As in a headline.
    pub a_median_mtok_s: u64,
    /// Least, greatest, distance of quartiles, median distance.
    pub a_spread_mtok_s: (u64, u64, u64, u64),
    /// As in a headline.
    pub b_median_mtok_s: u64,
    /// As of A.
    pub b_spread_mtok_s: (u64, u64, u64, u64),
    /// Pairs.
    pub pairs_count: u64,
}

/// How a cell came out, as written down. Reading one proves nothing: `verify` decides again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum CellStatus {
    /// May be claimed.
    Qualified {
        /// The claim.
        headline: Headline,
    },
    /// May not.
    Unqualified {
        /// Why, at least one.
        disqualifiers: Vec<Disqualifier>,
        /// What was seen.
        observations: Observations,
    },
}

/// One context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// Its name in the profile.
    pub context: String,
    /// Frozen prompt.
    pub prompt_id: String,
    /// Order of the measured runs.
    pub order: String,
    /// Order of the control's.
    pub order_control: String,
    /// Every run, in the order of time.
    pub runs: Vec<Run>,
    /// How it came out.
    pub status: CellStatus,
}

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Processor.
    pub cpu: String,
    /// Threads it offers.
    pub threads: u64,
    /// Memory.
    pub mem_bytes: u64,
    /// Operating system and kernel.
    pub kernel: String,
    /// Frequency governor, if it says.
    pub governor: Option<String>,
    /// Whether the clock may go above its base, in the system's words, if it says.
    pub boost: Option<String>,
    /// Power profile of the firmware, if it has one.
    pub power_profile: Option<String>,
    /// Microcode of the processor, if it says.
    pub microcode: Option<String>,
    /// GPU architecture, if there is a GPU the engine can use.
    pub gpu_arch: Option<String>,
    /// That GPU and its driver, if its tools say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Card>,
    /// Load before the start, hundredths.
    pub load_before_centi: u64,
    /// Pages swapped during the campaign.
    pub swapped_pages: u64,
}

/// What ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Build {
    /// The tree's commit; empty if unknown.
    pub commit: String,
    /// Whether it had changes that no commit holds.
    pub dirty: bool,
    /// Digest of the executable.
    pub exe_blake3: String,
    /// Version it reports.
    pub version: String,
    /// Whether it ran from a pack: commit and tree are then those of the packing, and every file was compared with
    /// the pack's list.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub packed: bool,
}

/// A file as it was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FoundArtefact {
    /// Its role.
    pub role: String,
    /// Its digest; empty if it could not be read.
    pub blake3: String,
    /// Its size.
    pub bytes: u64,
    /// Formats of its tensors: name and count.
    pub tensor_histogram: Vec<(String, u64)>,
}

/// A switch in one arm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchRecord {
    /// Its name.
    pub name: String,
    /// Its class.
    pub class: String,
    /// What arm A asked for; empty for nothing.
    pub requested_a: String,
    /// What was in force in arm A.
    pub resolved_a: String,
    /// What arm B asked for.
    pub requested_b: String,
    /// What was in force in arm B.
    pub resolved_b: String,
}

/// A command of the quality gate and what it ran on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scored {
    /// The options, without the program.
    pub argv: Vec<String>,
    /// The whole environment it got.
    pub env: Vec<(String, String)>,
    /// Fingerprint of the model it loaded.
    pub fingerprint: String,
    /// Switches in force that are not at their default, as it reported them.
    pub switches: Vec<(String, String)>,
}

/// What the quality gate measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QualityRecord {
    /// Digest of the text that was scored.
    pub text_blake3: String,
    /// Arm A, whose rows are the reference.
    pub reference: Scored,
    /// Arm B against them.
    pub model: Scored,
    /// Arm A against them, in a process of its own.
    pub replay: Scored,
    /// Rows scored.
    pub rows: u64,
    /// Mean KL, millionths of a nat.
    pub kl_micronats: u64,
    /// Share of rows with the same first choice.
    pub top1_ppm: u64,
    /// Largest KL of a row of the reference against itself: must be 0.
    pub replay_kl_micronats: u64,
}

/// A defect of the reference engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Defect {
    /// Its number.
    pub id: u8,
    /// What it is.
    pub what: String,
    /// Switches it stands behind.
    pub affected_switches: Vec<String>,
    /// The test that closes it; empty while there is none.
    pub test_id: String,
    /// `open` or `closed`.
    pub state: String,
}

/// A report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Version of the layout.
    pub schema: u32,
    /// Digest of the canonical text without this field.
    pub report_id: String,
    /// When, seconds since 1970 in UTC.
    pub created_utc_s: u64,
    /// What the figures are about.
    pub label: Label,
    /// `qualified` only if every planned context is.
    pub status: String,
    /// The profile, whole.
    pub profile: Profile,
    /// Its digest.
    pub profile_blake3: String,
    /// The campaign, which every run names.
    pub campaign: String,
    /// Variables of the caller that could have been meant for the engine, or change a measurement.
    pub caller_env: Vec<(String, String)>,
    /// The machine.
    pub machine: Machine,
    /// What ran.
    pub build: Build,
    /// Files.
    pub artefacts: Vec<FoundArtefact>,
    /// Switches that either arm sets.
    pub switches: Vec<SwitchRecord>,
    /// The quality gate, if one ran.
    pub quality: Option<QualityRecord>,
    /// Cells, in the order of the profile's contexts.
    pub cells: Vec<Cell>,
    /// Defects that were open.
    pub open_defects: Vec<Defect>,
    /// Figures of others, none comparable.
    pub external_claims: Vec<ExternalClaim>,
}

impl Report {
    /// The report as a value.
    #[must_use]
    pub fn value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// The id its content has.
    #[must_use]
    pub fn id_of(value: &Value) -> String {
        let mut bare = value.clone();
        if let Some(map) = bare.as_object_mut() {
            map.remove("report_id");
        }
        hash::text(&canonical(&bare))
    }

    /// Writes the id.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        self.report_id = Self::id_of(&self.value());
        self
    }

    /// The canonical text.
    #[must_use]
    pub fn text(&self) -> String {
        canonical(&self.value())
    }
}
