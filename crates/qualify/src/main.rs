//! The command line of `cargo xtask qualify`.
//!
//! Exit codes: 0 passed or qualified, 1 failed, 2 refused or not understood, 3 unqualified.

#![forbid(unsafe_code)]

mod cli;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use cli::options::Options;
use cli::place::{self, Place, root};
use cli::{Stop, line, note, refuse, say, write};
use qualify::campaign::{self, Setting};
use qualify::code::Disqualifier;
use qualify::profile::{Comparison, Profile, names};
use qualify::report::{Machine, Report};
use qualify::runner::Process;
use qualify::{
    card, diff, gate, hash, html, identity, machine, quality, render, selftest, snippets, verify,
};

const USAGE: &str = "\
usage: cargo xtask qualify VERB
  plan [--profile P] [DEVICES]           what would run, how often, and what is missing
  run --profile P [--context A,B] [--binary FILE] [--out FOLDER] [--small] [--packed FOLDER] [DEVICES]
  verify REPORT..                        recompute everything from the runs
  render REPORT [--html]                 a report for people
  render --check | --write               figures in documents against their reports
  diff REPORT REPORT                     two reports of one question
  combine REPORT REPORT..                refused, and says why
  selftest                               every rule on a made-up engine
  hash FILE..                            digests for profiles
  pack FOLDER                            this program, fourspark and the models, to run elsewhere
DEVICES: --device auto|cpu|cuda:N|hip:N.. of the gate, --kernel-cache FOLDER, --nvrtc, --hip, --hiprtc FILE
exit codes: 0 passed or qualified, 1 failed, 2 refused, 3 unqualified";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (verb, rest) = match args.split_first() {
        Some((verb, rest)) => (verb.as_str(), rest),
        None => ("", &[][..]),
    };
    let done = match verb {
        "plan" => plan(rest),
        "run" => run(rest),
        "verify" => verify_all(rest),
        "render" => render_one(rest),
        "diff" => two(rest),
        "combine" => combine(rest),
        "selftest" => self_test(),
        "hash" => digests(rest),
        "pack" => place::write(rest),
        "draft-worker" => worker(rest),
        _ => Err(refuse(USAGE)),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(Stop(code, why)) => {
            note(&why);
            ExitCode::from(code)
        }
    }
}

fn named(name: &str) -> Result<Profile, Stop> {
    Profile::named(name).map_err(|e| refuse(e.to_string()))
}

/// Serves the gate as a draft worker: what `fourspark draft-worker` does.
#[cfg(target_os = "linux")]
fn worker(args: &[String]) -> Result<u8, Stop> {
    let parent = args.first().and_then(|id| id.parse().ok());
    let parent = parent.ok_or_else(|| refuse("draft-worker PARENT"))?;
    ipc_transport::worker::run_process(parent)?;
    Ok(0)
}

#[cfg(not(target_os = "linux"))]
fn worker(_: &[String]) -> Result<u8, Stop> {
    Err(refuse("draft workers need Linux"))
}

/// Options of devices and their libraries.
const DEVICES: [&str; 5] = ["--device", "--kernel-cache", "--nvrtc", "--hip", "--hiprtc"];

fn plan(args: &[String]) -> Result<u8, Stop> {
    let options = Options::of(args, &[&["--profile"], &DEVICES[..]].concat(), &[])?;
    let wanted: Vec<&str> = match options.value("--profile") {
        Some(name) => vec![name],
        None => names().collect(),
    };
    for name in wanted {
        let profile = named(name)?;
        line!("{name} [{:?}]: {}", profile.label, profile.question)?;
        if profile.identity.is_some() {
            let arms = identity::full(&cli::gate::means(&options, None)?);
            line!("  {} arms; about a minute", arms.len())?;
            for arm in &arms {
                if let identity::Way::Absent(reason) = &arm.way {
                    line!("  absent: {}: {reason}", arm.name)?;
                }
            }
        }
        if let Some(c) = &profile.comparison {
            plan_comparison(&profile, c, &options)?;
        }
    }
    Ok(0)
}

/// The GPU that a comparison wants, or another one, if the engine can use it.
fn gpu(comparison: &Comparison, options: &Options<'_>) -> Option<String> {
    let wanted = comparison.gpu.as_ref()?;
    machine::gpu(&device::survey::survey(&options.libraries()), wanted)
}

fn plan_comparison(profile: &Profile, c: &Comparison, options: &Options<'_>) -> Result<(), Stop> {
    let runs = campaign::plan(c).len();
    line!("  A = {}, B = {}: {}", c.a.name, c.b.name, c.compares)?;
    for context in &c.contexts {
        let tokens = runs as u64 * u64::from(context.max_tokens);
        line!(
            "  {}: {runs} runs, each of a process of its own; {tokens} tokens to generate",
            context.name
        )?;
    }
    for (side, arm) in [("A", &c.a), ("B", &c.b)] {
        if let Some(reason) = &arm.absent {
            line!("  missing: ArmAbsent: {side}: {reason}")?;
        }
    }
    match (&c.gpu, gpu(c, options)) {
        (Some(wanted), None) => line!("  missing: NoGpu: {wanted}")?,
        (Some(wanted), Some(got)) if *wanted != got => {
            line!("  missing: ArchMismatch: {wanted} expected, got {got}")?;
        }
        _ => {}
    }
    for artefact in campaign::find_artefacts(&root(), profile) {
        if artefact.blake3.is_empty() {
            line!("  missing: ArtefactHashMissing: {}", artefact.role)?;
        }
    }
    Ok(())
}

/// Variables of the caller that count against a campaign: those of this engine, of the one it replaces,
/// and what else changes a measurement.
fn caller_env() -> Vec<(String, String)> {
    let ours = |name: &str| {
        let prefixes = ["FOURSPARK_", "DFLASH_", "LUCE_", "PFLASH_", "GGML_", "FPX_"];
        prefixes.iter().any(|p| name.starts_with(p))
    };
    switches::environment()
        .filter(|(name, _)| ours(name))
        .collect()
}

fn run(args: &[String]) -> Result<u8, Stop> {
    let own = ["--profile", "--context", "--binary", "--out", "--packed"];
    let options = Options::of(args, &[&own[..], &DEVICES].concat(), &["--small"])?;
    let name = options.value("--profile").ok_or_else(|| refuse(USAGE))?;
    let profile = named(name)?;
    let place = Place::of(options.value("--packed"))?;
    let out = options.value("--out").map(PathBuf::from);
    let out = out.unwrap_or_else(|| place.root.join("target/qualify"));
    fs::create_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    if profile.identity.is_some() {
        return cli::gate::run(&profile, &options, &place, &out);
    }
    let comparison = profile
        .comparison
        .clone()
        .ok_or_else(|| refuse("nothing to compare"))?;
    run_comparison(&profile, &comparison, &options, &place, &out)
}

/// Waits for the machine to come to rest, as long as the profile allows.
fn settle(comparison: &Comparison) {
    let start = Instant::now();
    let limit = Duration::from_secs(comparison.rules.settle_s);
    while machine::load_centi() > comparison.rules.load_max_centi && start.elapsed() < limit {
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn run_comparison(
    profile: &Profile,
    comparison: &Comparison,
    options: &Options<'_>,
    place: &Place,
    out: &Path,
) -> Result<u8, Stop> {
    let root = place.root.clone();
    let beside = || {
        let exe = std::env::current_exe().ok()?;
        Some(exe.parent()?.join("fourspark"))
    };
    let binary = options.value("--binary").map(PathBuf::from).or_else(beside);
    let program = binary.filter(|p| p.is_file()).ok_or_else(|| {
        refuse("no fourspark beside this program: cargo build --release -p server, or --binary")
    })?;
    let exe = hash::file(&program).unwrap_or_default();
    let only: Vec<String> = options
        .value("--context")
        .map(|list| list.split(',').map(str::to_owned).collect())
        .unwrap_or_default();
    let mut process = Process {
        root: root.clone(),
        program,
        limit: Duration::from_secs(600),
        card: None,
        sys: PathBuf::from("/sys"),
        scratch: out
            .canonicalize()
            .map_err(|e| format!("{}: {e}", out.display()))?,
    };
    let gpu_arch = gpu(comparison, options);
    let source = |arch: &String| card::Source::of(arch, comparison.gpu_index(), &process.sys);
    process.card = gpu_arch.as_ref().and_then(source);
    let card = process.card.as_ref().and_then(card::Source::read);
    let card = card.map(|(card, _)| card);
    let about = |machine| Machine {
        gpu_arch: gpu_arch.clone(),
        gpu: card.clone(),
        ..machine
    };
    let runs = campaign::runs_here(profile, comparison, &about(Machine::default()));
    if runs {
        settle(comparison);
    }
    let gate = runs && comparison.quality.is_some();
    let score = || {
        let mut binary = quality::Binary::new(&process);
        quality::measure(&mut binary, &root, profile, comparison)
    };
    let quality = gate.then(score);
    let quality = quality.transpose().unwrap_or_else(|why| {
        note(&format!("QualityGateMissing: {why}"));
        None
    });
    let mut machine = about(machine::machine());
    machine.swapped_pages = machine::swapped_pages();
    let setting = Setting {
        machine,
        build: place.build(exe),
        artefacts: campaign::find_artefacts(&root, profile),
        caller_env: caller_env(),
        quality,
        now_s: campaign::now_s(),
    };
    let report = campaign::run(profile, setting, &mut process, &only);
    let report = report.ok_or_else(|| refuse("nothing to compare"))?;
    let path = write(out, &report.report_id, "json", &report.text())?;
    write(out, &report.report_id, "html", &html::page(&report))?;
    write(out, &report.report_id, "txt", &render::text(&report))?;
    line!("{}{}", render::text(&report), path.display())?;
    Ok(if report.status == "qualified" { 0 } else { 3 })
}

fn read(path: &str) -> Result<String, Stop> {
    fs::read_to_string(path).map_err(|e| Stop(1, format!("{path}: {e}")))
}

fn lines(all: &[Disqualifier]) -> String {
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    all.join("\n")
}

fn load(path: &str) -> Result<Report, Stop> {
    let verified = verify::verify(&read(path)?);
    let verified = verified.map_err(|all| Stop(2, format!("{path}\n{}", lines(&all))))?;
    Ok(verified.report().clone())
}

fn is_gate(text: &str) -> bool {
    text.contains("\n  \"outcome\": {")
}

fn verify_all(paths: &[String]) -> Result<u8, Stop> {
    if paths.is_empty() {
        return Err(refuse(USAGE));
    }
    for path in paths {
        let text = read(path)?;
        if is_gate(&text) {
            let report = gate::verify(&text).map_err(|all| Stop(2, lines(&all)))?;
            line!("{path}: verified, {}", report.result)?;
        } else {
            line!("{path}: verified, {}", load(path)?.status)?;
        }
    }
    Ok(0)
}

fn render_one(args: &[String]) -> Result<u8, Stop> {
    let has = |name: &str| args.iter().any(|a| a == name);
    if has("--check") || has("--write") {
        let found = snippets::check(&root(), has("--write"));
        for line in &found {
            line!("{line}")?;
        }
        return Ok(u8::from(!found.is_empty()));
    }
    let path = args
        .iter()
        .find(|a| !a.starts_with("--"))
        .ok_or_else(|| refuse(USAGE))?;
    let text = read(path)?;
    if is_gate(&text) {
        let report = gate::verify(&text).map_err(|all| Stop(2, lines(&all)))?;
        say(&report.render())?;
        return Ok(0);
    }
    let report = load(path)?;
    let shown = if has("--html") {
        html::page(&report)
    } else {
        render::text(&report)
    };
    say(&shown)?;
    Ok(0)
}

fn two(args: &[String]) -> Result<u8, Stop> {
    let [a, b] = args else {
        return Err(refuse(USAGE));
    };
    let text = diff::diff(&load(a)?, &load(b)?).map_err(|all| Stop(2, lines(&all)))?;
    say(&text)?;
    Ok(0)
}

fn combine(args: &[String]) -> Result<u8, Stop> {
    let reports = args
        .iter()
        .map(|p| load(p))
        .collect::<Result<Vec<_>, _>>()?;
    let all: Vec<&Report> = reports.iter().collect();
    match diff::combine(&all) {
        Ok(never) => match never {},
        Err(why) => Err(Stop(2, why.to_string())),
    }
}

fn self_test() -> Result<u8, Stop> {
    match selftest::run() {
        Ok(count) => {
            line!("selftest: {count} scenarios, each with its verdict")?;
            Ok(0)
        }
        Err(failed) => Err(Stop(1, failed.join("\n"))),
    }
}

fn digests(paths: &[String]) -> Result<u8, Stop> {
    for path in paths {
        let digest = hash::file(Path::new(path)).ok_or_else(|| format!("{path}: cannot read"))?;
        line!("{digest}  {path}")?;
    }
    Ok(0)
}
