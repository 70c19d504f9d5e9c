//! `fourspark doctor`: what this machine offers, and what of it this build uses.

use std::fmt::Write;

use anyhow::Result;

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

pub(crate) fn doctor() -> Result<()> {
    let mut text = String::new();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    writeln!(text, "fourspark {}", env!("CARGO_PKG_VERSION"))?;
    writeln!(
        text,
        "system: {} {}, {threads} threads",
        std::env::consts::OS,
        std::env::consts::ARCH
    )?;
    for (name, present) in cpu_features() {
        let state = if present { "yes" } else { "no" };
        writeln!(text, "cpu {name}: {state}")?;
    }
    let isa = super::switching::effective().value("cpu.isa");
    writeln!(text, "cpu instructions in use: up to {isa}")?;
    writeln!(text, "cuda: off: this build has no CUDA kernels")?;
    writeln!(text, "hip: off: this build has no HIP kernels")?;
    match fourspark::shipped_model() {
        Some(path) => writeln!(text, "shipped model: {}", path.display())?,
        None => writeln!(text, "shipped model: not found")?,
    }
    out::write(&text)
}
