//! Synthetic checkpoints: every tensor of a tiny model, in any naming and storage, with values that
//! can be recomputed from a tensor's GGUF name and an element's index.
#![allow(dead_code, unreachable_pub, unused_imports, clippy::unwrap_used)]

mod rows;
mod texts;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

pub use rows::{CAPTURE, RANK, STAGES, draft_rows, target_rows};
pub use texts::*;

pub const N: usize = 160;
pub const VOCAB: usize = 96;
pub const HEADS: usize = 2;
pub const HEAD_DIM: usize = 128;
pub const Q_LORA: usize = 32;
pub const GROUPS: usize = 2;
pub const O_LORA: usize = 32;
pub const INDEX_HEADS: usize = 2;
pub const INDEX_DIM: usize = 32;
pub const EXPERTS: usize = 4;
pub const USED: usize = 2;
pub const FF: usize = 32;
pub const RATIOS: [usize; 3] = [0, 4, 8];

/// How a checkpoint names tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    Official,
    /// As transformers names parameters, experts one by one.
    Transformers,
    /// The same with stacked experts, gate and up in one tensor.
    Fused,
    /// GGUF's own names (drafters).
    Gguf,
}

/// How a checkpoint stores matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    F32,
    F16,
    BF16,
    /// fp8 blocks for dense matrices, packed fp4 for routed experts, e8m0 scales.
    Official,
}

/// What a tensor is, for its storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// F32 in every checkpoint.
    Small,
    /// Never quantised in official checkpoints.
    Plain,
    /// fp8 in official checkpoints.
    Dense,
    /// fp4 in official checkpoints; the first dimension counts experts.
    Expert,
    /// Expert ids.
    Table,
}

/// A tensor: GGUF name, official name, transformers name, kind, shape with the slowest dimension
/// first.
pub type Row = (String, String, String, Kind, Vec<usize>);

/// A hash of a name and an index.
pub fn hash(name: &str, index: usize) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325u64 ^ (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for b in name.bytes() {
        h = (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
    }
    h ^= h >> 31;
    h = h.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h ^ (h >> 29)
}

/// The value of element `i` of a tensor as made, before storage: within +-0.25, a multiple of
/// 2^-12 (norm-like names: near 1).
pub fn value(name: &str, i: usize) -> f32 {
    let v = (hash(name, i) % 2048) as f32 / 4096.0 - 0.25;
    if name.contains("norm") || name.contains("scale") {
        1.0 + v
    } else {
        v
    }
}

fn table_value(name: &str, i: usize) -> u32 {
    // Distinct within a row.
    ((hash(name, i / USED) as usize + i % USED) % EXPERTS) as u32
}

fn e4m3_code(name: &str, i: usize) -> u8 {
    let c = hash(name, i) as u8;
    if c & 0x7f == 0x7f { c ^ 1 } else { c }
}

/// Scale bytes near 2^-7; the first block of every tensor has byte 0 (2^-127).
fn scale_byte(name: &str, block: usize) -> u8 {
    if block == 0 {
        0
    } else {
        118 + (hash(name, 1_000_003 + block) % 4) as u8
    }
}

fn pow2(e: i32) -> f64 {
    2f64.powi(e)
}

fn e4m3_value(code: u8) -> f64 {
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let (e, m) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    let v = if e == 0 {
        m / 8.0 * pow2(-6)
    } else {
        (1.0 + m / 8.0) * pow2(e - 7)
    };
    sign * v
}

const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

fn e2m1_value(code: u8) -> f64 {
    let v = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { v } else { -v }
}

fn e2m1_code(name: &str, i: usize) -> u8 {
    (hash(name, i) % 16) as u8
}

/// What element `i` of a tensor of `shape` must be after conversion to F32.
pub fn expected(row: &Row, storage: Storage, i: usize) -> f32 {
    let (name, _, _, kind, shape) = row;
    let k = *shape.last().unwrap();
    match (storage, kind) {
        (_, Kind::Table) => table_value(name, i) as f32,
        (Storage::Official, Kind::Dense) => {
            let (r, c) = (i / k, i % k);
            let block = r / 128 * k.div_ceil(128) + c / 128;
            let scale = pow2(i32::from(scale_byte(name, block)) - 127);
            (e4m3_value(e4m3_code(name, i)) * scale) as f32
        }
        (Storage::Official, Kind::Expert) => {
            let scale = pow2(i32::from(scale_byte(name, i / 32)) - 127);
            (e2m1_value(e2m1_code(name, i)) * scale) as f32
        }
        // 11 bits of value fit F16 exactly; BF16 sources are cut to 8 bits when written.
        (Storage::BF16, Kind::Plain | Kind::Dense | Kind::Expert) => bf16(value(name, i)),
        _ => value(name, i),
    }
}

fn bf16(v: f32) -> f32 {
    f32::from_bits(v.to_bits() & 0xffff_0000)
}

/// f16 bits of a value that f16 holds exactly and normally, or zero.
fn f16_bits(v: f32) -> u16 {
    let b = v.to_bits();
    let sign = (b >> 16 & 0x8000) as u16;
    if v == 0.0 {
        return sign;
    }
    let e = (b >> 23 & 0xff) as i32 - 127 + 15;
    assert!((1..31).contains(&e) && b & 0x1fff == 0, "{v}");
    sign | (e as u16) << 10 | (b >> 13 & 0x3ff) as u16
}

/// A tensor ready to be written: dtype, shape, bytes.
#[derive(Clone, Debug)]
pub struct Blob(pub &'static str, pub Vec<usize>, pub Vec<u8>);

/// All tensors of a checkpoint, by name.
pub type Tensors = BTreeMap<String, Blob>;

/// Makes the checkpoint of these rows.
pub fn tensors(rows: &[Row], naming: Naming, storage: Storage) -> Tensors {
    let mut out = Tensors::new();
    for row in rows {
        let (g, o, h, kind, shape) = row;
        let n: usize = shape.iter().product();
        if *kind == Kind::Expert && naming == Naming::Fused {
            fuse(&mut out, row, storage);
            continue;
        }
        let name = match naming {
            Naming::Official => o,
            Naming::Gguf => g,
            _ => h,
        };
        if *kind == Kind::Expert && naming != Naming::Gguf {
            let each = n / EXPERTS;
            for e in 0..EXPERTS {
                let name = name.replace("{}", &e.to_string());
                put(
                    &mut out,
                    &name,
                    row,
                    &shape[1..],
                    e * each..(e + 1) * each,
                    storage,
                );
            }
        } else {
            put(&mut out, name, row, shape, 0..n, storage);
        }
    }
    out
}

fn put(
    out: &mut Tensors,
    name: &str,
    row: &Row,
    shape: &[usize],
    range: std::ops::Range<usize>,
    storage: Storage,
) {
    let (g, _, _, kind, _) = row;
    let blob = match (kind, storage) {
        (Kind::Table, Storage::F32) => {
            let v = range.flat_map(|i| u64::from(table_value(g, i)).to_le_bytes());
            Blob("I64", shape.to_vec(), v.collect())
        }
        (Kind::Table, _) => {
            let v = range.flat_map(|i| table_value(g, i).to_le_bytes());
            Blob("I32", shape.to_vec(), v.collect())
        }
        (Kind::Dense, Storage::Official) => {
            let k = shape[1];
            let blocks = [shape[0].div_ceil(128), k.div_ceil(128)];
            let scales = (0..blocks[0] * blocks[1])
                .map(|b| scale_byte(g, b))
                .collect();
            let scale = name.replace(".weight", ".scale");
            out.insert(scale, Blob("F8_E8M0", blocks.to_vec(), scales));
            let codes = range.map(|i| e4m3_code(g, i)).collect();
            Blob("F8_E4M3", shape.to_vec(), codes)
        }
        (Kind::Expert, Storage::Official) => {
            let scales = range
                .clone()
                .step_by(32)
                .map(|i| scale_byte(g, i / 32))
                .collect();
            let scale = name.replace(".weight", ".scale");
            out.insert(
                scale,
                Blob("F8_E8M0", vec![shape[0], shape[1] / 32], scales),
            );
            let pairs = range
                .step_by(2)
                .map(|i| e2m1_code(g, i) | e2m1_code(g, i + 1) << 4);
            Blob("I8", vec![shape[0], shape[1] / 2], pairs.collect())
        }
        (Kind::Plain | Kind::Dense | Kind::Expert, Storage::BF16) => {
            let v = range.flat_map(|i| ((value(g, i).to_bits() >> 16) as u16).to_le_bytes());
            Blob("BF16", shape.to_vec(), v.collect())
        }
        (Kind::Plain | Kind::Dense | Kind::Expert, Storage::F16) => {
            let v = range.flat_map(|i| f16_bits(value(g, i)).to_le_bytes());
            Blob("F16", shape.to_vec(), v.collect())
        }
        _ => {
            let v = range.flat_map(|i| value(g, i).to_le_bytes());
            Blob("F32", shape.to_vec(), v.collect())
        }
    };
    out.insert(name.to_owned(), blob);
}

/// Stacked experts; gate and up rows of an expert one after another.
fn fuse(out: &mut Tensors, row: &Row, storage: Storage) {
    let (g, _, h, _, shape) = row;
    assert_eq!(storage, Storage::F32);
    let (rows, k) = (shape[1], shape[2]);
    let stem = h.split("experts.").next().unwrap();
    if g.contains("down") {
        put(
            out,
            &format!("{stem}experts.down_proj"),
            row,
            shape,
            0..shape.iter().product(),
            storage,
        );
        return;
    }
    let half = usize::from(g.contains("up"));
    let name = format!("{stem}experts.gate_up_proj");
    let blob = out.entry(name).or_insert_with(|| {
        Blob(
            "F32",
            vec![EXPERTS, 2 * rows, k],
            vec![0; EXPERTS * 2 * rows * k * 4],
        )
    });
    for e in 0..EXPERTS {
        for i in 0..rows * k {
            let at = 4 * ((2 * e + half) * rows * k + i);
            let v = value(g, e * rows * k + i);
            blob.2[at..at + 4].copy_from_slice(&v.to_le_bytes());
        }
    }
}

/// Writes one safetensors file.
pub fn write_file<'a>(path: &Path, tensors: impl Iterator<Item = (&'a String, &'a Blob)>) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, Blob(dtype, shape, bytes)) in tensors {
        let start = data.len();
        data.extend_from_slice(bytes);
        let info = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), info);
    }
    let mut text = serde_json::to_vec(&Value::Object(header)).unwrap();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text);
    out.extend(data);
    fs::write(path, out).unwrap();
}

/// Writes an index and `n` shards.
pub fn write_sharded(folder: &Path, tensors: &Tensors, n: usize) {
    let mut map = serde_json::Map::new();
    for s in 0..n {
        let file = format!("model-{s:05}.safetensors");
        let of_shard = || {
            tensors
                .iter()
                .enumerate()
                .filter(move |(i, _)| i % n == s)
                .map(|(_, t)| t)
        };
        write_file(&folder.join(&file), of_shard());
        map.extend(of_shard().map(|(name, _)| (name.clone(), json!(file))));
    }
    let index = json!({"metadata": {}, "weight_map": map});
    fs::write(
        folder.join("model.safetensors.index.json"),
        index.to_string(),
    )
    .unwrap();
}

/// Writes config and tokenizer files beside tensors in one file.
pub fn write_folder(folder: &Path, config: &Value, tensors: &Tensors) {
    write_file(&folder.join("model.safetensors"), tensors.iter());
    write_texts(folder, config);
}

/// Writes config and tokenizer files.
pub fn write_texts(folder: &Path, config: &Value) {
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    fs::write(folder.join("tokenizer.json"), tokenizer().to_string()).unwrap();
    fs::write(
        folder.join("tokenizer_config.json"),
        tokenizer_config().to_string(),
    )
    .unwrap();
}
