//! Draws with keyed noise by their definition (`docs/adr/0007-keyed-noise.md`): a full sort, no shortcuts.
//! `sampling` holds the implementation that serves; the vectors below are its vectors.

use engine_core::math::{exp, ln, log1p};

use crate::launch::head::{NOTHING, Plan};

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The row of noise of (seed, choice, position).
#[must_use]
pub fn noise_row(seed: u64, choice: u32, pos: u32) -> u64 {
    let place = u64::from(choice) << 32 | u64::from(pos);
    mix(mix(seed.wrapping_add(STEP)) ^ place)
}

/// The Gumbel variate of a token.
#[must_use]
pub fn gumbel(row: u64, token: u32) -> f32 {
    let bits = mix(row.wrapping_add(STEP.wrapping_mul(u64::from(token) + 1))) >> 24;
    let odd = 2 * bits + 1;
    let unit = 1.0 / 2_199_023_255_552.0f32;
    let exponential = if odd < 1 << 40 {
        let u = odd as f32 * unit;
        log1p(u / (1.0 - u))
    } else {
        -ln(((1u64 << 41) - odd) as f32 * unit)
    };
    -ln(exponential)
}

/// Tokens that may be drawn, best first.
fn kept(y: &[f32], plan: &Plan) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..y.len()).filter(|t| y[*t] > f32::NEG_INFINITY).collect();
    kept.sort_by(|a, b| {
        let by_value = y[*b]
            .partial_cmp(&y[*a])
            .unwrap_or(std::cmp::Ordering::Equal);
        by_value.then(a.cmp(b))
    });
    let Some(first) = kept.first().copied() else {
        return kept;
    };
    if plan.temperature == 0.0 {
        return vec![first];
    }
    if plan.top_k > 0 {
        kept.truncate(plan.top_k as usize);
    }
    let largest = y[first];
    let weight = |t: usize| {
        if y[t] == largest {
            1.0
        } else {
            exp(y[t] - largest)
        }
    };
    if plan.min_p > 0.0 {
        kept.retain(|t| weight(*t) >= plan.min_p);
    }
    if plan.top_p < 1.0 {
        let units = |t: &usize| (weight(*t) * 1_099_511_627_776.0) as u64;
        let total: u128 = kept.iter().map(|t| u128::from(units(t))).sum();
        let share = ((f64::from(plan.top_p) * 4_294_967_296.0) as u128).max(1);
        let target = (total * share).div_ceil(1 << 32);
        let mut sum = 0u128;
        let needed = kept.iter().position(|t| {
            sum += u128::from(units(t));
            sum >= target
        });
        kept.truncate(needed.map_or(kept.len(), |n| n + 1));
    }
    kept
}

/// The token drawn from a row.
#[must_use]
pub fn draw(row: &[f32], plan: &Plan) -> u32 {
    let mut y = row.to_vec();
    if plan.temperature > 0.0 {
        y.iter_mut().for_each(|v| *v /= plan.temperature);
    }
    let mut best = (f32::NEG_INFINITY, NOTHING);
    let mut tokens = kept(&y, plan);
    tokens.sort_unstable();
    for t in tokens {
        let noise = match plan.temperature {
            0.0 => 0.0,
            _ => gumbel(plan.noise, t as u32),
        };
        if best.1 == NOTHING || y[t] + noise > best.0 {
            best = (y[t] + noise, t as u32);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_that_of_the_serving_sampler() {
        let row = noise_row(42, 1, 1000);
        assert_eq!(row, 0x7a8d_48da_dc5d_c61e);
        let got = [0u32, 1, 129_279].map(|t| gumbel(row, t).to_bits());
        assert_eq!(got, [0x3ee0_99f7, 0xbdc3_ae3e, 0x3db7_205b]);
    }

    #[test]
    fn filters_keep_what_the_definition_says() {
        let plan = |top_k, min_p, top_p| Plan {
            noise: 0,
            temperature: 1.0,
            top_k,
            min_p,
            top_p,
        };
        let y = [0.1f64, 0.4, 0.2, 0.3].map(|w| w.ln() as f32);
        assert_eq!(kept(&y, &plan(0, 0.0, 1.0)), [1, 3, 2, 0]);
        assert_eq!(kept(&y, &plan(2, 0.0, 1.0)), [1, 3]);
        assert_eq!(kept(&y, &plan(0, 0.6, 1.0)), [1, 3]);
        assert_eq!(kept(&y, &plan(0, 0.0, 0.71)), [1, 3, 2]);
        assert_eq!(kept(&[5.0; 4], &plan(0, 0.0, 0.5)), [0, 1]);
        assert_eq!(
            draw(&[f32::NAN, f32::NEG_INFINITY], &plan(0, 0.0, 1.0)),
            NOTHING
        );
    }
}
