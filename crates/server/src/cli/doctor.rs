//! `fourspark doctor`: what this machine offers, and what of it this build uses.

use std::fmt::Write;

use anyhow::Result;
use device::Facts;
use device::survey::{self, Found, Seen};
use serde_json::{Map, Value, json};

use super::args::DoctorArgs;
use super::out;

/// Vector extensions worth knowing about, and whether the row kernels use them.
fn cpu_features() -> Vec<(&'static str, bool)> {
    #[cfg(target_arch = "x86_64")]
    {
        vec![
            ("avx2", std::is_x86_feature_detected!("avx2")),
            ("fma", std::is_x86_feature_detected!("fma")),
            ("f16c", std::is_x86_feature_detected!("f16c")),
            ("avx512f", std::is_x86_feature_detected!("avx512f")),
            ("avx512vnni", std::is_x86_feature_detected!("avx512vnni")),
        ]
    }
    #[cfg(target_arch = "aarch64")]
    {
        vec![
            ("neon", std::arch::is_aarch64_feature_detected!("neon")),
            (
                "dotprod",
                std::arch::is_aarch64_feature_detected!("dotprod"),
            ),
        ]
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        Vec::new()
    }
}

/// When the engine uses a vendor's devices; found or not, not unless asked for.
const OFF: [(&str, &str); 2] = [
    ("cuda", "used when asked for: --device cuda:N"),
    (
        "hip",
        "used when asked for: --device hip:N; no HIP device has run these kernels yet",
    ),
];

pub(crate) fn doctor(args: &DoctorArgs) -> Result<()> {
    let seen = survey::survey(&args.libraries.settings());
    if args.json {
        return out::write(&format!("{:#}\n", as_json(&seen)));
    }
    let mut text = String::new();
    machine(&mut text)?;
    for runtime in &seen {
        runtime_lines(&mut text, runtime)?;
    }
    let isa = super::switching::effective().value("cpu.isa");
    writeln!(text, "cpu instructions in use: up to {isa}")?;
    match fourspark::shipped_model() {
        Some(path) => writeln!(text, "shipped model: {}", path.display())?,
        None => writeln!(text, "shipped model: not found")?,
    }
    out::write(&text)
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn machine(text: &mut String) -> std::fmt::Result {
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    writeln!(text, "fourspark {}", env!("CARGO_PKG_VERSION"))?;
    writeln!(text, "system: {os} {arch}, {} threads", threads())?;
    for (name, present) in cpu_features() {
        let state = if present { "yes" } else { "no" };
        writeln!(text, "cpu {name}: {state}")?;
    }
    Ok(())
}

fn runtime_lines(text: &mut String, seen: &Seen) -> std::fmt::Result {
    let kind = seen.kind;
    if let Some((_, why)) = OFF.iter().find(|(name, _)| *name == kind.to_string()) {
        writeln!(text, "{kind}: off: {why}")?;
    }
    if let Some(absent) = &seen.absent {
        writeln!(text, "{kind} not found: {absent}")?;
    }
    for version in &seen.versions {
        let none = "unknown".to_owned();
        let shown = version.value.as_ref().or(version.reason.as_ref());
        writeln!(text, "{kind} {}: {}", version.name, shown.unwrap_or(&none))?;
    }
    for found in &seen.devices {
        device_lines(text, found)?;
    }
    Ok(())
}

fn device_lines(text: &mut String, found: &Found) -> std::fmt::Result {
    let Facts {
        name,
        arch,
        memory,
        processors,
        lanes,
        integrated,
        early_launch,
        register,
        share,
        ..
    } = &found.facts;
    let shared = if *integrated {
        ", shared with the host"
    } else {
        ""
    };
    writeln!(
        text,
        "{}: {name}, {arch}, {memory} bytes of memory{shared}, {processors} processors of {lanes} lanes",
        found.id
    )?;
    writeln!(text, "{}: early launch {early_launch}", found.id)?;
    writeln!(text, "{}: pins memory of the host: {register}", found.id)?;
    writeln!(
        text,
        "{}: shares memory with other processes: {share}",
        found.id
    )?;
    for peer in &found.peers {
        let (id, to, can) = (&found.id, &peer.id, &peer.can);
        writeln!(text, "{id}: reaches memory of {to}: {can}")?;
    }
    if let Some(why) = &found.unfit {
        writeln!(text, "{}: cannot be used: {why}", found.id)?;
    }
    for bad in &found.known_bad {
        writeln!(
            text,
            "{}: known fault {}: {} ({})",
            found.id, bad.id, bad.what, bad.source
        )?;
    }
    Ok(())
}

fn as_json(seen: &[Seen]) -> Value {
    let features: Map<String, Value> = cpu_features()
        .into_iter()
        .map(|(name, present)| (name.to_owned(), present.into()))
        .collect();
    let off: Map<String, Value> = OFF
        .iter()
        .map(|(name, why)| ((*name).to_owned(), (*why).into()))
        .collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "os": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
        "threads": threads(),
        "cpu": features,
        "runtimes": seen,
        "off": off,
        "known_bad_list": device::known_bad::LIST,
        "shipped_model": fourspark::shipped_model(),
    })
}
