//! Against the f64 oracle, on a random pair. Each comparison would notice the fault it is named for.

use std::sync::Arc;

use dspark_draft::heads::Heads;
use engine_core::seams::{Drafter, Target};
use engine_core::{SamplePlan, SeqId};
use testkit::compare::{max_abs, nmse};
use testkit::oracle::draft::{BlockDump, ChainDump};

use crate::support::{ask, backbone_of, bits, mat, observe, pass, quantised, run, toy};

/// Positions of the seed: shorter than, equal to and beyond the window of 16, and the ring of 32.
const PLACES: [usize; 8] = [1, 2, 15, 16, 17, 33, 100, 299];

fn oracle(pos: usize, depth: usize) -> (BlockDump, ChainDump) {
    let t = toy();
    let d = t.draft.oracle.config.stage.n_embd;
    let seed = t.tokens[pos];
    let block = mat(&t.block(seed), d);
    let block = t.draft.oracle.block(&block, pos, &t.exact(pos)).unwrap();
    let head = t.target.model.tensor("output.weight").unwrap();
    let chain = t.draft.oracle.chain(&block, head, seed, depth).unwrap();
    (block, chain)
}

/// f32 must choose as f64 does for a comparison to be fair.
fn fair(pos: usize, block: &BlockDump, chain: &ChainDump) {
    assert!(block.route_margin > 2e-5, "{pos}: {}", block.route_margin);
    let least = chain.margin.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(least > 1e-4, "{pos}: {least}");
}

#[test]
fn hidden_rows_logits_and_confidences_agree() {
    let t = toy();
    let mut target = t.cpu_target();
    let mut drafter = t.drafter(&target);
    let mut heads = Heads::new(Arc::clone(&t.draft_model), Arc::clone(target.pool()));
    for (seq, pos) in PLACES.into_iter().enumerate() {
        let seq = seq as u32;
        let (block, chain) = oracle(pos, 5);
        fair(pos, &block, &chain);
        let id = SeqId(seq);
        drafter
            .observe(id, 0, &t.tokens[..pos], t.rows(0..pos))
            .unwrap();
        drafter.settle(id).unwrap();
        drafter.backbone_mut().poison_stale();
        let seed = t.tokens[pos];
        let rows = run(drafter.backbone_mut(), seq, pos, &t.block(seed));
        assert_eq!(rows.rows, [5]);
        let check = |name, result: Result<f64, _>| {
            result.unwrap_or_else(|e: testkit::compare::Mismatch| panic!("{pos} {name}: {e}"))
        };
        check(
            "pre-norm",
            nmse(&block.pre_norm.data, &rows.pre_norm, 1e-10),
        );
        check("normed", nmse(&block.normed.data, &rows.normed, 1e-10));
        let mut previous = vec![seed];
        previous.extend(&chain.tokens[..4]);
        let logits = heads.logits(&mut target, &rows.normed, &previous).unwrap();
        check("logits", nmse(&chain.logits.data, &logits, 1e-10));
        let plan = SamplePlan::greedy();
        let asks = [ask(seq, pos, seed, 5)];
        let p = drafter.propose(&mut target, &asks, &[&plan]).unwrap();
        assert_eq!(p[0].tokens, chain.tokens, "{pos}");
        check(
            "confidence",
            max_abs(&chain.confidence, &p[0].confidence_logits, 1e-4),
        );
    }
}

/// Far from the start the block's angles and the context's must still belong together.
#[test]
fn positions_far_away_agree() {
    let t = toy();
    let (pos, n) = (1_000_003, 30);
    let d = t.draft.oracle.config.stage.n_embd;
    let block = t.block(9);
    let want = t
        .draft
        .oracle
        .block(&mat(&block, d), pos, &t.exact(n))
        .unwrap();
    assert!(want.route_margin > 2e-5, "{}", want.route_margin);
    let mut b = t.backbone();
    observe(&mut b, 0, pos - n, t.rows(0..n));
    let got = run(&mut b, 0, pos, &block);
    nmse(&want.normed.data, &got.normed, 1e-10).unwrap();
}

/// The features come from the target's own layers, in the order that the file lists.
#[test]
fn a_drafter_beside_its_target_agrees_from_the_tokens_on() {
    let t = toy();
    let mut target = t.cpu_target();
    let mut drafter = t.drafter(&target);
    let pos = 100;
    let seq = target.open().unwrap();
    let tap = drafter.tap();
    let layers: Vec<usize> = tap.layers.iter().map(|l| l.index()).collect();
    assert_eq!(layers, t.draft.oracle.config.capture);
    let prompt = &t.tokens[..pos];
    let p = pass(&mut target, seq, prompt, &tap);
    target.commit(seq, pos as u32);
    nmse(&t.exact(pos).data, &p.features, 1e-10).unwrap();
    drafter.observe(seq, 0, prompt, &p.features).unwrap();
    let plan = SamplePlan::greedy();
    let asks = [ask(seq.0, pos, t.tokens[pos], 5)];
    let got = drafter.propose(&mut target, &asks, &[&plan]).unwrap();
    let (block, chain) = oracle(pos, 5);
    fair(pos, &block, &chain);
    assert_eq!(got[0].tokens, chain.tokens);
    max_abs(&chain.confidence, &got[0].confidence_logits, 1e-3).unwrap();
}

/// Layers in another order are another input.
#[test]
fn permuted_layers_change_the_draft() {
    let t = toy();
    let mut b = t.backbone();
    observe(&mut b, 0, 0, t.rows(0..20));
    let d = t.draft_model.meta.stage.n_embd;
    let permuted: Vec<f32> = t
        .rows(0..20)
        .chunks_exact(t.width())
        .flat_map(|row| [&row[d..2 * d], &row[..d], &row[2 * d..]].concat())
        .collect();
    observe(&mut b, 1, 0, &permuted);
    let block = t.block(7);
    let (a, b) = (run(&mut b, 0, 20, &block), run(&mut b, 1, 20, &block));
    assert_ne!(bits(&a.normed), bits(&b.normed));
    assert!(nmse(&widen(&a.normed), &b.normed, 1e-3).is_err());
}

fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

/// Real features have an RMS of about a thousand, others may be small; what stands before the norm
/// must not matter, neither to range nor to eps. Three norms follow one another before a key is
/// finished, so that only very small features show that the first one is there.
#[test]
fn the_size_of_features_does_not_matter() {
    let t = toy();
    let block = t.block(7);
    let quantised = quantised();
    for (model, limit) in [(&t.draft_model, 1e-6), (&quantised, 1e-3)] {
        let mut b = backbone_of(model);
        let mut drafted = |seq: u32, scale: f32| {
            let rows: Vec<f32> = t.rows(0..20).iter().map(|v| v * scale).collect();
            observe(&mut b, seq, 0, &rows);
            let rows = run(&mut b, seq, 20, &block);
            assert!(rows.normed.iter().all(|v| v.is_finite()), "{scale}");
            rows.normed
        };
        let plain = drafted(0, 1.0);
        for (seq, scale) in [(1, 1e4), (2, 1e-4), (3, 1e-8)] {
            let scaled = drafted(seq, scale);
            nmse(&widen(&plain), &scaled, limit).unwrap_or_else(|e| panic!("{scale}: {e}"));
        }
    }
}

/// No causal mask: the first row sees the last. Every row sees the whole window, from `pos - 16`,
/// and nothing older.
#[test]
fn a_block_sees_itself_and_exactly_the_window() {
    let t = toy();
    let (pos, window, d) = (40, 16, t.draft_model.meta.stage.n_embd);
    let width = t.width();
    let drafted = |features: &[f32], block: &[f32]| {
        let mut b = t.backbone();
        observe(&mut b, 0, 0, features);
        run(&mut b, 0, pos, block).normed
    };
    let rows_that_differ = |a: &[f32], b: &[f32]| -> Vec<usize> {
        let pairs = a.chunks_exact(d).zip(b.chunks_exact(d)).enumerate();
        pairs
            .filter(|(_, (a, b))| bits(a) != bits(b))
            .map(|(i, _)| i)
            .collect()
    };
    let (features, block) = (t.rows(0..pos).to_vec(), t.block(7));
    let plain = drafted(&features, &block);
    for row in 0..5 {
        let mut other = block.clone();
        other[row * d..(row + 1) * d]
            .iter_mut()
            .for_each(|v| *v = -*v);
        let differ = rows_that_differ(&plain, &drafted(&features, &other));
        assert_eq!(differ, [0, 1, 2, 3, 4], "block row {row}");
    }
    for (at, seen) in [
        (pos - 1, true),
        (pos - window, true),
        (pos - window - 1, false),
    ] {
        let mut other = features.clone();
        other[at * width..(at + 1) * width]
            .iter_mut()
            .for_each(|v| *v = -*v);
        let differ = rows_that_differ(&plain, &drafted(&other, &block));
        let expected = if seen { vec![0, 1, 2, 3, 4] } else { vec![] };
        assert_eq!(differ, expected, "context row {at}");
    }
}

/// The comparison can fail: another seed, another position.
#[test]
fn a_wrong_block_is_noticed() {
    let t = toy();
    let (want, _) = oracle(33, 1);
    let mut b = t.backbone();
    observe(&mut b, 0, 0, t.rows(0..33));
    let got = run(&mut b, 0, 33, &t.block(t.tokens[33] ^ 1));
    assert!(nmse(&want.normed.data, &got.normed, 1e-6).is_err());
    observe(&mut b, 1, 1, t.rows(0..33));
    let got = run(&mut b, 1, 34, &t.block(t.tokens[33]));
    // Angles are relative: a shifted block with a shifted context is the same up to rounding.
    nmse(&want.normed.data, &got.normed, 1e-8).unwrap();
}
