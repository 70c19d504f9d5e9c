//! What the writer writes, the reader reads; the same declarations give the same bytes; a file
//! appears whole or not at all.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io;
use std::path::Path;

use fpx_quant::{Format, Fp2Dialect, Fp6Endpoint};
use gguf::{Array, Dialects, Error, ErrorKind, Gguf, GgufBuilder, OpenOptions, Value};

/// Every value type, every native format of the writer, odd sizes.
fn builder() -> GgufBuilder {
    let mut b = GgufBuilder::new();
    let keys: Vec<(&str, Value)> = vec![
        ("general.architecture", "deepseek4".into()),
        ("v.u8", 200u8.into()),
        ("v.i8", (-3i8).into()),
        ("v.u16", 60_000u16.into()),
        ("v.i16", (-300i16).into()),
        ("v.u32", 4_000_000_000u32.into()),
        ("v.i32", (-70_000i32).into()),
        ("v.f32", 1e-6f32.into()),
        ("v.bool", true.into()),
        ("v.u64", (1u64 << 60).into()),
        ("v.i64", (-(1i64 << 60)).into()),
        ("v.f64", 0.1f64.into()),
        ("v.str", "h\u{e9}llo \u{ff5c}".into()),
        ("a.u8", vec![1u8, 2].into()),
        ("a.i8", vec![-1i8].into()),
        ("a.u16", vec![1u16].into()),
        ("a.i16", vec![-1i16].into()),
        ("a.u32", vec![7u32, 8, 9].into()),
        ("a.i32", vec![0i32, 4, 128].into()),
        ("a.f32", vec![10.0f32; 5].into()),
        ("a.bool", vec![true, false].into()),
        ("a.u64", vec![1u64].into()),
        ("a.i64", vec![-1i64].into()),
        ("a.f64", vec![0.5f64].into()),
        ("a.str", vec![String::new(), "\u{120}t".to_owned()].into()),
        ("a.empty", Value::Array(Array::Str(Vec::new()))),
        (
            "a.nested",
            vec![Array::U8(vec![1]), Array::Str(vec!["x".into()])].into(),
        ),
    ];
    for (key, value) in keys {
        b.set(key, value).unwrap();
    }
    for (name, shape, format) in [
        ("one", &[1u64][..], Format::F32),
        ("vector", &[7], Format::F16),
        ("ids", &[3, 5], Format::I32),
        ("q8", &[64, 3], Format::Q8_0),
        ("q2k", &[256, 2], Format::Q2K),
        ("q4k", &[256, 2], Format::Q4K),
        ("iq2", &[512, 1, 2], Format::Iq2Xxs),
        ("mxfp4", &[32, 2, 2, 2], Format::Mxfp4),
        ("fp2", &[64, 3], Format::Fp2(Fp2Dialect::Affine)),
        ("fp3", &[32, 3], Format::Fp3),
        ("fp4", &[32, 3], Format::Fp4),
        ("fast", &[32, 3], Format::Fp4Fast),
        ("fp6", &[32, 3], Format::Fp6(Fp6Endpoint::Neg32)),
        ("fp8", &[32, 3], Format::Fp8),
        ("s40", &[32, 3], Format::Fp2(Fp2Dialect::S40)),
        ("q6k", &[256, 1], gguf::types::ggml_format(14).unwrap()),
        ("bf16", &[5, 5], Format::BF16),
    ] {
        b.tensor(name, shape, format).unwrap();
    }
    b
}

/// Bytes of a tensor: a pattern that depends on its name.
fn content(name: &str, len: usize) -> Vec<u8> {
    let seed = name
        .bytes()
        .fold(17u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
    (0..len as u32)
        .map(|i| (i.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

fn write_all(b: &GgufBuilder, path: &Path) -> gguf::Written {
    let mut w = b.create(path).unwrap();
    while let Some(t) = w.due().cloned() {
        w.write(&t.name, &content(&t.name, t.bytes())).unwrap();
    }
    w.finish().unwrap()
}

fn names_in(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn open(path: &Path) -> Result<Gguf, Error> {
    Gguf::open(path, &OpenOptions::default())
}

fn check_contents(file: &Gguf, b: &GgufBuilder) {
    assert_eq!(file.tensors().len(), b.tensors().len());
    for (read, declared) in file.tensors().iter().zip(b.tensors()) {
        assert_eq!(read.name, declared.name);
        assert_eq!(read.shape, declared.shape);
        assert_eq!(read.format, declared.format);
        assert_eq!(
            file.bytes(read),
            content(&read.name, read.bytes()),
            "{}",
            read.name
        );
    }
}

#[test]
fn everything_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let b = builder();
    write_all(&b, &path);
    let file = open(&path).unwrap();
    assert_eq!(file.version(), 3);
    let m = file.metadata();
    assert_eq!(m.get("v.str"), Some(&"h\u{e9}llo \u{ff5c}".into()));
    assert_eq!(m.get("v.i64"), Some(&Value::I64(-(1 << 60))));
    assert_eq!(m.get_f32_array("a.f32").unwrap(), [10.0; 5]);
    assert_eq!(m.get_str_array("a.str").unwrap()[1], "\u{120}t");
    assert_eq!(
        m.get("a.nested"),
        Some(&vec![Array::U8(vec![1]), Array::Str(vec!["x".into()])].into())
    );
    // The 27 keys declared, then the two marks.
    let keys: Vec<&str> = m.iter().map(|(k, _)| k).collect();
    assert_eq!(keys.len(), 29);
    assert_eq!(m.get_str("fourspark.fp2_dialect").unwrap(), "affine");
    assert_eq!(m.get_str("fourspark.fp6_endpoint").unwrap(), "neg32");
    check_contents(&file, &b);
    let t = file.tensor("mxfp4").unwrap();
    assert_eq!(
        (t.row_elems(), t.rows(), t.elems(), t.bytes()),
        (32, 8, 256, 136)
    );
    assert_eq!(
        file.tensor_bytes(),
        file.tensors().iter().map(|t| t.bytes() as u64).sum::<u64>()
    );
}

#[test]
fn the_same_declarations_give_the_same_bytes_and_the_digest_is_the_file_s() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a.gguf"), dir.path().join("b.gguf"));
    let first = write_all(&builder(), &a);
    let second = write_all(&builder(), &b);
    let bytes = fs::read(&a).unwrap();
    assert_eq!(bytes, fs::read(&b).unwrap());
    assert_eq!(first.parts[0].blake3, second.parts[0].blake3);
    assert_eq!(
        first.parts[0].blake3,
        blake3::hash(&bytes).to_hex().as_str()
    );
    assert_eq!(first.parts[0].bytes, bytes.len() as u64);
}

#[test]
fn bytes_outlive_the_file_value() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    write_all(&builder(), &path);
    let file = open(&path).unwrap();
    let held = file.shared(file.tensor("q8").unwrap());
    drop(file);
    fs::remove_file(&path).unwrap();
    assert_eq!(&held[..], content("q8", 204));
}

#[test]
fn alignment_is_written_and_obeyed() {
    let dir = tempfile::tempdir().unwrap();
    for alignment in [1, 16, 64, 4096] {
        let path = dir.path().join(format!("{alignment}.gguf"));
        let mut b = builder();
        b.alignment(alignment).unwrap();
        write_all(&b, &path);
        let file = open(&path).unwrap();
        assert_eq!(
            u64::from(file.metadata().get_u32("general.alignment").unwrap()),
            alignment
        );
        assert!(
            file.tensors()
                .iter()
                .all(|t| t.offset().is_multiple_of(alignment))
        );
        check_contents(&file, &b);
    }
    let mut b = builder();
    for bad in [0, 3, 1 << 40] {
        assert!(matches!(
            b.alignment(bad).unwrap_err().kind(),
            ErrorKind::Alignment { .. }
        ));
    }
}

#[test]
fn split_output_reads_back_from_its_first_part() {
    let dir = tempfile::tempdir().unwrap();
    let mut b = builder();
    b.max_part_bytes(512);
    let written = write_all(&b, &dir.path().join("m.gguf"));
    let n = written.parts.len();
    assert!(n > 2, "{n} parts");
    let first = dir.path().join(format!("m-00001-of-{n:05}.gguf"));
    assert_eq!(written.parts[0].path, first);
    assert_eq!(names_in(dir.path()).len(), n);
    let file = open(&first).unwrap();
    assert_eq!(file.parts().len(), n);
    assert_eq!(file.metadata().get_u32("split.count").unwrap() as usize, n);
    check_contents(&file, &b);
    // No part is over the bound unless it holds one tensor.
    for part in 0..n {
        let own: Vec<_> = file.tensors().iter().filter(|t| t.part() == part).collect();
        let bytes: u64 = own
            .iter()
            .map(|t| (t.bytes() as u64).next_multiple_of(32))
            .sum();
        assert!(bytes <= 512 || own.len() == 1, "part {part}: {bytes}");
    }
    // Written whole, the same tensors have the same bytes.
    b.max_part_bytes(u64::MAX);
    write_all(&b, &dir.path().join("whole.gguf"));
    check_contents(&open(&dir.path().join("whole.gguf")).unwrap(), &b);
}

/// A writer at its second tensor, `vector`, which needs 14 bytes.
fn started(path: &Path) -> gguf::Writer {
    let mut w = builder().create(path).unwrap();
    w.write("one", &[0; 4]).unwrap();
    w
}

#[test]
fn nothing_is_left_of_a_write_that_fails_or_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    fs::write(&path, b"old").unwrap();

    drop(started(&path));
    let e = started(&path).finish().unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Unwritten { tensor } if tensor == "vector"));

    for (n, from_reader) in [(13, false), (15, false), (9, true), (15, true)] {
        let mut w = started(&path);
        let bytes = vec![0u8; n];
        let result = match from_reader {
            true => w.write_from("vector", &bytes[..]),
            false => w.write("vector", &bytes),
        };
        let e = result.unwrap_err();
        let got_n = n as u64;
        assert!(
            matches!(e.kind(), ErrorKind::WriteSize { expected: 14, got, .. } if *got == got_n),
            "{e}"
        );
        // The writer is dead: it must not go on as if nothing were missing.
        let e = w.write("vector", &[0; 14]).unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::Failed), "{e}");
        assert!(matches!(w.finish().unwrap_err().kind(), ErrorKind::Failed));
    }

    let e = started(&path).write("ids", &[0; 60]).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::WriteOrder { .. }), "{e}");

    let dies = |out: &mut dyn io::Write| {
        out.write_all(&[0; 14])?;
        Err(io::Error::other("producer died"))
    };
    let e = started(&path).write_with("vector", dies).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Io { .. }), "{e}");
    assert!(e.to_string().contains("producer died"));

    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(names_in(dir.path()), ["m.gguf"]);
}

#[test]
fn declarations_other_readers_could_not_take_are_refused() {
    let mut b = GgufBuilder::new();
    b.tensor("t", &[32], Format::Q8_0).unwrap();
    let long = "x".repeat(64);
    let kind = |e: Error| format!("{:?}", e.kind());
    for (got, start) in [
        (
            b.tensor("t", &[32], Format::Q8_0).map(drop),
            "DuplicateTensor",
        ),
        (b.tensor(&long, &[32], Format::Q8_0).map(drop), "NameLength"),
        (b.tensor("", &[32], Format::Q8_0).map(drop), "NameLength"),
        (b.tensor("u", &[31], Format::Q8_0).map(drop), "Row"),
        (b.tensor("v", &[], Format::F32).map(drop), "Dims"),
        (b.tensor("w", &[1; 5], Format::F32).map(drop), "Dims"),
        (b.tensor("x", &[4, 0], Format::F32).map(drop), "ZeroDim"),
        (
            b.tensor("y", &[1 << 40, 1 << 40], Format::F32).map(drop),
            "ShapeOverflow",
        ),
        (b.set("general.alignment", 64u32).map(drop), "ReservedKey"),
        (b.set("split.no", 0u16).map(drop), "ReservedKey"),
        (
            b.set("fourspark.fp2_dialect", "signed").map(drop),
            "ReservedKey",
        ),
        (b.set("", 0u16).map(drop), "NameLength"),
    ] {
        let got = kind(got.unwrap_err());
        assert!(got.starts_with(start), "expected {start}, got {got}");
    }
}

#[test]
fn one_file_has_one_dialect_of_an_id() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut b = GgufBuilder::new();
    b.tensor("a", &[32], Format::Fp2(Fp2Dialect::Signed))
        .unwrap();
    b.tensor("s", &[32], Format::Fp2(Fp2Dialect::S40)).unwrap();
    let mut mixed = b.clone();
    mixed
        .tensor("b", &[32], Format::Fp2(Fp2Dialect::Affine))
        .unwrap();
    let e = mixed.create(&path).unwrap_err();
    assert!(
        matches!(
            e.kind(),
            ErrorKind::MixedDialects {
                expected: "signed",
                got: "affine",
                ..
            }
        ),
        "{e}"
    );
    // Signed and S40 have ids of their own.
    write_all(&b, &path);
    let file = open(&path).unwrap();
    assert_eq!(
        file.tensor("s").unwrap().format,
        Format::Fp2(Fp2Dialect::S40)
    );
    // A caller who says otherwise is refused.
    let options = OpenOptions {
        dialects: Dialects {
            fp2: Some(Fp2Dialect::S40),
            fp6: None,
        },
        ..OpenOptions::default()
    };
    let e = Gguf::open(&path, &options).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::DialectConflict { .. }), "{e}");
}

#[test]
fn formats_that_would_not_read_back_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut b = GgufBuilder::new();
    b.tensor("mix", &[128, 2], Format::Mix2).unwrap();
    let e = b.create(&path).unwrap_err();
    assert!(
        matches!(e.kind(), ErrorKind::RefusedType { id: 106, .. }),
        "{e}"
    );
    b.set("geoquant.dmix2.sidecar", vec![1u8]).unwrap();
    b.create(&path).unwrap();
    let wrong = Format::Ggml {
        id: 14,
        block: 256,
        bytes: 212,
    };
    b.tensor("q6", &[256], wrong).unwrap();
    let e = b.create(&path).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::NotReadable { .. }), "{e}");
    assert_eq!(names_in(dir.path()), [""; 0]);
}

#[test]
fn set_all_copies_everything_but_what_the_writer_derives() {
    let dir = tempfile::tempdir().unwrap();
    let mut b = builder();
    b.alignment(64).unwrap();
    b.max_part_bytes(512);
    let written = write_all(&b, &dir.path().join("m.gguf"));
    let file = open(&written.parts[0].path).unwrap();
    let mut copy = GgufBuilder::new();
    copy.set_all(file.metadata()).unwrap();
    copy.set("v.u32", 5u32).unwrap();
    let path = dir.path().join("copy.gguf");
    copy.create(&path).unwrap().finish().unwrap();
    let file = open(&path).unwrap();
    let keys: Vec<&str> = file.metadata().iter().map(|(k, _)| k).collect();
    assert_eq!(keys.len(), 27);
    assert_eq!(keys[5], "v.u32");
    assert_eq!(file.metadata().get_u32("v.u32").unwrap(), 5);
    assert!(file.tensors().is_empty());
}
