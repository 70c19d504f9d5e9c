//! `fourspark bench`: what passes of a model take here. Prompts, steps, widths and many sequences at once; text
//! while it goes on, or one JSON object.

use std::time::Instant;

use anyhow::{Result, bail};
use fourspark::bench::{
    BenchPlan, Cell, Family, STREAM_DEPTH, What, bench, device_bandwidth, read_bandwidth,
};
use fourspark::{EngineOptions, ModelName, TargetParts};
use serde_json::{Value, json};

use super::args::BenchArgs;
use super::{model, out};

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    if args.model.drafts() {
        bail!("bench measures the target alone: leave out --draft and its options");
    }
    let plan = plan(args);
    let name = model::name(&args.model)?;
    let options = options(args, &plan, &name)?;
    // Before the model takes the memory.
    let on_device = device_bandwidth(&options.device)?;
    let begin = Instant::now();
    let mut parts = TargetParts::load(name, &options)?;
    let load = begin.elapsed().as_secs_f64();
    let memory = on_device.unwrap_or_else(|| read_bandwidth(parts.info.threads));
    let around = Around { load, memory };
    if !args.json {
        out::write(&head(&parts, &around))?;
    }
    let mut failed = None;
    let cells = bench(&mut *parts.target, &plan, &mut |cell| {
        if !args.json && failed.is_none() {
            failed = out::write(&line(cell, memory)).err();
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    match args.json {
        true => out::write(&format!("{:#}\n", report(&parts, &cells, &around))),
        false => out::write(&families(&cells)),
    }
}

/// What was measured beside the passes.
struct Around {
    /// Seconds from the file, or the name, to a model that can run.
    load: f64,
    /// Bytes a second of reads alone.
    memory: f64,
}

fn plan(args: &BenchArgs) -> BenchPlan {
    let usize = |list: &[u32]| list.iter().map(|n| *n as usize).collect();
    BenchPlan {
        prefill: usize(&args.prefill),
        depths: usize(&args.depth),
        widths: usize(&args.width),
        streams: usize(&args.streams),
        rounds: args.rounds as usize,
    }
}

/// As many positions and sequences as the plan needs, where the model has so many.
fn options(args: &BenchArgs, plan: &BenchPlan, name: &ModelName) -> Result<EngineOptions> {
    let mut options = EngineOptions {
        sequences: plan.sequences(),
        ..model::options(&args.model)
    };
    if options.ctx.is_none() {
        options.ctx = Some(plan.positions().min(options.trained_for(name)?));
    }
    Ok(options)
}

fn head(parts: &TargetParts, around: &Around) -> String {
    let info = &parts.info;
    let place = match &info.device {
        Some(device) => device.to_string(),
        None => format!("the model runs on the processor, {} threads", info.threads),
    };
    let with = match &info.device {
        Some(_) => "by a kernel that does nothing else",
        None => "with these threads",
    };
    let (load, memory) = (around.load, around.memory / 1e9);
    let memory = format!("loaded in {load:.1} s; memory reads: {memory:.1} GB/s {with}");
    let label = info
        .label
        .map_or_else(String::new, |l| format!("label {l}: "));
    format!(
        "{label}{}, {} bytes, {} positions\n{place}\n{memory}\n\n{}\n",
        info.name, info.tensor_bytes, info.ctx, HEAD
    )
}

const HEAD: &str = "what                        ms   (quartiles)           tokens/s   launches   weights GB/s   of reads";

fn line(cell: &Cell, memory: f64) -> String {
    let name = name(cell.what);
    let t = match &cell.timing {
        Ok(t) => t,
        Err(why) => return format!("{name:<22} left out: {why}\n"),
    };
    let [low, _, high] = t.quartiles.map(|s| s * 1e3);
    let rate = cell.rate().unwrap_or(0.0);
    let dash = || "-".to_owned();
    let launches = t.launches.map_or_else(dash, |n| n.to_string());
    let read = t.weight_bytes.map(|bytes| bytes as f64 / t.median());
    let gigabytes = read.map_or_else(dash, |r| format!("{:.2}", r / 1e9));
    let share = read.map_or_else(dash, |r| format!("{:.0} %", 100.0 * r / memory));
    let quartiles = format!("({low:.3} to {high:.3})");
    format!(
        "{name:<22} {:>8.3}   {quartiles:<20} {rate:>9.1} {launches:>10} {gigabytes:>14} {share:>10}\n",
        t.median() * 1e3
    )
}

/// What passes spend their launches and time on: of prompts, plain steps and many sequences.
fn families(cells: &[Cell]) -> String {
    let shown = |what| !matches!(what, What::Step { width, .. } if width != 1);
    let mut text = String::new();
    for cell in cells.iter().filter(|c| shown(c.what)) {
        let timing = cell.timing.as_ref().ok();
        let Some(families) = timing.and_then(|t| t.families.as_ref()) else {
            continue;
        };
        if text.is_empty() {
            text += "\nlaunch by launch, gaps included (of a prompt its last chunk):\n";
        }
        let sum = |of: fn(&Family) -> f64| families.iter().map(of).sum::<f64>();
        let (launches, all) = (sum(|f| f.launches as f64), sum(|f| f.microseconds));
        let name = name(cell.what);
        text += &format!("{name:<22} {launches:>6} launches {all:>11.1} us\n");
        for f in families {
            let (name, launches, time) = (&f.name, f.launches, f.microseconds);
            let share = 100.0 * time / all;
            text +=
                &format!("  {name:<20} {launches:>6}          {time:>11.1} us {share:>5.1} %\n");
        }
    }
    text
}

fn name(what: What) -> String {
    match what {
        What::Prefill { tokens } => format!("prompt {tokens}"),
        What::Step { depth, width } => format!("step at {depth}, {width} rows"),
        What::Streams { sequences } => format!("{sequences} sequences"),
    }
}

fn report(parts: &TargetParts, cells: &[Cell], around: &Around) -> Value {
    let info = &parts.info;
    json!({
        "schema": "fourspark-bench-1",
        "version": env!("CARGO_PKG_VERSION"),
        "model": {
            "name": info.name,
            "label": info.label,
            "fingerprint": info.fingerprint,
            "tensor_bytes": info.tensor_bytes,
            "ctx": info.ctx,
        },
        "device": info.device.as_ref().map_or_else(|| "cpu".to_owned(), |d| d.id.clone()),
        "what": info.device.as_ref().map(|d| d.what.clone()),
        "threads": info.threads,
        "class": info.class.to_string(),
        "load_seconds": around.load,
        "read_bytes_per_second": around.memory,
        "cells": cells.iter().map(as_json).collect::<Vec<_>>(),
    })
}

fn as_json(cell: &Cell) -> Value {
    let mut object = match cell.what {
        What::Prefill { tokens } => json!({"kind": "prefill", "tokens": tokens}),
        What::Step { depth, width } => json!({"kind": "step", "depth": depth, "width": width}),
        What::Streams { sequences } => {
            json!({"kind": "streams", "sequences": sequences, "depth": STREAM_DEPTH})
        }
    };
    match &cell.timing {
        Ok(t) => {
            object["seconds"] = json!(t.median());
            object["quartiles"] = json!([t.quartiles[0], t.quartiles[2]]);
            object["samples"] = json!(t.samples);
            object["tokens_per_second"] = json!(cell.rate());
            object["weight_bytes"] = json!(t.weight_bytes);
            object["launches"] = json!(t.launches);
            let families = t.families.as_ref();
            object["families"] =
                json!(families.map(|all| all.iter().map(family).collect::<Vec<_>>()));
        }
        Err(why) => object["left_out"] = json!(why),
    }
    object
}

fn family(f: &Family) -> Value {
    json!({"name": f.name, "launches": f.launches, "microseconds": f.microseconds})
}
