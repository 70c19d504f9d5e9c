//! The scale byte of ROCmFPX: an unsigned E4M3 number read at half its OCP value.
//!
//! Apart from the block layouts because every format, the encoders, the row kernels and the
//! validators share it. Must not know: block layouts. Source: spec/fpx-formats.md 2.

/// Largest valid scale byte (224.0).
pub const MAX_SCALE_BYTE: u8 = 0x7e;

/// Value of each of the 256 scale bytes; the invalid ones (above [`MAX_SCALE_BYTE`]) are 0.
pub const UE4M3: [f32; 256] = table();

const fn table() -> [f32; 256] {
    let mut out = [0.0; 256];
    let mut byte = 0u32;
    while byte <= MAX_SCALE_BYTE as u32 {
        let (exponent, mantissa) = (byte >> 3, byte & 7);
        out[byte as usize] = if exponent == 0 {
            mantissa as f32 * (1.0 / 1024.0)
        } else {
            // (8 + m) * 2^(exponent - 11), written as its bits.
            f32::from_bits(((exponent + 119) << 23) | (mantissa << 20))
        };
        byte += 1;
    }
    out
}

/// Value of a scale byte; 0 for an invalid one (loaders refuse those, see `validate`).
#[must_use]
#[inline]
pub fn decode(byte: u8) -> f32 {
    UE4M3[byte as usize]
}

/// Whether a writer can have produced this scale byte.
#[must_use]
#[inline]
pub const fn is_valid(byte: u8) -> bool {
    byte <= MAX_SCALE_BYTE
}

/// The byte in `1..=0x7e` whose value is nearest to `target`, an exact midpoint going to the lower
/// byte (distances are f32: far above 224 they round to the same number and tie).
///
/// 0 for a target that is not a positive finite number; never 0 for one that is.
#[must_use]
pub fn nearest(target: f32) -> u8 {
    // `>` is false for NaN.
    if !(target > 0.0 && target.is_finite()) {
        return 0;
    }
    let valid = &UE4M3[1..=MAX_SCALE_BYTE as usize];
    // First valid value >= target.
    let above = valid.partition_point(|&v| v < target);
    if above == 0 {
        return 1;
    }
    if above == valid.len() {
        // The format's definition compares rounded f32 distances: far above 224 they tie, and the
        // lowest byte of the tie wins (1e30 gives byte 1).
        let least = target - valid[above - 1];
        return valid.partition_point(|&v| target - v > least) as u8 + 1;
    }
    // Neighbours are within a factor of 2 of the target, so both subtractions are exact.
    let (low, high) = (target - valid[above - 1], valid[above] - target);
    if high < low {
        (above + 1) as u8
    } else {
        above as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_matches_the_formula_in_f64() {
        for byte in 0..=255u8 {
            let (exponent, mantissa) = (i32::from(byte >> 3), f64::from(byte & 7));
            let want = match byte {
                0..=7 => mantissa * 2f64.powi(-10),
                8..=0x7e => (8.0 + mantissa) * 2f64.powi(exponent - 11),
                _ => 0.0,
            };
            assert_eq!(f64::from(decode(byte)), want, "byte {byte:#04x}");
            assert_eq!(is_valid(byte), byte <= 0x7e);
        }
        assert_eq!((decode(0x40), decode(0x7e)), (1.0, 224.0));
    }

    /// The definition: a scan of all candidates, strict `<`.
    fn scan(target: f32) -> u8 {
        let mut best = (1u8, f32::INFINITY);
        for byte in 1..=MAX_SCALE_BYTE {
            let distance = (decode(byte) - target).abs();
            if distance < best.1 {
                best = (byte, distance);
            }
        }
        best.0
    }

    #[test]
    fn nearest_is_the_scan() {
        for byte in 1..=MAX_SCALE_BYTE {
            assert_eq!(nearest(decode(byte)), byte);
            let next = decode(byte.min(0x7d) + 1);
            let middle = decode(byte) + (next - decode(byte)) / 2.0;
            for bits in [-2i32, -1, 0, 1, 2] {
                let near = f32::from_bits(middle.to_bits().wrapping_add_signed(bits));
                assert_eq!(nearest(near), scan(near), "{near}");
            }
            if byte < 0x7e {
                assert_eq!(nearest(middle), byte, "a midpoint goes down");
            }
        }
        let mut state = 1u32;
        for _ in 0..20_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = f32::from_bits(state & 0x7fff_ffff);
            if value.is_finite() && value > 0.0 {
                assert_eq!(nearest(value), scan(value), "{value:e}");
            }
        }
    }

    #[test]
    fn nearest_of_what_is_not_positive() {
        for bad in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(nearest(bad), 0, "{bad}");
        }
        assert_eq!(nearest(f32::from_bits(1)), 1);
        assert_eq!(nearest(1000.0), 0x7e);
        assert_eq!(nearest(f32::MAX), 1);
    }
}
