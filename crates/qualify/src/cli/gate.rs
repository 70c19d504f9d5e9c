//! `run` of the identity gate.

use std::path::{Path, PathBuf};
use std::time::Instant;

use qualify::gate::{self, GateReport};
use qualify::identity::{self, Choice, Means, Pair, Wish};
use qualify::profile::{Profile, frozen_prompt};
use qualify::report::SCHEMA;
use qualify::{campaign, hash, machine};

use super::options::Options;
use super::place::Place;
use super::{Stop, line, note, refuse};

/// What there is beside the processor: what was asked for, or everything.
pub(crate) fn means(options: &Options<'_>, images: Option<PathBuf>) -> Result<Means, Stop> {
    let wish = Wish {
        devices: Choice::of(&options.all("--device")).map_err(refuse)?,
        libraries: options.libraries(),
        images,
        // This program, even where its file has been replaced.
        worker: Some(PathBuf::from("/proc/self/exe")),
    };
    Means::find(&wish).map_err(refuse)
}

/// Switches in force that are not at their default.
fn switches() -> Result<Vec<(String, String)>, Stop> {
    let effective = switches::start(cfg!(feature = "mutants")).map_err(|all| {
        let lines: Vec<String> = all.iter().map(ToString::to_string).collect();
        refuse(format!("switch refused: {}", lines.join("\n")))
    })?;
    let changed = effective.changed();
    Ok(changed
        .map(|s| (s.switch.name.to_owned(), s.value.clone()))
        .collect())
}

/// Runs it.
pub(crate) fn run(
    profile: &Profile,
    options: &Options<'_>,
    place: &Place,
    out: &Path,
) -> Result<u8, Stop> {
    let rules = profile.identity.as_ref().ok_or_else(|| refuse("no gate"))?;
    // The gate takes every path itself; a switch from outside would take one away.
    let set = switches()?;
    let start = Instant::now();
    let prompt = frozen_prompt(&rules.prompt).ok_or_else(|| refuse("no such prompt"))?;
    let file = |role: &str| {
        let artefact = profile.artefacts.iter().find(|a| a.role == role);
        artefact
            .map(|a| place.root.join(&a.path))
            .unwrap_or_default()
    };
    let images = options.value("--kernel-cache").map(PathBuf::from);
    let means = means(options, images.or_else(|| Some(out.join("images"))))?;
    let pair = Pair::load(&file("target"), &file("draft"), prompt.ids.clone(), means)
        .map_err(|e| e.to_string())?;
    let arms = if options.has("--small") {
        identity::small(&pair.means)
    } else {
        identity::full(&pair.means)
    };
    let size = &identity::Size::FULL;
    let tell = &mut |row: &identity::Row| note(&gate::line(row));
    let outcome =
        identity::run(&pair, &arms, size, Some(&rules.base), tell).map_err(|e| e.to_string())?;
    let exe = std::env::current_exe().ok().and_then(|p| hash::file(&p));
    let mut machine = machine::machine();
    machine.gpu_arch = pair.means.archs().first().map(|a| (*a).to_owned());
    let report = GateReport {
        schema: SCHEMA,
        report_id: String::new(),
        created_utc_s: campaign::now_s(),
        label: profile.label,
        result: String::new(),
        profile: profile.clone(),
        machine,
        build: place.build(exe.unwrap_or_default()),
        switches: set,
        artefacts: campaign::find_artefacts(&place.root, profile),
        prompt_blake3: hash::ids(&prompt.ids),
        outcome,
    }
    .sealed();
    let path = super::write(out, &report.report_id, "json", &report.text())?;
    line!("{}", report.render())?;
    line!("{:.1} s; {}", start.elapsed().as_secs_f64(), path.display())?;
    Ok(u8::from(report.result != "pass"))
}
