//! `inspect` and `plan`: what is in a file, and what it will take of memory.

use std::fmt::Write;

use anyhow::Result;
use fourspark::EngineOptions;
use model_tools::inspect::{Inspection, RoleLine};
use model_tools::plan::{MemoryPlan, plan as plan_memory};
use serde_json::{Value, json};

use super::args::{InspectArgs, PlanArgs};
use super::{model, out};

pub(crate) fn inspect(args: &InspectArgs) -> Result<()> {
    let options = EngineOptions {
        dialects: model::dialects(&args.dialect),
        ..EngineOptions::default()
    };
    let file = options.open(&args.file)?;
    let seen = Inspection::of(&file);
    if args.json {
        return out::write(&format!("{}\n", inspection_json(&seen, args.tensors)));
    }
    let mut text = String::new();
    let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "(not given)".to_owned());
    writeln!(text, "file          {}", args.file.display())?;
    writeln!(
        text,
        "version       GGUF {}, {} parts",
        file.version(),
        file.parts().len()
    )?;
    writeln!(text, "architecture  {}", shown(&seen.architecture))?;
    writeln!(text, "name          {}", shown(&seen.name))?;
    writeln!(text, "recipe        {}", shown(&seen.recipe))?;
    writeln!(text, "tensors       {}", seen.tensors.len())?;
    writeln!(text, "elements      {}", seen.elems)?;
    writeln!(
        text,
        "bytes         {} ({}), {:.3} bits a weight",
        seen.bytes,
        human(seen.bytes),
        seen.bits_per_weight()
    )?;
    roles_table(&mut text, &seen.roles)?;
    if args.tensors {
        writeln!(text)?;
        for t in &seen.tensors {
            writeln!(
                text,
                "{:<44} {:<14} {:>14}  {:?}",
                t.name,
                t.format.name(),
                t.bytes,
                t.shape
            )?;
        }
    }
    out::write(&text)
}

pub(crate) fn plan(args: &PlanArgs) -> Result<()> {
    let options = EngineOptions {
        ctx: args.ctx.map(|n| n as usize),
        sequences: usize::from(args.parallel),
        kv_sim: !args.no_kv_sim,
        dialects: model::dialects(&args.dialect),
        ..EngineOptions::default()
    };
    let file = options.open(&args.file)?;
    let target = options.for_target(&file)?;
    let planned = plan_memory(&file, &target)?;
    let ctx = target.n_ctx as u64;
    if args.json {
        return out::write(&format!("{}\n", plan_json(&planned, ctx)));
    }
    out::write(&plan_text(&planned, ctx)?)
}

fn plan_text(p: &MemoryPlan, ctx: u64) -> Result<String> {
    let mut text = String::new();
    let line = |text: &mut String, name: &str, bytes: u64| {
        writeln!(text, "{name:<34} {bytes:>16}  {}", human(bytes))
    };
    roles_table(&mut text, &p.weights)?;
    writeln!(text)?;
    line(&mut text, "weights", p.weight_bytes)?;
    writeln!(text, "one sequence of {ctx} positions:")?;
    line(&mut text, "  window rows", p.state.raw)?;
    line(&mut text, "  compressed rows", p.state.compressed)?;
    line(&mut text, "  indexer rows", p.state.index)?;
    line(&mut text, "  open compressor rows", p.state.open)?;
    line(&mut text, "  together", p.state.total())?;
    let states = p.state.total().saturating_mul(p.sequences);
    line(&mut text, &format!("{} sequences", p.sequences), states)?;
    line(&mut text, "buffers of a pass (estimate)", p.scratch)?;
    line(&mut text, "total", p.total)?;
    Ok(text)
}

fn roles_table(text: &mut String, roles: &[RoleLine]) -> std::fmt::Result {
    writeln!(text)?;
    writeln!(
        text,
        "{:<20} {:>8} {:>18} {:>18}  formats",
        "role", "tensors", "elements", "bytes"
    )?;
    for line in roles {
        let role = line.role.map_or("(unknown)", |r| r.name());
        let formats: Vec<&str> = line.formats.iter().map(|f| f.name()).collect();
        writeln!(
            text,
            "{role:<20} {:>8} {:>18} {:>18}  {}",
            line.tensors,
            line.elems,
            line.bytes,
            formats.join(", ")
        )?;
    }
    Ok(())
}

fn roles_json(roles: &[RoleLine]) -> Vec<Value> {
    roles
        .iter()
        .map(|line| {
            let formats: Vec<&str> = line.formats.iter().map(|f| f.name()).collect();
            json!({
                "role": line.role.map(|r| r.name()),
                "tensors": line.tensors,
                "elements": line.elems,
                "bytes": line.bytes,
                "formats": formats,
            })
        })
        .collect()
}

fn inspection_json(seen: &Inspection, tensors: bool) -> Value {
    let mut object = json!({
        "architecture": seen.architecture,
        "name": seen.name,
        "recipe": seen.recipe,
        "elements": seen.elems,
        "bytes": seen.bytes,
        "bits_per_weight": seen.bits_per_weight(),
        "roles": roles_json(&seen.roles),
    });
    if tensors {
        let list = seen.tensors.iter().map(|t| {
            json!({
                "name": t.name,
                "format": t.format.name(),
                "shape": t.shape,
                "bytes": t.bytes,
            })
        });
        object["tensors"] = list.collect();
    }
    object
}

fn plan_json(p: &MemoryPlan, ctx: u64) -> Value {
    json!({
        "context": ctx,
        "weights": roles_json(&p.weights),
        "weight_bytes": p.weight_bytes,
        "sequence_bytes": {
            "window_rows": p.state.raw,
            "compressed_rows": p.state.compressed,
            "indexer_rows": p.state.index,
            "open_compressor_rows": p.state.open,
            "total": p.state.total(),
        },
        "sequences": p.sequences,
        "buffer_bytes_estimated": p.scratch,
        "total_bytes": p.total,
    })
}

/// Bytes with a unit people read.
pub(crate) fn human(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0);
    format!("{value:.digits$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn bytes_have_units() {
        for (bytes, want) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (98 << 30, "98.0 GiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(human(bytes), want);
        }
    }
}
