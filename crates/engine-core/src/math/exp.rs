//! exp and the functions built on it.

use super::fma;

/// e^x, error at most 0.84 ulp (tested against f64 over the whole range).
///
/// Sequence: n = round-to-even(x * log2 e) by adding and subtracting 1.5 * 2^23; r = x - n ln 2 in
/// two fma (ln 2 split into a short high part and the rest, Cody and Waite); e^r = 1 + r + r^2 p(r)
/// with p the Taylor coefficients 1/2! .. 1/7!, the rounding error of 1 + r added back; scaling by
/// 2^n in two exact steps so that results below 2^-126 round once, at the last multiplication.
/// x <= -104 gives +0, x > 88.8 gives +inf, NaN gives the quiet NaN 0x7fc00000.
#[inline(always)]
#[must_use]
pub fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    const LN2_HI: f32 = 0.693_145_752; // 16 significant bits: n * LN2_HI is exact
    const LN2_LO: f32 = 1.428_606_77e-6;
    // Clamped so that the integer steps stay in range; the clamped results are replaced below.
    // `max` and `min` return the number when the other operand is NaN.
    #[allow(clippy::manual_clamp)] // clamp would keep NaN
    let c = x.max(-104.0).min(88.8);
    let t = fma(c, LOG2_E, ROUND);
    let n = t - ROUND;
    let r = fma(n, -LN2_HI, c);
    let r = fma(n, -LN2_LO, r);
    let p = 1.984_126_98e-4;
    let p = fma(p, r, 1.388_888_9e-3);
    let p = fma(p, r, 8.333_333_3e-3);
    let p = fma(p, r, 4.166_666_7e-2);
    let p = fma(p, r, 1.666_666_7e-1);
    let p = fma(p, r, 0.5);
    let r2 = r * r;
    let s = 1.0 + r;
    let e = r - (s - 1.0);
    let v = s + fma(r2, p, e);
    // The mantissa of t holds the rounded integer: cheaper than a conversion, same value.
    let ni = (t.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let n1 = ni >> 1;
    let n2 = ni - n1;
    let y = v * pow2(n1) * pow2(n2);
    let y = if x > -104.0 { y } else { 0.0 };
    let y = if x > 88.8 { f32::INFINITY } else { y };
    if x.is_nan() {
        f32::from_bits(0x7fc0_0000)
    } else {
        y
    }
}

/// 2^n for -126 <= n <= 127.
#[inline(always)]
fn pow2(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

/// 1 / (1 + e^-x). Error below 2.5 ulp where the result is normal.
#[inline(always)]
#[must_use]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// x / (1 + e^-x), one division.
#[inline(always)]
#[must_use]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
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
    fn exp_is_within_its_stated_error() {
        let mut worst = (0.0, 0.0);
        for range in [
            0u32..=88.72f32.to_bits(),
            0x8000_0000..=(-104.0f32).to_bits(),
        ] {
            for bits in range.step_by(997) {
                let x = f32::from_bits(bits);
                let error = ulp_error(exp(x), f64::from(x).exp());
                if error > worst.0 {
                    worst = (error, x);
                }
            }
        }
        assert!(
            worst.0 <= 0.84,
            "exp({}) is off by {} ulp",
            worst.1,
            worst.0
        );
    }

    #[test]
    fn exp_has_its_stated_corners() {
        assert_eq!(exp(0.0).to_bits(), 1f32.to_bits());
        assert_eq!(exp(-0.0).to_bits(), 1f32.to_bits());
        assert_eq!(exp(-104.0).to_bits(), 0);
        assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0);
        assert_eq!(exp(88.81), f32::INFINITY);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(f32::from_bits(0xffc1_2345)).to_bits(), 0x7fc0_0000);
        assert_eq!(exp(-103.9).to_bits(), 1, "denormal results are kept");
    }

    #[test]
    fn sigmoid_and_silu_are_close_and_saturate() {
        for i in -4000..4000 {
            let x = i as f32 * 0.01;
            let s = 1.0 / (1.0 + (-f64::from(x)).exp());
            assert!(ulp_error(sigmoid(x), s) < 2.5, "sigmoid({x})");
            assert!(ulp_error(silu(x), f64::from(x) * s) < 3.0, "silu({x})");
        }
        assert_eq!(sigmoid(-200.0), 0.0);
        assert_eq!(silu(-200.0), -0.0);
        assert_eq!(silu(200.0), 200.0);
    }
}
