use super::super::OracleConfig;
use super::super::rope::{Rope, yarn_range};
use super::random;
use crate::fixture::Kind;

/// The rotary numbers of the full model.
fn full() -> OracleConfig {
    OracleConfig {
        head_dim: 512,
        ..Kind::T0.config()
    }
}

fn inv(theta: f64, i: usize) -> f64 {
    theta.powf(-2.0 * i as f64 / 64.0)
}

fn assert_freq(got: f32, want: f64) {
    assert!((f64::from(got) / want - 1.0).abs() < 1e-7, "{got} {want}");
}

/// Traps 4 and 5, and the constants of spec 11.
#[test]
fn tables_are_plain_or_ramped_over_pairs() {
    assert_eq!(yarn_range(&full()), (15.0, 25.0));
    let plain = Rope::new(&full(), 0).freq;
    let comp = Rope::new(&full(), 4).freq;
    assert_eq!((plain.len(), comp.len()), (32, 32));
    assert_eq!(comp, Rope::new(&full(), 128).freq);
    for i in 0..32 {
        assert_freq(plain[i], inv(1e4, i));
        let ramp = match i {
            0..=15 => 0.0,
            25.. => 1.0,
            _ => (i - 15) as f64 / 10.0,
        };
        assert_freq(comp[i], inv(16e4, i) * (1.0 - ramp + ramp / 16.0));
    }
    assert_freq(comp[20], inv(16e4, 20) * (0.5 + 0.5 / 16.0));
}

/// Trap 1: pairs are neighbours, at the end of the row.
#[test]
fn neighbours_of_the_tail_turn() {
    let rope = Rope::new(&full(), 0);
    let mut row = vec![1.0; 512];
    rope.forward(&mut row, 3);
    assert!(row[..448].iter().all(|v| *v == 1.0));
    for (i, f) in rope.freq.iter().enumerate() {
        let (s, c) = f64::from(3.0f32 * f).sin_cos();
        assert_eq!((row[448 + 2 * i], row[449 + 2 * i]), (c - s, s + c));
    }
}

/// Trap 3: no amplitude on any kind of layer; the inverse undoes the rotation.
#[test]
fn rotation_keeps_lengths() {
    for ratio in [0, 4, 128] {
        let rope = Rope::new(&full(), ratio);
        for pos in [0, 1, 127, 5000, 1_048_575] {
            let row = random(1, 512, 4).data;
            let mut turned = row.clone();
            rope.forward(&mut turned, pos);
            let norm = |x: &[f64]| x.iter().map(|v| v * v).sum::<f64>();
            assert!((norm(&turned) - norm(&row)).abs() < 1e-9);
            assert_eq!(turned == row, pos == 0);
            rope.inverse(&mut turned, pos);
            assert!(super::max_diff(&turned, &row) < 1e-12);
        }
    }
}

/// The angle is the f32 product: near a million the difference to f64 is far from nothing.
#[test]
fn angles_are_f32_products() {
    let rope = Rope::new(&full(), 0);
    let mut row = vec![0.0; 64];
    row[2] = 1.0;
    rope.forward(&mut row, 1_000_003);
    let f = rope.freq[1];
    assert_eq!(row[2], f64::from(1_000_003.0f32 * f).cos());
    assert!((row[2] - (1_000_003.0 * f64::from(f)).cos()).abs() > 1e-4);
}
