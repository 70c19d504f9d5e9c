//! `fourspark selftest`: whether a device computes what this engine's arithmetic fixes.

use std::fmt::Write;

use anyhow::{Result, bail};
use device::conformance::Outcome;
use fourspark::selftest::{SelftestReport, selftest};
use serde_json::{Value, json};

use super::args::SelftestArgs;
use super::out;

pub(crate) fn run(args: &SelftestArgs) -> Result<()> {
    let report = selftest(args.device, args.quick, &args.libraries.settings())?;
    if args.json {
        out::write(&format!("{:#}\n", as_json(&report)))?;
    } else {
        out::write(&as_text(&report)?)?;
    }
    if !report.is_sound() {
        bail!("{} does not compute what it should", report.device.device);
    }
    Ok(())
}

fn as_text(report: &SelftestReport) -> Result<String> {
    let mut text = String::new();
    let d = &report.device;
    writeln!(
        text,
        "{}: {}, {}; compiler: {}",
        d.device, d.facts.name, d.facts.arch, d.compiler
    )?;
    let (all, passed) = (d.checks.len(), d.passed());
    writeln!(text, "device layer: {passed} of {all} checks passed")?;
    for row in &d.checks {
        match &row.outcome {
            Outcome::Passed => {}
            Outcome::Failed(why) => writeln!(text, "  {} FAILED: {why}", row.check)?,
            Outcome::Skipped(why) => writeln!(text, "  {} skipped: {why}", row.check)?,
        }
    }
    for f in &report.families {
        let (n, wrong, s) = (f.comparisons, f.wrong.len(), f.took.as_secs_f64());
        let values = f.values;
        writeln!(
            text,
            "{}: {n} comparisons, {values} values, {wrong} differ, {s:.1} s",
            f.name
        )?;
        for o in f.wrong.iter().take(5) {
            let first = o.first.as_deref().unwrap_or("nothing compared");
            writeln!(
                text,
                "  {}: {} of {}; {first}",
                o.name, o.differing, o.compared
            )?;
        }
    }
    let word = if report.is_sound() {
        "sound"
    } else {
        "NOT SOUND"
    };
    writeln!(text, "{word}, {:.1} s", report.took.as_secs_f64())?;
    Ok(text)
}

fn as_json(report: &SelftestReport) -> Value {
    let families: Vec<Value> = report
        .families
        .iter()
        .map(|f| {
            let wrong: Vec<Value> = f
                .wrong
                .iter()
                .map(|o| json!({"name": o.name, "compared": o.compared, "differing": o.differing, "first": o.first}))
                .collect();
            json!({"name": f.name, "comparisons": f.comparisons, "values": f.values,
                "wrong": wrong, "seconds": f.took.as_secs_f64()})
        })
        .collect();
    json!({
        "schema": "fourspark-selftest-1",
        "version": env!("CARGO_PKG_VERSION"),
        "sound": report.is_sound(),
        "device": report.device,
        "families": families,
        "seconds": report.took.as_secs_f64(),
    })
}
