//! log1p and softplus, for the router's scores; ln, for the noise of sampling.

use super::{exp, fma};

/// ln(u) + c for a normal u > 0 and a small c, `k0` added to the exponent of u.
///
/// Adding the distance from sqrt(1/2) to 1 in bit patterns makes the exponent field round at
/// sqrt(2) instead of at 2.
#[inline(always)]
fn ln_parts(u: f32, k0: f32, c: f32) -> f32 {
    const LN2_HI: f32 = 0.693_145_752;
    const LN2_LO: f32 = 1.428_606_77e-6;
    let bits = u.to_bits().wrapping_add(0x3f80_0000 - 0x3f35_04f3);
    let k = (bits >> 23) as i32 - 127;
    let m = f32::from_bits((bits & 0x007f_ffff).wrapping_add(0x3f35_04f3));
    let f = m - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let r = fma(z, 0.181_818_18, 0.222_222_22);
    let r = fma(z, r, 0.285_714_29);
    let r = fma(z, r, 0.4);
    let r = fma(z, r, 0.666_666_67);
    let r = z * r;
    let h = 0.5 * f * f;
    let kf = k as f32 + k0;
    let tail = fma(kf, LN2_LO, c);
    let low = fma(s, h + r, tail);
    fma(kf, LN2_HI, f - (h - low))
}

/// ln(x), error below 1 ulp (tested against f64). +0 and -0 give -inf, negative x and NaN give the
/// quiet NaN 0x7fc00000.
///
/// Sequence: x below 2^-126 is scaled by 2^23 first (exact); then that of [`log1p`] with u = x, c = 0.
#[inline(always)]
#[must_use]
pub fn ln(x: f32) -> f32 {
    let small = x < f32::MIN_POSITIVE;
    let u = if small { x * 8_388_608.0 } else { x };
    let v = ln_parts(u, if small { -23.0 } else { 0.0 }, 0.0);
    let v = if x == 0.0 { f32::NEG_INFINITY } else { v };
    let v = if x == f32::INFINITY { x } else { v };
    if x >= 0.0 {
        v
    } else {
        f32::from_bits(0x7fc0_0000)
    }
}

/// ln(1 + y) for y >= 0, error below 1 ulp (tested against f64). NaN and negative y give NaN.
///
/// Sequence: u = 1 + y and its rounding error c / u; u = 2^k m with m in [sqrt(1/2), sqrt 2);
/// f = m - 1 exactly, s = f / (2 + f), z = s^2. ln m = 2 artanh s = f - (h - s (h + R)), h = f^2/2,
/// R = z (2/3 + z (2/5 + z (2/7 + z (2/9 + z 2/11)))), the series cut where z^6 is below 2^-26 of f.
#[inline(always)]
#[must_use]
pub fn log1p(y: f32) -> f32 {
    let u = 1.0 + y;
    let c = if y >= 1.0 {
        1.0 - (u - y)
    } else {
        y - (u - 1.0)
    };
    let c = if y < 1.6e7 { c / u } else { 0.0 };
    let v = ln_parts(u, 0.0, c);
    let v = if y < 5.96e-8 { y } else { v };
    let v = if y == f32::INFINITY { f32::INFINITY } else { v };
    if y >= 0.0 {
        v
    } else {
        f32::from_bits(0x7fc0_0000)
    }
}

/// ln(1 + e^x): x above 20 (where e^-x is below half an ulp of x), else log1p(exp(x)).
/// Source of the threshold: spec/ds4-architecture.md 2.10.
#[inline(always)]
#[must_use]
pub fn softplus(x: f32) -> f32 {
    let v = log1p(exp(x));
    if x > 20.0 { x } else { v }
}

/// sqrt(softplus(x)): the score of an expert.
#[inline(always)]
#[must_use]
pub fn sqrt_softplus(x: f32) -> f32 {
    softplus(x).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ulp_error(got: f32, want: f64) -> f64 {
        let exponent = if want == 0.0 {
            -149
        } else {
            (want.abs().log2().floor() as i32 - 23).max(-149)
        };
        (f64::from(got) - want).abs() / 2f64.powi(exponent)
    }

    #[test]
    fn log1p_is_within_one_ulp() {
        let mut worst = (0.0, 0.0);
        for bits in (0u32..0x7f80_0000).step_by(997) {
            let y = f32::from_bits(bits);
            let error = ulp_error(log1p(y), f64::from(y).ln_1p());
            if error > worst.0 {
                worst = (error, y);
            }
        }
        assert!(
            worst.0 < 1.0,
            "log1p({}) is off by {} ulp",
            worst.1,
            worst.0
        );
        assert_eq!(log1p(0.0), 0.0);
        assert_eq!(log1p(f32::INFINITY), f32::INFINITY);
        assert!(log1p(-0.5).is_nan() && log1p(f32::NAN).is_nan());
    }

    #[test]
    fn ln_is_within_one_ulp() {
        let mut worst = (0.0, 0.0);
        let around_one = 0x3f00_0000..0x4000_0000;
        for bits in (1u32..0x7f80_0000)
            .step_by(997)
            .chain(around_one.step_by(31))
        {
            let x = f32::from_bits(bits);
            let error = ulp_error(ln(x), f64::from(x).ln());
            if error > worst.0 {
                worst = (error, x);
            }
        }
        assert!(worst.0 < 1.0, "ln({}) is off by {} ulp", worst.1, worst.0);
        assert_eq!(ln(1.0).to_bits(), 0);
        assert_eq!(ln(0.0), f32::NEG_INFINITY);
        assert_eq!(ln(-0.0), f32::NEG_INFINITY);
        assert_eq!(ln(f32::INFINITY), f32::INFINITY);
        assert_eq!(ln(-1.0).to_bits(), 0x7fc0_0000);
        assert_eq!(ln(f32::from_bits(0xffc1_2345)).to_bits(), 0x7fc0_0000);
        assert!((ln(f32::from_bits(1)) + 103.278_93).abs() < 1e-5);
    }

    /// The bits of log1p are part of the contract: recorded before its sequence was shared with ln.
    #[test]
    fn log1p_keeps_its_bits() {
        let mut digest = 0xcbf2_9ce4_8422_2325u64;
        for bits in (0u32..0x7f80_0100).step_by(9973) {
            digest = (digest ^ u64::from(log1p(f32::from_bits(bits)).to_bits()))
                .wrapping_mul(0x100_0000_01b3);
        }
        assert_eq!(digest, 0xa150_89bd_8f80_9e57, "{digest:#x}");
    }

    #[test]
    fn softplus_neither_overflows_nor_loses_small_values() {
        for i in -1000..1000 {
            let x = i as f32 * 0.1;
            let want = f64::from(x).exp().ln_1p();
            let error = (f64::from(softplus(x)) - want).abs();
            assert!(
                error <= 4e-7 * want + 1.5e-45,
                "softplus({x}) = {} want {want}",
                softplus(x)
            );
        }
        assert_eq!(softplus(100.0), 100.0);
        assert!(softplus(-100.0) > 0.0);
        assert!((sqrt_softplus(1.0) - 1.145_976_6).abs() < 1e-6);
    }
}
