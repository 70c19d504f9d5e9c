//! No byte outside a row is read or written: rows end at an unreadable page, begin after one, and
//! lie at odd addresses.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod common;

use common::{BASE, Golden, Rng, bits, encodable, random_blocks};
use fpx_quant::mix::Codebook;
use fpx_quant::rows::matmul_a8_on;
use fpx_quant::{
    A8Rows, EncodeMode, Format, Isa, Matrix, Out, decode_row, dot_row_a8, encode_rows,
};
use guarded::Guarded;

/// Memory between two pages that cannot be touched. The only `unsafe` of these tests.
mod guarded {
    use std::ptr::{null_mut, slice_from_raw_parts_mut};

    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    /// Whole pages of zeros with an inaccessible page before and after.
    pub(crate) struct Guarded {
        base: *mut u8,
        page: usize,
        inner: usize,
    }

    impl Guarded {
        /// Room for `bytes` bytes, rounded up to pages.
        pub(crate) fn new(bytes: usize) -> Self {
            let page = rustix::param::page_size();
            let inner = bytes.next_multiple_of(page).max(page);
            let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
            let base = unsafe { mmap_anonymous(null_mut(), inner + 2 * page, protection, flags) };
            let base = base.unwrap();
            // SAFETY: the first page of the mapping above; nothing refers to it.
            unsafe { mprotect(base, page, MprotectFlags::empty()) }.unwrap();
            let last = base.wrapping_byte_add(page + inner);
            // SAFETY: the last page of the mapping above; nothing refers to it.
            unsafe { mprotect(last, page, MprotectFlags::empty()) }.unwrap();
            Self {
                base: base.cast(),
                page,
                inner,
            }
        }

        /// The accessible bytes: they start and end at a guard page.
        pub(crate) fn bytes(&mut self) -> &mut [u8] {
            let start = self.base.wrapping_add(self.page);
            // SAFETY: `inner` readable and writable zero-initialised bytes, lent for as long as
            // `self` is borrowed.
            unsafe { &mut *slice_from_raw_parts_mut(start, self.inner) }
        }

        /// The accessible bytes as f32, which any bits are.
        pub(crate) fn floats(&mut self) -> &mut [f32] {
            let start = self.base.wrapping_add(self.page).cast::<f32>();
            // SAFETY: as in `bytes`; page boundaries are aligned for f32 and `inner` is a multiple
            // of the page size.
            unsafe { &mut *slice_from_raw_parts_mut(start, self.inner / 4) }
        }
    }

    impl Drop for Guarded {
        fn drop(&mut self) {
            // SAFETY: the whole mapping of `new`; no borrow of it outlives `self`.
            unsafe { munmap(self.base.cast(), self.inner + 2 * self.page) }.unwrap();
        }
    }
}

/// Rows of every length up to a few vector widths, at both ends of the accessible memory.
#[test]
fn decoders_stay_inside() {
    let mut rng = Rng(3);
    for format in BASE {
        for blocks in 1..=9 {
            let bytes = random_blocks(&mut rng, format, blocks);
            let mut want = vec![f32::NAN; 32 * blocks];
            decode_row(format, &bytes, &mut want).unwrap();
            let (mut source, mut target) = (Guarded::new(bytes.len()), Guarded::new(128 * blocks));
            for at_end in [false, true] {
                let place = |whole: usize, part: usize| {
                    let start = if at_end { whole - part } else { 0 };
                    start..start + part
                };
                let source = source.bytes();
                let range = place(source.len(), bytes.len());
                let source = &mut source[range];
                source.copy_from_slice(&bytes);
                let target = target.floats();
                let range = place(target.len(), want.len());
                let target = &mut target[range];
                target.fill(f32::NAN);
                decode_row(format, source, target).unwrap();
                assert_eq!(bits(target), bits(&want), "{format} {blocks} blocks");
            }
        }
    }
}

/// Products of few and of several columns: the matrix and the result at both ends of the accessible
/// memory, the result poisoned.
#[test]
fn products_stay_inside() {
    let natives = [
        Format::Q8_0,
        Format::Mxfp4,
        Format::Q4K,
        Format::Q2K,
        Format::Iq2Xxs,
    ];
    let mut rng = Rng(7);
    for format in BASE.into_iter().chain(natives) {
        for blocks in [1, 2, 17] {
            let k = blocks * format.block_elems();
            let x: Vec<f32> = (0..5 * k).map(|_| rng.normal()).collect();
            let mut a8 = A8Rows::new();
            a8.quantize(&x, 5, k);
            for rows in [1, 7, 8, 9] {
                let len = format.matrix_bytes(rows, k).unwrap();
                // No scale byte below 0x40 is invalid and no float is huge.
                let bytes: Vec<u8> = (0..len).map(|_| rng.next() as u8 & 0x3f).collect();
                product_stays_inside(format, rows, &bytes, &a8);
            }
        }
    }
}

fn product_stays_inside(format: Format, rows: usize, bytes: &[u8], a8: &A8Rows) {
    let (mut source, mut target) = (Guarded::new(bytes.len()), Guarded::new(4 * 5 * rows));
    for isa in Isa::ALL {
        if !isa.available() {
            eprintln!("skipped: this processor has no {isa:?}");
            continue;
        }
        for (cols, at_end) in (1..=5).flat_map(|cols| [(cols, false), (cols, true)]) {
            let source = source.bytes();
            let start = if at_end {
                source.len() - bytes.len()
            } else {
                0
            };
            let source = &mut source[start..start + bytes.len()];
            source.copy_from_slice(bytes);
            let w = Matrix::new(format, rows, a8.k(), source).unwrap();
            let target = target.floats();
            let start = if at_end {
                target.len() - cols * rows
            } else {
                0
            };
            let target = &mut target[start..start + cols * rows];
            target.fill(f32::NAN);
            matmul_a8_on(
                isa,
                &w,
                0..rows,
                a8,
                0..cols,
                &mut Out::new(target, cols, rows),
            );
            for (i, got) in target.iter().enumerate() {
                let want = dot_row_a8(format, w.row(i % rows), &a8.row(i / rows));
                let place = format!("{format} {isa:?} {cols} columns: {got} for {want}");
                assert_eq!(got.to_bits(), want.to_bits(), "{place}");
            }
        }
    }
}

#[test]
fn codebook_decoders_stay_inside() {
    let golden = Golden::load();
    for (format, levels) in [Format::Mix2, Format::Mix3].into_iter().zip(&golden.books) {
        let book = Codebook::adaptive(format, levels).unwrap();
        let bytes = random_blocks(&mut Rng(4), format, 5);
        let mut want = vec![f32::NAN; 160];
        book.decode_row(&bytes, &mut want).unwrap();
        let mut memory = Guarded::new(bytes.len());
        let whole = memory.bytes();
        let start = whole.len() - bytes.len();
        whole[start..].copy_from_slice(&bytes);
        let mut out = vec![f32::NAN; 160];
        book.decode_row(&whole[start..], &mut out).unwrap();
        assert_eq!(bits(&out), bits(&want), "{format}");
    }
}

#[test]
fn encoders_stay_inside() {
    let mut rng = Rng(5);
    for format in encodable() {
        let x: Vec<f32> = (0..96).map(|_| rng.normal()).collect();
        let mut want = vec![0; 3 * format.block_bytes()];
        encode_rows(format, &x, 96, None, EncodeMode::Fast, &mut want).unwrap();
        let (mut source, mut target) = (Guarded::new(4 * x.len()), Guarded::new(want.len()));
        for mode in [EncodeMode::Fast, EncodeMode::Reference] {
            let source = source.floats();
            let start = source.len() - x.len();
            source[start..].copy_from_slice(&x);
            let target = target.bytes();
            let end = target.len() - want.len();
            let target = &mut target[end..];
            encode_rows(format, &source[start..], 96, None, mode, target).unwrap();
            assert_eq!(target, want, "{format} {mode:?}");
        }
    }
}

/// Rows start at any address.
#[test]
fn odd_addresses() {
    let mut rng = Rng(6);
    for format in BASE {
        let bytes = random_blocks(&mut rng, format, 4);
        let mut want = vec![f32::NAN; 128];
        decode_row(format, &bytes, &mut want).unwrap();
        let mut memory = Guarded::new(bytes.len() + 8);
        for shift in 0..8 {
            // Pages are aligned: the address is odd by exactly the shift.
            let row = &mut memory.bytes()[shift..shift + bytes.len()];
            row.copy_from_slice(&bytes);
            let mut out = vec![f32::NAN; 128];
            decode_row(format, row, &mut out).unwrap();
            assert_eq!(bits(&out), bits(&want), "{format} at +{shift}");
        }
    }
}

/// The guard works: the test would not notice anything otherwise.
#[test]
fn the_guard_page_is_there() {
    let mut memory = Guarded::new(1);
    let whole = memory.bytes();
    assert_eq!(whole.len() % rustix::param::page_size(), 0);
    let end = whole.as_ptr_range().end as usize;
    let maps = std::fs::read_to_string("/proc/self/maps");
    let Ok(maps) = maps else {
        eprintln!("skipped: no /proc/self/maps to look the guard page up in");
        return;
    };
    let page = maps
        .lines()
        .find(|l| l.starts_with(&format!("{end:x}-")))
        .unwrap();
    assert!(page.contains("---p"), "{page}");
}
