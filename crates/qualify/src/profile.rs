//! Profiles: what is compared, on what, by which rules. They are files of this crate, part of every
//! report that is made by them; a bound is written down before anything is measured.
//!
//! Must not know: how arms are run.

use serde::{Deserialize, Serialize};

use crate::hash;

/// What a figure is about. Reports of different labels are never shown in one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Label {
    /// The shipped test model: says nothing about DeepSeek V4 Flash.
    Tiny,
    /// A synthetic model of real shapes.
    Synth,
    /// A released artefact.
    Real,
}

/// What the two arms may do to the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// The same ids in every run.
    Equal,
    /// The same ids within an arm; across arms the same, or a quality gate.
    Near,
    /// Another model: never qualified as the model.
    Approx,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Tokens of the answer over the time from the first to the last.
    Decode,
    /// Tokens of the prompt over the time to the first token.
    Prefill,
}

/// A file that both arms load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Artefact {
    /// What it is: target, draft, settings.
    pub role: String,
    /// Where, from the repository's root; empty if nobody has it yet.
    pub path: String,
    /// Its blake3; empty if unknown, which disqualifies.
    pub blake3: String,
    /// Formats of its tensors, name and count, where they are pinned: a file that is not the one meant is
    /// then told by what differs, not only by its digest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tensors: Vec<(String, u64)>,
}

/// One arm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArmSpec {
    /// Its name.
    pub name: String,
    /// Options of `fourspark run` beyond the common ones.
    pub args: Vec<String>,
    /// Switches, by variable.
    pub env: Vec<(String, String)>,
    /// Whether it speculates; recorded evidence must agree.
    pub speculates: bool,
    /// Why its runs may count different passes, if they may: only speculation whose widths follow from
    /// measured times does. Otherwise two runs that count differently disqualify.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub varies: Option<String>,
    /// Why it cannot run in any build, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
}

/// A length of context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// Its name, as `8k`.
    pub name: String,
    /// Frozen prompt.
    pub prompt: String,
    /// Digest of the prompt's ids (blake3 over little-endian u32).
    pub prompt_blake3: String,
    /// Positions allocated.
    pub ctx: u32,
    /// Tokens generated.
    pub max_tokens: u32,
}

/// Bounds of a comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// Measured pairs of a context, at least five.
    pub pairs: u32,
    /// Pairs of the control.
    pub aa_pairs: u32,
    /// Runs before any is measured, for each arm.
    pub warmups: u32,
    /// The most that the base may differ from itself.
    pub aa_spread_max_ppm: u64,
    /// The highest load of the machine before the start, hundredths.
    pub load_max_centi: u64,
    /// How long to wait for that, seconds.
    pub settle_s: u64,
    /// Whether a run without clocks is disqualified.
    pub clocks: bool,
    /// Whether a run without a count of throttling events is disqualified. Events that are counted
    /// disqualify always.
    pub thermal: bool,
}

/// The gate of class near.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QualityBound {
    /// Rows scored, at least 1,024.
    pub rows_min: u64,
    /// Mean KL(reference || arm), millionths of a nat.
    pub kl_max_micronats: u64,
    /// Share of rows with the same first choice.
    pub top1_min_ppm: u64,
    /// The text scored, from the repository's root.
    pub text: String,
    /// Its blake3.
    pub text_blake3: String,
}

/// A comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// The base.
    pub a: ArmSpec,
    /// What is compared with it.
    pub b: ArmSpec,
    /// What may differ between the command lines, in words.
    pub compares: String,
    /// What it may do to the output.
    pub class: Class,
    /// What is measured.
    pub metric: Metric,
    /// The GPU it is about, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// Contexts, each a cell of its own.
    pub contexts: Vec<Context>,
    /// Bounds.
    pub rules: Rules,
    /// The gate, for class near.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<QualityBound>,
}

/// The identity gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentityRules {
    /// Frozen prompt.
    pub prompt: String,
    /// Digest of its ids.
    pub prompt_blake3: String,
    /// Digest that the base must have.
    pub base: String,
    /// Digest of the smaller base that tests use.
    pub base_small: String,
}

/// A profile: one of the two kinds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// The question it answers.
    pub question: String,
    /// What its figures are about.
    pub label: Label,
    /// Files.
    pub artefacts: Vec<Artefact>,
    /// For the identity gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<IdentityRules>,
    /// For a comparison.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
}

/// Every profile's file.
const FILES: &[(&str, &str)] = &[
    ("one-result", include_str!("../profiles/one-result.json")),
    ("cpu-smoke", include_str!("../profiles/cpu-smoke.json")),
    ("spec", include_str!("../profiles/spec.json")),
    ("ipc", include_str!("../profiles/ipc.json")),
    ("h200", include_str!("../profiles/h200.json")),
    ("h200-flash", include_str!("../profiles/h200-flash.json")),
    ("gfx1151", include_str!("../profiles/gfx1151.json")),
    ("mixed", include_str!("../profiles/mixed.json")),
];

/// Settings of the release that `gfx1151` compares with: a file of its own, whose digest the profile
/// holds.
pub const RELEASE_SETTINGS: &str = include_str!("../profiles/gfx1151-release.json");

/// Names of all profiles.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// A profile that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// There is none of that name.
    #[error("there is no profile {got:?}; there are {}", names().collect::<Vec<_>>().join(", "))]
    Unknown {
        /// The name.
        got: String,
    },
    /// Its file does not say what a profile must.
    #[error("profile {name}: {why}")]
    Malformed {
        /// The profile.
        name: String,
        /// What is wrong.
        why: String,
    },
}

impl Profile {
    /// A profile by its name.
    ///
    /// # Errors
    /// `Unknown`, `Malformed`.
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        let found = FILES.iter().find(|(known, _)| *known == name);
        let (name, text) = found.ok_or_else(|| ProfileError::Unknown {
            got: name.to_owned(),
        })?;
        Self::parse(name, text)
    }

    fn parse(name: &str, text: &str) -> Result<Self, ProfileError> {
        let malformed = |why: String| ProfileError::Malformed {
            name: name.to_owned(),
            why,
        };
        let profile: Self = serde_json::from_str(text).map_err(|e| malformed(e.to_string()))?;
        profile.check().map_err(malformed)?;
        Ok(profile)
    }

    fn check(&self) -> Result<(), String> {
        match (&self.identity, &self.comparison) {
            (Some(_), None) => Ok(()),
            (None, Some(c)) => c.check(),
            _ => Err("expected either `identity` or `comparison`".to_owned()),
        }
    }

    /// Digest of everything the profile says.
    #[must_use]
    pub fn digest(&self) -> String {
        let value = serde_json::to_value(self).unwrap_or_default();
        hash::text(&crate::canonical::canonical(&value))
    }
}

impl Comparison {
    /// The number of the GPU that an arm runs on, among its kind: that of the first `--device KIND:N`.
    #[must_use]
    pub fn gpu_index(&self) -> u32 {
        let args = [&self.b, &self.a].map(|arm| arm.args.windows(2));
        let mut devices = args.into_iter().flatten().filter(|w| w[0] == "--device");
        let number = devices.find_map(|w| w[1].split_once(':')?.1.parse().ok());
        number.unwrap_or(0)
    }

    fn check(&self) -> Result<(), String> {
        if self.rules.pairs < 5 || self.rules.aa_pairs < 3 {
            return Err("fewer than 5 pairs or 3 pairs of control".to_owned());
        }
        let free = |arm: &ArmSpec| arm.varies.is_some() && !arm.speculates;
        if free(&self.a) || free(&self.b) {
            return Err("an arm that varies without speculating".to_owned());
        }
        if self.contexts.is_empty() {
            return Err("no context".to_owned());
        }
        match &self.quality {
            Some(q) if q.rows_min < 1024 => Err("a quality gate of fewer than 1,024 rows".into()),
            None if self.class == Class::Near => Err("class near without a quality gate".into()),
            _ => Ok(()),
        }
    }
}

/// A prompt whose ids are frozen.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Prompt {
    /// The text.
    pub text: String,
    /// Its ids under the shipped model's tokenizer, with the opening token.
    pub ids: Vec<u32>,
}

/// A frozen prompt by its name.
#[must_use]
pub fn frozen_prompt(name: &str) -> Option<Prompt> {
    let text = include_str!("../data/prompts.json");
    let mut all: std::collections::BTreeMap<String, Prompt> = serde_json::from_str(text).ok()?;
    all.remove(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_reads_and_its_prompts_are_frozen() {
        for name in names() {
            let profile = Profile::named(name).unwrap();
            assert_eq!(profile.name, name);
            let identity = profile.identity.iter();
            let mut prompts: Vec<_> = identity.map(|i| (&i.prompt, &i.prompt_blake3)).collect();
            let contexts = profile.comparison.iter().flat_map(|c| &c.contexts);
            prompts.extend(contexts.map(|c| (&c.prompt, &c.prompt_blake3)));
            for (prompt, digest) in prompts.into_iter().filter(|(_, d)| !d.is_empty()) {
                let ids = frozen_prompt(prompt).expect(prompt).ids;
                assert_eq!(&hash::ids(&ids), digest, "{name}: {prompt}");
            }
        }
        assert!(Profile::named("fast").is_err());
    }

    #[test]
    fn the_gpu_of_a_comparison_is_that_of_its_arms() {
        let profile = Profile::named("h200").unwrap();
        let mut c = profile.comparison.unwrap();
        assert_eq!(c.gpu_index(), 0);
        c.b.args[1] = "cuda:3".to_owned();
        assert_eq!(c.gpu_index(), 3);
        c.b.args[1] = "cpu".to_owned();
        assert_eq!(c.gpu_index(), 0, "none is named");
        c.a.args = ["--device", "hip:2"].map(str::to_owned).to_vec();
        assert_eq!(c.gpu_index(), 2);
    }

    /// C-17: the base of gfx1151 is the release's settings file, by digest.
    #[test]
    fn c_17_release_settings_are_a_file_with_a_digest() {
        let profile = Profile::named("gfx1151").unwrap();
        let settings = profile.artefacts.iter().find(|a| a.role == "settings");
        let settings = settings.expect("the base's settings");
        assert_eq!(settings.blake3, hash::text(RELEASE_SETTINGS));
        assert_ne!(settings.blake3, hash::text(&format!("{RELEASE_SETTINGS} ")));
        // Arm A is what the file says, and nothing else.
        let comparison = profile.comparison.unwrap();
        let file: serde_json::Value = serde_json::from_str(RELEASE_SETTINGS).unwrap();
        let args: Vec<String> = serde_json::from_value(file["args"].clone()).unwrap();
        let switches = file["switches"].as_object().unwrap();
        let variable = |(name, value): (&String, &serde_json::Value)| {
            let row = switches::TABLE.iter().find(|s| s.name == name).unwrap();
            let value = value.as_str().unwrap().to_owned();
            (row.variable.to_owned(), value)
        };
        let env: Vec<(String, String)> = switches.iter().map(variable).collect();
        assert_eq!((&comparison.a.args, &comparison.a.env), (&args, &env));
        let contexts = &comparison.contexts;
        let names: Vec<&str> = contexts.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["8k", "32k", "128k"]);
    }

    #[test]
    fn profiles_with_weak_rules_are_refused() {
        let text = include_str!("../profiles/cpu-smoke.json");
        for (from, to) in [
            ("\"pairs\": 7", "\"pairs\": 4"),
            ("\"class\": \"equal\"", "\"class\": \"near\""),
            ("\"speculates\": true", "\"speculates\": false"),
            ("\"question\"", "\"query\""),
        ] {
            let weak = text.replace(from, to);
            assert_ne!(weak, text, "{from}");
            assert!(Profile::parse("cpu-smoke", &weak).is_err(), "{to}");
        }
    }
}
