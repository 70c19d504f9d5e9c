//! `qualify selftest`: a good report passes, and each way to spoil it is refused with its code. The
//! same table is what the tests run.

use crate::campaign::conclude;
use crate::card::{Around, Look};
use crate::code::Code;
use crate::fake;
use crate::order::Side;
use crate::report::{CellStatus, Kind, Report, Run, SwitchRecord};

/// A way to spoil a report, and the code that must answer.
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// The code.
    pub code: Code,
    /// What it does to a good report, before it is concluded.
    pub spoil: fn(&mut Report),
}

impl std::fmt::Debug for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} -> {}", self.name, self.code)
    }
}

fn each(report: &mut Report, wanted: fn(&Run) -> bool, f: fn(&mut Run)) {
    for cell in &mut report.cells {
        cell.runs.iter_mut().filter(|r| wanted(r)).for_each(f);
    }
}

fn comparison(report: &mut Report, f: fn(&mut crate::profile::Comparison)) {
    report.profile.comparison.as_mut().into_iter().for_each(f);
}

const fn b(run: &Run) -> bool {
    matches!(run.arm, Side::B)
}

const fn any(_: &Run) -> bool {
    true
}

const LOOK: Look = Look {
    core_mhz: 1980,
    memory_mhz: 3201,
    power_mw: Some(120_000),
    temperature_mc: Some(40_000),
    slowed: Some(false),
};
const GPU: Around = Around {
    before: LOOK,
    after: LOOK,
};

/// A comparison on a GPU whose clocks are asked for, and known.
fn on_gpu(r: &mut Report) {
    comparison(r, |c| {
        (c.gpu, c.rules.clocks) = (Some("sm_90".into()), true)
    });
    r.machine.gpu_arch = Some("sm_90".into());
    each(r, any, |x| {
        (x.clocks_mhz, x.gpu) = (Some((2000, 2000)), Some(GPU))
    });
}

macro_rules! scenarios {
    ($($code:ident $name:literal $spoil:expr;)*) => {
        /// Every scenario.
        pub const SCENARIOS: &[Scenario] = &[
            $(Scenario { name: $name, code: Code::$code, spoil: $spoil },)*
        ];
    };
}

scenarios! {
    DirtyTree "dirty tree" |r| r.build.dirty = true;
    DirtyTree "unknown commit" |r| r.build.commit.clear();
    NoGpu "no GPU" |r| comparison(r, |c| c.gpu = Some("gfx1151".into()));
    ArchMismatch "another GPU" |r| {
        comparison(r, |c| c.gpu = Some("gfx1151".into()));
        r.machine.gpu_arch = Some("gfx1100".into());
    };
    ArmAbsent "an arm no build has" |r| comparison(r, |c| c.b.absent = Some("not built".into()));
    ArtefactHashMissing "missing digest of a file" |r| r.artefacts[0].blake3.clear();
    ArtefactMismatch "another file" |r| r.artefacts[0].blake3 = crate::hash::text("other");
    ArtefactMismatch "arms with different models" |r| each(r, b, |x| x.model_fingerprint = "ff".into());
    ArtefactMismatch "a file with other tensors" |r| {
        r.profile.artefacts[0].tensors = vec![("F32".into(), 1)];
    };
    ArtefactMismatch "other tensors in one arm" |r| each(r, b, |x| x.tensors[0].1 += 1);
    ArtefactMismatch "tensors not known" |r| each(r, b, |x| x.tensors.clear());
    PromptMismatch "another prompt in one arm" |r| each(r, b, |x| x.prompt_blake3 = crate::hash::text("other"));
    EnvNotClean "a variable of the reference engine" |r| r.caller_env = vec![("DFLASH_X".into(), "1".into())];
    EnvDiffersBeyondSwitch "arms differ in another option" |r| each(r, b, |x| x.argv.push("--threads=1".into()));
    ArmsSwapped "swapped arms" |r| each(r, |x| matches!(x.kind, Kind::Measured), |x| {
        x.arm = if b(x) { Side::A } else { Side::B };
        x.side = x.arm;
    });
    SwitchNotResolved "a switch that was not in force" |r| r.switches.push(switch("spec.draft", "equal", "1", "0"));
    OpenDefect "an open defect behind a switch" |r| r.switches.push(switch("prefill.direct_topk", "equal", "1", "1"));
    ApproximateModel "fewer experts" |r| r.switches.push(switch("model.expert_top_k", "approx", "4", "4"));
    PathNotTaken "silent fallback" |r| each(r, b, |x| { x.spec_engaged = false; x.proposed = 0; });
    SpecSilentlyOff "speculation silently off" |r| each(r, b, |x| { x.spec_engaged = false; x.proposed = 0; });
    SpecSilentlyOff "no temperature in the request" |r| each(r, any, |x| {
        x.argv.retain(|w| w != "--temperature" && w != "0");
    });
    FallbackTaken "a lost drafter" |r| each(r, b, |x| x.fallbacks.push("the drafter was lost".into()));
    CounterMissing "weights not counted in one run" |r| r.cells[0].runs[5].weight_bytes = None;
    CounterMissing "an engine that counts nothing" |r| each(r, any, |x| {
        (x.weight_bytes, x.launches, x.stalls) = (None, None, None);
    });
    PathNotTaken "one run of the base read other weights" |r| {
        let run = r.cells[0].runs.iter_mut().rfind(|x| !b(x));
        run.into_iter().for_each(|x| x.weight_bytes = x.weight_bytes.map(|n| n + 1));
    };
    PathNotTaken "nothing was launched" |r| each(r, b, |x| x.launches = Some(0));
    CacheHit "a cached prompt" |r| each(r, b, |x| x.cached_tokens = 5);
    TooFewPairs "four pairs" |r| for cell in &mut r.cells {
        let measured = |x: &Run| x.kind == Kind::Measured;
        let from = cell.runs.iter().position(measured).unwrap_or(0);
        cell.runs.truncate(from + 8);
        cell.order.truncate(8);
    };
    NotAlternating "AABB" |r| for cell in &mut r.cells {
        let from = cell.runs.iter().position(|x| x.kind == Kind::Measured).unwrap_or(0);
        cell.runs[from..].sort_by_key(|x| x.side);
        let n = cell.order.len() / 2;
        cell.order = "A".repeat(n) + &"B".repeat(n);
    };
    NoAaControl "missing control" |r| for cell in &mut r.cells {
        cell.runs.retain(|x| x.kind != Kind::Control);
        cell.order_control.clear();
    };
    NoiseTooHigh "a noisy base" |r| for cell in &mut r.cells {
        let control = cell.runs.iter_mut().filter(|x| x.kind == Kind::Control);
        control.filter(|x| x.side == Side::B).for_each(|x| x.decode_us *= 2);
    };
    IntervalIncludesOne "no effect" |r| each(r, b, |x| x.decode_us = x.decode_us * 10 / 7);
    OutputHashMissing "missing digest of an output" |r| each(r, b, |x| x.ids_blake3.clear());
    OutputHashDiffers "other tokens in arm B" |r| each(r, b, |x| x.ids_blake3 = crate::hash::text("other"));
    OutputHashDiffers "other tokens in one run" |r| r.cells[0].runs[0].ids_blake3 = crate::hash::text("other");
    QualityGateMissing "class near without a gate" |r| {
        comparison(r, |c| c.class = crate::profile::Class::Near);
        each(r, b, |x| x.ids_blake3 = crate::hash::text("other"));
    };
    QualityGateMissing "runs of class near under class equal" |r| each(r, b, |x| x.class = "near: f16".into());
    ClockUnrecorded "clocks unknown" |r| comparison(r, |c| c.rules.clocks = true);
    ClockUnrecorded "a GPU's clocks unknown" |r| {
        on_gpu(r);
        r.cells[0].runs[9].gpu = None;
    };
    Thermal "a slowed GPU" |r| {
        on_gpu(r);
        let run = &mut r.cells[0].runs[9];
        run.gpu = run.gpu.map(|g| Around { after: Look { slowed: Some(true), ..g.after }, ..g });
    };
    ClockDrift "clocks moved" |r| {
        comparison(r, |c| c.rules.clocks = true);
        each(r, any, |x| x.clocks_mhz = Some((2000, 1500)));
    };
    Thermal "a throttled run" |r| r.cells[0].runs[9].throttled = Some(2);
    Thermal "a sensor at its limit" |r| r.cells[0].runs[9].heat = Some(crate::report::Heat {
        before_mc: 80_000,
        after_mc: 95_000,
        margin_mc: Some(0),
    });
    ThermalUnrecorded "throttling unknown" |r| {
        comparison(r, |c| c.rules.thermal = true);
        r.cells[0].runs[9].throttled = None;
    };
    CoTenant "a busy machine" |r| r.machine.load_before_centi = 400;
    SwapActivity "swapping" |r| r.machine.swapped_pages = 3;
    RunFailed "one failed run" |r| {
        r.cells[0].runs[3].ok = false;
        r.cells[0].runs[3].error = "timeout".into();
    };
    ForeignBaseline "arm A from another campaign" |r| each(r, |x| !b(x), |x| x.campaign = "elsewhere".into());
    ForeignBaseline "arm A from another binary" |r| each(r, |x| !b(x), |x| x.exe_blake3 = crate::hash::text("old"));
    ContextMissing "a context nobody planned" |r| r.cells[0].context = "1m".into();
}

fn switch(name: &str, class: &str, asked: &str, got: &str) -> SwitchRecord {
    SwitchRecord {
        name: name.to_owned(),
        class: class.to_owned(),
        requested_a: String::new(),
        resolved_a: "0".to_owned(),
        requested_b: asked.to_owned(),
        resolved_b: got.to_owned(),
    }
}

impl Scenario {
    /// Whether the spoiled report is refused with the code.
    ///
    /// # Errors
    /// What was concluded instead.
    pub fn holds(&self) -> Result<(), String> {
        let mut report = fake::good_report().ok_or("there is no good report")?;
        (self.spoil)(&mut report);
        let report = conclude(report);
        let answered = |status: &CellStatus| match status {
            CellStatus::Qualified { .. } => false,
            CellStatus::Unqualified { disqualifiers, .. } => {
                disqualifiers.iter().any(|d| d.code == self.code)
            }
        };
        if report.status == "unqualified" && report.cells.iter().any(|c| answered(&c.status)) {
            return Ok(());
        }
        let statuses: Vec<&CellStatus> = report.cells.iter().map(|c| &c.status).collect();
        Err(format!(
            "{}: {} expected, got {} {statuses:?}",
            self.name, self.code, report.status
        ))
    }
}

/// Runs all; how many held.
///
/// # Errors
/// Everything that did not.
pub fn run() -> Result<usize, Vec<String>> {
    let good = fake::good_report();
    let mut failed: Vec<String> = Vec::new();
    if good.as_ref().is_none_or(|r| r.status != "qualified") {
        failed.push(format!("the good report is {:?}", good.map(|r| r.status)));
    }
    failed.extend(SCENARIOS.iter().filter_map(|s| s.holds().err()));
    if failed.is_empty() {
        Ok(SCENARIOS.len() + 1)
    } else {
        Err(failed)
    }
}
