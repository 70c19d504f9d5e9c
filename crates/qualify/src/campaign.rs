//! A comparison from its profile to its sealed report.
//!
//! For each context: a cold run of either arm, warm-ups, the base against itself, then the pairs.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::claims;
use crate::hash;
use crate::order::{Side, alternating, letters};
use crate::profile::{Comparison, Context, Profile};
use crate::report::{
    Build, Cell, CellStatus, Defect, FoundArtefact, Kind, Machine, Observations, QualityRecord,
    Report, Run, SCHEMA, SwitchRecord,
};
use crate::runner::Runner;
use crate::verdict;

/// What a campaign knows besides its runs.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// The machine before the start.
    pub machine: Machine,
    /// What runs.
    pub build: Build,
    /// Files as they were found.
    pub artefacts: Vec<FoundArtefact>,
    /// The caller's variables that count against it.
    pub caller_env: Vec<(String, String)>,
    /// The quality gate's result.
    pub quality: Option<QualityRecord>,
    /// Seconds since 1970.
    pub now_s: u64,
}

/// Seconds since 1970, UTC.
#[must_use]
pub fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| d.as_secs())
}

/// The plan of a context: kind, side and arm of every run.
#[must_use]
pub fn plan(comparison: &Comparison) -> Vec<(Kind, Side, Side)> {
    let rules = &comparison.rules;
    let both = [Side::A, Side::B];
    let mut plan: Vec<_> = both.map(|s| (Kind::Cold, s, s)).into();
    for _ in 0..rules.warmups {
        plan.extend(both.map(|s| (Kind::Warmup, s, s)));
    }
    let control = alternating(rules.aa_pairs as usize).into_iter();
    plan.extend(control.map(|side| (Kind::Control, side, Side::A)));
    let pairs = alternating(rules.pairs as usize).into_iter();
    plan.extend(pairs.map(|side| (Kind::Measured, side, side)));
    plan
}

/// Files of a profile as they are on this machine.
#[must_use]
pub fn find_artefacts(root: &Path, profile: &Profile) -> Vec<FoundArtefact> {
    let found = |a: &crate::profile::Artefact| {
        let path = root.join(&a.path);
        let known = !a.path.is_empty() && path.is_file();
        FoundArtefact {
            role: a.role.clone(),
            blake3: known
                .then(|| hash::file(&path))
                .flatten()
                .unwrap_or_default(),
            bytes: std::fs::metadata(&path)
                .ok()
                .filter(|_| known)
                .map_or(0, |m| m.len()),
            tensor_histogram: if known { histogram(&path) } else { Vec::new() },
        }
    };
    profile.artefacts.iter().map(found).collect()
}

/// How many tensors of each format a model file has; empty for other files.
fn histogram(path: &Path) -> Vec<(String, u64)> {
    let mut counts = std::collections::BTreeMap::new();
    if let Ok(file) = gguf::Gguf::open(path, &gguf::OpenOptions::default()) {
        for tensor in file.tensors() {
            *counts.entry(tensor.format.to_string()).or_insert(0) += 1;
        }
    }
    counts.into_iter().collect()
}

/// Switches that either arm sets, with what was in force in each.
fn switch_records(comparison: &Comparison, cells: &[Cell]) -> Vec<SwitchRecord> {
    let resolved = |side: Side, name: &str| {
        let run = cells
            .iter()
            .flat_map(|c| &c.runs)
            .find(|r| r.ok && r.arm == side);
        let set = run.and_then(|r| r.switches.iter().find(|(n, _)| n == name));
        let row = switches::TABLE.iter().find(|s| s.name == name);
        match (run, set) {
            (None, _) => String::new(),
            (_, Some((_, value))) => value.clone(),
            _ => row.map_or(String::new(), |s| s.default.to_owned()),
        }
    };
    let asked = |env: &[(String, String)], variable: &str| {
        let set = env.iter().find(|(n, _)| n == variable);
        set.map_or(String::new(), |(_, v)| v.clone())
    };
    let (a, b) = (&comparison.a.env, &comparison.b.env);
    let used = |s: &&switches::Switch| [a, b].iter().any(|env| !asked(env, s.variable).is_empty());
    switches::TABLE
        .iter()
        .filter(used)
        .map(|s| SwitchRecord {
            name: s.name.to_owned(),
            class: s.class.to_string(),
            requested_a: asked(a, s.variable),
            resolved_a: resolved(Side::A, s.name),
            requested_b: asked(b, s.variable),
            resolved_b: resolved(Side::B, s.name),
        })
        .collect()
}

fn cell(
    profile: &Profile,
    comparison: &Comparison,
    context: &Context,
    campaign: &str,
    first: u32,
    runner: &mut dyn Runner,
) -> Cell {
    let plan = plan(comparison);
    let mut runs: Vec<Run> = Vec::new();
    for (at, (kind, side, arm)) in plan.iter().enumerate() {
        let spec = match arm {
            Side::A => &comparison.a,
            Side::B => &comparison.b,
        };
        let run = runner.run(profile, context, spec);
        runs.push(Run {
            arm: *arm,
            side: *side,
            kind: *kind,
            seq: first + u32::try_from(at).unwrap_or(u32::MAX),
            campaign: campaign.to_owned(),
            ..run
        });
    }
    let order = |kind| {
        let of = runs.iter().filter(|r| r.kind == kind).map(|r| r.side);
        letters(&of.collect::<Vec<_>>())
    };
    Cell {
        order: order(Kind::Measured),
        order_control: order(Kind::Control),
        runs,
        ..empty(context)
    }
}

/// Whether there is anything to run: what no build has, or nobody has here, is not run, and the verdict says so.
#[must_use]
pub fn runs_here(profile: &Profile, comparison: &Comparison, machine: &Machine) -> bool {
    let absent = comparison.a.absent.is_some() || comparison.b.absent.is_some();
    let file = profile.artefacts.iter().any(|a| a.path.is_empty());
    let gpu = comparison.gpu.is_some() && comparison.gpu != machine.gpu_arch;
    !absent && !file && !gpu
}

/// Runs a comparison. `only`: contexts to run, all if empty; what is left out stays a planned cell
/// without runs. An arm that no build has is not run.
#[must_use]
pub fn run(
    profile: &Profile,
    setting: Setting,
    runner: &mut dyn Runner,
    only: &[String],
) -> Option<Report> {
    let comparison = profile.comparison.as_ref()?;
    let name = format!("{}{}{:?}", setting.now_s, profile.digest(), setting.build);
    let campaign = hash::text(&name)[..16].to_owned();
    let missing = !runs_here(profile, comparison, &setting.machine);
    let mut cells: Vec<Cell> = Vec::new();
    for context in &comparison.contexts {
        let first = cells.iter().map(|c| c.runs.len()).sum::<usize>();
        let wanted = only.is_empty() || only.contains(&context.name);
        let first = u32::try_from(first).unwrap_or(u32::MAX);
        cells.push(if missing || !wanted {
            empty(context)
        } else {
            cell(profile, comparison, context, &campaign, first, runner)
        });
    }
    let mut machine = setting.machine;
    machine.swapped_pages = crate::machine::swapped_pages().saturating_sub(machine.swapped_pages);
    let report = Report {
        schema: SCHEMA,
        report_id: String::new(),
        created_utc_s: setting.now_s,
        label: profile.label,
        status: String::new(),
        profile: profile.clone(),
        profile_blake3: profile.digest(),
        campaign,
        caller_env: setting.caller_env,
        machine,
        build: setting.build,
        artefacts: setting.artefacts,
        switches: switch_records(comparison, &cells),
        quality: setting.quality,
        cells,
        open_defects: defects(),
        external_claims: claims::external(),
    };
    Some(conclude(report))
}

fn empty(context: &Context) -> Cell {
    Cell {
        context: context.name.clone(),
        prompt_id: context.prompt.clone(),
        order: String::new(),
        order_control: String::new(),
        runs: Vec::new(),
        status: CellStatus::Unqualified {
            disqualifiers: Vec::new(),
            observations: Observations::default(),
        },
    }
}

/// Decides every cell and seals the report.
#[must_use]
pub fn conclude(mut report: Report) -> Report {
    let statuses: Vec<CellStatus> = report
        .cells
        .iter()
        .map(|cell| verdict::status(&report, cell))
        .collect();
    for (cell, status) in report.cells.iter_mut().zip(statuses) {
        cell.status = status;
    }
    let word = if verdict::overall(&report) {
        "qualified"
    } else {
        "unqualified"
    };
    report.status = word.to_owned();
    report.sealed()
}

/// The review defects of the reference engine, from their file; those that stand behind a switch of
/// ours name it.
#[must_use]
pub fn defects() -> Vec<Defect> {
    let text = include_str!("../data/defects.json");
    let mut all: Vec<Defect> = serde_json::from_str(text).unwrap_or_default();
    for defect in &mut all {
        let behind = switches::TABLE
            .iter()
            .filter(|s| s.defects.contains(&defect.id));
        defect.affected_switches = behind.map(|s| s.name.to_owned()).collect();
    }
    all
}
