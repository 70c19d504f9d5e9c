//! `fourspark bench`: what passes of a model take here. Prompts, steps, widths and many sequences at once; text
//! while it goes on, or one JSON object.

use anyhow::{Result, bail};
use fourspark::bench::{BenchPlan, Cell, STREAM_DEPTH, What, bench, read_bandwidth};
use fourspark::{EngineOptions, EngineParts};
use serde_json::{Value, json};

use super::args::BenchArgs;
use super::{model, out};

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    if args.model.drafts() {
        bail!("bench measures the target alone: leave out --draft and its options");
    }
    let plan = plan(args);
    let mut parts = load(args, &plan)?;
    let memory = bandwidth(&parts);
    if !args.json {
        out::write(&head(&parts, memory))?;
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
    if args.json {
        out::write(&format!("{:#}\n", report(&parts, &cells, memory)))?;
    }
    Ok(())
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

/// The model with as many positions and sequences as the plan needs, where the model has so many.
fn load(args: &BenchArgs, plan: &BenchPlan) -> Result<EngineParts> {
    let path = model::path(&args.model)?;
    let mut options = EngineOptions {
        sequences: plan.sequences(),
        ..model::options(&args.model)
    };
    if options.ctx.is_none() {
        let file = options.open(&path)?;
        let trained = options.trained_for(&file)?;
        options.ctx = Some(plan.positions().min(trained));
    }
    Ok(EngineParts::load(path, &options)?)
}

/// What this machine's memory gives, where the model runs on it.
fn bandwidth(parts: &EngineParts) -> Option<f64> {
    let on_cpu = parts.info.device.is_none();
    on_cpu.then(|| read_bandwidth(parts.info.threads))
}

fn head(parts: &EngineParts, bandwidth: Option<f64>) -> String {
    let info = &parts.info;
    let place = match &info.device {
        Some(device) => device.to_string(),
        None => format!("the model runs on the processor, {} threads", info.threads),
    };
    let memory = match bandwidth {
        Some(bytes) => format!("memory reads: {:.1} GB/s with these threads", bytes / 1e9),
        None => "memory reads: not measured on a device".to_owned(),
    };
    format!(
        "{}, {} bytes, {} positions\n{place}\n{memory}\n\n{}\n",
        info.name, info.tensor_bytes, info.ctx, HEAD
    )
}

const HEAD: &str = "what                        ms   (quartiles)           tokens/s   launches   weights GB/s   of reads";

fn line(cell: &Cell, bandwidth: Option<f64>) -> String {
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
    let share = read.zip(bandwidth);
    let share = share.map_or_else(dash, |(r, b)| format!("{:.0} %", 100.0 * r / b));
    let quartiles = format!("({low:.3} to {high:.3})");
    format!(
        "{name:<22} {:>8.3}   {quartiles:<20} {rate:>9.1} {launches:>10} {gigabytes:>14} {share:>10}\n",
        t.median() * 1e3
    )
}

fn name(what: What) -> String {
    match what {
        What::Prefill { tokens } => format!("prompt {tokens}"),
        What::Step { depth, width } => format!("step at {depth}, {width} rows"),
        What::Streams { sequences } => format!("{sequences} sequences"),
    }
}

fn report(parts: &EngineParts, cells: &[Cell], bandwidth: Option<f64>) -> Value {
    let info = &parts.info;
    json!({
        "schema": "fourspark-bench-1",
        "version": env!("CARGO_PKG_VERSION"),
        "model": {
            "name": info.name,
            "fingerprint": info.fingerprint,
            "tensor_bytes": info.tensor_bytes,
            "ctx": info.ctx,
        },
        "device": info.device.as_ref().map_or_else(|| "cpu".to_owned(), |d| d.id.clone()),
        "what": info.device.as_ref().map(|d| d.what.clone()),
        "threads": info.threads,
        "class": info.class.to_string(),
        "read_bytes_per_second": bandwidth,
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
        }
        Err(why) => object["left_out"] = json!(why),
    }
    object
}
