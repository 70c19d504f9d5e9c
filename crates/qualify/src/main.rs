//! The command line of `cargo xtask qualify`.
//!
//! Exit codes: 0 passed or qualified, 1 failed, 2 refused or not understood, 3 unqualified.

#![forbid(unsafe_code)]

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use qualify::campaign::{self, Setting};
use qualify::code::Disqualifier;
use qualify::gate::{self, GateReport};
use qualify::identity::{self, Pair};
use qualify::profile::{Comparison, Profile, frozen_prompt, names};
use qualify::report::{Report, SCHEMA};
use qualify::runner::Process;
use qualify::{diff, hash, html, machine, quality, render, selftest, snippets, verify};

const USAGE: &str = "\
usage: cargo xtask qualify VERB
  plan [--profile P]                     what would run, how often, and what is missing
  run --profile P [--context A,B] [--binary FILE] [--out FOLDER] [--small]
  verify REPORT..                        recompute everything from the runs
  render REPORT [--html]                 a report for people
  render --check | --write               figures in documents against their reports
  diff REPORT REPORT                     two reports of one question
  combine REPORT REPORT..                refused, and says why
  selftest                               every rule on a made-up engine
  hash FILE..                            digests for profiles
exit codes: 0 passed or qualified, 1 failed, 2 refused, 3 unqualified";

/// What went wrong, and the exit code.
struct Stop(u8, String);

impl From<String> for Stop {
    fn from(why: String) -> Self {
        Self(1, why)
    }
}

fn refuse(why: impl Into<String>) -> Stop {
    Stop(2, why.into())
}

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

/// Writes to standard output. A reader that has gone (`plan | head -1`) ends nothing: reports are
/// written and exit codes stand whether somebody reads or not.
fn say(text: &str) -> Result<(), Stop> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Stop(1, format!("output: {e}"))),
        _ => Ok(()),
    }
}

/// Writes a line to standard error; a closed one is nobody's loss.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// A line of what `say` writes.
macro_rules! line {
    ($($part:tt)*) => {
        say(&format!("{}\n", format_args!($($part)*)))
    };
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// The value of an option.
fn option<'a>(args: &'a [String], name: &str) -> Option<&'a str> {
    let at = args.iter().position(|a| a == name)?;
    args.get(at + 1).map(String::as_str)
}

fn named(name: &str) -> Result<Profile, Stop> {
    Profile::named(name).map_err(|e| refuse(e.to_string()))
}

fn plan(args: &[String]) -> Result<u8, Stop> {
    let wanted: Vec<&str> = match option(args, "--profile") {
        Some(name) => vec![name],
        None => names().collect(),
    };
    for name in wanted {
        let profile = named(name)?;
        line!("{name} [{:?}]: {}", profile.label, profile.question)?;
        if profile.identity.is_some() {
            let arms = identity::full();
            let absent = |a: &&identity::Arm| matches!(a.way, identity::Way::Absent(_));
            let missing = arms.iter().filter(absent).count();
            line!(
                "  {} arms, {missing} of them absent; about a minute",
                arms.len()
            )?;
        }
        if let Some(c) = &profile.comparison {
            plan_comparison(&profile, c)?;
        }
    }
    Ok(0)
}

fn plan_comparison(profile: &Profile, c: &Comparison) -> Result<(), Stop> {
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
    if let Some(gpu) = &c.gpu {
        line!("  missing: NoGpu: {gpu}")?;
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
    let name = option(args, "--profile").ok_or_else(|| refuse(USAGE))?;
    let profile = named(name)?;
    let out = option(args, "--out").map_or_else(|| root().join("target/qualify"), PathBuf::from);
    fs::create_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    if profile.identity.is_some() {
        return run_gate(&profile, args, &out);
    }
    let comparison = profile
        .comparison
        .clone()
        .ok_or_else(|| refuse("nothing to compare"))?;
    run_comparison(&profile, &comparison, args, &out)
}

fn run_gate(profile: &Profile, args: &[String], out: &Path) -> Result<u8, Stop> {
    let rules = profile.identity.as_ref().ok_or_else(|| refuse("no gate"))?;
    // The gate takes every path itself; a switch from outside would take one away.
    let effective = switches::start(cfg!(feature = "mutants")).map_err(|all| {
        let lines: Vec<String> = all.iter().map(ToString::to_string).collect();
        refuse(format!("switch refused: {}", lines.join("\n")))
    })?;
    let set: Vec<(String, String)> = effective
        .changed()
        .map(|s| (s.switch.name.to_owned(), s.value.clone()))
        .collect();
    let start = Instant::now();
    let root = root();
    let prompt = frozen_prompt(&rules.prompt).ok_or_else(|| refuse("no such prompt"))?;
    let file = |role: &str| {
        let artefact = profile.artefacts.iter().find(|a| a.role == role);
        artefact.map(|a| root.join(&a.path)).unwrap_or_default()
    };
    let pair = Pair::load(&file("target"), &file("draft"), prompt.ids.clone())
        .map_err(|e| e.to_string())?;
    let arms = if args.iter().any(|a| a == "--small") {
        identity::small()
    } else {
        identity::full()
    };
    let size = &identity::Size::FULL;
    let tell = &mut |row: &identity::Row| note(&gate::line(row));
    let outcome =
        identity::run(&pair, &arms, size, Some(&rules.base), tell).map_err(|e| e.to_string())?;
    let exe = std::env::current_exe().ok().and_then(|p| hash::file(&p));
    let report = GateReport {
        schema: SCHEMA,
        report_id: String::new(),
        created_utc_s: campaign::now_s(),
        label: profile.label,
        result: String::new(),
        profile: profile.clone(),
        machine: machine::machine(),
        build: machine::build(&root, exe.unwrap_or_default()),
        switches: set,
        artefacts: campaign::find_artefacts(&root, profile),
        prompt_blake3: hash::ids(&prompt.ids),
        outcome,
    }
    .sealed();
    let path = write(out, &report.report_id, "json", &report.text())?;
    line!("{}", report.render())?;
    line!("{:.1} s; {}", start.elapsed().as_secs_f64(), path.display())?;
    Ok(u8::from(report.result != "pass"))
}

fn write(out: &Path, id: &str, end: &str, text: &str) -> Result<PathBuf, Stop> {
    let path = out.join(format!("{id}.{end}"));
    fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(path)
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
    args: &[String],
    out: &Path,
) -> Result<u8, Stop> {
    let root = root();
    let beside = || {
        let exe = std::env::current_exe().ok()?;
        Some(exe.parent()?.join("fourspark"))
    };
    let binary = option(args, "--binary").map(PathBuf::from).or_else(beside);
    let program = binary.filter(|p| p.is_file()).ok_or_else(|| {
        refuse("no fourspark beside this program: cargo build --release -p server, or --binary")
    })?;
    let exe = hash::file(&program).unwrap_or_default();
    let only: Vec<String> = option(args, "--context")
        .map(|list| list.split(',').map(str::to_owned).collect())
        .unwrap_or_default();
    let mut process = Process {
        root: root.clone(),
        program,
        limit: Duration::from_secs(600),
        sys: PathBuf::from("/sys"),
        scratch: out
            .canonicalize()
            .map_err(|e| format!("{}: {e}", out.display()))?,
    };
    let here = profile.artefacts.iter().all(|a| !a.path.is_empty());
    let runs = here && comparison.a.absent.is_none() && comparison.b.absent.is_none();
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
    let mut machine = machine::machine();
    machine.swapped_pages = machine::swapped_pages();
    let setting = Setting {
        machine,
        build: machine::build(&root, exe),
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
