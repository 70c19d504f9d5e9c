//! A made-up engine, so that every rule can be tried on any machine: `qualify selftest` and the tests.

use crate::campaign::{Setting, run};
use crate::command::argv;
use crate::hash;
use crate::profile::{ArmSpec, Context, Profile};
use crate::report::{Build, FoundArtefact, Machine, Report, Run};
use crate::run::blank;
use crate::runner::Runner;

/// An engine whose arm B needs so many parts per million of arm A's time.
#[derive(Clone, Debug)]
pub struct Fake {
    /// B's time over A's.
    pub time_ppm: u64,
    /// Jitter of every time.
    pub jitter_ppm: u64,
    state: u64,
}

impl Fake {
    /// An engine with an effect and some noise.
    #[must_use]
    pub const fn new(time_ppm: u64, jitter_ppm: u64) -> Self {
        Self {
            time_ppm,
            jitter_ppm,
            state: 7,
        }
    }

    fn jitter(&mut self, us: u64) -> u64 {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let share = (self.state >> 33) % (2 * self.jitter_ppm + 1);
        us + us * share / 1_000_000
    }
}

impl Runner for Fake {
    fn run(&mut self, profile: &Profile, context: &Context, arm: &ArmSpec) -> Run {
        let mut run = blank(argv(profile, context, arm), arm.env.clone());
        let n = u64::from(context.max_tokens);
        let time = if arm.speculates {
            self.time_ppm
        } else {
            1_000_000
        };
        run.ok = true;
        run.exe_blake3 = hash::text("fake");
        run.model_fingerprint = hash::text("model");
        run.class = "equal".to_owned();
        run.prompt_tokens = 100;
        run.prompt_blake3.clone_from(&context.prompt_blake3);
        run.completion_tokens = n;
        run.ids_blake3 = hash::text(&context.name);
        run.text_blake3 = hash::text("text");
        run.prefill_us = self.jitter(50_000);
        run.decode_us = self.jitter(n * 10_000 * time / 1_000_000);
        run.wall_us = run.prefill_us + run.decode_us;
        run.passes = n;
        run.pass_tokens = 100 + n;
        run.weight_bytes = Some(n * 1_000_000);
        run.launches = Some(n * 100);
        run.stalls = Some(0);
        run.throttled = Some(0);
        run.tensors = tensors(profile);
        run.spec_engaged = arm.speculates;
        run.proposed = if arm.speculates { n } else { 0 };
        run.accepted = run.proposed / 2;
        run
    }
}

/// Formats of the target's tensors: those that the profile pins, else made-up ones.
fn tensors(profile: &Profile) -> Vec<(String, u64)> {
    let target = profile.artefacts.iter().find(|a| a.role == "target");
    if let Some(target) = target.filter(|a| !a.tensors.is_empty()) {
        return target.tensors.clone();
    }
    vec![("F32".to_owned(), 40), ("ROCMFP4".to_owned(), 60)]
}

/// A clean campaign over a profile's own files.
#[must_use]
pub fn setting(profile: &Profile) -> Setting {
    let artefact = |a: &crate::profile::Artefact| FoundArtefact {
        role: a.role.clone(),
        blake3: a.blake3.clone(),
        bytes: 1,
        tensor_histogram: match a.role.as_str() {
            "target" => tensors(profile),
            _ => a.tensors.clone(),
        },
    };
    Setting {
        machine: Machine {
            cpu: "fake".to_owned(),
            threads: 2,
            swapped_pages: crate::machine::swapped_pages(),
            ..Machine::default()
        },
        build: Build {
            commit: "0123456789abcdef".to_owned(),
            dirty: false,
            exe_blake3: hash::text("fake"),
            version: "0".to_owned(),
            packed: false,
        },
        artefacts: profile.artefacts.iter().map(artefact).collect(),
        now_s: 1_800_000_000,
        ..Setting::default()
    }
}

/// A report of `cpu-smoke` that is qualified.
#[must_use]
pub fn good_report() -> Option<Report> {
    let profile = Profile::named("cpu-smoke").ok()?;
    let mut report = run(
        &profile,
        setting(&profile),
        &mut Fake::new(700_000, 5_000),
        &[],
    )?;
    // Whatever the real machine swapped meanwhile is none of the fake one's.
    report.machine.swapped_pages = 0;
    Some(crate::campaign::conclude(report))
}
