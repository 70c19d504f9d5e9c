//! Fixtures written as GGUF are read back by the project's reader, complete and equal.

// Helpers of a test file are tests too.
#![allow(clippy::unwrap_used)]

use fpx_quant::Format;
use gguf::names::{Structure, derive, resolve};
use gguf::{Gguf, OpenOptions};
use testkit::Error;
use testkit::fixture::{Fixture, Kind, encode_exact, plain, write_gguf, write_gguf_with};
use testkit::oracle::OracleConfig;

/// A kind's structure in a few megabytes.
fn small(kind: Kind) -> Fixture {
    let config = OracleConfig {
        n_embd: 64,
        n_ff: 32,
        ..kind.config()
    };
    Fixture::of(config, 1).unwrap()
}

fn dimensions(fixture: &Fixture, name: &str) -> usize {
    fixture.model.tensor(name).unwrap().shape.len()
}

fn write(fixture: &Fixture, matrix: Format) -> Gguf {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let format_of = |name: &str| plain(name, dimensions(fixture, name), matrix);
    write_gguf(&path, fixture, format_of).unwrap();
    // The mapping outlives the directory entry.
    Gguf::open(&path, &OpenOptions::default()).unwrap()
}

fn values(format: Format, bytes: &[u8]) -> Vec<f32> {
    match format {
        Format::F32 => bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect(),
        Format::I32 => bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| i32::from_le_bytes(*b) as f32)
            .collect(),
        Format::F16 => bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| half::f16::from_le_bytes(*b).to_f32())
            .collect(),
        _ => bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| half::bf16::from_le_bytes(*b).to_f32())
            .collect(),
    }
}

#[test]
fn files_hold_the_model_in_every_float_format() {
    for (kind, matrix) in [
        (Kind::T0, Format::F32),
        (Kind::T1, Format::F16),
        (Kind::T0i, Format::BF16),
    ] {
        let fixture = small(kind);
        let file = write(&fixture, matrix);
        assert_eq!(file.tensors().len(), fixture.model.tensors.len());
        for (name, tensor) in &fixture.model.tensors {
            let info = file.tensor(name).unwrap();
            assert_eq!(info.row_elems(), tensor.cols(), "{name}");
            assert_eq!(values(info.format, file.bytes(info)), tensor.data, "{name}");
        }
    }
}

#[test]
fn every_tensor_has_a_role_and_every_role_a_tensor() {
    for kind in [Kind::T0, Kind::T1] {
        let fixture = small(kind);
        let file = write(&fixture, Format::F16);
        let structure = Structure::of(&file).unwrap();
        let ratios: Vec<usize> = structure.ratios.iter().map(|r| *r as usize).collect();
        assert_eq!(ratios, fixture.model.config.ratios);
        assert_eq!(structure.hash_layers as usize, fixture.model.config.n_hash);
        resolve(&file, &structure).unwrap().complete(&file).unwrap();
        assert_eq!(derive::vocab_size(&file).unwrap().value, 512);
        assert_eq!(derive::hc_count(&file).unwrap().value, 4);
        let tokens = file
            .metadata()
            .get_str_array("tokenizer.ggml.tokens")
            .unwrap();
        assert_eq!(tokens.len(), 512);
    }
}

#[test]
fn what_a_format_cannot_hold_is_refused() {
    let fixture = small(Kind::T0);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let got = write_gguf(&path, &fixture, |_| Format::F16);
    assert!(matches!(got, Err(Error::Inexact { .. })), "{got:?}");
    assert!(!path.exists());
    assert!(encode_exact("x", Format::I32, 1, &[1.5]).is_err());
    assert!(encode_exact("x", Format::Q8_0, 1, &[0.0]).is_err());
    assert_eq!(
        encode_exact("x", Format::BF16, 1, &[1.0]).unwrap(),
        [0x80, 0x3f]
    );
}

#[test]
fn other_formats_are_the_callers_to_encode() {
    let fixture = Fixture::new(Kind::T256, 1).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let is_expert = |name: &str| name.ends_with("_exps.weight");
    let format_of = |name: &str| match is_expert(name) {
        true => Format::Q4K,
        false => plain(name, dimensions(&fixture, name), Format::F32),
    };
    let encode = |name: &str, format: Format, row: usize, values: &[f32]| match format {
        Format::Q4K => Ok(vec![row as u8; values.len() / 256 * 144]),
        _ => encode_exact(name, format, row, values),
    };
    write_gguf_with(&path, &fixture, format_of, encode).unwrap();
    let file = Gguf::open(&path, &OpenOptions::default()).unwrap();
    let info = file.tensor("blk.5.ffn_up_exps.weight").unwrap();
    assert_eq!(
        (info.format, info.row_elems(), info.rows()),
        (Format::Q4K, 256, 8 * 256)
    );
}
