use super::super::moe::moe;
use super::super::{clamped_swiglu, sqrt_softplus, top_k};
use super::{max_diff, random, small};
use crate::Error;

/// Trap 34.
#[test]
fn softplus_holds_at_both_ends() {
    assert_eq!(sqrt_softplus(100.0), 10.0);
    assert_eq!(sqrt_softplus(1e6), 1e3);
    assert!((sqrt_softplus(-100.0) / (-50f64).exp() - 1.0).abs() < 1e-14);
    assert!((sqrt_softplus(-30.0) / (-15f64).exp() - 1.0).abs() < 1e-12);
    assert!((sqrt_softplus(0.0) - 2f64.ln().sqrt()).abs() < 1e-15);
    assert_eq!(sqrt_softplus(-2000.0), 0.0);
    // The seam at 20: log1p(exp(20)) - 20 is 2e-9.
    assert!((sqrt_softplus(20.0) - sqrt_softplus(20.0f64.next_up())).abs() < 3e-10);
}

/// Trap 33: the gate is clamped from above only, before silu; up on both sides.
#[test]
fn clamps_are_where_they_should_be() {
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let cases = [
        (50.0, 1.0, silu(10.0)),
        (-12.0, 1.0, silu(-12.0)),
        (2.0, 30.0, silu(2.0) * 10.0),
        (2.0, -30.0, silu(2.0) * -10.0),
    ];
    for (gate, up, want) in cases {
        let got = clamped_swiglu(gate, up, 10.0);
        assert!(
            (got / want - 1.0).abs() < 1e-14,
            "{gate} {up}: {got} {want}"
        );
    }
}

#[test]
fn selection_prefers_the_lower_index() {
    assert_eq!(top_k(&[1.0, 3.0, 3.0, 2.0, 3.0], 2), [1, 2]);
    assert_eq!(top_k(&[0.0, -0.0, 0.0], 2), [0, 1]);
    assert_eq!(top_k(&[-0.0, 0.0], 1), [0]);
    assert_eq!(top_k(&[f64::NAN, -5.0, f64::NEG_INFINITY], 3), [1, 2, 0]);
    assert_eq!(top_k(&[1.0], 4), [0]);
}

/// Trap 29: the bias chooses, but does not weigh.
#[test]
fn bias_only_selects() {
    let model = small();
    let h = random(20, 64, 1);
    let tokens = [5; 20];
    let plain = moe(&model, 3, &h, &tokens).unwrap();
    let mut shifted = model.clone();
    let bias = shifted.tensors.get_mut("blk.3.exp_probs_b.bias").unwrap();
    bias.data.iter_mut().for_each(|b| *b += 4.0);
    let same = moe(&shifted, 3, &h, &tokens).unwrap();
    assert_eq!(
        (&plain.route_id, &plain.route_w),
        (&same.route_id, &same.route_w)
    );
    let bias = shifted.tensors.get_mut("blk.3.exp_probs_b.bias").unwrap();
    bias.data[6] += 100.0;
    let forced = moe(&shifted, 3, &h, &tokens).unwrap();
    assert!(forced.route_id.iter().all(|ids| ids[0] == 6));
    assert!(
        forced
            .route_w
            .iter()
            .all(|w| (w.iter().sum::<f64>() - 1.5).abs() < 1e-12)
    );
    assert!(forced.route_w.iter().any(|w| w[0] < 0.75));
}

/// Trap 30 and D8: the table's row of the input token, in its order, weighed by the learned gate.
#[test]
fn hash_layers_read_the_token_and_weigh_by_the_gate() {
    let model = small();
    let h = random(3, 64, 2);
    let out = moe(&model, 0, &h, &[7, 0, 299]).unwrap();
    let table = model.layer(0, "ffn_gate_tid2eid.weight").unwrap();
    for (ids, token) in out.route_id.iter().zip([7, 0, 299]) {
        let row: Vec<u32> = table.row(token).iter().map(|e| *e as u32).collect();
        assert_eq!(*ids, row);
    }
    let gate = model.layer(0, "ffn_gate_inp.weight").unwrap();
    let p = |e: u32| {
        let row = gate.row(e as usize).iter().zip(h.row(1));
        sqrt_softplus(row.map(|(w, x)| f64::from(*w) * x).sum())
    };
    let (a, b) = (p(out.route_id[1][0]), p(out.route_id[1][1]));
    let want = [1.5 * a / (a + b), 1.5 * b / (a + b)];
    assert!(max_diff(&out.route_w[1], &want) < 1e-12);
    assert!((want[0] - 0.75).abs() > 1e-3);
}

/// Trap 31 for ids of the table.
#[test]
fn a_bad_expert_id_is_an_error() {
    for bad in [8.0, -1.0, 0.5, f32::NAN] {
        let mut model = small();
        let table = model
            .tensors
            .get_mut("blk.0.ffn_gate_tid2eid.weight")
            .unwrap();
        table.data[2 * 7 + 1] = bad;
        let got = moe(&model, 0, &random(1, 64, 3), &[7]);
        assert!(
            matches!(
                got,
                Err(Error::ExpertId {
                    token: 7,
                    n_expert: 8,
                    ..
                })
            ),
            "{bad}"
        );
        assert!(moe(&model, 0, &random(1, 64, 3), &[8]).is_ok());
    }
}

/// The weighted sum of two experts and the shared one, by hand.
#[test]
fn output_by_hand() {
    let model = small();
    let h = random(1, 64, 4);
    let out = moe(&model, 3, &h, &[0]).unwrap();
    let product = |w: &[f32], x: &[f64]| -> Vec<f64> {
        let rows = w.chunks_exact(x.len());
        rows.map(|w| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum())
            .collect()
    };
    let expert = |kind: &str, e: usize, w: f64| -> Vec<f64> {
        let part = |what: &str| {
            let t = model
                .layer(3, &format!("ffn_{what}_{kind}.weight"))
                .unwrap();
            t.data[e * 32 * 64..(e + 1) * 32 * 64].to_vec()
        };
        let (g, u) = (
            product(&part("gate"), h.row(0)),
            product(&part("up"), h.row(0)),
        );
        let mid = g
            .iter()
            .zip(&u)
            .map(|(g, u)| clamped_swiglu(*g, *u, 10.0) * w);
        product(&part("down"), &mid.collect::<Vec<_>>())
    };
    let mut want = expert("shexp", 0, 1.0);
    for (id, w) in out.route_id[0].iter().zip(&out.route_w[0]) {
        let y = expert("exps", *id as usize, *w);
        want.iter_mut().zip(y).for_each(|(a, b)| *a += b);
    }
    assert!(max_diff(out.out.row(0), &want) < 1e-9);
}
