//! `xtask kernels`: compiles every kernel source for every architecture with clang, without any
//! vendor's SDK, and compares what each AMD image needs (registers, spills, memory) with the figures
//! on file, so that a change of it shows in review.
//!
//! Images go to `target/kernels/`. Nothing runs here: the host executor's tests compare results, and
//! a device run qualifies speed. NVIDIA images are PTX, whose registers only the driver assigns:
//! they are compiled, not measured, and so not optimised, which would take ten times as long.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::failure::Failure;
use crate::workspace::{self, Workspace};
use crate::{parallel, sh};

const SOURCES: &str = "kernels/gpu";
const FIGURES: &str = "kernels/resources.txt";
const CLANG: &str = "clang-19";
const READELF: &str = "llvm-readelf-19";
const LIMIT: Duration = Duration::from_mins(5);
/// Contraction off: docs/adr/0001-arithmetic.md. No vendor headers or libraries.
const COMMON: &[&str] = &["-std=c++17", "-ffp-contract=off", "-Wall", "-Werror"];
/// Exact architectures: amd by code object, nvidia by PTX.
const AMD: &[&str] = &["gfx1100", "gfx1151", "gfx1201"];
const NVIDIA: &[&str] = &["sm_80", "sm_90a"];

/// One compilation.
struct Job {
    source: String,
    arch: &'static str,
    amd: bool,
}

/// What came of all compilations.
pub(crate) struct Built {
    /// Diagnostics of those that failed.
    pub(crate) errors: Vec<String>,
    /// Figures that differ from those on file.
    pub(crate) differences: Vec<String>,
    pub(crate) note: String,
    figures: String,
}

/// Why there is nothing to compile or nothing to compile with.
///
/// # Errors
/// The reason.
pub(crate) fn available(workspace: &Workspace) -> Result<(), String> {
    if sources(workspace).is_empty() {
        return Err(format!("no kernel sources in {SOURCES}"));
    }
    for (tool, package) in [(CLANG, "clang-19"), (READELF, "llvm-19")] {
        if !sh::has(tool) {
            return Err(format!("no {tool}: apt-get install {package}"));
        }
    }
    Ok(())
}

/// Entry of the verb.
///
/// # Errors
/// No sources, no compiler, or a file cannot be written.
pub(crate) fn run(args: &[String]) -> Result<bool, Failure> {
    let bless = match args {
        [] => false,
        [flag] if flag == "--bless" => true,
        _ => {
            return Err(Failure::new(
                "the option is --bless: write the figures anew",
            ));
        }
    };
    let workspace = Workspace::open()?;
    available(&workspace).map_err(Failure::new)?;
    let built = build(&workspace)?;
    built.errors.iter().for_each(|e| println!("{e}"));
    if bless && built.errors.is_empty() {
        let path = workspace.root.join(FIGURES);
        fs::write(&path, &built.figures).map_err(|e| Failure::io(&path, &e))?;
        println!("{FIGURES} written");
    } else {
        built.differences.iter().for_each(|d| println!("{d}"));
    }
    println!("kernels: {}", built.note);
    Ok(built.errors.is_empty() && (bless || built.differences.is_empty()))
}

/// Compiles everything and compares the figures.
///
/// # Errors
/// A compiler cannot be started or its log not be written.
pub(crate) fn build(workspace: &Workspace) -> Result<Built, Failure> {
    let job = |source: &String, arch, amd| Job {
        source: source.clone(),
        arch,
        amd,
    };
    let mut jobs = Vec::new();
    for source in sources(workspace) {
        jobs.extend(AMD.iter().map(|arch| job(&source, arch, true)));
        jobs.extend(NVIDIA.iter().map(|arch| job(&source, arch, false)));
    }
    let mut lines = Vec::new();
    let mut errors = Vec::new();
    for result in parallel::map(&jobs, |job| compile(workspace, job)) {
        match result? {
            Ok(figures) => lines.extend(figures),
            Err(said) => errors.push(said),
        }
    }
    lines.sort();
    let version = sh::capture(Command::new(CLANG).arg("--version")).unwrap_or_default();
    let figures = page(version.lines().next().unwrap_or_default(), &lines);
    let on_file = fs::read_to_string(workspace.root.join(FIGURES)).ok();
    let (differences, compared) = compare(on_file.as_deref(), &figures);
    let note = format!("{} images, {} failed; {compared}", jobs.len(), errors.len());
    Ok(Built {
        errors,
        differences,
        note,
        figures,
    })
}

fn sources(workspace: &Workspace) -> Vec<String> {
    let names = workspace::entries(&workspace.root.join(SOURCES)).unwrap_or_default();
    names
        .into_iter()
        .filter(|name| name.ends_with(".cu"))
        .collect()
}

/// Compiles one source. `Ok(Ok)`: lines of figures; `Ok(Err)`: what the compiler said.
fn compile(workspace: &Workspace, job: &Job) -> Result<Result<Vec<String>, String>, Failure> {
    let name = format!("{}.{}", job.source.trim_end_matches(".cu"), job.arch);
    let folder = workspace.target("kernels");
    let image = folder.join(format!("{name}.{}", if job.amd { "hsaco" } else { "ptx" }));
    let mut clang = Command::new(CLANG);
    clang
        .current_dir(&workspace.root)
        .args(COMMON)
        .arg("--cuda-device-only");
    if job.amd {
        clang.args([
            "-O3",
            "-x",
            "hip",
            "-nogpulib",
            "-nogpuinc",
            "--no-gpu-bundle-output",
        ]);
        clang.arg(format!("--offload-arch={}", job.arch));
    } else {
        // PTX ISA 8.0: every driver from 525 on takes it.
        clang.args([
            "-O0",
            "-x",
            "cuda",
            "-nocudainc",
            "-nocudalib",
            "-S",
            "--cuda-feature=+ptx80",
        ]);
        clang.arg(format!("--cuda-gpu-arch={}", job.arch));
    }
    clang
        .arg(format!("{SOURCES}/{}", job.source))
        .arg("-o")
        .arg(&image);
    let ran = sh::run(&mut clang, LIMIT, &folder.join(format!("{name}.log")))?;
    if !ran.ok() {
        let said = sh::tail(&ran.output, 30);
        return Ok(Err(format!(
            "{said}\n{} for {}: {}",
            job.source,
            job.arch,
            ran.ending()
        )));
    }
    Ok(if job.amd {
        measure(&image, job.arch)
    } else {
        Ok(Vec::new())
    })
}

fn measure(image: &Path, arch: &str) -> Result<Vec<String>, String> {
    let notes = sh::capture(Command::new(READELF).arg("--notes").arg(image));
    let notes = notes.ok_or_else(|| format!("{READELF} cannot read {}", image.display()))?;
    Ok(figures(&notes, arch))
}

/// One line a kernel of an image's metadata.
fn figures(notes: &str, arch: &str) -> Vec<String> {
    let keys = [
        "vgpr_count",
        "sgpr_count",
        "vgpr_spill_count",
        "sgpr_spill_count",
    ];
    let keys = keys
        .into_iter()
        .chain(["group_segment_fixed_size", "private_segment_fixed_size"]);
    let keys: Vec<&str> = keys.collect();
    let kernels = notes.split("\n  - ").skip(1);
    kernels
        .filter_map(|kernel| {
            let field = |key: &str| {
                let mark = format!("    .{key}:");
                kernel
                    .lines()
                    .find_map(|line| line.strip_prefix(mark.as_str()))
                    .map(str::trim)
            };
            let mut line = format!("{:<32} {arch:<8}", field("name")?);
            for key in &keys {
                let _ = write!(line, " {:>6}", field(key)?);
            }
            Some(line)
        })
        .collect()
}

fn page(compiler: &str, lines: &[String]) -> String {
    let mut text = format!("# {compiler}\n# Written by `cargo xtask kernels --bless`.\n#\n");
    let _ = writeln!(
        text,
        "# {:<30} {:<8} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}",
        "kernel", "arch", "vgpr", "sgpr", "vspill", "sspill", "lds", "stack"
    );
    lines.iter().for_each(|line| {
        let _ = writeln!(text, "{line}");
    });
    text
}

/// Lines that differ, and a remark on the comparison.
fn compare(on_file: Option<&str>, now: &str) -> (Vec<String>, String) {
    let Some(old) = on_file else {
        return (Vec::new(), format!("no figures on file yet ({FIGURES})"));
    };
    if old.lines().next() != now.lines().next() {
        return (
            Vec::new(),
            "figures on file are of another compiler: not compared".to_owned(),
        );
    }
    let missing = |from: &str, to: &str, sign: char| -> Vec<String> {
        let gone = from
            .lines()
            .filter(|line| !to.lines().any(|other| other == *line));
        gone.map(|line| format!("{sign} {line}")).collect()
    };
    let mut differences = missing(old, now, '-');
    differences.extend(missing(now, old, '+'));
    let note = format!("{} lines of figures differ", differences.len());
    (differences, note)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTES: &str = "\
amdhsa.kernels:
  - .args:
      - .offset:         0
        .size:           8
    .group_segment_fixed_size: 32
    .name:           rms_norm
    .private_segment_fixed_size: 0
    .sgpr_count:     17
    .sgpr_spill_count: 0
    .symbol:         rms_norm.kd
    .vgpr_count:     14
    .vgpr_spill_count: 1
  - .args:           []
    .group_segment_fixed_size: 0
    .name:           other
    .private_segment_fixed_size: 64
    .sgpr_count:     8
    .sgpr_spill_count: 0
    .vgpr_count:     3
    .vgpr_spill_count: 0
";

    /// kernels are compiled for both AMD architectures, each source for each.
    #[test]
    fn a_42_both_amd_architectures_are_compiled() {
        for arch in ["gfx1151", "gfx1201"] {
            assert!(AMD.contains(&arch), "{arch}");
        }
    }

    #[test]
    fn figures_are_read_from_metadata() {
        let lines = figures(NOTES, "gfx1151");
        let words = |line: &str| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(lines.len(), 2);
        assert_eq!(
            words(&lines[0]),
            ["rms_norm", "gfx1151", "14", "17", "1", "0", "32", "0"]
        );
        assert_eq!(
            words(&lines[1]),
            ["other", "gfx1151", "3", "8", "0", "0", "0", "64"]
        );
    }

    #[test]
    fn a_changed_figure_shows_on_both_sides() {
        let old = page("clang 1", &["a 1".to_owned(), "b 2".to_owned()]);
        let new = page("clang 1", &["a 1".to_owned(), "b 3".to_owned()]);
        assert_eq!(compare(Some(&old), &new).0, ["- b 2", "+ b 3"]);
        assert!(compare(Some(&old), &old).0.is_empty());
    }

    #[test]
    fn another_compiler_is_not_compared_and_says_so() {
        let (old, new) = (page("clang 1", &["a 1".to_owned()]), page("clang 2", &[]));
        let (differences, note) = compare(Some(&old), &new);
        assert!(
            differences.is_empty() && note.contains("another compiler"),
            "{note}"
        );
        assert!(compare(None, &new).1.contains("no figures on file"));
    }
}
