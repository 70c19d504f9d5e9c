//! The model's own roundings (fp8 rows, fp4 indexer) and the packed rows that hold them without
//! loss (ADR 0001 rule 13, spec/ds4-architecture.md 3).

use engine_core::mutant::mutant;

/// Channels that share one fp8 scale.
pub const KV_BLOCK: usize = 64;
/// Channels that share one fp4 scale.
pub const INDEX_BLOCK: usize = 32;

/// The exponent n of 2^n >= q with n smallest, read off the bits (no logarithm): q > 0, normal.
#[inline(always)]
fn ceil_log2(q: f32) -> i32 {
    let bits = q.to_bits();
    let exponent = (bits >> 23) as i32 - 127;
    let inexact = if mutant(20) {
        1
    } else {
        i32::from(bits & 0x007f_ffff != 0)
    };
    exponent + inexact
}

/// 2^n as f32 for -126 <= n <= 127.
#[inline(always)]
fn pow2(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

#[inline(always)]
fn amax(x: &[f32]) -> f32 {
    x.iter().fold(0.0f32, |m, v| m.max(v.abs()))
}

/// Exponent of the fp8 block scale: 2^ceil(log2(max(amax, 1e-4) / 448)).
#[must_use]
pub fn fp8_scale_exponent(block: &[f32]) -> i32 {
    ceil_log2(amax(block).max(1e-4) / 448.0)
}

/// Rounds to e4m3fn, nearest even, saturating at 448; subnormals kept. NaN gives 0x7f.
#[must_use]
pub fn e4m3_encode(x: f32) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    let sign = ((x.to_bits() >> 24) & 0x80) as u8;
    let a = x.abs().min(448.0);
    if a < 0.015_625 {
        // Subnormal: steps of 2^-9. Adding 2^14 leaves steps of 2^-9 in the mantissa.
        let code = ((a + 16_384.0).to_bits() - 16_384f32.to_bits()) as u8;
        return sign | code;
    }
    let bits = a.to_bits();
    let rounded = bits + 0x0007_ffff + ((bits >> 20) & 1);
    sign | ((rounded >> 20) - ((127 - 7) << 3)) as u8
}

/// The value of an e4m3fn code.
#[must_use]
#[inline(always)]
pub fn e4m3_decode(code: u8) -> f32 {
    E4M3[code as usize]
}

/// [`e4m3_decode`] by arithmetic, for loops over many codes: compilers vectorise it.
#[inline(always)]
fn e4m3_value(code: u8) -> f32 {
    let magnitude = u32::from(code & 0x7f);
    let normal = f32::from_bits((magnitude << 20) + (120 << 23));
    let small = magnitude as f32 * 0.001_953_125;
    let v = if magnitude < 8 { small } else { normal };
    let bits = if magnitude == 0x7f {
        0x7fc0_0000
    } else {
        v.to_bits()
    };
    f32::from_bits(bits | (u32::from(code & 0x80) << 24))
}

static E4M3: [f32; 256] = e4m3_table();

const fn e4m3_table() -> [f32; 256] {
    let mut table = [0f32; 256];
    let mut code = 0usize;
    while code < 256 {
        let (exponent, mantissa) = ((code >> 3) & 15, code & 7);
        let sign = ((code as u32) & 0x80) << 24;
        let magnitude = if code & 0x7f == 0x7f {
            0x7fc0_0000
        } else if exponent == 0 {
            // mantissa * 2^-9
            (mantissa as f32 * 0.001_953_125).to_bits()
        } else {
            ((exponent as u32 + 120) << 23) | ((mantissa as u32) << 20)
        };
        table[code] = f32::from_bits(magnitude | sign);
        code += 1;
    }
    table
}

/// Rounds a row to the fp8 grid in place: blocks of 64 from channel 0, each with a power-of-two
/// scale. A short last block is scaled on its own.
pub fn fp8_sim(row: &mut [f32]) {
    let width = if mutant(21) { 2 * KV_BLOCK } else { KV_BLOCK };
    for block in row.chunks_mut(width) {
        let scale = pow2(fp8_scale_exponent(block));
        for v in block {
            *v = e4m3_decode(e4m3_encode(*v / scale)) * scale;
        }
    }
}

/// Rounds to bf16, nearest even, and widens back. NaN stays NaN.
#[must_use]
pub fn round_bf16(x: f32) -> f32 {
    if x.is_nan() {
        return f32::from_bits(0x7fc0_0000);
    }
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

#[inline(always)]
fn hadamard_impl(x: &mut [f32]) {
    let n = x.len();
    let mut stride = 1;
    // Butterflies within eight neighbours first: fixed sizes, so that they stay in registers.
    if n >= 8 {
        for x in x.as_chunks_mut::<8>().0 {
            let [a, b, c, d, e, f, g, h] = *x;
            let (a, b, c, d) = (a + b, a - b, c + d, c - d);
            let (e, f, g, h) = (e + f, e - f, g + h, g - h);
            let (a, b, c, d) = (a + c, b + d, a - c, b - d);
            let (e, f, g, h) = (e + g, f + h, e - g, f - h);
            *x = [a + e, b + f, c + g, d + h, a - e, b - f, c - g, d - h];
        }
        stride = 8;
    }
    while stride < n {
        for pair in x.chunks_exact_mut(2 * stride) {
            let (low, high) = pair.split_at_mut(stride);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        stride *= 2;
    }
    let norm = (1.0 / (n as f64).sqrt()) as f32;
    for v in x {
        *v *= norm;
    }
}

dispatch! {
    /// Orthonormal Walsh-Hadamard transform in place; the length is a power of two.
    pub fn hadamard(x: &mut [f32]) = hadamard_impl
}

/// Nearest e2m1 code, ties to the even code, saturating at 6 (NaN too). Without branches: a code
/// is the number of midpoints below the magnitude, and a tie goes to the even code.
#[inline(always)]
#[allow(clippy::neg_cmp_op_on_partial_ord)] // NaN counts as above every midpoint
fn e2m1_encode(x: f32) -> u8 {
    let a = x.abs();
    let mut code = 0;
    for midpoint in [0.25, 1.25, 2.5, 5.0] {
        code += u8::from(!(a <= midpoint));
    }
    for midpoint in [0.75, 1.75, 3.5] {
        code += u8::from(!(a < midpoint));
    }
    code | ((x.to_bits() >> 28) & 8) as u8
}

/// Twice the value of an e2m1 code, magnitudes 0, 1, 2, 3, 4, 6, 8, 12: an integer.
#[inline(always)]
pub(super) fn e2m1_twice(code: u8) -> i8 {
    let m = (code & 7) as i8;
    let magnitude = m + (m - 4).max(0) + 2 * (m - 6).max(0);
    let sign = (code >> 3) as i8;
    (magnitude ^ -sign) + sign
}

/// Exponent of the fp4 block scale: 2^ceil(log2(max(amax, 6 * 2^-126) / 6)).
#[inline(always)]
fn fp4_scale_exponent(block: &[f32]) -> i32 {
    ceil_log2(amax(block).max(6.0 * f32::MIN_POSITIVE) / 6.0)
}

/// The fp4 codes of a block and its scale.
#[inline(always)]
pub(super) fn fp4_codes(block: &[f32; INDEX_BLOCK]) -> ([u8; INDEX_BLOCK], f32) {
    let scale = pow2(fp4_scale_exponent(block));
    // The scale is a power of two: its reciprocal is exact and a product with it the quotient.
    let inv = 1.0 / scale;
    let mut codes = [0; INDEX_BLOCK];
    for (code, v) in codes.iter_mut().zip(block) {
        *code = e2m1_encode(*v * inv);
    }
    (codes, scale)
}

/// Rounds a row to the fp4 grid in place: blocks of 32, power-of-two scales.
///
/// # Panics
/// If the row is not whole blocks.
pub fn fp4_sim(row: &mut [f32]) {
    assert!(
        row.len().is_multiple_of(INDEX_BLOCK),
        "{} values",
        row.len()
    );
    for block in row.as_chunks_mut().0 {
        let (codes, scale) = fp4_codes(block);
        for (v, code) in block.iter_mut().zip(codes) {
            *v = f32::from(e2m1_twice(code)) * 0.5 * scale;
        }
    }
}

/// Bytes of a packed KV row: e4m3 codes, one UE8M0 per 64, padding to an even offset, bf16 tail.
/// Flash: 448 + 7 + 1 + 128 = 584.
#[must_use]
pub const fn kv_row_bytes(head_dim: usize, n_rot: usize) -> usize {
    let nope = head_dim - n_rot;
    (nope + nope.div_ceil(KV_BLOCK)).next_multiple_of(2) + 2 * n_rot
}

/// Packs a row whose head is on the fp8 grid (after [`fp8_sim`]) and whose tail is bf16.
///
/// # Panics
/// If `out` is not [`kv_row_bytes`] long.
pub fn pack_kv_row(row: &[f32], n_rot: usize, out: &mut [u8]) {
    assert_eq!(out.len(), kv_row_bytes(row.len(), n_rot));
    let (nope, tail) = row.split_at(row.len() - n_rot);
    out[nope.len()..].fill(0);
    for (b, block) in nope.chunks(KV_BLOCK).enumerate() {
        // The exponent that was used for rounding is recovered from the rounded values: any scale
        // that represents them exactly gives the same floats back.
        let e = fp8_scale_exponent(block);
        let scale = pow2(e);
        for (i, v) in block.iter().enumerate() {
            out[b * KV_BLOCK + i] = e4m3_encode(*v / scale);
        }
        out[nope.len() + b] = (e + 127) as u8;
    }
    let at = out.len() - 2 * n_rot;
    for (bytes, v) in out[at..].chunks_exact_mut(2).zip(tail) {
        bytes.copy_from_slice(&((v.to_bits() >> 16) as u16).to_le_bytes());
    }
}

#[inline(always)]
fn unpack_kv_row_impl(packed: &[u8], n_rot: usize, row: &mut [f32]) {
    let n_nope = row.len() - n_rot;
    let (nope, tail) = row.split_at_mut(n_nope);
    for (b, block) in nope.chunks_mut(KV_BLOCK).enumerate() {
        let scale = f32::from_bits(u32::from(packed[n_nope + b]) << 23);
        for (v, code) in block.iter_mut().zip(&packed[b * KV_BLOCK..]) {
            *v = e4m3_value(*code) * scale;
        }
    }
    let at = packed.len() - 2 * n_rot;
    for (v, bytes) in tail.iter_mut().zip(packed[at..].chunks_exact(2)) {
        *v = f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16);
    }
}

dispatch! {
    /// The exact inverse of [`pack_kv_row`]. `row`: `[head_dim]`.
    pub fn unpack_kv_row(packed: &[u8], n_rot: usize, row: &mut [f32]) = unpack_kv_row_impl
}

/// Bytes of a packed indexer row: two e2m1 codes a byte (low nibble first), then one UE8M0 per 32.
/// Flash: 64 + 4 = 68.
#[must_use]
pub const fn index_row_bytes(dim: usize) -> usize {
    dim / 2 + dim / INDEX_BLOCK
}

/// Rounds a (rotated) row to fp4 and packs it, its bytes `stride` apart from `out[0]` on.
///
/// # Panics
/// If `out` is too short or the row is not whole blocks.
pub fn pack_index_row(row: &[f32], stride: usize, out: &mut [u8]) {
    assert!(
        row.len().is_multiple_of(INDEX_BLOCK),
        "{} values",
        row.len()
    );
    for (b, block) in row.as_chunks().0.iter().enumerate() {
        let (codes, scale) = fp4_codes(block);
        for (i, pair) in codes.as_chunks::<2>().0.iter().enumerate() {
            out[(b * INDEX_BLOCK / 2 + i) * stride] = pair[0] | (pair[1] << 4);
        }
        out[(row.len() / 2 + b) * stride] = (scale.to_bits() >> 23) as u8;
    }
}

/// The values of a packed indexer row, its bytes `stride` apart. `row`: `[dim]`.
pub fn unpack_index_row(packed: &[u8], stride: usize, row: &mut [f32]) {
    let at_scales = row.len() / 2;
    for (i, v) in row.iter_mut().enumerate() {
        let code = packed[i / 2 * stride] >> (4 * (i % 2));
        let scale = u32::from(packed[(at_scales + i / INDEX_BLOCK) * stride]) << 23;
        *v = f32::from(e2m1_twice(code & 15)) * 0.5 * f32::from_bits(scale);
    }
}

#[cfg(test)]
mod tests;
