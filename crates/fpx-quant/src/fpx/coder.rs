//! What distinguishes the encoders of the formats with one search: the level set, the rounding
//! rule and the bit layout.
//!
//! Apart from the search, which is the same for all. Must not know: candidates, errors, rows.
//! Source: spec/fpx-formats.md 1 (layout) and 5 (rounding rules).

/// A format whose groups of weights are coded by one scale byte each.
pub(crate) trait Coder: Sync {
    /// Scale groups of a block: 2 of 16 weights or 1 of 32.
    const GROUPS: usize;
    /// The largest level. The search starts at the scale that puts the largest weight on it.
    const REACH: f32;
    /// Scale byte (none: where the search starts) and error to be bettered before any candidate
    /// was: what remains where every candidate's error overflows f32.
    const UNSET: (Option<u8>, f32) = (None, f32::INFINITY);
    /// At and above this `|t|`, [`Coder::search_level`] is not valid.
    const SEARCH_LIMIT: f32 = f32::INFINITY;
    /// Whether the writer guards error weights against overflow.
    const GUARDED: bool = true;
    /// Code of the level stored for weights of an all-zero group.
    const ZERO_CODE: u8 = 0;

    /// Level of `t = x * (1 / scale)`.
    fn level(t: f32) -> f32;

    /// As [`Coder::level`], for folded weights (see [`Coder::fold`]) below `SEARCH_LIMIT`.
    #[inline(always)]
    fn search_level(t: f32) -> f32 {
        Self::level(t)
    }

    /// What the search looks at: `|x|` where the format is symmetric, else `x`.
    fn fold(x: f32) -> f32;

    /// Whether, once the largest `|t|` of a group is this small, a larger scale cannot have a
    /// smaller error: the levels no longer change, and the error does not fall.
    #[inline(always)]
    fn settled(t: f32) -> bool {
        t < 0.5
    }

    /// Code of a level.
    fn code(level: f32) -> u8;

    /// Writes 32 codes and the scale bytes (of which `GROUPS` count).
    fn pack(codes: &[u8; 32], scales: [u8; 2], out: &mut [u8]);
}

/// Nearest integer, halves away from zero, for `0 <= a < 2^22`.
///
/// Adding 2^23 rounds to an integer, ties to even; a tie that went down is then put right. Only
/// additions and a comparison, so that it vectorises on every target.
#[inline(always)]
fn round_half_up(a: f32) -> f32 {
    const SHIFT: f32 = 8_388_608.0;
    let even = (a + SHIFT) - SHIFT;
    even + if a - even >= 0.5 { 1.0 } else { 0.0 }
}

/// Sum of the steps whose threshold `a` exceeds: a value on a threshold keeps the lower level.
#[inline(always)]
fn steps<const N: usize>(a: f32, table: [(f32, f32); N]) -> f32 {
    let mut level = 0.0;
    for (threshold, step) in table {
        level += if a > threshold { step } else { 0.0 };
    }
    level
}

/// Code of a sign-and-magnitude format: level 0 has no sign.
#[inline(always)]
fn signed_code(magnitude: u8, negative: bool, sign: u8) -> u8 {
    if negative && magnitude != 0 {
        magnitude | sign
    } else {
        magnitude
    }
}

/// Little-endian bit stream of `WIDTH`-bit codes in element order.
fn pack_bits<const WIDTH: usize>(codes: &[u8; 32], out: &mut [u8]) {
    out.fill(0);
    for (i, &code) in codes.iter().enumerate() {
        let (byte, shift) = (i * WIDTH / 8, i * WIDTH % 8);
        let [low, high] = (u16::from(code) << shift).to_le_bytes();
        out[byte] |= low;
        if high != 0 {
            out[byte + 1] |= high;
        }
    }
}

fn pack_nibbles(codes: &[u8; 32], out: &mut [u8]) {
    for (j, byte) in out.iter_mut().enumerate() {
        *byte = codes[j] | codes[j + 16] << 4;
    }
}

/// ROCmFP2 `Signed`: -1, 0, 1, 2.
pub(crate) struct Fp2Signed;

impl Coder for Fp2Signed {
    const GROUPS: usize = 2;
    const REACH: f32 = 2.0;
    const ZERO_CODE: u8 = 1;

    /// By distance, a tie to the lower level. Distances are f32: for huge `t` they all tie.
    #[inline(always)]
    fn level(t: f32) -> f32 {
        let mut best = (-1.0, (t + 1.0).abs());
        for level in [0.0, 1.0, 2.0] {
            let distance = (t - level).abs();
            if distance < best.1 {
                best = (level, distance);
            }
        }
        best.0
    }

    #[inline(always)]
    fn fold(x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn code(level: f32) -> u8 {
        (level + 1.0) as u8
    }

    fn pack(codes: &[u8; 32], scales: [u8; 2], out: &mut [u8]) {
        pack_bits::<2>(codes, &mut out[..8]);
        out[8..].copy_from_slice(&scales);
    }
}

/// ROCmFP2 `S40`: -4, -1, 1, 4.
pub(crate) struct Fp2S40;

impl Coder for Fp2S40 {
    const GROUPS: usize = 2;
    const REACH: f32 = 4.0;
    const GUARDED: bool = false;

    /// The sign bit chooses the side, so that -0 is coded as -1.
    #[inline(always)]
    fn level(t: f32) -> f32 {
        Self::search_level(t.abs()).copysign(t)
    }

    #[inline(always)]
    fn search_level(t: f32) -> f32 {
        1.0 + steps(t, [(2.5, 3.0)])
    }

    #[inline(always)]
    fn fold(x: f32) -> f32 {
        x.abs()
    }

    /// Every weight is at the inner level and at or below it: its error grows with the scale.
    #[inline(always)]
    fn settled(t: f32) -> bool {
        t < 1.0
    }

    #[inline(always)]
    fn code(level: f32) -> u8 {
        let outer = level.abs() > 2.0;
        match (level < 0.0, outer) {
            (true, true) => 0,
            (true, false) => 1,
            (false, false) => 2,
            (false, true) => 3,
        }
    }

    fn pack(codes: &[u8; 32], scales: [u8; 2], out: &mut [u8]) {
        Fp2Signed::pack(codes, scales, out);
    }
}

/// ROCmFP3: 0, 1, 2, 4 and their negatives.
pub(crate) struct Fp3;

impl Coder for Fp3 {
    const GROUPS: usize = 2;
    const REACH: f32 = 4.0;

    #[inline(always)]
    fn level(t: f32) -> f32 {
        Self::search_level(t.abs()).copysign(t)
    }

    #[inline(always)]
    fn search_level(t: f32) -> f32 {
        steps(t, [(0.5, 1.0), (1.5, 1.0), (3.0, 2.0)])
    }

    #[inline(always)]
    fn fold(x: f32) -> f32 {
        x.abs()
    }

    #[inline(always)]
    fn code(level: f32) -> u8 {
        // 0, 1, 2, 4 are codes 0, 1, 2, 3.
        let magnitude = (level.abs() as u8).min(3);
        signed_code(magnitude, level < 0.0, 4)
    }

    fn pack(codes: &[u8; 32], scales: [u8; 2], out: &mut [u8]) {
        pack_bits::<3>(codes, &mut out[..12]);
        out[12..].copy_from_slice(&scales);
    }
}

/// ROCmFP4 (`GROUPS` = 2) and ROCmFP4_FAST (1): 0, 1, 2, 3, 4, 6, 8, 10 and their negatives.
pub(crate) struct Fp4<const GROUPS: usize>;

impl<const GROUPS: usize> Coder for Fp4<GROUPS> {
    const GROUPS: usize = GROUPS;
    const REACH: f32 = 10.0;
    const UNSET: (Option<u8>, f32) = (Some(0), f32::MAX);

    #[inline(always)]
    fn level(t: f32) -> f32 {
        Self::search_level(t.abs()).copysign(t)
    }

    #[inline(always)]
    fn search_level(t: f32) -> f32 {
        steps(
            t,
            [
                (0.5, 1.0),
                (1.5, 1.0),
                (2.5, 1.0),
                (3.5, 1.0),
                (5.0, 2.0),
                (7.0, 2.0),
                (9.0, 2.0),
            ],
        )
    }

    #[inline(always)]
    fn fold(x: f32) -> f32 {
        x.abs()
    }

    #[inline(always)]
    fn code(level: f32) -> u8 {
        let value = level.abs() as u8;
        // 0..=4 are themselves; 6, 8, 10 are codes 5, 6, 7.
        let magnitude = if value <= 4 { value } else { value / 2 + 2 };
        signed_code(magnitude, level < 0.0, 8)
    }

    fn pack(codes: &[u8; 32], scales: [u8; 2], out: &mut [u8]) {
        pack_nibbles(codes, &mut out[..16]);
        out[16..].copy_from_slice(&scales[..GROUPS]);
    }
}

/// ROCmFP6 with 0 and 1..=31 of either sign.
pub(crate) struct Fp6Zero;

impl Coder for Fp6Zero {
    const GROUPS: usize = 2;
    const REACH: f32 = 31.0;

    #[inline(always)]
    fn level(t: f32) -> f32 {
        Self::search_level(t.abs()).copysign(t)
    }

    #[inline(always)]
    fn search_level(t: f32) -> f32 {
        round_half_up(t.min(31.0))
    }

    #[inline(always)]
    fn fold(x: f32) -> f32 {
        x.abs()
    }

    #[inline(always)]
    fn code(level: f32) -> u8 {
        signed_code(level.abs() as u8, level < 0.0, 32)
    }

    fn pack(codes: &[u8; 32], scales: [u8; 2], out: &mut [u8]) {
        pack_bits::<6>(codes, &mut out[..24]);
        out[24..].copy_from_slice(&scales);
    }
}

/// ROCmFP6 with -32..=31.
pub(crate) struct Fp6Neg32;

impl Coder for Fp6Neg32 {
    const GROUPS: usize = 2;
    /// Not 32: the search of this dialect's writers was made for the symmetric range.
    const REACH: f32 = 31.0;
    const SEARCH_LIMIT: f32 = 2_147_483_648.0;
    const GUARDED: bool = false;

    /// The writers of this dialect convert to an integer before they clamp; on x86-64 a value
    /// outside i64 becomes `i64::MIN`, of which `int` keeps the low half: 0. That is in the golden
    /// bytes, so it is the definition.
    #[inline(always)]
    fn level(t: f32) -> f32 {
        if t.abs() < Self::SEARCH_LIMIT {
            return Self::search_level(t);
        }
        let wide = if t.abs() < 9_223_372_036_854_775_808.0 {
            t as i64
        } else {
            i64::MIN
        };
        (wide as i32).clamp(-32, 31) as f32
    }

    #[inline(always)]
    fn search_level(t: f32) -> f32 {
        let rounded = round_half_up(t.abs().min(32.0)).copysign(t);
        rounded.min(31.0)
    }

    #[inline(always)]
    fn fold(x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn code(level: f32) -> u8 {
        let level = level as i8;
        if level < 0 {
            32 | (level.unsigned_abs() & 31)
        } else {
            level as u8
        }
    }

    fn pack(codes: &[u8; 32], scales: [u8; 2], out: &mut [u8]) {
        Fp6Zero::pack(codes, scales, out);
    }
}

/// ROCmFP8: -127..=127.
pub(crate) struct Fp8;

impl Coder for Fp8 {
    const GROUPS: usize = 1;
    const REACH: f32 = 127.0;

    #[inline(always)]
    fn level(t: f32) -> f32 {
        Self::search_level(t.abs()).copysign(t)
    }

    #[inline(always)]
    fn search_level(t: f32) -> f32 {
        round_half_up(t.min(127.0))
    }

    #[inline(always)]
    fn fold(x: f32) -> f32 {
        x.abs()
    }

    #[inline(always)]
    fn code(level: f32) -> u8 {
        (level as i8).to_le_bytes()[0]
    }

    fn pack(codes: &[u8; 32], scales: [u8; 2], out: &mut [u8]) {
        out[..32].copy_from_slice(codes);
        out[32] = scales[0];
    }
}
