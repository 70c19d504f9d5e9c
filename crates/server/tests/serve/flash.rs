//! The real Flash model as a file: its 1,328 tensors with their types and shapes, 87 GB of which the
//! disk holds the header alone. The program inspects it and plans its memory to the byte.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use gguf::fixture::{FLASH_BYTES, FLASH_TENSORS, flash_builder};
use gguf::names::Dialect;
use serde_json::Value;

/// Sequence length planned for.
const CTX: u64 = 65_536;
/// Layers with a row every 4 tokens, with a row every 128, and all.
const SPARSE: u64 = 21;
const HEAVY: u64 = 20;
const LAYERS: u64 = 43;
/// A packed K row: 448 FP8 codes, 64 rotated values as bf16, 7 scales and one byte of padding.
const KV: u64 = 448 + 2 * 64 + 8;
/// A packed indexer row: 128 codes of 4 bits, 4 scales.
const INDEX: u64 = 64 + 4;

fn json(args: &[&str]) -> Value {
    let out = Command::new(env!("CARGO_BIN_EXE_fourspark"))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    serde_json::from_slice(&out.stdout).unwrap()
}

fn sparse(folder: &Path, dialect: Dialect) -> String {
    let path = folder.join(format!("{dialect:?}.gguf"));
    flash_builder(dialect).unwrap().write_sparse(&path).unwrap();
    path.to_str().unwrap().to_owned()
}

fn check_plan(plan: &Value) {
    let bytes = |field: &Value| field.as_u64().unwrap();
    let one = &plan["sequence_bytes"];
    assert_eq!(bytes(&plan["weight_bytes"]), FLASH_BYTES);
    // Window 128 and verify 8: rings of 256 rows.
    assert_eq!(bytes(&one["window_rows"]), LAYERS * 256 * KV);
    let rows = SPARSE * (CTX / 4) + HEAVY * (CTX / 128);
    assert_eq!(bytes(&one["compressed_rows"]), rows * KV);
    assert_eq!(bytes(&one["indexer_rows"]), SPARSE * (CTX / 4) * INDEX);
    // (key, gate) pairs in f32: 16 rows twice as wide for rows and indexer rows, 256 rows of 512.
    let open = SPARSE * 16 * 2 * (512 + 128) + HEAVY * 256 * 512;
    assert_eq!(bytes(&one["open_compressor_rows"]), open * 2 * 4);
    let parts = [
        "window_rows",
        "compressed_rows",
        "indexer_rows",
        "open_compressor_rows",
    ];
    let sum: u64 = parts.iter().map(|p| bytes(&one[*p])).sum();
    assert_eq!(bytes(&one["total"]), sum);
    let buffers = bytes(&plan["buffer_bytes_estimated"]);
    assert_eq!(bytes(&plan["total_bytes"]), FLASH_BYTES + 2 * sum + buffers);
}

fn check(dialect: Dialect) -> [f64; 2] {
    let folder = tempfile::tempdir().unwrap();
    let file = sparse(folder.path(), dialect);
    let start = Instant::now();
    let seen = json(&["inspect", &file, "--json", "--tensors"]);
    let inspected = start.elapsed().as_secs_f64();
    assert_eq!(seen["architecture"], "deepseek4");
    assert_eq!(seen["bytes"], FLASH_BYTES);
    assert_eq!(seen["tensors"].as_array().unwrap().len(), FLASH_TENSORS);
    let start = Instant::now();
    let ctx = CTX.to_string();
    let plan = json(&["plan", &file, "--json", "--ctx", &ctx, "--parallel", "2"]);
    let planned = start.elapsed().as_secs_f64();
    check_plan(&plan);
    [inspected, planned]
}

#[test]
fn flash_in_the_names_of_antirez() {
    check(Dialect::Antirez);
}

#[test]
fn flash_in_the_names_of_llama_cpp() {
    check(Dialect::LlamaCpp);
}

#[test]
#[ignore = "soak: a limit of time"]
fn flash_is_inspected_and_planned_within_two_seconds() {
    for dialect in [Dialect::Antirez, Dialect::LlamaCpp, Dialect::EarlyPort] {
        let [inspected, planned] = check(dialect);
        println!("soak: {dialect:?}: inspect {inspected:.3} s, plan {planned:.3} s");
        assert!(inspected < 2.0 && planned < 2.0);
    }
}
