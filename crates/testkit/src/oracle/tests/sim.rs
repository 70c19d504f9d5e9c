use super::super::sim::{
    E2M1, bf16_round, e4m3, fp4_scale, fp4_sim, fp8_scale, fp8_sim, hadamard, kv_row,
    pow2_at_least, round_to_grid,
};
use super::{max_diff, random};
use crate::rng::Rng;

#[test]
fn e4m3_is_the_finite_format() {
    let g = e4m3();
    assert_eq!(
        (g.len(), g[0], g[1], g[7], g[8]),
        (127, 0.0, 1.0 / 512.0, 7.0 / 512.0, 1.0 / 64.0)
    );
    assert_eq!((g[0x38], g[0x39], g[126]), (1.0, 1.125, 448.0));
    assert!(g.windows(2).all(|w| w[0] < w[1]));
}

/// Every midpoint goes to the even code, everything else to the nearer value.
#[test]
fn rounding_is_to_nearest_even_on_both_grids() {
    for grid in [e4m3(), &E2M1] {
        for code in 0..grid.len() - 1 {
            let (low, high) = (grid[code], grid[code + 1]);
            let middle = (low + high) / 2.0;
            let even = if code % 2 == 0 { low } else { high };
            let nudge = (high - low) * 1e-9;
            assert_eq!(round_to_grid(middle, grid), even);
            assert_eq!(round_to_grid(-middle, grid), -even);
            assert_eq!(round_to_grid(middle - nudge, grid), low);
            assert_eq!(round_to_grid(middle + nudge, grid), high);
            assert_eq!(round_to_grid(low, grid), low);
        }
        let top = grid[grid.len() - 1];
        assert_eq!(round_to_grid(top * 1.5, grid), top);
        assert_eq!(round_to_grid(f64::NEG_INFINITY, grid), -top);
        assert!(round_to_grid(f64::NAN, grid).is_nan());
    }
}

/// Spec 11.
#[test]
fn e2m1_ties_are_the_golden_ones() {
    let ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
    assert_eq!(
        ties.map(|v| round_to_grid(v, &E2M1)),
        [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    );
}

/// Trap 20: at every power of two and one f32 step to either side, against the rule on f32 bits.
#[test]
fn scales_round_up_from_the_bits() {
    let by_bits = |quotient: f32| {
        let bits = quotient.to_bits();
        let up = u32::from(bits & 0x007f_ffff != 0);
        f64::from(f32::from_bits(((bits >> 23) + up) << 23))
    };
    for k in -20..100 {
        for (unit, scale) in [(448.0f32, fp8_scale as fn(f64) -> f64), (6.0, fp4_scale)] {
            let amax = unit * 2f32.powi(k);
            for x in [amax.next_down(), amax, amax.next_up()] {
                assert_eq!(scale(f64::from(x)), by_bits(x / unit), "{unit} 2^{k}");
            }
            assert_eq!(scale(f64::from(amax)), 2f64.powi(k));
            assert_eq!(scale(f64::from(amax.next_up())), 2f64.powi(k + 1));
        }
    }
    // The floors.
    assert_eq!(fp8_scale(0.0), 2f64.powi(-22));
    assert_eq!(fp4_scale(0.0), 2f64.powi(-126));
    assert_eq!(
        (pow2_at_least(1.0), pow2_at_least(1.5), pow2_at_least(0.75)),
        (1.0, 2.0, 1.0)
    );
}

/// Trap 21: scales belong to channels 0..64, 64..128, ...; 32 for fp4.
#[test]
fn blocks_do_not_see_each_other() {
    type Sim = fn(&mut [f64]);
    for (sim, block) in [(fp8_sim as Sim, 64), (fp4_sim, 32)] {
        let mut plain = random(1, 448, 5).data;
        let mut loud = plain.clone();
        // A float format only notices a scale that pushes it below its subnormals.
        loud[2 * block] = 1e6;
        sim(&mut plain);
        sim(&mut loud);
        let differ: Vec<usize> = (0..448).filter(|i| plain[*i] != loud[*i]).collect();
        assert!(differ.iter().all(|i| (2 * block..3 * block).contains(i)));
        assert!(differ.len() > block / 2);
    }
}

#[test]
fn rounded_blocks_stay_as_they_are() {
    type Sim = fn(&mut [f64]);
    for (sim, relative) in [(fp8_sim as Sim, 1.0 / 16.0), (fp4_sim, 1.0 / 4.0)] {
        let x = random(1, 448, 6).data;
        let mut once = x.clone();
        sim(&mut once);
        let mut twice = once.clone();
        sim(&mut twice);
        assert_eq!(once, twice);
        let error = |(a, b): (&f64, &f64)| (a - b).abs() / a.abs().max(0.5);
        let worst = x.iter().zip(&once).map(error).fold(0.0, f64::max);
        assert!(worst > 0.01 && worst <= relative, "{worst}");
    }
}

/// Trap 22: the tail is bf16, not fp8.
#[test]
fn a_kept_row_has_an_fp8_head_and_a_bf16_tail() {
    let x = random(1, 128, 7).data;
    let mut row = x.clone();
    kv_row(&mut row, 64);
    let mut head = x[..64].to_vec();
    fp8_sim(&mut head);
    assert_eq!(row[..64], head);
    let tail: Vec<f64> = x[64..].iter().map(|v| bf16_round(*v)).collect();
    assert_eq!(row[64..], tail);
}

/// Against the `half` crate, which rounds f32.
#[test]
fn bf16_rounds_as_half_does() {
    let mut rng = Rng::new(8);
    let random = (0..20_000).map(|_| f32::from_bits(rng.next_u64() as u32));
    let special = [
        0.0,
        -0.0,
        f32::MAX,
        f32::MIN_POSITIVE,
        1e-45,
        f32::INFINITY,
        1.0 + 1.0 / 256.0,
    ];
    for v in random.chain(special).filter(|v| !v.is_nan()) {
        let want = f64::from(half::bf16::from_f32(v).to_f32());
        assert_eq!(bf16_round(f64::from(v)), want, "{v:e}");
    }
    assert!(bf16_round(f64::NAN).is_nan());
    // Straight from f64: just above a tie, where a stop at f32 would lose the tail.
    assert_eq!(bf16_round(1.0 + 1.0 / 256.0 + 1e-12), 1.0 + 1.0 / 128.0);
}

/// Trap 19.
#[test]
fn hadamard_is_its_own_inverse_and_keeps_products() {
    let (a, b) = (random(1, 128, 9).data, random(1, 128, 10).data);
    let (mut ha, mut hb) = (a.clone(), b.clone());
    hadamard(&mut ha);
    hadamard(&mut hb);
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    assert!((dot(&ha, &hb) - dot(&a, &b)).abs() < 1e-12);
    assert!(max_diff(&ha, &a) > 0.5);
    hadamard(&mut ha);
    assert!(max_diff(&ha, &a) < 1e-14);
    // Natural order: entry (i, j) has the sign of the bits both indices share.
    for j in [1usize, 6, 127] {
        let mut unit = vec![0.0; 128];
        unit[j] = 1.0;
        hadamard(&mut unit);
        for (i, v) in unit.iter().enumerate() {
            let sign = if (i & j).count_ones() % 2 == 0 {
                1.0
            } else {
                -1.0
            };
            assert!((v - sign / 128f64.sqrt()).abs() < 1e-15);
        }
    }
}
