//! The kernel sources, embedded, and put together for compilers that see no files (NVRTC, hipRTC).
//!
//! Separate because every runtime needs it and none of it needs a runtime.

use crate::KernelError;

/// One embedded file of `kernels/gpu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// File name.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(Source { name: $name, text: include_str!(concat!("../gpu/", $name)) }),*]
    };
}

/// The headers, in no particular order.
pub const HEADERS: &[Source] = files![
    "fourspark.h",
    "fs_a8.h",
    "fs_codes.h",
    "fs_dense.h",
    "fs_dots.h",
    "fs_formats.h",
    "fs_formats_k.h",
    "fs_fp4.h",
    "fs_fp4_tile.h",
    "fs_gemv.h",
    "fs_grouped.h",
    "fs_grouped_half.h",
    "fs_grouped_parts.h",
    "fs_halves.h",
    "fs_hc.h",
    "fs_iq2_grid.h",
    "fs_math.h",
    "fs_noise.h",
    "fs_packed.h",
    "fs_rank.h",
    "fs_rows.h",
    "fs_select.h",
    "fs_staged.h",
    "fs_swiglu.h",
    "fs_tiled.h",
    "fs_tile.h"
];

/// The kernel families, one file each.
pub const KERNELS: &[Source] = files![
    "a8.cu",
    "attend.cu",
    "attend_many.cu",
    "attend_packed.cu",
    "compress.cu",
    "dense.cu",
    "dense_wide.cu",
    "embed.cu",
    "experts.cu",
    "experts_staged.cu",
    "fp4f.cu",
    "fp4f_mma.cu",
    "grouped.cu",
    "grouped_k.cu",
    "grouped_more.cu",
    "hc.cu",
    "hc_dots.cu",
    "head.cu",
    "index.cu",
    "index_many.cu",
    "math.cu",
    "norm.cu",
    "route.cu",
    "rows.cu",
    "select.cu",
    "synth.cu",
    "tiled.cu",
    "tiled_k.cu",
    "tiled_more.cu"
];

/// Sources that only measurements use: other bits, or no result at all.
pub const BENCH: &[Source] = files!["bench.cu"];

/// Compiler flags that the contract needs, NVRTC spelling. Without them the bits differ.
pub const NVRTC_FLAGS: &[&str] = &[
    "--std=c++17",
    "-fmad=false",
    "-ftz=false",
    "-prec-div=true",
    "-prec-sqrt=true",
];

/// The same in hipRTC's spelling. Division, square roots and denormals are IEEE there unless asked otherwise.
pub const HIPRTC_FLAGS: &[&str] = &["-O3", "-std=c++17", "-ffp-contract=off"];

/// A source with its includes in place, each header once, `#line` marks for messages.
///
/// # Errors
/// `Include` if a file is not embedded.
pub fn assemble(source: &Source) -> Result<String, KernelError> {
    let mut text = String::new();
    let mut seen = vec!["../host/exec.h"]; // reached by the host build only
    expand(source, &mut seen, &mut text)?;
    Ok(text)
}

fn expand(source: &Source, seen: &mut Vec<&str>, out: &mut String) -> Result<(), KernelError> {
    out.push_str(&format!("#line 1 \"{}\"\n", source.name));
    for (index, line) in source.text.lines().enumerate() {
        let include = line
            .strip_prefix("#include \"")
            .and_then(|rest| rest.strip_suffix('"'));
        match include {
            None if line == "#pragma once" => out.push('\n'),
            None => {
                out.push_str(line);
                out.push('\n');
            }
            Some(name) if seen.contains(&name) => out.push('\n'),
            Some(name) => {
                let header = HEADERS.iter().find(|h| h.name == name);
                let header = header.ok_or_else(|| KernelError::Include {
                    source_name: source.name.into(),
                    include: name.into(),
                })?;
                seen.push(header.name);
                expand(header, seen, out)?;
                out.push_str(&format!("#line {} \"{}\"\n", index + 2, source.name));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_assembles_with_each_header_once() {
        for source in KERNELS.iter().chain(BENCH) {
            let text = assemble(source).unwrap();
            assert!(!text.contains("#include \"fs_"), "{}", source.name);
            assert_eq!(text.matches("struct alignas(16) u32x4").count(), 1);
        }
    }

    #[test]
    fn every_file_of_the_directory_is_embedded() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("gpu");
        for entry in std::fs::read_dir(dir).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let known = HEADERS
                .iter()
                .chain(KERNELS)
                .chain(BENCH)
                .any(|s| s.name == name);
            assert!(known, "{name} is not in image.rs");
        }
    }

    #[test]
    fn a_missing_include_is_named() {
        let source = Source {
            name: "x.cu",
            text: "#include \"nowhere.h\"\n",
        };
        let error = assemble(&source).unwrap_err();
        assert!(error.to_string().contains("nowhere.h"), "{error}");
    }
}
