//! Any bytes as rows of any format: an error that names the first bad block, or finite weights that are
//! the same whichever way they are decoded. Nothing panics and nothing is half-written.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::{BASE, Rng, random_blocks};
use fpx_quant::{Format, FormatError, decode_row, decode_row_lossy, validate_row_data};

/// Formats in which any scale bits are lawful, so that weights may be infinite.
const NATIVE: [Format; 5] = [
    Format::Q8_0,
    Format::Mxfp4,
    Format::Q4K,
    Format::Q2K,
    Format::Iq2Xxs,
];

const POISON: u32 = 0x7fc0_dead;

fn poisoned(n: usize) -> Vec<f32> {
    vec![f32::from_bits(POISON); n]
}

fn is_untouched(out: &[f32]) -> bool {
    out.iter().all(|v| v.to_bits() == POISON)
}

fn bits(out: &[f32]) -> Vec<u32> {
    out.iter().map(|v| v.to_bits()).collect()
}

/// Bytes with a few damaged, and now and then a wrong length.
fn damaged(rng: &mut Rng, format: Format) -> Vec<u8> {
    let blocks = 1 + (rng.next() % 5) as usize;
    let mut bytes = random_blocks(rng, format, blocks);
    for _ in 0..rng.next() % 4 {
        let at = (rng.next() as usize) % bytes.len();
        bytes[at] = rng.next() as u8;
    }
    if rng.next().is_multiple_of(8) {
        bytes.truncate((rng.next() as usize) % (bytes.len() + 1));
    }
    bytes
}

/// Checks one row; whether it was accepted.
fn one(format: Format, bytes: &[u8]) -> bool {
    let (size, elems) = (format.block_bytes(), format.block_elems());
    let blocks = bytes.len() / size;
    let mut out = poisoned(blocks * elems);
    let valid = validate_row_data(format, bytes);
    assert_eq!(decode_row(format, bytes, &mut out), valid, "{format}");
    let mut lossy = poisoned(blocks * elems);
    let read = decode_row_lossy(format, bytes, &mut lossy);
    match valid {
        Ok(()) => {
            read.unwrap();
            assert_eq!(bits(&out), bits(&lossy), "{format}");
            if BASE.contains(&format) {
                assert!(out.iter().all(|v| v.is_finite()), "{format}: {out:?}");
            }
            // Blocks do not see each other.
            for (block, whole) in bytes.chunks(size).zip(out.chunks(elems)) {
                let mut alone = poisoned(elems);
                decode_row(format, block, &mut alone).unwrap();
                assert_eq!(bits(&alone), bits(whole), "{format}");
            }
            true
        }
        Err(FormatError::InvalidScale { block, byte, .. }) => {
            assert!(is_untouched(&out) && block < blocks, "{format}");
            validate_row_data(format, &bytes[..block * size]).unwrap();
            let bad = &bytes[block * size..][..size];
            assert!(bad.contains(&byte) && validate_row_data(format, bad).is_err());
            read.unwrap();
            false
        }
        Err(FormatError::Bytes { expected, got, .. }) => {
            assert!(is_untouched(&out) && is_untouched(&lossy) && read.is_err());
            assert_eq!((expected, got), (blocks * size, bytes.len()), "{format}");
            false
        }
        Err(other) => panic!("{format}: {other}"),
    }
}

fn round(rng: &mut Rng, accepted: &mut usize) {
    for format in BASE.into_iter().chain(NATIVE) {
        let bytes = damaged(rng, format);
        *accepted += usize::from(one(format, &bytes));
    }
}

#[test]
fn damaged_rows() {
    let (mut rng, mut accepted) = (Rng(41), 0);
    (0..2_000).for_each(|_| round(&mut rng, &mut accepted));
    // Both outcomes are reached; otherwise this tests nothing.
    assert!((5_000..29_000).contains(&accepted), "{accepted} of 30000");
}

#[test]
#[ignore = "soak: damages rows of blocks for 60 s"]
#[allow(clippy::print_stdout, reason = "a soak test's results")]
fn fuzz() {
    let end = Instant::now() + Duration::from_secs(60);
    let (mut rng, mut accepted, mut rounds) = (Rng(1 << 40), 0, 0u64);
    while Instant::now() < end {
        (0..1000).for_each(|_| round(&mut rng, &mut accepted));
        rounds += 1000;
    }
    println!("soak: {} rows, {accepted} accepted", rounds * 15);
}
