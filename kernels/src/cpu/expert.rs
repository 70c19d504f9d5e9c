//! The expert's activation and the routed sum (ADR 0001 rule 12).

use engine_core::math::silu;
use engine_core::mutant::mutant;

#[inline(always)]
fn swiglu_impl(gate: &[f32], up: &[f32], limit: f32, weight: Option<f32>, h: &mut [f32]) {
    for ((h, g), u) in h.iter_mut().zip(gate).zip(up) {
        let mut g = if *g > limit { limit } else { *g };
        if mutant(33) && g < -limit {
            g = -limit;
        }
        let u = if *u > limit { limit } else { *u };
        let u = if u < -limit { -limit } else { u };
        let v = silu(g) * u;
        *h = match weight {
            Some(w) => v * w,
            None => v,
        };
    }
}

dispatch! {
    /// `h = silu(min(gate, limit)) * clamp(up, +-limit)`, then `* weight` for a routed expert. The
    /// gate is clamped from above only. All `[n_ff]`. NaN passes through.
    pub fn swiglu(gate: &[f32], up: &[f32], limit: f32, weight: Option<f32>, h: &mut [f32])
        = swiglu_impl
}

#[inline(always)]
fn add_rows_impl(slots: &[f32], shared: &[f32], out: &mut [f32]) {
    let d = out.len();
    out.fill(0.0);
    for slot in slots.chunks_exact(d) {
        for (o, s) in out.iter_mut().zip(slot) {
            *o += *s;
        }
    }
    for (o, s) in out.iter_mut().zip(shared) {
        *o += *s;
    }
}

dispatch! {
    /// `out = +0, + each slot in order, + shared`. `slots`: `[n_used, n_embd]`, rest `[n_embd]`.
    pub fn add_rows(slots: &[f32], shared: &[f32], out: &mut [f32]) = add_rows_impl
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_is_clamped_above_only_and_up_on_both_sides() {
        let mut h = [f32::NAN; 4];
        swiglu(
            &[20.0, -20.0, 1.0, f32::NAN],
            &[1.0, -30.0, 30.0, 1.0],
            10.0,
            Some(0.5),
            &mut h,
        );
        let silu = |x: f64| x / (1.0 + (-x).exp());
        for (got, want) in h
            .iter()
            .zip([silu(10.0) * 0.5, silu(-20.0) * -5.0, silu(1.0) * 5.0])
        {
            assert!(
                (f64::from(*got) - want).abs() <= 1e-6 * want.abs(),
                "{got} want {want}"
            );
        }
        assert!(h[3].is_nan());
    }

    #[test]
    fn slots_add_in_order_then_shared() {
        // 2^24 + 1 + 1: order decides whether the ones survive.
        let big = 16_777_216.0;
        let mut out = [f32::NAN];
        add_rows(&[1.0, 1.0, big], &[0.0], &mut out);
        assert_eq!(out[0], big + 2.0);
        add_rows(&[big, 1.0, 1.0], &[0.0], &mut out);
        assert_eq!(out[0], big);
        add_rows(&[-0.0], &[-0.0], &mut out);
        assert_eq!(out[0].to_bits(), 0, "sums start at +0");
    }
}
