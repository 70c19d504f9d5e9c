//! Damaged files: every kind of damage gives its own typed refusal and never a panic.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Raw, array, str_key, string, tensor, u32_key};
use gguf::{Error, ErrorKind, Gguf, Header, Limits, OpenOptions};

fn open(bytes: Vec<u8>) -> Result<Gguf, Error> {
    Gguf::from_bytes(bytes, &OpenOptions::default())
}

type Damage = fn(&mut Raw);
type Expected = fn(&ErrorKind) -> bool;

/// One line a case: what is damaged, how, what must be said.
macro_rules! cases {
    ($($name:literal: $damage:expr => $pattern:pat $(if $guard:expr)?,)*) => {
        &[$(($name, $damage, |k| matches!(k, $pattern $(if $guard)?))),*]
    };
}

#[rustfmt::skip]
const HEADER: &[(&str, Damage, Expected)] = cases! {
    "bad magic": |r| r.magic = *b"GGML" => ErrorKind::NotGguf { got: [b'G', b'G', b'M', b'L'] },
    "magic backwards": |r| r.magic = *b"FUGG" => ErrorKind::NotGguf { .. },
    "version 0": |r| r.version = 0 => ErrorKind::Version { got: 0 },
    "version 1": |r| r.version = 1 => ErrorKind::Version { got: 1 },
    "version 4": |r| r.version = 4 => ErrorKind::Version { got: 4 },
    "version 99": |r| r.version = 99 => ErrorKind::Version { got: 99 },
    "big endian": |r| r.version = 3u32.swap_bytes() => ErrorKind::BigEndian { version: 3 },
    "tensor count over the limit": |r| r.n_tensors = Some(u64::MAX) => ErrorKind::Limit { what: "tensor count", .. },
    "tensor count over the file": |r| r.n_tensors = Some(200_000) => ErrorKind::Truncated { what: "tensor table", .. },
    "one tensor too many": |r| r.n_tensors = Some(4) => ErrorKind::Limit { .. } | ErrorKind::Truncated { .. } | ErrorKind::Dims { .. },
    "key count over the limit": |r| r.n_keys = Some(1 << 63) => ErrorKind::Limit { what: "key count", .. },
    "key count over the file": |r| r.n_keys = Some(60_000) => ErrorKind::Limit { .. } | ErrorKind::Truncated { .. } | ErrorKind::ValueType { .. },
};

#[rustfmt::skip]
const KEYS: &[(&str, Damage, Expected)] = cases! {
    "string length over the limit": |r| r.keys[0].2[..8].copy_from_slice(&u64::MAX.to_le_bytes()) => ErrorKind::Limit { what: "string value", .. },
    "string length over the file": |r| r.keys[0].2[..8].copy_from_slice(&100_000u64.to_le_bytes()) => ErrorKind::Truncated { what: "string value", need: 100_000, .. },
    "key not UTF-8": |r| r.keys[1].0 = vec![b'k', 0xff] => ErrorKind::Utf8 { what: "metadata key", .. },
    "value not UTF-8": |r| r.keys[0].2 = string(&[0xc3, 0x28]) => ErrorKind::Utf8 { what: "string value", .. },
    "array string not UTF-8": |r| r.keys[3].2 = array(8, 1, &string(&[0xff])) => ErrorKind::Utf8 { what: "array string", .. },
    "duplicate key": |r| r.keys.push(str_key("general.architecture", "llama")) => ErrorKind::DuplicateKey { key } if key == "general.architecture",
    "value type 13": |r| r.keys[1].1 = 13 => ErrorKind::ValueType { got: 13, .. },
    "element type 99": |r| r.keys[4].2 = array(99, 0, &[]) => ErrorKind::ValueType { got: 99, .. },
    "bool 2": |r| r.keys[2].2 = vec![2] => ErrorKind::BadBool { got: 2, .. },
    "bool in an array 7": |r| r.keys[4].2 = array(7, 2, &[1, 7]) => ErrorKind::BadBool { got: 7, .. },
    "array length over the limit": |r| r.keys[4].2 = array(5, u64::MAX, &[]) => ErrorKind::Limit { what: "array length", .. },
    "array length over the file": |r| r.keys[4].2 = array(10, 1 << 20, &[]) => ErrorKind::Truncated { what: "array", .. },
    "string array over the file": |r| r.keys[3].2 = array(8, 1 << 20, &[]) => ErrorKind::Truncated { what: "array of strings", .. },
    "arrays nested too deep": |r| r.keys[4].2 = nested(4) => ErrorKind::Limit { what: "nested arrays", limit: 2, got: 3 },
    "array of many arrays": |r| r.keys[4].2 = array(9, 1 << 20, &[]) => ErrorKind::Truncated { what: "array of arrays", .. },
    "alignment 0": |r| r.keys.push(u32_key("general.alignment", 0)) => ErrorKind::Alignment { got: 0, .. },
    "alignment 3": |r| r.keys.push(u32_key("general.alignment", 3)) => ErrorKind::Alignment { got: 3, .. },
    "alignment huge": |r| r.keys.push(u32_key("general.alignment", 1 << 31)) => ErrorKind::Alignment { .. },
    "alignment a string": |r| r.keys.push(str_key("general.alignment", "32")) => ErrorKind::KeyType { expected: "u32", .. },
    "alignment not the file's": |r| r.keys.push(u32_key("general.alignment", 64)) => ErrorKind::Misaligned { offset: 224, alignment: 64, .. },
    "dialect mark unknown": |r| r.keys.push(str_key("fourspark.fp2_dialect", "mord")) => ErrorKind::KeyValue { .. },
    "dialect mark a number": |r| r.keys.push(u32_key("fourspark.fp6_endpoint", 32)) => ErrorKind::KeyType { .. },
};

#[rustfmt::skip]
const TENSORS: &[(&str, Damage, Expected)] = cases! {
    "name not UTF-8": |r| r.tensors[0].name = vec![0xff] => ErrorKind::Utf8 { what: "tensor name", .. },
    "name over the limit": |r| r.tensors[0].name = vec![b'x'; 300] => ErrorKind::Limit { what: "tensor name", limit: 255, got: 300 },
    "duplicate tensor": |r| r.tensors[1].name = r.tensors[0].name.clone() => ErrorKind::DuplicateTensor { tensor } if tensor == "token_embd.weight",
    "no dimension": |r| r.tensors[1].dims = Some(0) => ErrorKind::Dims { got: 0, .. },
    "five dimensions": |r| r.tensors[1].shape = vec![5, 1, 1, 1, 1] => ErrorKind::Dims { got: 5, .. },
    "many dimensions": |r| r.tensors[1].dims = Some(u32::MAX) => ErrorKind::Dims { got: u32::MAX, .. },
    "a zero dimension": |r| r.tensors[2].shape = vec![4, 0, 2] => ErrorKind::ZeroDim { dim: 1, .. },
    "elements overflow": |r| r.tensors[2].shape = vec![1 << 32, 1 << 32, 2] => ErrorKind::ShapeOverflow { .. },
    "rows overflow": |r| r.tensors[2].shape = vec![4, u64::MAX, u64::MAX] => ErrorKind::ShapeOverflow { .. },
    "bytes overflow": |r| r.tensors[2].shape = vec![1 << 62] => ErrorKind::ShapeOverflow { .. },
    "part of a block": |r| r.tensors[0].shape = vec![63, 3] => ErrorKind::Row { .. },
    "type 255": |r| r.tensors[0].type_id = 255 => ErrorKind::UnknownType { id: 255, .. },
    "type of no known size": |r| r.tensors[0].type_id = 43 => ErrorKind::UnknownType { id: 43, .. },
    "type 105 without codebooks": |r| r.tensors[0].type_id = 105 => ErrorKind::RefusedType { id: 105, .. },
    "type 106 without codebooks": |r| r.tensors[0].type_id = 106 => ErrorKind::RefusedType { id: 106, .. },
    "type 107 without a dialect": |r| r.tensors[0].type_id = 107 => ErrorKind::NoDialect { id: 107, .. },
    "type 102 without an endpoint": |r| r.tensors[0].type_id = 102 => ErrorKind::NoDialect { id: 102, .. },
    "type 108": |r| r.tensors[0].type_id = 108 => ErrorKind::RefusedType { id: 108, .. },
    "type removed from ggml": |r| r.tensors[0].type_id = 31 => ErrorKind::RefusedType { id: 31, .. },
    "misaligned offset": |r| r.tensors[1].offset = 225 => ErrorKind::Misaligned { offset: 225, alignment: 32, .. },
    "overlapping extents": |r| r.tensors[2].offset = 224 => ErrorKind::Overlap { .. },
    "overlap by one unit": |r| r.tensors[1].offset = 192 => ErrorKind::Overlap { offset: 192, end: 204, .. },
    "gap": |r| r.tensors[2].offset = 288 => ErrorKind::Gap { expected: 256, got: 288, .. },
    "gap before the first": |r| r.tensors.remove(0).shape.clear() => ErrorKind::Gap { expected: 0, got: 224, .. },
    "offset past the file": |r| r.tensors[2].offset = u64::MAX - 31 => ErrorKind::Gap { .. },
    "tensor past the file": |r| r.tensors[2].shape = vec![4, 2, 200] => ErrorKind::PastEnd { .. },
    "bytes after the last": |r| r.data.extend([0; 32]) => ErrorKind::Trailing { .. },
    "one byte after the last": |r| r.data.push(0) => ErrorKind::Trailing { .. },
    "last tensor missing": |r| drop(r.tensors.pop()) => ErrorKind::Trailing { .. },
    "no tensors but data": |r| r.tensors.clear() => ErrorKind::Trailing { .. },
};

fn nested(depth: u32) -> Vec<u8> {
    (1..depth).fold(array(0, 1, &[1]), |inner, _| array(9, 1, &inner))
}

fn run(cases: &[(&str, Damage, Expected)]) {
    assert!(
        open(Raw::valid().bytes()).is_ok(),
        "the file without damage"
    );
    for (name, damage, expected) in cases {
        let mut raw = Raw::valid();
        damage(&mut raw);
        match open(raw.bytes()) {
            Ok(_) => panic!("{name}: accepted"),
            Err(e) => assert!(expected(e.kind()), "{name}: {e}"),
        }
    }
}

#[test]
fn damaged_headers() {
    run(HEADER);
}

#[test]
fn damaged_keys() {
    run(KEYS);
}

#[test]
fn damaged_tensors() {
    run(TENSORS);
}

#[test]
fn every_truncation_is_named() {
    let raw = Raw::valid();
    let (bytes, header) = (raw.bytes(), raw.header().len());
    for n in 0..bytes.len() {
        let e = open(bytes[..n].to_vec()).unwrap_err();
        match e.kind() {
            ErrorKind::Truncated { at, need, have, .. } => {
                assert!(n < header, "{n}: {e}");
                assert!(at + need > n as u64 && at + have == n as u64, "{n}: {e}");
            }
            ErrorKind::PastEnd { len, .. } => assert!(n >= header && *len == n as u64, "{n}: {e}"),
            _ => panic!("{n}: {e}"),
        }
        // A stream ends at the same place, without its length being known.
        let streamed = Header::read(&bytes[..n], &Limits::default());
        assert_eq!(streamed.is_ok(), n >= header, "{n}");
    }
}

#[test]
fn version_2_and_both_file_ends_are_accepted() {
    let mut raw = Raw::valid();
    raw.version = 2;
    assert_eq!(open(raw.bytes()).unwrap().version(), 2);
    // The last tensor 20 bytes long, with and without the padding after it.
    raw.tensors[2].shape = vec![5];
    raw.data.truncate(288);
    assert!(open(raw.bytes()).is_ok());
    raw.data.truncate(276);
    assert!(open(raw.bytes()).is_ok());
    raw.data.truncate(275);
    assert!(open(raw.bytes()).is_err());
    // No tensors: the file may end with its header, padded or not.
    raw.tensors.clear();
    raw.data.clear();
    assert!(open(raw.bytes()).is_ok());
    assert!(open(raw.header()).is_ok());
}

#[test]
fn tensors_may_stand_in_any_order() {
    let mut raw = Raw::valid();
    raw.tensors.swap(0, 2);
    let file = open(raw.bytes()).unwrap();
    let norm = file.tensor("output_norm.weight").unwrap();
    assert_eq!(file.bytes(norm), &raw.data[224..244]);
    assert_eq!(file.tensors()[0].name, "output.weight");
}

#[test]
fn a_size_wrong_by_one_sixty_fourth_is_found() {
    // Two layouts of one type id: the second tensor's offset is where only the other puts it.
    let elems = 64 * 64 * 4u64;
    let ours = elems / 64 * 18;
    for wrong in [ours + ours / 64, ours - ours / 64] {
        let wrong = wrong.next_multiple_of(32);
        let mut raw = Raw::valid();
        raw.tensors = vec![
            tensor("a", &[64, elems / 64], 42, 0),
            tensor("b", &[8], 0, wrong),
        ];
        raw.data = vec![0; 2 * ours as usize];
        let e = open(raw.bytes()).unwrap_err();
        match e.kind() {
            ErrorKind::Gap { .. } => assert!(wrong > ours),
            ErrorKind::Overlap { .. } => assert!(wrong < ours),
            _ => panic!("{e}"),
        }
    }
}

type Set = fn(&mut Limits);

#[test]
fn limits_are_the_caller_s() {
    let bytes = Raw::valid().bytes();
    let tight = |set: fn(&mut Limits)| {
        let mut options = OpenOptions::default();
        set(&mut options.limits);
        Gguf::from_bytes(bytes.clone(), &options)
    };
    let cases: [(&str, Set); 7] = [
        ("key count", |l| l.keys = 4),
        ("tensor count", |l| l.tensors = 2),
        ("metadata key", |l| l.key_bytes = 19),
        ("tensor name", |l| l.name_bytes = 17),
        ("string value", |l| l.string_bytes = 8),
        ("array length", |l| l.array_len = 1),
        ("header bytes", |l| l.header_bytes = 100),
    ];
    for (expected, set) in cases {
        let e = tight(set).unwrap_err();
        assert!(
            matches!(e.kind(), ErrorKind::Limit { what, .. } if *what == expected),
            "{e}"
        );
    }
}

#[test]
fn a_refusal_names_file_tensor_id_and_known_ids() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("odd.gguf");
    let mut raw = Raw::valid();
    raw.tensors[1].type_id = 255;
    std::fs::write(&path, raw.bytes()).unwrap();
    let text = Gguf::open(&path, &OpenOptions::default())
        .unwrap_err()
        .to_string();
    for part in [
        "odd.gguf",
        "output_norm.weight",
        "255",
        "8 Q8_0",
        "100 ROCMFP4",
        "14 Q6_K",
    ] {
        assert!(text.contains(part), "{part} not in: {text}");
    }
}

#[test]
fn what_is_no_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let e = Gguf::open(dir.path().join("absent.gguf"), &OpenOptions::default()).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Io { .. }) && e.to_string().contains("absent.gguf"));
    let e = Gguf::open(dir.path(), &OpenOptions::default()).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Io { .. }), "{e}");
    let empty = dir.path().join("empty.gguf");
    std::fs::write(&empty, b"").unwrap();
    let e = Gguf::open(&empty, &OpenOptions::default()).unwrap_err();
    assert!(
        matches!(e.kind(), ErrorKind::Truncated { what: "magic", .. }),
        "{e}"
    );
}

#[test]
fn an_absent_tensor_is_named() {
    let file = open(Raw::valid().bytes()).unwrap();
    let e = file.tensor("blk.0.attn_sinks.weight").unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::NoSuchTensor { .. }));
    assert_eq!(
        e.to_string(),
        "<memory>: tensor \"blk.0.attn_sinks.weight\" is missing"
    );
}
