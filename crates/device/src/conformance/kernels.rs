//! Four kernels that mean nothing, as functions of this process and as one source for GPUs.

use std::sync::Arc;

use crate::driver::{Code, Geometry, HostModule, RawArg};
use crate::image::ArgKind::{self, Address, Long, Word};

/// The same four for NVRTC and hipRTC. The file is not one of the engine's kernel sources: those need a
/// header that this crate must not know.
pub(super) const SOURCE: &str = r#"
extern "C" __global__ void put(unsigned* y, unsigned value, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = value + i;
}
extern "C" __global__ void add(const unsigned* a, const unsigned* b, unsigned* y, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a[i] + b[i];
}
extern "C" __global__ void churn(unsigned* y, unsigned rounds, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned x = y[i];
  for (unsigned r = 0; r < rounds; r++) x = x * 1664525u + 1013904223u;
  y[i] = x;
}
extern "C" __global__ void echo(unsigned* y, unsigned long long a, unsigned b, float c) {
  if (blockIdx.x || threadIdx.x) return;
  y[0] = (unsigned)a;
  y[1] = (unsigned)(a >> 32);
  y[2] = b;
  y[3] = c == 0.5f ? 1u : 0u;
}
"#;

/// Names and parameters.
pub(super) const SIGNATURES: [(&str, &[ArgKind]); 4] = [
    ("put", &[Address, Word, Word]),
    ("add", &[Address, Address, Address, Word]),
    ("churn", &[Address, Word, Word]),
    ("echo", &[Address, Long, Word, Word]),
];

/// One round of `churn`: the generator of Numerical Recipes, for being sequential.
pub(super) fn churned(mut x: u32, rounds: u32) -> u32 {
    for _ in 0..rounds {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    }
    x
}

/// The kernels as functions.
pub(super) fn host() -> Code {
    Code::Host(Arc::new(Functions))
}

#[derive(Debug)]
struct Functions;

impl HostModule for Functions {
    fn has(&self, kernel: &str) -> bool {
        SIGNATURES.iter().any(|(name, _)| *name == kernel)
    }

    fn argument_sizes(&self, kernel: &str) -> Option<Vec<u32>> {
        let (_, kinds) = SIGNATURES.iter().find(|(name, _)| *name == kernel)?;
        let size = |kind: &ArgKind| if *kind == Word { 4 } else { 8 };
        Some(kinds.iter().map(size).collect())
    }

    unsafe fn launch(
        &self,
        kernel: &str,
        geometry: &Geometry,
        args: &[RawArg],
    ) -> Result<(), String> {
        let threads = geometry.grid[0] as usize * geometry.threads[0] as usize;
        match (kernel, args) {
            ("put", [y, RawArg::Word(value), RawArg::Word(n)]) => {
                for i in 0..threads.min(*n as usize) {
                    store(y, i, value.wrapping_add(i as u32))?;
                }
                Ok(())
            }
            ("add", [a, b, y, RawArg::Word(n)]) => {
                for i in 0..threads.min(*n as usize) {
                    store(y, i, load(a, i)?.wrapping_add(load(b, i)?))?;
                }
                Ok(())
            }
            ("churn", [y, RawArg::Word(rounds), RawArg::Word(n)]) => {
                for i in 0..threads.min(*n as usize) {
                    store(y, i, churned(load(y, i)?, *rounds))?;
                }
                Ok(())
            }
            ("echo", [y, RawArg::Long(a), RawArg::Word(b), RawArg::Word(c)]) => {
                let half = u32::from(f32::from_bits(*c) == 0.5);
                let words = [*a as u32, (a >> 32) as u32, *b, half];
                words
                    .into_iter()
                    .enumerate()
                    .try_for_each(|(i, word)| store(y, i, word))
            }
            _ => Err(format!("no kernel {kernel} with {} arguments", args.len())),
        }
    }
}

/// The address of word `i` of an argument that may touch it.
fn word(arg: &RawArg, i: usize) -> Result<*mut u32, String> {
    match arg {
        RawArg::Address(at, bytes) if (i as u64 + 1) * 4 <= *bytes => {
            Ok(std::ptr::with_exposed_provenance_mut(*at as usize + i * 4))
        }
        other => Err(format!("word {i} of {other:?}")),
    }
}

fn load(arg: &RawArg, i: usize) -> Result<u32, String> {
    let at = word(arg, i)?;
    // SAFETY: within the bytes the launch may touch, which the caller of `launch` vouched for.
    Ok(unsafe { at.read_unaligned() })
}

fn store(arg: &RawArg, i: usize, value: u32) -> Result<(), String> {
    let at = word(arg, i)?;
    // SAFETY: as in `load`.
    unsafe { at.write_unaligned(value) };
    Ok(())
}
