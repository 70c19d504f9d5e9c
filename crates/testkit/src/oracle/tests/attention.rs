use super::super::attention::{attend, attention};
use super::super::compress::compressed_rows;
use super::super::rope::Rope;
use super::super::{Mat, sim};
use super::{max_diff, random, small};

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// Trap 2: moving all positions changes nothing where no row is compressed.
#[test]
fn positions_are_relative_on_window_layers() {
    let model = small();
    let h = random(40, 64, 1);
    let here = attention(&model, 0, &h, 0, false).unwrap();
    let there = attention(&model, 0, &h, 1000, false).unwrap();
    // f32 angles of position 1000 are off by up to 6e-5.
    assert!(max_diff(&here.out.data, &there.out.data) < 1e-3);
    assert!(max_diff(&here.q.data, &there.q.data) > 1.0);
}

/// Trap 7: each head of a query has length sqrt(head_dim), rotated or not.
#[test]
fn query_heads_have_unit_mean_square() {
    let dump = attention(&small(), 0, &random(3, 64, 2), 0, false).unwrap();
    for head in dump.q.data.chunks_exact(128) {
        assert!((norm(head) - 128f64.sqrt()).abs() < 1e-4);
    }
}

/// Trap 8: the window is `n_swa` rows, the query's own included.
#[test]
fn the_window_ends_where_it_should() {
    let model = small();
    let n = model.config.n_swa;
    let h = random(40, 64, 3);
    let right = attention(&model, 0, &h, 0, false).unwrap().out;
    for (back, seen) in [(n - 1, true), (n, false)] {
        let mut other = h.clone();
        other.row_mut(39 - back).fill(3.0);
        let out = attention(&model, 0, &other, 0, false).unwrap().out;
        assert_eq!(out.row(39) != right.row(39), seen, "{back} rows back");
    }
}

/// Trap 10: the token that completes a compressed row sees it. With a window of 16, token 0 can
/// reach position 127 only through it.
#[test]
fn a_row_is_visible_to_the_token_that_completes_it() {
    let model = small();
    let h = random(130, 64, 4);
    let mut other = h.clone();
    other.row_mut(0).fill(3.0);
    let out = |h: &Mat| attention(&model, 3, h, 0, false).unwrap().out;
    let (a, b) = (out(&h), out(&other));
    for (t, seen) in [
        (15, true),
        (16, false),
        (126, false),
        (127, true),
        (129, true),
    ] {
        assert_eq!(a.row(t) != b.row(t), seen, "position {t}");
    }
}

/// Traps 11 and 13: a row of ratio 4 takes the first half of the window before and the second
/// half of its own; the first row has nothing before it, not zeros.
#[test]
fn halves_go_to_the_right_windows() {
    let model = small();
    let rope = Rope::new(&model.config, 4);
    let h = random(12, 64, 5);
    let rows = |h: &Mat| compressed_rows(&model, 2, "attn_compressor", h, &rope).unwrap();
    let right = rows(&h);
    assert_eq!((right.rows, right.cols), (3, 128));
    let mut first_half = model.clone();
    for part in ["kv", "gate"] {
        let name = format!("blk.2.attn_compressor_{part}.weight");
        let t = first_half.tensors.get_mut(&name).unwrap();
        t.data[..128 * 64].fill(0.0);
    }
    let other = compressed_rows(&first_half, 2, "attn_compressor", &h, &rope).unwrap();
    assert_eq!(other.row(0), right.row(0));
    assert!(max_diff(other.row(1), right.row(1)) > 0.1);
    // Tokens 0..4 reach row 1 and no further; token 4 reaches row 2, token 3 does not.
    for (token, reached) in [(0, [true, true, false]), (4, [false, true, true])] {
        let mut moved = h.clone();
        moved.row_mut(token).fill(2.0);
        let moved = rows(&moved);
        assert_eq!(
            [0, 1, 2].map(|w| moved.row(w) != right.row(w)),
            reached,
            "token {token}"
        );
    }
}

/// Spec 2.8 by hand for one channel, and traps 14, 15, 16: gates get the bias of `p mod r`, the
/// softmax is per channel, and the row stands at the first token of its window.
#[test]
fn a_pooled_row_by_hand() {
    let model = small();
    let rope = Rope::new(&model.config, 128);
    let h = random(256, 64, 6);
    let get = |s: &str| {
        model
            .layer(3, &format!("attn_compressor_{s}.weight"))
            .unwrap()
    };
    let row_times = |w: &[f32], p: usize| {
        h.row(p)
            .iter()
            .zip(w)
            .map(|(x, w)| x * f64::from(*w))
            .sum::<f64>()
    };
    let channel = |d: usize| {
        let gate =
            |p: usize| row_times(get("gate").row(d), p) + f64::from(get("ape").row(p - 128)[d]);
        let weights: Vec<f64> = (128..256).map(|p| gate(p).exp()).collect();
        let values = (128..256).map(|p| row_times(get("kv").row(d), p));
        let sum: f64 = weights.iter().sum();
        values.zip(&weights).map(|(v, w)| v * w / sum).sum::<f64>()
    };
    let pooled: Vec<f64> = (0..128).map(channel).collect();
    let r = 1.0 / (norm(&pooled).powi(2) / 128.0 + 1e-6).sqrt();
    let normed = pooled.iter().zip(&get("norm").data);
    let mut want: Vec<f64> = normed.map(|(v, w)| v * r * f64::from(*w)).collect();
    rope.forward(&mut want, 128);
    let got = compressed_rows(&model, 3, "attn_compressor", &h, &rope).unwrap();
    assert!(max_diff(got.row(1), &want) < 1e-9);
}

/// Trap 36: the sink takes weight, is not scaled, and has no value.
#[test]
fn the_sink_only_takes_weight() {
    let (q, k) = (random(1, 128, 7).data, random(1, 128, 8).data);
    let score = q.iter().zip(&k).map(|(a, b)| a * b).sum::<f64>() / 128f64.sqrt();
    let mut out = vec![f64::NAN; 128];
    attend(&q, &[&k], 0.7, &mut out);
    let weight = score.exp() / (score.exp() + 0.7f64.exp());
    let want: Vec<f64> = k.iter().map(|v| v * weight).collect();
    assert!(max_diff(&out, &want) < 1e-14);
    attend(&q, &[&k], 800.0, &mut out);
    assert!(norm(&out) < 1e-200);
    attend(&q, &[&k], -800.0, &mut out);
    assert!(max_diff(&out, &k) < 1e-14);
}

/// Trap 35: a group of the output projection is a run of neighbouring heads.
#[test]
fn output_groups_are_neighbouring_heads() {
    let mut model = small();
    let c = model.config.clone();
    let h = random(5, 64, 9);
    // Silence group 0 of the projection: what is left must come from heads 2 and 3.
    let group = c.o_lora_rank * c.n_head / c.o_groups * c.head_dim;
    let a = model.tensors.get_mut("blk.0.attn_output_a.weight").unwrap();
    a.data[..group].fill(0.0);
    let right = attention(&model, 0, &h, 0, false).unwrap();
    for (head, heard) in [(0, false), (1, false), (2, true), (3, true)] {
        let mut other = model.clone();
        let q_b = other.tensors.get_mut("blk.0.attn_q_b.weight").unwrap();
        let size = c.head_dim * c.q_lora_rank;
        q_b.data[head * size..(head + 1) * size]
            .iter_mut()
            .for_each(|v| *v = -*v);
        let out = attention(&other, 0, &h, 0, false).unwrap();
        assert!(out.heads.data != right.heads.data);
        assert_eq!(out.out.data != right.out.data, heard, "head {head}");
    }
}

/// Traps 17 and 23: selections are valid, and the roundings reach exactly the rows they belong to.
#[test]
fn roundings_and_selections() {
    let model = small();
    let h = random(60, 64, 10);
    let plain = attention(&model, 2, &h, 0, false).unwrap();
    let rounded = attention(&model, 2, &h, 0, true).unwrap();
    assert_eq!(plain.q, rounded.q);
    for (plain, rounded) in [(&plain.kv, &rounded.kv), (&plain.comp_kv, &rounded.comp_kv)] {
        let mut want = plain.clone();
        (0..want.rows).for_each(|t| sim::kv_row(want.row_mut(t), 64));
        assert_eq!(&want, rounded);
        assert_ne!(plain, rounded);
    }
    let (plain, rounded) = (plain.index.unwrap(), rounded.index.unwrap());
    let mut want = plain.keys.clone();
    (0..want.rows).for_each(|t| sim::index_row(want.row_mut(t)));
    assert_eq!(want, rounded.keys);
    for (t, (scores, picks)) in rounded.scores.iter().zip(&rounded.picks).enumerate() {
        assert_eq!(scores.len(), (t + 1) / 4);
        assert_eq!(picks.len(), scores.len().min(4));
        assert!(picks.windows(2).all(|w| w[0] < w[1]));
        let worst = picks
            .iter()
            .map(|p| scores[*p as usize])
            .fold(f64::INFINITY, f64::min);
        let left = (0..scores.len()).filter(|c| !picks.contains(&(*c as u32)));
        assert!(left.map(|c| scores[c]).all(|s| s <= worst), "position {t}");
    }
}

/// Trap 18 by hand for one query: weights keep their sign; keys meet rectified products.
#[test]
fn an_index_score_by_hand() {
    let model = small();
    let c = &model.config;
    let h = random(9, 64, 11);
    let index = attention(&model, 2, &h, 0, false).unwrap().index.unwrap();
    let project = |suffix: &str, x: &[f64]| -> Vec<f64> {
        let t = model.layer(2, suffix).unwrap();
        let rows = t.data.chunks_exact(x.len());
        rows.map(|w| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum())
            .collect()
    };
    let low = project("attn_q_a.weight", h.row(8));
    let r = 1.0 / (norm(&low).powi(2) / low.len() as f64 + 1e-6).sqrt();
    let weights = &model.layer(2, "attn_q_a_norm.weight").unwrap().data;
    let low: Vec<f64> = low
        .iter()
        .zip(weights)
        .map(|(v, w)| v * r * f64::from(*w))
        .collect();
    let mut q = project("indexer.attn_q_b.weight", &low);
    let rope = Rope::new(c, 4);
    q.chunks_exact_mut(128)
        .for_each(|head| rope.forward(head, 8));
    let w = project("indexer.proj.weight", h.row(8));
    assert!(w.iter().any(|w| *w < 0.0));
    for row in 0..2 {
        let dot = |head: &[f64]| {
            head.iter()
                .zip(index.keys.row(row))
                .map(|(a, b)| a * b)
                .sum::<f64>()
        };
        let heads = q.chunks_exact(128).zip(&w);
        let score: f64 = heads.map(|(head, w)| w * dot(head).max(0.0)).sum();
        let score = score / 128f64.sqrt() / (c.index_heads as f64).sqrt();
        assert!((index.scores[8][row] - score).abs() < 1e-9);
    }
}
