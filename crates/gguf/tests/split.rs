//! Split models: parts found from the first, and every way a set can be wrong.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};

use common::{Key, Raw, tensor, u16_key};
use gguf::{Error, ErrorKind, Gguf, OpenOptions};

/// Part `no` of three: one tensor each, whose bytes are its number.
fn part(no: u16) -> Raw {
    let mut raw = Raw::valid();
    if no > 0 {
        raw.keys.clear();
    }
    raw.keys.push(u16_key("split.no", no));
    raw.keys.push(u16_key("split.count", 3));
    raw.keys.push(Key(
        b"split.tensors.count".to_vec(),
        5,
        3u32.to_le_bytes().to_vec(),
    ));
    raw.tensors = vec![tensor(&format!("t{no}"), &[8], 0, 0)];
    raw.data = vec![no as u8; 32];
    raw
}

fn path(dir: &Path, no: u16) -> PathBuf {
    dir.join(format!("m-{:05}-of-00003.gguf", no + 1))
}

/// Writes the three parts after `damage`, opens the first.
fn open(damage: impl Fn(u16, &mut Raw)) -> Result<Gguf, Error> {
    let dir = tempfile::tempdir().unwrap();
    for no in 0..3 {
        let mut raw = part(no);
        damage(no, &mut raw);
        std::fs::write(path(dir.path(), no), raw.bytes()).unwrap();
    }
    Gguf::open(path(dir.path(), 0), &OpenOptions::default())
}

fn set(raw: &mut Raw, key: &str, value: u16) {
    raw.keys.retain(|k| k.0 != key.as_bytes());
    raw.keys.push(u16_key(key, value));
}

#[test]
fn all_parts_are_one_model() {
    let file = open(|_, _| {}).unwrap();
    assert_eq!(file.tensors().len(), 3);
    assert_eq!(file.parts().len(), 3);
    for no in 0..3u8 {
        let t = file.tensor(&format!("t{no}")).unwrap();
        assert_eq!(t.part(), usize::from(no));
        assert_eq!(file.bytes(t), [no; 32]);
    }
    // Metadata is the first part's.
    assert_eq!(file.metadata().get_u32("deepseek4.block_count").unwrap(), 2);
}

#[test]
fn a_part_with_an_alignment_of_its_own_is_read_by_it() {
    let file = open(|no, raw| {
        if no == 1 {
            raw.keys.push(common::u32_key("general.alignment", 256));
            raw.alignment = 256;
        }
    })
    .unwrap();
    assert_eq!(file.bytes(file.tensor("t1").unwrap()), [1; 32]);
}

#[test]
fn a_missing_part_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for no in [0, 2] {
        std::fs::write(path(dir.path(), no), part(no).bytes()).unwrap();
    }
    let e = Gguf::open(path(dir.path(), 0), &OpenOptions::default()).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Io { .. }), "{e}");
    assert_eq!(e.file(), path(dir.path(), 1));
}

#[test]
fn a_later_part_says_which_to_open() {
    let dir = tempfile::tempdir().unwrap();
    for no in 0..3 {
        std::fs::write(path(dir.path(), no), part(no).bytes()).unwrap();
    }
    let e = Gguf::open(path(dir.path(), 1), &OpenOptions::default()).unwrap_err();
    let expected = path(dir.path(), 0);
    assert!(
        matches!(e.kind(), ErrorKind::SplitNotFirst { got: 2, count: 3, first } if *first == expected),
        "{e}"
    );
}

type Damage = fn(u16, &mut Raw);
type Check = fn(&ErrorKind) -> bool;

/// A change of one part only.
macro_rules! of_part {
    ($n:literal, $r:ident => $change:expr) => {
        |no, $r| {
            if no == $n {
                $change
            }
        }
    };
}

#[rustfmt::skip]
const DAMAGE: &[(&str, Damage, Check)] = &[
    ("two parts swapped",
        |no, r| if no > 0 { set(r, "split.no", 3 - no) },
        |k| matches!(k, ErrorKind::Split { what: "split.no", expected: 1, got: 2 })),
    ("a part of another set",
        of_part!(2, r => set(r, "split.count", 4)),
        |k| matches!(k, ErrorKind::Split { what: "split.count", expected: 3, got: 4 })),
    ("a part without keys",
        of_part!(1, r => r.keys.clear()),
        |k| matches!(k, ErrorKind::MissingKey { key, .. } if key == "split.no")),
    ("a first part without its number",
        of_part!(0, r => r.keys.retain(|k| k.0 != b"split.no")),
        |k| matches!(k, ErrorKind::MissingKey { key, .. } if key == "split.no")),
    ("a number without a count",
        of_part!(0, r => r.keys.retain(|k| k.0 != b"split.count")),
        |k| matches!(k, ErrorKind::MissingKey { key, .. } if key == "split.count")),
    ("more tensors promised",
        |_, r| set(r, "split.tensors.count", 4),
        |k| matches!(k, ErrorKind::Split { what: "split.tensors.count", expected: 4, got: 3 })),
    ("parts that promise different numbers",
        of_part!(1, r => set(r, "split.tensors.count", 5)),
        |k| matches!(k, ErrorKind::Split { what: "split.tensors.count", expected: 3, got: 5 })),
    ("a number outside the set",
        of_part!(0, r => set(r, "split.no", 3)),
        |k| matches!(k, ErrorKind::KeyValue { key, .. } if key == "split.no")),
    ("no part at all",
        of_part!(0, r => set(r, "split.count", 0)),
        |k| matches!(k, ErrorKind::KeyValue { key, .. } if key == "split.no")),
    ("too many parts",
        |_, r| set(r, "split.count", 60_000),
        |k| matches!(k, ErrorKind::Limit { what: "split.count", .. })),
    ("the same tensor in two parts",
        |_, r| r.tensors[0].name = b"t".to_vec(),
        |k| matches!(k, ErrorKind::DuplicateTensor { tensor } if tensor == "t")),
    ("a damaged later part",
        of_part!(2, r => r.data.truncate(31)),
        |k| matches!(k, ErrorKind::PastEnd { .. })),
];

#[test]
fn wrong_numbers_are_refused() {
    for (name, damage, check) in DAMAGE {
        match open(damage) {
            Ok(_) => panic!("{name}: accepted"),
            Err(e) => assert!(check(e.kind()), "{name}: {e}"),
        }
    }
}

#[test]
fn a_first_part_under_another_name_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let odd = dir.path().join("model.gguf");
    std::fs::write(&odd, part(0).bytes()).unwrap();
    let e = Gguf::open(&odd, &OpenOptions::default()).unwrap_err();
    assert!(
        matches!(
            e.kind(),
            ErrorKind::SplitName {
                part: 1,
                count: 3,
                ..
            }
        ),
        "{e}"
    );
    let e = Gguf::from_bytes(part(0).bytes(), &OpenOptions::default()).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::SplitName { .. }), "{e}");
}

#[test]
fn one_part_of_one_is_an_ordinary_file() {
    let mut raw = part(0);
    set(&mut raw, "split.count", 1);
    set(&mut raw, "split.tensors.count", 1);
    assert!(Gguf::from_bytes(raw.bytes(), &OpenOptions::default()).is_ok());
}
