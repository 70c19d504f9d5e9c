//! Codebooks and their containers: what is read, and that nothing damaged is.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Golden, Rng, bits, random_blocks};
use fpx_quant::mix::sidecar::{DenseSidecar, DenseTensor, ExpertSidecar, Surface};
use fpx_quant::mix::{Codebook, Mode};
use fpx_quant::{Format, FormatError, Fp2Dialect, decode_row, decode_row_lossy};
use proptest::prelude::*;

fn books() -> [Vec<u16>; 2] {
    Golden::load().books
}

fn u32s(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn u16s(values: &[u16]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn dense_entry(name: &str, id: u32, mode: u8, levels: &[u16]) -> Vec<u8> {
    let mut out = u32s(&[name.len() as u32]);
    out.extend(name.as_bytes());
    out.extend(u32s(&[id, 2, levels.len() as u32 / 2]));
    out.extend([mode, 0, 0, 0]);
    out.extend(u16s(levels));
    out
}

fn container(magic: &[u8; 8], entries: &[Vec<u8>]) -> Vec<u8> {
    let mut out = magic.to_vec();
    out.extend(u32s(&[entries.len() as u32, 0]));
    out.extend(entries.concat());
    out
}

fn dense() -> Vec<u8> {
    let [four, eight] = books();
    let entries = [
        dense_entry("blk.0.ffn_up", 106, 1, &four),
        dense_entry("blk.0.ffn_down", 105, 1, &eight),
        dense_entry("output", 106, 0, &[0; 8]),
    ];
    container(b"DMX2s1\0\0", &entries)
}

/// One layer of two experts: the first in mode 1, the second in mode 0.
fn p4mix() -> Vec<u8> {
    let [_, eight] = books();
    let mut entry = u32s(&[3, 2, 64, 256, 2, 8]);
    entry.extend([1, 0, 0, 0]);
    entry.extend(u16s(&eight));
    entry.extend(u16s(&[0; 16]));
    container(b"P4MIXv1\0", &[entry])
}

fn gumix() -> Vec<u8> {
    let [four, _] = books();
    let entry = |surface| {
        let mut entry = u32s(&[3, surface, 1, 64, 256, 2, 4]);
        entry.push(1);
        entry.extend(u16s(&four));
        entry
    };
    container(b"GUMIXs1\0", &[entry(0), entry(1)])
}

#[test]
fn a_book_is_exactly_what_was_given() {
    let [four, eight] = books();
    for (format, levels) in [(Format::Mix2, four), (Format::Mix3, eight)] {
        let book = Codebook::adaptive(format, &levels).unwrap();
        let want: Vec<u32> = levels.iter().map(|&l| u32::from(l) << 16).collect();
        let got = [book.levels(0), book.levels(1)].concat();
        assert_eq!(bits(&got), want);
        assert_eq!((book.mode(), book.format()), (Mode::Adaptive, format));
    }
}

#[test]
fn fixed_mode_is_the_format_without_codebook() {
    let cases = [
        (Format::Mix2, Format::Fp2(Fp2Dialect::Signed)),
        (Format::Mix3, Format::Fp3),
    ];
    for (mix, base) in cases {
        let book = Codebook::fixed(mix).unwrap();
        let bytes = random_blocks(&mut Rng(7), base, 64);
        let (mut got, mut want) = (vec![f32::NAN; 2048], vec![f32::NAN; 2048]);
        book.decode_row(&bytes, &mut got).unwrap();
        decode_row(base, &bytes, &mut want).unwrap();
        assert_eq!(bits(&got), bits(&want), "{mix}");
    }
}

#[test]
fn the_book_bit_chooses_the_book() {
    let [four, _] = books();
    let book = Codebook::adaptive(Format::Mix2, &four).unwrap();
    let mut out = [f32::NAN; 32];
    // Codes 0, 1, 2, 3 repeated; scale 1 in book 1, then scale 2 in book 0.
    let block = [[0xe4; 8].as_slice(), &[0xc0, 0x48]].concat();
    book.decode_row(&block, &mut out).unwrap();
    for i in 0..32 {
        let want = if i < 16 {
            book.levels(1)[i % 4]
        } else {
            book.levels(0)[i % 4] * 2.0
        };
        assert_eq!(out[i], want, "element {i}");
    }
}

#[test]
fn impossible_books() {
    let bad = |levels: &[u16]| {
        let got = Codebook::adaptive(Format::Mix2, levels);
        assert!(
            matches!(got, Err(FormatError::BadCodebook { .. })),
            "{levels:x?}: {got:?}"
        );
    };
    let good = [
        0xbf36, 0xbe54, 0x3e54, 0x3f36, 0xbf44, 0xbe7e, 0x3e7e, 0x3f45,
    ];
    assert!(Codebook::adaptive(Format::Mix2, &good).is_ok());
    bad(&good[..7]);
    for (at, value) in [
        (0, 0x7fc0),
        (3, 0x3f81),
        (0, 0xff80),
        (1, 0x3e54),
        (7, 0x3e7e),
    ] {
        let mut levels = good;
        levels[at] = value;
        bad(&levels);
    }
    let not_mix = Codebook::fixed(Format::Fp3);
    assert!(matches!(not_mix, Err(FormatError::Unsupported { .. })));
}

#[test]
fn scale_bytes_by_mode() {
    let [four, _] = books();
    let adaptive = Codebook::adaptive(Format::Mix2, &four).unwrap();
    let fixed = Codebook::fixed(Format::Mix2).unwrap();
    let mut out = [0.0; 64];
    for byte in 0..=255u8 {
        let mut bytes = [0; 20];
        bytes[18] = byte;
        let want = |limit_ok: bool| {
            (!limit_ok).then_some(FormatError::InvalidScale {
                format: Format::Mix2,
                block: 1,
                byte,
                limit: 0x7e,
            })
        };
        let got = adaptive.decode_row(&bytes, &mut out).err();
        assert_eq!(got, want(byte & 0x7f != 0x7f), "adaptive {byte:#x}");
        let got = fixed.decode_row(&bytes, &mut out).err();
        assert_eq!(got, want(byte < 0x7f), "fixed {byte:#x}");
    }
}

#[test]
fn bytes_alone_do_not_decode() {
    for format in [Format::Mix2, Format::Mix3] {
        let bytes = vec![0; format.block_bytes()];
        for got in [
            decode_row(format, &bytes, &mut [0.0; 32]),
            decode_row_lossy(format, &bytes, &mut [0.0; 32]),
        ] {
            let want = FormatError::Unsupported {
                format,
                what: "decoding without a codebook",
            };
            assert_eq!(got, Err(want));
        }
    }
}

#[test]
fn dense_container() {
    let sidecar = DenseSidecar::parse(&dense()).unwrap();
    let [four, _] = books();
    assert_eq!(sidecar.iter().count(), 3);
    let book = sidecar.get("blk.0.ffn_up").unwrap();
    assert_eq!(*book, Codebook::adaptive(Format::Mix2, &four).unwrap());
    assert_eq!(sidecar.get("output").unwrap().mode(), Mode::Fixed);
    assert_eq!(
        sidecar.get("blk.0.ffn_down").unwrap().format(),
        Format::Mix3
    );
    assert!(sidecar.get("blk.0").is_none());
}

#[test]
fn dense_container_and_tensors_are_the_same_set() {
    let sidecar = DenseSidecar::parse(&dense()).unwrap();
    let tensor = |name, format| DenseTensor {
        name,
        format,
        row_elems: 256,
    };
    let all = [
        tensor("blk.0.ffn_up", Format::Mix2),
        tensor("blk.0.ffn_down", Format::Mix3),
        tensor("output", Format::Mix2),
    ];
    sidecar.check_tensors(&all).unwrap();
    let refused = |tensors: &[DenseTensor<'_>], name: &str| {
        let got = sidecar.check_tensors(tensors);
        let Err(FormatError::BookMismatch { tensor, .. }) = got else {
            panic!("{got:?}");
        };
        assert_eq!(tensor, name);
    };
    refused(&all[..2], "output");
    refused(
        &[all[0], all[1], all[2], tensor("extra", Format::Mix2)],
        "extra",
    );
    refused(&[all[0], all[1], tensor("output", Format::Mix3)], "output");
    let short = DenseTensor {
        row_elems: 96,
        ..all[2]
    };
    refused(&[all[0], all[1], short], "output");
}

#[test]
fn expert_containers() {
    let [four, eight] = books();
    let sidecar = ExpertSidecar::parse_p4mix(&p4mix()).unwrap();
    let entry = sidecar.get(3, None).unwrap();
    assert_eq!((entry.rows, entry.row_elems), (64, 256));
    let want = [
        Codebook::adaptive(Format::Mix3, &eight).unwrap(),
        Codebook::fixed(Format::Mix3).unwrap(),
    ];
    assert_eq!(entry.books, want);
    let sidecar = ExpertSidecar::parse_gumix(&gumix()).unwrap();
    assert_eq!(sidecar.iter().count(), 2);
    let entry = sidecar.get(3, Some(Surface::Up)).unwrap();
    assert_eq!(
        entry.books,
        [Codebook::adaptive(Format::Mix2, &four).unwrap()]
    );
    assert!(sidecar.get(3, Some(Surface::Down)).is_none());
}

type Parse = fn(&[u8]) -> Result<(), FormatError>;

fn parsers() -> [(Vec<u8>, Parse); 3] {
    [
        (dense(), |b| DenseSidecar::parse(b).map(drop)),
        (p4mix(), |b| ExpertSidecar::parse_p4mix(b).map(drop)),
        (gumix(), |b| ExpertSidecar::parse_gumix(b).map(drop)),
    ]
}

#[test]
fn every_truncation_and_extension_is_refused() {
    for (bytes, parse) in parsers() {
        parse(&bytes).unwrap();
        for length in 0..bytes.len() {
            let got = parse(&bytes[..length]);
            assert!(
                matches!(got, Err(FormatError::Sidecar { .. })),
                "{length}: {got:?}"
            );
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert!(matches!(
            parse(&longer),
            Err(FormatError::Sidecar {
                what: "trailing bytes",
                ..
            })
        ));
    }
}

#[test]
fn each_checked_field_is_checked() {
    // (container, offset, value, field)
    let cases: [(usize, usize, u8, &str); 14] = [
        (0, 0, b'X', "magic"),
        (0, 12, 1, "reserved field"),
        (0, 16, 0, "name length"),
        (0, 18, 1, "name length"),
        (0, 20, 0xff, "name"),
        (0, 32, 107, "type id"),
        (0, 36, 3, "books"),
        (0, 40, 5, "levels of a book"),
        (0, 44, 2, "mode"),
        (1, 28, 1, "row elements"),
        (1, 42, 1, "rotation"),
        (1, 41, 7, "mode"),
        (2, 20, 3, "surface"),
        (2, 66, 0, "layer"),
    ];
    for (which, at, value, field) in cases {
        let (mut bytes, parse) = parsers()[which].clone();
        bytes[at] = value;
        if field == "layer" {
            // Make the second entry a copy of the first one.
            let size = (bytes.len() - 16) / 2;
            bytes.copy_within(16..16 + size, 16 + size);
        }
        let Err(FormatError::Sidecar { what, .. }) = parse(&bytes) else {
            panic!("{which} {at}: {:?}", parse(&bytes));
        };
        assert_eq!(what, field, "container {which}, offset {at}");
    }
    let doubled = container(
        b"DMX2s1\0\0",
        &[
            dense_entry("a", 106, 0, &[0; 8]),
            dense_entry("a", 106, 0, &[0; 8]),
        ],
    );
    assert!(matches!(
        DenseSidecar::parse(&doubled),
        Err(FormatError::Sidecar {
            what: "tensor name",
            ..
        })
    ));
}

#[test]
fn huge_counts_cost_nothing() {
    let mut bytes = gumix();
    bytes[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
    let got = ExpertSidecar::parse_gumix(&bytes);
    assert!(matches!(
        got,
        Err(FormatError::Sidecar { what: "modes", .. })
    ));
    let mut bytes = dense();
    bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(DenseSidecar::parse(&bytes).is_err());
}

proptest! {
    #[test]
    fn damage_never_panics(
        which in 0usize..3,
        damage in prop::collection::vec((0usize..400, any::<u8>()), 1..8),
    ) {
        let (mut bytes, parse) = parsers()[which].clone();
        for (at, value) in damage {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        let _ = parse(&bytes);
    }
}
