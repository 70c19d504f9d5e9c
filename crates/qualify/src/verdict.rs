//! The verdict: the one place where a figure becomes a claim.
//!
//! [`Qualified`] can be built here only, from evidence in which nothing is missing. Whoever wants to
//! show a headline asks for one; what is read from a file never is one.
//!
//! ```compile_fail,E0451
//! let claim = qualify::verdict::Qualified { inner: 2.0 };
//! ```
//!
//! ```compile_fail,E0308
//! // A headline read from a report is data, not a claim.
//! fn show(report: &qualify::report::Report, headline: qualify::report::Headline) -> String {
//!     qualify::render::headline(report, &headline)
//! }
//! ```

use crate::code::{Code, Disqualifier};
use crate::command::argv;
use crate::counted;
use crate::order::{Side, alternating, letters};
use crate::profile::{ArmSpec, Class, Comparison, Context, Metric};
use crate::quality;
use crate::report::{Cell, CellStatus, Headline, Kind, Observations, Report, Run, Scored};
use crate::stats::{ONE, interval95, iqr, mad, median, ratio_ppm};

/// Something that may be claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qualified<T> {
    inner: T,
}

impl<T> Qualified<T> {
    /// What is claimed.
    pub const fn get(&self) -> &T {
        &self.inner
    }
}

/// At least one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reasons {
    first: Disqualifier,
    rest: Vec<Disqualifier>,
}

impl Reasons {
    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Disqualifier> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// Whether one has this code.
    #[must_use]
    pub fn has(&self, code: Code) -> bool {
        self.all().any(|d| d.code == code)
    }
}

/// The rate of a run, thousandths of a token per second.
fn rate(run: &Run, metric: Metric) -> u64 {
    let (tokens, us) = match metric {
        Metric::Decode => (run.completion_tokens.saturating_sub(1), run.decode_us),
        Metric::Prefill => (run.prompt_tokens, run.prefill_us),
    };
    if us == 0 {
        return 0;
    }
    u64::try_from(u128::from(tokens) * 1_000_000_000 / u128::from(us)).unwrap_or(u64::MAX)
}

/// Rates of pairs, in the order they ran.
fn pairs(cell: &Cell, kind: Kind, metric: Metric) -> Vec<(u64, u64)> {
    let runs: Vec<&Run> = cell
        .runs
        .iter()
        .filter(|r| r.kind == kind && r.ok)
        .collect();
    let of = |pair: &[&Run], side| {
        let run = pair.iter().find(|r| r.side == side)?;
        Some(rate(run, metric))
    };
    let two = runs.chunks_exact(2);
    two.filter_map(|p| Some((of(p, Side::A)?, of(p, Side::B)?)))
        .collect()
}

fn ratios(pairs: &[(u64, u64)]) -> Vec<u64> {
    pairs.iter().map(|(a, b)| ratio_ppm(*a, *b)).collect()
}

/// The figures of a cell, whatever they are worth.
#[must_use]
pub fn observe(cell: &Cell, metric: Metric) -> Observations {
    let measured = pairs(cell, Kind::Measured, metric);
    let all = ratios(&measured);
    let (low, high) = interval95(&all, 1);
    let (a, b): (Vec<u64>, Vec<u64>) = measured.into_iter().unzip();
    let spread = |v: &[u64]| {
        let least = v.iter().min().copied().unwrap_or(0);
        let most = v.iter().max().copied().unwrap_or(0);
        (least, most, iqr(v), mad(v))
    };
    Observations {
        b_over_a_median_ppm: median(&all),
        b_over_a_low_ppm: low,
        b_over_a_high_ppm: high,
        aa_spread_ppm: aa_spread(cell, metric),
        a_median_mtok_s: median(&a),
        a_spread_mtok_s: spread(&a),
        b_median_mtok_s: median(&b),
        b_spread_mtok_s: spread(&b),
        pairs_count: all.len() as u64,
    }
}

/// How far the interval of the base against itself reaches from 1.
fn aa_spread(cell: &Cell, metric: Metric) -> u64 {
    let control = ratios(&pairs(cell, Kind::Control, metric));
    if control.is_empty() {
        return 0;
    }
    let (low, high) = interval95(&control, 2);
    low.abs_diff(ONE).max(high.abs_diff(ONE))
}

/// The pairs' ratios of a cell, for plots.
#[must_use]
pub fn points(cell: &Cell, metric: Metric) -> Vec<u64> {
    ratios(&pairs(cell, Kind::Measured, metric))
}

/// Everything that a verdict about one cell looks at.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// The report around it: its statuses are not looked at.
    pub report: &'a Report,
    /// The cell: its status is not looked at.
    pub cell: &'a Cell,
}

/// Collects reasons.
struct Case<'a> {
    report: &'a Report,
    cell: &'a Cell,
    rules: &'a Comparison,
    found: Vec<Disqualifier>,
}

impl Case<'_> {
    fn against(&mut self, code: Code, found: impl Into<String>) {
        self.found.push(Disqualifier::new(code, found));
    }

    fn spec(&self, side: Side) -> &ArmSpec {
        match side {
            Side::A => &self.rules.a,
            Side::B => &self.rules.b,
        }
    }
}

/// Decides one cell.
///
/// # Errors
/// Every reason why it may not be claimed.
pub fn decide(evidence: Evidence<'_>) -> Result<Qualified<Headline>, Reasons> {
    let Evidence { report, cell } = evidence;
    let Some(rules) = &report.profile.comparison else {
        let first = Disqualifier::new(Code::ArmAbsent, "the profile compares nothing");
        return Err(Reasons {
            first,
            rest: Vec::new(),
        });
    };
    let mut case = Case {
        report,
        cell,
        rules,
        found: Vec::new(),
    };
    campaign(&mut case);
    inputs(&mut case);
    arms(&mut case);
    runs(&mut case);
    order(&mut case);
    let identical = output(&mut case);
    let seen = observe(cell, rules.metric);
    effect(&mut case, &seen);
    let mut found = case.found.into_iter();
    match found.next() {
        Some(first) => Err(Reasons {
            first,
            rest: found.collect(),
        }),
        None => Ok(Qualified {
            inner: Headline {
                median_ratio_ppm: seen.b_over_a_median_ppm,
                ci95_ppm: (seen.b_over_a_low_ppm, seen.b_over_a_high_ppm),
                aa_spread_ppm: seen.aa_spread_ppm,
                a_median_mtok_s: seen.a_median_mtok_s,
                b_median_mtok_s: seen.b_median_mtok_s,
                pairs: seen.pairs_count,
                identical_output: identical,
            },
        }),
    }
}

/// The tree, the machine, the caller's environment.
fn campaign(case: &mut Case<'_>) {
    let (build, machine) = (&case.report.build, &case.report.machine);
    if build.dirty || build.commit.is_empty() {
        case.against(Code::DirtyTree, format!("commit {:?}", build.commit));
    }
    match (&case.rules.gpu, &machine.gpu_arch) {
        (Some(wanted), None) => case.against(Code::NoGpu, format!("{wanted} expected")),
        (Some(wanted), Some(got)) if wanted != got => {
            case.against(Code::ArchMismatch, format!("{wanted} expected, got {got}"));
        }
        _ => {}
    }
    for (name, value) in &case.report.caller_env {
        case.against(Code::EnvNotClean, format!("{name}={value}"));
    }
    let (load, most) = (machine.load_before_centi, case.rules.rules.load_max_centi);
    if load > most {
        let found = format!("load {load} hundredths before the start, at most {most}");
        case.against(Code::CoTenant, found);
    }
    if machine.swapped_pages > 0 {
        let pages = format!("{} pages", machine.swapped_pages);
        case.against(Code::SwapActivity, pages);
    }
}

/// Files and prompt.
fn inputs(case: &mut Case<'_>) {
    for wanted in &case.report.profile.artefacts {
        let found = case.report.artefacts.iter().find(|a| a.role == wanted.role);
        let got = found.map_or("", |a| a.blake3.as_str());
        if wanted.blake3.is_empty() || got.is_empty() {
            case.against(Code::ArtefactHashMissing, wanted.role.clone());
        } else if wanted.blake3 != got {
            let found = format!("{}: {} expected, got {got}", wanted.role, wanted.blake3);
            case.against(Code::ArtefactMismatch, found);
        }
    }
    let artefacts = &case.report.artefacts;
    let pinned = counted::pinned(&case.report.profile.artefacts, artefacts);
    case.found.extend(pinned);
    case.found.extend(counted::loaded(case.cell, artefacts));
    let mut models: Vec<&str> = done(case.cell)
        .map(|r| r.model_fingerprint.as_str())
        .collect();
    models.sort_unstable();
    models.dedup();
    if models.len() > 1 {
        case.against(Code::ArtefactMismatch, format!("models {models:?}"));
    }
    let context = case
        .rules
        .contexts
        .iter()
        .find(|c| c.name == case.cell.context);
    match context {
        None => case.against(Code::ContextMissing, case.cell.context.clone()),
        Some(context) => prompt(case, context),
    }
}

fn prompt(case: &mut Case<'_>, context: &Context) {
    let wanted = &context.prompt_blake3;
    let bad = done(case.cell).find(|r| wanted.is_empty() || r.prompt_blake3 != *wanted);
    if let Some(run) = bad {
        let found = format!(
            "run {}: {:?} expected, got {:?}",
            run.seq, wanted, run.prompt_blake3
        );
        case.against(Code::PromptMismatch, found);
    }
}

fn done(cell: &Cell) -> impl Iterator<Item = &Run> {
    cell.runs.iter().filter(|r| r.ok)
}

/// That each arm is what the profile says, and the path it names was taken.
fn arms(case: &mut Case<'_>) {
    for side in [Side::A, Side::B] {
        if let Some(reason) = case.spec(side).absent.clone() {
            case.against(Code::ArmAbsent, format!("{side:?}: {reason}"));
        }
    }
    let cell = case.cell;
    let context = case.rules.contexts.iter().find(|c| c.name == cell.context);
    for run in done(cell) {
        let spec = case.spec(run.arm);
        let other = case.spec(if run.arm == Side::A { Side::B } else { Side::A });
        let has = |s: &ArmSpec| {
            let argv = context.map(|c| argv(&case.report.profile, c, s));
            argv.as_ref() == Some(&run.argv) && run.env == s.env
        };
        let speculated = run.spec_engaged && !spec.speculates;
        if (!has(spec) && has(other)) || speculated {
            let found = format!("run {}: arm {:?} ran {:?}", run.seq, run.arm, run.argv);
            case.against(Code::ArmsSwapped, found);
        } else if !has(spec) {
            let found = format!("run {}: {:?} {:?}", run.seq, run.argv, run.env);
            case.against(Code::EnvDiffersBeyondSwitch, found);
        }
        path(case, run);
    }
    case.found.extend(counted::path(cell, case.rules));
    switches(case);
}

fn path(case: &mut Case<'_>, run: &Run) {
    let spec = case.spec(run.arm);
    let heated = run
        .argv
        .windows(2)
        .any(|w| w[0] == "--temperature" && w[1] == "0");
    if !heated {
        let found = format!("run {}: no --temperature 0", run.seq);
        case.against(Code::SpecSilentlyOff, found);
    } else if spec.speculates && !run.spec_engaged {
        let found = format!("run {}: {} candidates", run.seq, run.proposed);
        case.against(Code::SpecSilentlyOff, found.clone());
        case.against(Code::PathNotTaken, found);
    }
    if !run.fallbacks.is_empty() {
        let found = format!("run {}: {}", run.seq, run.fallbacks.join("; "));
        case.against(Code::FallbackTaken, found);
    }
    if run.cached_tokens > 0 {
        let found = format!("run {}: {} tokens", run.seq, run.cached_tokens);
        case.against(Code::CacheHit, found);
    }
}

/// Switches asked for are in force, and none stands on an open defect.
fn switches(case: &mut Case<'_>) {
    let report = case.report;
    for s in &report.switches {
        for (asked, got) in [
            (&s.requested_a, &s.resolved_a),
            (&s.requested_b, &s.resolved_b),
        ] {
            if !asked.is_empty() && asked != got {
                let found = format!("{}: {asked} asked for, {got} in force", s.name);
                case.against(Code::SwitchNotResolved, found);
            }
        }
        let on = |v: &str| !v.is_empty() && v != "0";
        if !on(&s.resolved_a) && !on(&s.resolved_b) {
            continue;
        }
        for defect in &report.open_defects {
            if defect.state == "open" && defect.affected_switches.contains(&s.name) {
                case.against(Code::OpenDefect, format!("{}: {}", defect.id, s.name));
            }
        }
        if s.class == "approx" {
            case.against(Code::ApproximateModel, s.name.clone());
        }
    }
}

/// Failures, foreign runs, clocks.
fn runs(case: &mut Case<'_>) {
    let (cell, report) = (case.cell, case.report);
    for run in cell.runs.iter().filter(|r| !r.ok) {
        case.against(Code::RunFailed, format!("run {}: {}", run.seq, run.error));
    }
    let foreign =
        |r: &&Run| r.campaign != report.campaign || r.exe_blake3 != report.build.exe_blake3;
    if let Some(run) = cell.runs.iter().find(foreign) {
        let found = format!(
            "run {}: campaign {:?}, executable {:?}",
            run.seq, run.campaign, run.exe_blake3
        );
        case.against(Code::ForeignBaseline, found);
    }
    case.found.extend(counted::heat(cell, case.rules));
    if !case.rules.rules.clocks {
        return;
    }
    for run in done(cell) {
        if case.rules.gpu.is_some() && run.gpu.is_none() {
            case.against(Code::ClockUnrecorded, format!("run {}: the GPU's", run.seq));
            return;
        }
        match run.clocks_mhz {
            None => {
                case.against(Code::ClockUnrecorded, format!("run {}", run.seq));
                return;
            }
            Some((from, to)) if from.abs_diff(to) * 20 > from => {
                case.against(
                    Code::ClockDrift,
                    format!("run {}: {from} to {to} MHz", run.seq),
                );
            }
            Some(_) => {}
        }
    }
}

/// Enough pairs, in the right order, with a control.
fn order(case: &mut Case<'_>) {
    let (cell, rules) = (case.cell, &case.rules.rules);
    let sides = |kind| -> Vec<Side> {
        let of = cell.runs.iter().filter(|r| r.kind == kind);
        of.map(|r| r.side).collect()
    };
    let measured = sides(Kind::Measured);
    let planned = alternating(rules.pairs.max(5) as usize);
    if measured.len() < planned.len() {
        let found = format!("{} of {} runs", measured.len(), planned.len());
        case.against(Code::TooFewPairs, found);
    }
    let wrong_arm = |r: &&Run| r.kind == Kind::Measured && r.arm != r.side;
    if !planned.starts_with(&measured) && measured != planned
        || cell.order != letters(&measured)
        || cell.runs.iter().any(|r| wrong_arm(&r))
        || cell.runs.windows(2).any(|w| w[0].seq >= w[1].seq)
    {
        case.against(Code::NotAlternating, letters(&measured));
    }
    let control = sides(Kind::Control);
    let base_only = cell
        .runs
        .iter()
        .filter(|r| r.kind == Kind::Control)
        .all(|r| r.arm == Side::A);
    if control != alternating(rules.aa_pairs as usize) || !base_only {
        case.against(Code::NoAaControl, letters(&control));
    }
}

/// Digests of the outputs, by class. Whether they are identical across the arms.
fn output(case: &mut Case<'_>) -> bool {
    let cell = case.cell;
    if let Some(run) = done(cell).find(|r| r.ids_blake3.is_empty() || r.text_blake3.is_empty()) {
        case.against(Code::OutputHashMissing, format!("run {}", run.seq));
        return false;
    }
    let of = |side| {
        let mut all: Vec<&str> = done(cell)
            .filter(|r| r.arm == side)
            .map(|r| r.ids_blake3.as_str())
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let (a, b) = (of(Side::A), of(Side::B));
    if a.len() > 1 || b.len() > 1 {
        case.against(
            Code::OutputHashDiffers,
            format!("within an arm: {a:?} {b:?}"),
        );
    }
    let identical = a == b && a.len() == 1;
    let weak = done(cell)
        .find(|r| r.class != "equal")
        .map(|r| r.class.clone());
    match case.rules.class {
        Class::Approx => case.against(Code::ApproximateModel, "the profile's class is approx"),
        Class::Equal if !identical && !a.is_empty() && !b.is_empty() => {
            case.against(Code::OutputHashDiffers, format!("A {a:?}, B {b:?}"));
        }
        Class::Equal => {
            if let Some(class) = weak {
                case.against(Code::QualityGateMissing, format!("a run of class {class}"));
            }
        }
        Class::Near if !identical => {
            if let Some(found) = gate(case) {
                case.against(Code::QualityGateMissing, found);
            }
        }
        Class::Near => {}
    }
    identical
}

/// What the quality gate lacks, or says of other models or switches than the runs'.
fn gate(case: &Case<'_>) -> Option<String> {
    let record = case.report.quality.as_ref();
    let lacks = quality::lacks(&case.report.profile, case.rules, record);
    let Some(record) = record.filter(|_| lacks.is_none()) else {
        return lacks;
    };
    done(case.cell).find_map(|run| {
        let scored = match run.arm {
            Side::A => [&record.reference, &record.replay],
            Side::B => [&record.model, &record.model],
        };
        let same =
            |s: &&Scored| s.fingerprint == run.model_fingerprint && s.switches == run.switches;
        let what = format!(
            "run {}: another model or other switches than scored",
            run.seq
        );
        (!scored.iter().all(same)).then_some(what)
    })
}

/// That there is an effect beyond the noise.
fn effect(case: &mut Case<'_>, seen: &Observations) {
    let rules = &case.rules.rules;
    if seen.aa_spread_ppm > rules.aa_spread_max_ppm {
        let found = format!(
            "A against A: {} ppm, at most {}",
            seen.aa_spread_ppm, rules.aa_spread_max_ppm
        );
        case.against(Code::NoiseTooHigh, found);
    }
    if seen.pairs_count == 0 {
        return;
    }
    let (low, high) = (seen.b_over_a_low_ppm, seen.b_over_a_high_ppm);
    if (low..=high).contains(&ONE) {
        case.against(Code::IntervalIncludesOne, format!("{low}..{high} ppm"));
    }
    let size = seen.b_over_a_median_ppm.abs_diff(ONE);
    if size <= 2 * seen.aa_spread_ppm {
        let found = format!("effect {size} ppm, A against A {} ppm", seen.aa_spread_ppm);
        case.against(Code::NoiseTooHigh, found);
    }
}

/// The status a cell must have.
#[must_use]
pub fn status(report: &Report, cell: &Cell) -> CellStatus {
    match decide(Evidence { report, cell }) {
        Ok(claim) => CellStatus::Qualified {
            headline: *claim.get(),
        },
        Err(reasons) => {
            let metric = report.profile.comparison.as_ref().map(|c| c.metric);
            CellStatus::Unqualified {
                disqualifiers: reasons.all().cloned().collect(),
                observations: observe(cell, metric.unwrap_or(Metric::Decode)),
            }
        }
    }
}

/// Whether a report may be called qualified: every planned context is there and qualified.
#[must_use]
pub fn overall(report: &Report) -> bool {
    let planned = report.profile.comparison.as_ref().map(|c| &c.contexts);
    let names: Vec<&str> = report.cells.iter().map(|c| c.context.as_str()).collect();
    let wanted: Vec<&str> = planned
        .into_iter()
        .flatten()
        .map(|c| c.name.as_str())
        .collect();
    !wanted.is_empty()
        && names == wanted
        && report
            .cells
            .iter()
            .all(|cell| decide(Evidence { report, cell }).is_ok())
}
