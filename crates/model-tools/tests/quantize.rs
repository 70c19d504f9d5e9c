//! Files in, files out: values, keys, errors, importance, determinism.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use common::{Naming, Storage};
use ds4_target::{GgufSource, Model};
use fpx_quant::{EncodeMode, Format, decode_row, encode_rows};
use gguf::{Gguf, GgufBuilder, OpenOptions};
use model_tools::importance::{Columns, Importance};
use model_tools::quantize::{Options, quantize};
use model_tools::{Recipe, Report, Role, ToolError, convert};

struct Dir(tempfile::TempDir);

impl Dir {
    /// A folder with the tiny target in F32 as `f32.gguf`.
    fn new() -> Self {
        let dir = Self(tempfile::tempdir().unwrap());
        let rows = common::target_rows();
        let tensors = common::tensors(&rows, Naming::Official, Storage::F32);
        common::write_folder(dir.0.path(), &common::config(), &tensors);
        let options = convert::Options::new(Recipe::parse("*=F32").unwrap());
        convert::target(dir.0.path(), &dir.at("f32.gguf"), &options, &mut ()).unwrap();
        dir
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn open(&self, name: &str) -> Gguf {
        open(&self.at(name))
    }

    fn run(&self, recipe: &str, out: &str) -> Result<Report, ToolError> {
        let options = Options::new(Recipe::parse(recipe)?);
        quantize(&self.open("f32.gguf"), &self.at(out), &options, &mut ())
    }
}

fn open(path: &Path) -> Gguf {
    Gguf::open(path, &OpenOptions::default()).unwrap()
}

fn values(file: &Gguf, name: &str) -> Vec<f32> {
    let info = file.tensor(name).unwrap();
    let mut out = vec![f32::NAN; info.row_elems() * info.rows()];
    decode_row(info.format, file.bytes(info), &mut out).unwrap();
    out
}

const MIXED: &str = "*=ROCMFP6,experts=ROCMFP4,experts.down=ROCMFP3,attn.q_b=ROCMFP2,head=ROCMFP8,\
    embed=Q8_0,shared=MXFP4,router=F16,compressor=ROCMFP4_FAST,hc=BF16";

#[test]
fn every_tensor_has_its_format_its_error_and_its_bytes() {
    let dir = Dir::new();
    let report = dir.run(MIXED, "q.gguf").unwrap();
    let (from, to) = (dir.open("f32.gguf"), dir.open("q.gguf"));
    assert_eq!(report.tensors.len(), from.tensors().len());
    for (t, info) in report.tensors.iter().zip(to.tensors()) {
        assert_eq!(
            (&t.name, t.format, t.bytes),
            (&info.name, info.format, info.bytes() as u64)
        );
        if t.format == Format::I32 {
            assert_eq!(from.bytes(from.tensor(&t.name).unwrap()), to.bytes(info));
            continue;
        }
        let (x, y) = (values(&from, &t.name), values(&to, &t.name));
        let square = |v: f64| v * v;
        let error: f64 = x
            .iter()
            .zip(&y)
            .map(|(x, y)| square(f64::from(x - y)))
            .sum();
        let power: f64 = x.iter().map(|x| square(f64::from(*x))).sum();
        let nmse = if error == 0.0 { 0.0 } else { error / power };
        assert!(
            (t.nmse - nmse).abs() <= 1e-9 * nmse,
            "{}: {} {nmse}",
            t.name,
            t.nmse
        );
        // What each format can do at worst for values within +-0.25 and steps of 2^-12.
        let (low, high) = match t.format.name() {
            "F32" | "F16" => (0.0, 0.0),
            "BF16" => (0.0, 1e-4),
            "Q8_0" => (1e-9, 1e-4),
            "ROCMFP8" => (1e-9, 2e-4),
            "ROCMFP6" => (1e-6, 3e-3),
            "ROCMFP4" | "ROCMFP4_FAST" => (1e-4, 2e-2),
            "MXFP4" => (1e-4, 3e-2),
            "ROCMFP3" => (1e-3, 8e-2),
            "ROCMFP2" => (1e-2, 0.25),
            other => panic!("{other}"),
        };
        assert!(
            t.nmse >= low && t.nmse <= high,
            "{} {}: {}",
            t.name,
            t.format,
            t.nmse
        );
    }
    let of = |name: &str| to.tensor(name).unwrap().format.name();
    assert_eq!(of("blk.1.ffn_gate_exps.weight"), "ROCMFP4");
    assert_eq!(of("blk.1.ffn_down_exps.weight"), "ROCMFP3");
    assert_eq!(of("blk.1.attn_q_b.weight"), "ROCMFP2");
    assert_eq!(of("blk.1.attn_q_a.weight"), "ROCMFP6");
    assert_eq!(of("blk.1.indexer.attn_q_b.weight"), "ROCMFP6");
    Model::load(&GgufSource::new(to)).unwrap();
}

#[test]
fn bytes_are_the_encoders_and_keys_are_stamped() {
    let dir = Dir::new();
    dir.run(MIXED, "q.gguf").unwrap();
    let (from, to) = (dir.open("f32.gguf"), dir.open("q.gguf"));
    for name in [
        "output.weight",
        "blk.2.ffn_up_exps.weight",
        "blk.0.attn_q_b.weight",
    ] {
        let (x, info) = (values(&from, name), to.tensor(name).unwrap());
        let mut bytes = vec![0u8; info.bytes()];
        encode_rows(
            info.format,
            &x,
            info.row_elems(),
            None,
            EncodeMode::Better,
            &mut bytes,
        )
        .unwrap();
        assert!(to.bytes(info) == bytes, "{name}");
    }
    let m = to.metadata();
    assert_eq!(m.get_str("fourspark.fp6_endpoint").unwrap(), "zero");
    assert_eq!(m.get_str("fourspark.fp2_dialect").unwrap(), "signed");
    assert_eq!(
        m.get_str("fourspark.recipe").unwrap(),
        Recipe::parse(MIXED).unwrap().text()
    );
    let source = blake3::hash(&fs::read(dir.at("f32.gguf")).unwrap()).to_hex();
    assert_eq!(
        m.get_str("fourspark.source_blake3").unwrap(),
        source.as_str()
    );
    assert_eq!(m.get_u32("general.quantization_version").unwrap(), 2);
    // Everything else is as it was.
    for (key, value) in from.metadata().iter() {
        if !key.starts_with("fourspark.") && key != "general.file_type" {
            assert_eq!(m.get(key), Some(value), "{key}");
        }
    }
}

#[test]
fn file_types_name_what_most_elements_are() {
    let dir = Dir::new();
    for (recipe, id) in [
        ("*=F32", 0),
        ("*=F16", 1),
        ("*=BF16", 32),
        ("*=Q8_0", 7),
        ("*=MXFP4", 38),
        ("*=ROCMFP4", 1024),
    ] {
        dir.run(recipe, "q.gguf").unwrap();
        let got = dir
            .open("q.gguf")
            .metadata()
            .get_u32("general.file_type")
            .unwrap();
        assert_eq!(got, id, "{recipe}");
    }
}

#[test]
fn two_runs_give_equal_bytes_and_a_second_pass_copies() {
    let dir = Dir::new();
    dir.run(MIXED, "a.gguf").unwrap();
    dir.run(MIXED, "b.gguf").unwrap();
    assert!(fs::read(dir.at("a.gguf")).unwrap() == fs::read(dir.at("b.gguf")).unwrap());
    let options = Options::new(Recipe::parse(MIXED).unwrap());
    let a = dir.open("a.gguf");
    let report = quantize(&a, &dir.at("c.gguf"), &options, &mut ()).unwrap();
    assert!(report.tensors.iter().all(|t| t.nmse == 0.0));
    let c = dir.open("c.gguf");
    for (x, y) in a.tensors().iter().zip(c.tensors()) {
        assert!(a.bytes(x) == c.bytes(y), "{}", x.name);
    }
}

#[test]
fn fallbacks_are_reported_and_never_taken_unasked() {
    let dir = Dir::new();
    // Rows of 24 elements fit no block format.
    let path = dir.at("odd.gguf");
    let mut b = GgufBuilder::new();
    b.tensor("dflash.dspark.markov.w1", &[24, 3], Format::F32)
        .unwrap();
    b.tensor("output.weight", &[64, 2], Format::F32).unwrap();
    let mut w = b.create(&path).unwrap();
    w.write("dflash.dspark.markov.w1", &[0; 24 * 3 * 4])
        .unwrap();
    w.write("output.weight", &[0; 64 * 2 * 4]).unwrap();
    w.finish().unwrap();
    let run = |recipe: &str| {
        let options = Options::new(Recipe::parse(recipe).unwrap());
        quantize(&open(&path), &dir.at("q.gguf"), &options, &mut ())
    };
    let error = run("*=ROCMFP4").unwrap_err();
    assert!(
        matches!(&error, ToolError::NoFallback { tensor, .. } if tensor == "dflash.dspark.markov.w1")
    );
    assert!(!dir.at("q.gguf").exists());
    let report = run("*=ROCMFP4|F16").unwrap();
    let fell: Vec<_> = report
        .fallbacks()
        .map(|t| (t.role, t.format, t.instead_of))
        .collect();
    assert_eq!(fell, [(Role::MarkovW1, Format::F16, Some(Format::Fp4))]);
    assert_eq!(report.tensors[1].nmse, 0.0, "zeros lose nothing");
}

#[test]
fn unknown_tensors_and_values_are_refused() {
    let dir = Dir::new();
    let make = |name: &str, format, bytes: &[u8]| {
        let path = dir.at("bad.gguf");
        let mut b = GgufBuilder::new();
        b.tensor(name, &[32, 1], format).unwrap();
        let mut w = b.create(&path).unwrap();
        w.write(name, bytes).unwrap();
        w.finish().unwrap();
        let options = Options::new(Recipe::parse("*=ROCMFP4").unwrap());
        let result = quantize(&open(&path), &dir.at("q.gguf"), &options, &mut ());
        assert!(!dir.at("q.gguf").exists());
        result.unwrap_err().to_string()
    };
    let error = make("blk.0.what.weight", Format::F32, &[0; 128]);
    assert!(
        error.contains("blk.0.what.weight") && error.contains("role"),
        "{error}"
    );
    let mut nan = vec![0u8; 128];
    nan[20..24].copy_from_slice(&f32::NAN.to_le_bytes());
    let error = make("output.weight", Format::F32, &nan);
    assert!(
        error.contains("output.weight: element 5") && error.contains("NaN"),
        "{error}"
    );
    let error = make("output.weight", Format::I32, &[0; 128]);
    assert!(error.contains("expected weights, got I32"), "{error}");
    let mut big = vec![0u8; 128];
    big[4..8].copy_from_slice(&7e4f32.to_le_bytes());
    let path = dir.at("bad.gguf");
    make("output.weight", Format::F32, &nan);
    let mut b = GgufBuilder::new();
    b.tensor("output.weight", &[32, 1], Format::F32).unwrap();
    let mut w = b.create(&path).unwrap();
    w.write("output.weight", &big).unwrap();
    w.finish().unwrap();
    let options = Options::new(Recipe::parse("*=F16").unwrap());
    let error = quantize(&open(&path), &dir.at("q.gguf"), &options, &mut ()).unwrap_err();
    assert!(
        error.to_string().contains("element 1") && error.to_string().contains("70000"),
        "{error}"
    );
}

#[test]
fn importance_is_read_back_and_moves_error_where_it_matters_less() {
    let dir = Dir::new();
    let weight = "blk.1.ffn_gate_exps.weight";
    let k = common::N;
    // The first half of the columns matters; expert 3 saw nothing.
    let column = |i: usize| if i % k < k / 2 { 100.0 } else { 0.0 };
    let columns = Columns {
        sums: (0..common::EXPERTS * k).map(column).collect(),
        counts: vec![5.0, 5.0, 5.0, 0.0],
    };
    let made = Importance::from_columns(
        Path::new("x"),
        BTreeMap::from([(weight.to_owned(), columns)]),
    );
    made.write(&dir.at("imatrix.gguf")).unwrap();
    let read = Importance::read(&dir.at("imatrix.gguf")).unwrap();
    assert!(read.covers(weight) && !read.covers("output.weight"));
    let row = read
        .columns(weight, 0, common::EXPERTS, k)
        .unwrap()
        .unwrap();
    assert_eq!((row[0], row[k - 1]), (2.0, 1e-6));
    assert_eq!(read.columns(weight, 3, common::EXPERTS, k).unwrap(), None);
    assert!(read.columns(weight, 0, 2, k).is_err());

    let mut options = Options::new(Recipe::parse("*=ROCMFP3").unwrap());
    let plain = quantize(
        &dir.open("f32.gguf"),
        &dir.at("plain.gguf"),
        &options,
        &mut (),
    )
    .unwrap();
    options.importance = Some(read);
    let guided = quantize(
        &dir.open("f32.gguf"),
        &dir.at("guided.gguf"),
        &options,
        &mut (),
    )
    .unwrap();
    let nmse = |r: &Report| r.tensors.iter().find(|t| t.name == weight).unwrap().nmse;
    assert!(nmse(&guided) >= nmse(&plain));
    for (a, b) in plain.tensors.iter().zip(&guided.tensors) {
        assert!(a == b || a.name == weight, "{}", a.name);
    }
    let (p, g) = (dir.open("plain.gguf"), dir.open("guided.gguf"));
    let each = common::FF * k;
    let (p, g) = (values(&p, weight), values(&g, weight));
    assert!(p[..each] != g[..each]);
    assert!(
        p[3 * each..] == g[3 * each..],
        "an expert without inputs is coded unweighted"
    );
}
