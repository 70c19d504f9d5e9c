//! RMS norms (ADR 0001 rule 6).

use engine_core::math;

#[inline(always)]
fn rms_norm_impl(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
    let r = math::rms_scale(x, eps);
    for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
        *y = (*x * r) * *w;
    }
}

dispatch! {
    /// `y = (x * r) * weight`, r = 1 / sqrt(mean(x^2) + eps). `x`, `weight`, `y`: `[n]`.
    pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) = rms_norm_impl
}

#[inline(always)]
fn rms_factor_impl(x: &[f32], eps: f32) -> f32 {
    math::rms_scale(x, eps)
}

dispatch! {
    /// `1 / sqrt(mean(x^2) + eps)`. `x`: `[n]`.
    pub fn rms_factor(x: &[f32], eps: f32) -> f32 = rms_factor_impl
}

#[inline(always)]
fn rms_unit_impl(x: &mut [f32], eps: f32) {
    let r = math::rms_scale(x, eps);
    for v in x {
        *v *= r;
    }
}

dispatch! {
    /// `x = x * r` in place, without weight (the per-head norm of queries). `x`: `[n]`.
    pub fn rms_unit(x: &mut [f32], eps: f32) = rms_unit_impl
}

/// `x = x * factor` in place. `x`: `[n]`.
pub fn scale_in_place(x: &mut [f32], factor: f32) {
    for v in x {
        *v *= factor;
    }
}
