//! ggml as a witness: what our writer wrote, its reader reads; geometry of every type id and the
//! decoders of the types both have agree. Needs the feature `ggml`. ggml's reader prints why it
//! refuses a file; that is not a failure here.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use fpx_quant::Format;
use gguf::types::{ggml_format, ggml_name};
use gguf::{ErrorKind, Gguf, GgufBuilder, Header, Limits, OpenOptions};

/// Formats ggml knows too.
const SHARED: [Format; 9] = [
    Format::F32,
    Format::F16,
    Format::Q8_0,
    Format::Q2K,
    Format::Q4K,
    Format::Iq2Xxs,
    Format::I32,
    Format::BF16,
    Format::Mxfp4,
];

fn format_of(id: u32) -> Option<Format> {
    let native = SHARED.iter().find(|f| f.ggml_id() == id).copied();
    native.or_else(|| ggml_format(id))
}

#[test]
fn every_id_has_the_same_geometry_and_name() {
    assert_eq!(ggml_sys::version(), "0.26.0");
    assert_eq!(ggml_sys::type_count(), 43);
    for id in 0..ggml_sys::type_count() {
        match (ggml_sys::block_elems(id), format_of(id)) {
            (Ok(elems), Some(format)) => {
                assert_eq!(elems, format.block_elems(), "{id}");
                assert_eq!(
                    ggml_sys::block_bytes(id).unwrap(),
                    format.block_bytes(),
                    "{id}"
                );
                let name = ggml_name(id).unwrap_or(format.name());
                assert_eq!(
                    ggml_sys::type_name(id).unwrap().to_uppercase(),
                    name,
                    "{id}"
                );
            }
            (Err(_), None) => {}
            (theirs, ours) => panic!("id {id}: ggml {theirs:?}, ours {ours:?}"),
        }
    }
    assert!(ggml_sys::block_elems(43).is_err());
    assert!(ggml_sys::block_elems(u32::MAX).is_err());
}

/// A file with every type both sides know, odd dimensions and every kind of key.
fn builder() -> GgufBuilder {
    let mut b = GgufBuilder::new();
    b.set("general.architecture", "deepseek4").unwrap();
    b.set("some.u64", 1u64 << 50).unwrap();
    b.set("some.bools", vec![true, false]).unwrap();
    b.set("some.floats", vec![0.5f32, 1.5]).unwrap();
    b.set(
        "some.words",
        vec!["a".to_owned(), String::new(), "\u{120}x".to_owned()],
    )
    .unwrap();
    for id in 0..ggml_sys::type_count() {
        let Some(format) = format_of(id) else {
            continue;
        };
        let cols = format.block_elems() as u64 * 3;
        b.tensor(&format!("blk.{id}.weight"), &[cols, 5, 2], format)
            .unwrap();
    }
    b.tensor("one", &[1], Format::F32).unwrap();
    b.tensor("four", &[32, 2, 3, 4], Format::Q8_0).unwrap();
    b
}

fn check_same(path: &Path) {
    let theirs = ggml_sys::File::open(path).unwrap();
    let bytes = std::fs::read(path).unwrap();
    let ours = Header::parse(&bytes, &Limits::default()).unwrap();
    assert_eq!(theirs.version(), ours.version);
    assert_eq!(theirs.data_start(), ours.data_start());
    let keys: Vec<&str> = ours.metadata.iter().map(|(k, _)| k).collect();
    assert_eq!(theirs.keys(), keys);
    let tensors = theirs.tensors();
    assert_eq!(tensors.len(), ours.tensors.len());
    for (t, o) in tensors.iter().zip(&ours.tensors) {
        let mut shape = [1; 4];
        shape[..o.shape.len()].copy_from_slice(&o.shape);
        assert_eq!(
            (&t.name, t.type_id, t.shape, t.offset),
            (&o.name, o.type_id, shape, o.offset)
        );
        let elems: u64 = o.shape.iter().product();
        let format = format_of(o.type_id).unwrap();
        let expected = elems / format.block_elems() as u64 * format.block_bytes() as u64;
        assert_eq!(t.bytes, expected, "{}", t.name);
    }
}

#[test]
fn ggml_reads_what_we_write() {
    let dir = tempfile::tempdir().unwrap();
    for alignment in [32, 64] {
        let mut b = builder();
        b.alignment(alignment).unwrap();
        let path = dir.path().join(format!("{alignment}.gguf"));
        let mut w = b.create(&path).unwrap();
        while let Some(t) = w.due().cloned() {
            w.write(&t.name, &vec![0x11; t.bytes()]).unwrap();
        }
        w.finish().unwrap();
        check_same(&path);
    }
}

#[test]
fn ggml_reads_every_part_of_a_split() {
    let dir = tempfile::tempdir().unwrap();
    let mut b = builder();
    b.max_part_bytes(4096);
    let mut w = b.create(dir.path().join("m.gguf")).unwrap();
    while let Some(t) = w.due().cloned() {
        w.write(&t.name, &vec![0x11; t.bytes()]).unwrap();
    }
    let written = w.finish().unwrap();
    assert!(written.parts.len() > 2);
    for part in &written.parts {
        check_same(&part.path);
    }
}

#[test]
fn ggml_refuses_what_is_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("odd.gguf");
    std::fs::write(&path, b"GGUF but not really").unwrap();
    assert!(ggml_sys::File::open(&path).is_err());
    assert!(ggml_sys::File::open(&dir.path().join("absent")).is_err());
}

/// Numbers in [-1, 1).
fn noise(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
        })
        .collect()
}

/// Random bytes; every scale field of every block is random too.
fn random_blocks(seed: u64, n: usize) -> Vec<u8> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        })
        .collect()
}

#[test]
fn our_decoders_equal_ggml_s_on_random_blocks() {
    for format in SHARED {
        if matches!(format, Format::F32 | Format::I32) {
            continue; // ggml has no decoder for these
        }
        let elems = format.block_elems() * 600;
        let bytes = random_blocks(
            u64::from(format.ggml_id()) + 1,
            format.row_bytes(elems).unwrap(),
        );
        let mut ours = vec![f32::NAN; elems];
        let mut theirs = vec![f32::NAN; elems];
        fpx_quant::decode_row(format, &bytes, &mut ours).unwrap();
        ggml_sys::dequantize_row(format.ggml_id(), &bytes, &mut theirs).unwrap();
        let mut finite = 0;
        for (i, (o, t)) in ours.iter().zip(&theirs).enumerate() {
            // NaN payloads are nobody's business; everything else is compared by bits.
            let same = o.to_bits() == t.to_bits() || (o.is_nan() && t.is_nan());
            assert!(same, "{format}: element {i}: ours {o:e}, ggml {t:e}");
            finite += usize::from(o.is_finite());
        }
        // Random scales are rarely NaN or infinite; if most were, nothing would be compared.
        assert!(
            finite > elems * 8 / 10,
            "{format}: {finite} of {elems} finite"
        );
    }
}

#[test]
fn our_encoders_give_ggml_s_bytes() {
    for format in [Format::F16, Format::BF16, Format::Q8_0, Format::Mxfp4] {
        // Rows of different size, one all zeros, one with a single large weight.
        let mut x = noise(u64::from(format.ggml_id()), 16 * 256);
        for (row, chunk) in x.chunks_exact_mut(256).enumerate() {
            let scale = 2f32.powi(row as i32 * 3 - 24);
            chunk.iter_mut().for_each(|v| *v *= scale);
        }
        x[256..512].fill(0.0);
        x[3 * 256 + 5] = 1000.0;
        let mut ours = vec![0xa5; format.matrix_bytes(16, 256).unwrap()];
        let mode = fpx_quant::EncodeMode::Reference;
        fpx_quant::encode_rows(format, &x, 256, None, mode, &mut ours).unwrap();
        let theirs = ggml_sys::quantize_rows(format.ggml_id(), &x, 256, None).unwrap();
        let first = ours.iter().zip(&theirs).position(|(a, b)| a != b);
        assert_eq!((first, ours.len()), (None, theirs.len()), "{format}");
    }
}

#[test]
fn other_types_are_decoded_through_ggml() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let q6k = ggml_format(14).unwrap();
    let x = noise(3, 3 * 256);
    let mut b = GgufBuilder::new();
    b.tensor("q6", &[256, 3], q6k).unwrap();
    b.tensor("i8", &[4], ggml_format(24).unwrap()).unwrap();
    let mut w = b.create(&path).unwrap();
    w.write("q6", &ggml_sys::quantize_rows(14, &x, 256, None).unwrap())
        .unwrap();
    w.write("i8", &[1, 2, 3, 4]).unwrap();
    w.finish().unwrap();
    let file = Gguf::open(&path, &OpenOptions::default()).unwrap();
    let mut rows = vec![f32::NAN; 512];
    file.decode_rows(file.tensor("q6").unwrap(), 1..3, &mut rows)
        .unwrap();
    for (got, want) in rows.iter().zip(&x[256..]) {
        assert!((got - want).abs() < 0.05, "{got} {want}");
    }
    let e = file
        .decode_rows(file.tensor("i8").unwrap(), 0..1, &mut rows[..4])
        .unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Ggml { .. }), "{e}");
}

#[test]
fn encoded_rows_come_back_near() {
    let importance = vec![1.0f32; 256];
    // Largest root of the mean squared error over that of the data. IQ2_XXS stands for the types
    // that need importance weights; the others of its kind build search tables for seconds.
    for (id, largest) in [
        (1, 0.001),
        (2, 0.12),
        (8, 0.01),
        (12, 0.1),
        (14, 0.03),
        (16, 0.7),
        (39, 0.2),
    ] {
        let x = noise(u64::from(id) + 1, 512);
        let bytes = ggml_sys::quantize_rows(id, &x, 256, Some(&importance)).unwrap();
        let block = ggml_sys::block_elems(id).unwrap();
        assert_eq!(
            bytes.len(),
            512 / block * ggml_sys::block_bytes(id).unwrap()
        );
        let mut y = vec![f32::NAN; 512];
        ggml_sys::dequantize_row(id, &bytes, &mut y).unwrap();
        let square = |v: f32| f64::from(v) * f64::from(v);
        let norm: f64 = x.iter().map(|&a| square(a)).sum();
        let error: f64 = x.iter().zip(&y).map(|(&a, &b)| square(a - b)).sum();
        let relative = (error / norm).sqrt();
        assert!(
            relative < largest && relative > largest / 20.0,
            "{id}: {relative}"
        );
    }
}

#[test]
fn wrong_arguments_are_errors_and_not_aborts() {
    use ggml_sys::Error;
    let mut out = [0.0; 32];
    let e = |r: Result<(), Error>| r.unwrap_err();
    assert!(matches!(
        e(ggml_sys::dequantize_row(4, &[], &mut out)),
        Error::NoSuchType { id: 4 }
    ));
    assert!(matches!(
        e(ggml_sys::dequantize_row(8, &[0; 33], &mut out)),
        Error::Length { .. }
    ));
    assert!(matches!(
        e(ggml_sys::dequantize_row(8, &[0; 34], &mut out[..31])),
        Error::PartialBlock { .. }
    ));
    assert!(matches!(
        e(ggml_sys::dequantize_row(24, &[0; 32], &mut out)),
        Error::Unsupported {
            what: "decoder",
            ..
        }
    ));
    let q = |id, x: &[f32], w: Option<&[f32]>| ggml_sys::quantize_rows(id, x, 256, w).unwrap_err();
    let mut x = vec![0.5f32; 256];
    assert!(matches!(q(16, &x, None), Error::Unsupported { .. }));
    assert!(matches!(
        q(16, &x, Some(&[1.0; 255])),
        Error::Length {
            what: "importance",
            ..
        }
    ));
    assert!(matches!(
        q(16, &x, Some(&[-1.0; 256])),
        Error::BadNumber {
            what: "importance",
            ..
        }
    ));
    assert!(matches!(
        q(9, &x, None),
        Error::Unsupported {
            what: "encoder",
            ..
        }
    ));
    assert!(matches!(
        q(8, &x[..255], None),
        Error::Length {
            what: "weights",
            ..
        }
    ));
    x[7] = f32::NAN;
    assert!(matches!(q(8, &x, None), Error::BadNumber { index: 7, .. }));
}
