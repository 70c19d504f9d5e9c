//! Weights of the right shapes with made-up bytes (label synth), for examples that measure.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex};

use ds4_target::source::{Bytes, MetaValue, RawTensor, Source};
use ds4_target::{GgufSource, Model};
use fpx_quant::{Format, Fp2Dialect};
use gguf::fixture::flash_builder;
use gguf::names::Dialect;

/// The model's table with other formats and made-up bytes.
struct Synth {
    table: GgufSource,
    buffers: Buffers,
}

/// One buffer of made-up blocks a format, as long as its longest tensor.
#[derive(Default)]
pub(crate) struct Buffers(Mutex<HashMap<Format, Arc<Vec<u8>>>>);

impl Buffers {
    /// A tensor of a shape, input dimension first.
    pub(crate) fn tensor(&self, shape: Vec<u64>, format: Format) -> Option<RawTensor> {
        let elems: u64 = shape.iter().product();
        let bytes = elems as usize / format.block_elems() * format.block_bytes();
        let mut buffers = self.0.lock().ok()?;
        let buffer = buffers.entry(format).or_default();
        if buffer.len() < bytes {
            *buffer = Arc::new(fill(format, bytes));
        }
        let owner = Arc::clone(buffer);
        Some(RawTensor {
            shape,
            format,
            bytes: Bytes::new(owner, 0, bytes)?,
        })
    }
}

/// The recipe.
fn recipe(format: Format) -> Format {
    match format {
        Format::Iq2Xxs => Format::Fp2(Fp2Dialect::Signed),
        Format::Q2K => Format::Fp3,
        Format::Q8_0 => Format::Fp4Fast,
        other => other,
    }
}

/// splitmix64.
pub(crate) fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Bytes of a format for `bytes` bytes: random codes, scales in a narrow range.
fn fill(format: Format, bytes: usize) -> Vec<u8> {
    let mut state = bytes as u64;
    let mut out: Vec<u8> = Vec::with_capacity(bytes + 8);
    match format {
        // 0.5 to 1: norms, biases, factors.
        Format::F32 => {
            while out.len() < bytes {
                let bits = 0x3f00_0000 | (random(&mut state) as u32 & 0x007f_ffff);
                out.extend(bits.to_le_bytes());
            }
        }
        // +-0.015 to 0.03.
        Format::F16 => {
            while out.len() < bytes {
                let bits = 0x2400 | (random(&mut state) as u16 & 0x83ff);
                out.extend(bits.to_le_bytes());
            }
        }
        // Six different experts a token.
        Format::I32 => {
            for token in 0..bytes as u32 / 24 {
                for slot in 0..6 {
                    out.extend(((token * 7 + slot * 41) % 256).to_le_bytes());
                }
            }
        }
        _ => {
            while out.len() < bytes {
                out.extend(random(&mut state).to_le_bytes());
            }
            let (size, scales) = match format {
                Format::Fp4Fast => (format.block_bytes(), 1),
                _ => (format.block_bytes(), 2),
            };
            for block in out.chunks_exact_mut(size) {
                for scale in &mut block[size - scales..] {
                    *scale = 0x18 | (*scale & 7);
                }
            }
        }
    }
    out.truncate(bytes);
    out
}

impl Source for Synth {
    fn name(&self) -> &str {
        "synth:flash"
    }

    fn meta(&self, key: &str) -> Option<MetaValue> {
        self.table.meta(key)
    }

    fn tensor(&self, name: &str) -> Option<RawTensor> {
        let raw = self.table.tensor(name)?;
        let format = recipe(raw.format);
        self.buffers.tensor(raw.shape, format)
    }

    fn tensor_names(&self) -> Vec<String> {
        self.table.tensor_names()
    }
}

/// The Flash model's table with made-up bytes.
pub(crate) fn flash() -> Result<Arc<Model>, Box<dyn Error>> {
    let file = std::env::temp_dir().join(format!("synth-flash-{}.gguf", std::process::id()));
    flash_builder(Dialect::Antirez)?.write_sparse(&file)?;
    let opened = gguf::Gguf::open(&file, &gguf::OpenOptions::default());
    std::fs::remove_file(&file)?;
    let synth = Synth {
        table: GgufSource::new(opened?),
        buffers: Buffers::default(),
    };
    Ok(Arc::new(Model::load(&synth)?))
}
