//! Milestone M0 on an NVIDIA GPU: every case against the Rust references, all bits, then what the
//! contract's order costs beside a free one. `m0 --help` for the arguments.

mod bench;
mod families;
mod prompt;
mod report;
mod rig;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use device::driver::{Driver, Kind};
use device::{cuda, hip};
use ds4_kernels::cases::{self, Depth, Outcome, Runner};

use report::Report;
use rig::Rig;

const HELP: &str =
    "m0 [--device cuda:N|hip:N] [--json FILE] [--commit HASH] [--quick] [--sample-functions] [--no-cases] [--no-bench]
   [--only TEXT]
Runs every kernel case on a GPU and compares all bits with the references, then measures.
  --device KIND:N      which (cuda:0)
  --json FILE          writes the results there
  --commit HASH        is noted in the results
  --quick              the short case lists
  --sample-functions   samples the functions' bit patterns instead of comparing all 2^32
  --no-cases           measures only
  --no-bench           compares only
  --only TEXT          measures only launches whose names hold it; those of bench.rs are called products
";

#[derive(Debug, Default)]
struct Options {
    json: Option<String>,
    commit: String,
    quick: bool,
    sample_functions: bool,
    device: String,
    no_cases: bool,
    no_bench: bool,
    only: Option<String>,
}

fn options() -> Result<Options, String> {
    let mut o = Options {
        device: "cuda:0".to_owned(),
        ..Options::default()
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || {
            args.next()
                .ok_or_else(|| format!("{arg} needs a value\n{HELP}"))
        };
        match arg.as_str() {
            "--json" => o.json = Some(value()?),
            "--commit" => o.commit = value()?,
            "--device" => o.device = value()?,
            "--quick" => o.quick = true,
            "--sample-functions" => o.sample_functions = true,
            "--no-cases" => o.no_cases = true,
            "--no-bench" => o.no_bench = true,
            "--only" => o.only = Some(value()?),
            _ => return Err(HELP.into()),
        }
    }
    Ok(o)
}

fn main() -> ExitCode {
    match options().and_then(|o| run(&o).map_err(|e| e.to_string())) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            let _ = writeln!(io::stderr(), "{message}");
            ExitCode::FAILURE
        }
    }
}

type Outcomes = Result<Vec<Outcome>, Box<dyn std::error::Error>>;

/// Whether everything was equal.
fn run(o: &Options) -> Result<bool, Box<dyn std::error::Error>> {
    match Kind::of_name(&o.device) {
        Some((Kind::Cuda, n)) => on(&cuda::runtime(&cuda::Settings::default())?.open(n)?, o),
        Some((Kind::Hip, n)) => on(&hip::runtime(&hip::Settings::default())?.open(n)?, o),
        _ => Err(HELP.into()),
    }
}

fn on<R: Driver>(
    device: &device::Device<R>,
    o: &Options,
) -> Result<bool, Box<dyn std::error::Error>> {
    let mut out = io::stdout();
    let mut gpu = Rig::new(device)?;
    let (name, processors) = gpu.describe();
    writeln!(out, "{name}, {processors} multiprocessors")?;
    let mut report = Report::new(name, processors, o.commit.clone());
    if !o.no_cases {
        let start = Instant::now();
        let depth = if o.quick { Depth::Quick } else { Depth::Full };
        let functions = if o.sample_functions {
            Depth::Quick
        } else {
            depth
        };
        report.cases = families(&mut gpu, depth, functions, &mut out)?;
        writeln!(out, "cases: {:.1} s", start.elapsed().as_secs_f64())?;
    }
    if !o.no_bench {
        let only = o.only.as_deref().unwrap_or_default();
        if "products".contains(only) {
            bench::run(&mut gpu, &mut report, &mut out)?;
        }
        families::run(&mut gpu, only, &mut report, &mut out)?;
    }
    report.print(&mut out)?;
    if let Some(file) = &o.json {
        std::fs::write(file, report.json())?;
    }
    Ok(report.equal())
}

fn families(
    gpu: &mut Rig<impl Driver>,
    depth: Depth,
    functions: Depth,
    out: &mut impl Write,
) -> Outcomes {
    let mut all = Vec::new();
    for (name, run) in cases::families() {
        let start = Instant::now();
        let depth = if name == "math" { functions } else { depth };
        let outcomes = run(gpu, depth)?;
        let wrong: Vec<&Outcome> = outcomes.iter().filter(|o| !o.equal()).collect();
        let seconds = start.elapsed().as_secs_f64();
        writeln!(
            out,
            "{name}: {} comparisons, {} not equal, {seconds:.1} s",
            outcomes.len(),
            wrong.len()
        )?;
        for o in wrong.iter().take(5) {
            let first = o.first.as_deref().unwrap_or("nothing compared");
            writeln!(
                out,
                "  {}: {} of {} differ; {first}",
                o.name, o.differing, o.compared
            )?;
        }
        all.extend(outcomes);
        gpu.reset();
    }
    Ok(all)
}
