use super::*;
use crate::rows::testing::{Noise, paths};

fn edge_blocks() -> Vec<[f32; BLOCK]> {
    let mut noise = Noise::new(7);
    let mut blocks = vec![[0.0; BLOCK], [-0.0; BLOCK], [1.0; BLOCK], [f32::MAX; BLOCK]];
    for exponent in [-149, -126, -97, -96, -95, -20, 0, 60, 126] {
        blocks.push(noise.block(2f32.powi(exponent)));
        let mut peak = [0.0; BLOCK];
        peak[5] = 2f32.powi(exponent);
        peak[6] = -2f32.powi(exponent);
        blocks.push(peak);
    }
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 17, 31] {
            let mut block = noise.block(1.0);
            block[at] = bad;
            blocks.push(block);
        }
    }
    let mut both = noise.block(1.0);
    (both[3], both[30]) = (f32::INFINITY, f32::NAN);
    blocks.push(both);
    // Products that fall on halves: amax 127 gives inv = 1.
    let mut ties: [f32; BLOCK] = std::array::from_fn(|i| i as f32 - 15.5);
    ties[0] = -127.0;
    blocks.push(ties);
    blocks.extend((0..200).map(|_| noise.block(3.0)));
    blocks
}

#[test]
fn every_path_gives_the_bits_of_the_definition() {
    let blocks = edge_blocks();
    let x = blocks.as_flattened();
    for isa in paths() {
        let mut rows = A8Rows::new();
        rows.quantize_on(isa, x, 1, x.len());
        let row = rows.row(0);
        for (i, block) in blocks.iter().enumerate() {
            let (q, d) = quantize_block(block);
            assert_eq!(row.q[i * 32..][..32], q, "{isa:?} block {i}");
            assert_eq!(row.blocks[i].d.to_bits(), d.to_bits(), "{isa:?} block {i}");
            let halves = row.blocks[i].halves;
            assert_eq!(
                row.blocks[i].sum,
                halves[0] + halves[1],
                "{isa:?} block {i}"
            );
            for half in 0..2 {
                let at = i * 32 + half * 16;
                let sum: i32 = row.q[at..at + 16].iter().map(|&v| i32::from(v)).sum();
                assert_eq!(halves[half], sum as f32, "{isa:?} block {i}");
                for p in 0..16 {
                    let natural = row.q[at + 4 * (p % 4) + p / 4];
                    assert_eq!(row.q_by_4[at + p], natural, "{isa:?} block {i}");
                }
            }
        }
    }
}

#[test]
fn the_rule_of_the_contract() {
    let mut x = [0f32; BLOCK];
    (x[0], x[1], x[2]) = (-127.0, 0.5, 1.5);
    let (q, d) = quantize_block(&x);
    assert_eq!((q[0], q[1], q[2], d), (-127, 0, 2, 1.0));

    x = [TINY.next_down(); BLOCK];
    assert_eq!(quantize_block(&x), ([0; BLOCK], 0.0));
    x[9] = -TINY;
    let (q, d) = quantize_block(&x);
    assert_eq!((q[9], q[0], d), (-127, 127, TINY / 127.0));

    x = [1.0; BLOCK];
    x[4] = f32::NAN;
    let (q, d) = quantize_block(&x);
    assert_eq!((q, d.to_bits()), ([0; BLOCK], 0x7fc0_0000));
    x[4] = f32::NEG_INFINITY;
    assert_eq!(quantize_block(&x), ([0; BLOCK], f32::INFINITY));
}

#[test]
fn reuse_does_not_leak_the_old_content() {
    let mut noise = Noise::new(3);
    let (big, small) = (noise.vec(8 * 256), noise.vec(3 * 64));
    let mut reused = A8Rows::new();
    reused.quantize(&big, 8, 256);
    reused.quantize(&small, 3, 64);
    let mut fresh = A8Rows::new();
    fresh.quantize(&small, 3, 64);
    assert_eq!((reused.n(), reused.k()), (3, 64));
    for r in 0..3 {
        assert_eq!(reused.row(r).q, fresh.row(r).q);
        assert_eq!(reused.row(r).q_by_4, fresh.row(r).q_by_4);
        assert_eq!(reused.row(r).blocks, fresh.row(r).blocks);
    }
}

#[test]
fn writers_fill_disjoint_rows() {
    let x = Noise::new(5).vec(7 * 96);
    let mut whole = A8Rows::new();
    whole.quantize(&x, 7, 96);
    let mut parts = A8Rows::new();
    parts.resize(7, 96);
    for mut writer in parts.writers(3) {
        let range = writer.rows();
        writer.quantize(&x[range.start * 96..range.end * 96]);
    }
    for r in 0..7 {
        assert_eq!(parts.row(r).q, whole.row(r).q);
        assert_eq!(parts.row(r).blocks, whole.row(r).blocks);
    }
}

#[test]
#[should_panic(expected = "not a multiple of 32")]
fn a_partial_block_is_refused() {
    A8Rows::new().quantize(&[0.0; 33], 1, 33);
}
