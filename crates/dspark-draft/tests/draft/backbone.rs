//! Context rows: chunks, rejection, batches, saving.

use std::sync::Arc;

use ds4_target::pool::Pool;
use dspark_draft::backbone::{LocalBackbone, Observation, Options};
use dspark_draft::weights::DraftModel;
use engine_core::seams::Backbone;
use engine_core::{Fault, SeqId};
use testkit::rng::Rng;

use crate::support::{Memory, ask, backbone_of, bits, observe, quantised, run, toy};

/// Features of positions `from..to`, repeated beyond the run.
fn rows(from: usize, to: usize) -> Vec<f32> {
    let t = toy();
    let n = t.tokens.len();
    (from..to)
        .flat_map(|p| t.rows(p % n..p % n + 1).to_vec())
        .collect()
}

fn digest(b: &LocalBackbone, seq: u32) -> [u8; 32] {
    b.digest(SeqId(seq)).unwrap()
}

fn wrong_position(result: Result<impl std::fmt::Debug, Fault>) -> (u32, u32) {
    match result.unwrap_err() {
        Fault::WrongPosition { expected, got, .. } => (expected, got),
        other => panic!("{other}"),
    }
}

#[test]
fn chunks_leave_the_same_rows() {
    let total = 150;
    for start in [0usize, 37] {
        let mut b = toy().backbone();
        observe(&mut b, 0, start, &rows(start, total));
        let want = digest(&b, 0);
        for (seq, chunk) in [(1, 1), (2, 3), (3, 64)] {
            for from in (start..total).step_by(chunk) {
                let to = (from + chunk).min(total);
                observe(&mut b, seq, from, &rows(from, to));
            }
            assert_eq!(digest(&b, seq), want, "from {start} by {chunk}");
        }
        b.poison_stale();
        assert_eq!(digest(&b, 2), want);
    }
}

/// Several sequences in one pass over the weights: the rows of one each.
#[test]
fn sequences_observed_together_have_their_own_rows() {
    let mut b = toy().backbone();
    let parts = [
        (0u32, 3usize, 40usize),
        (1, 0, 7),
        (2, 250, 299),
        (3, 100, 101),
    ];
    let features: Vec<Vec<f32>> = parts.iter().map(|(_, f, t)| rows(*f, *t)).collect();
    let list: Vec<Observation<'_>> = parts
        .iter()
        .zip(&features)
        .map(|((seq, pos, _), features)| Observation {
            seq: SeqId(*seq),
            pos: *pos as u32,
            features,
        })
        .collect();
    b.observe_many(&list).unwrap();
    for ((seq, from, _), features) in parts.iter().zip(&features) {
        observe(&mut b, 7, *from, features);
        assert_eq!(digest(&b, *seq), digest(&b, 7), "sequence {seq}");
        b.close(SeqId(7));
    }
}

/// Each step commits between one and six rows; all of them must reach the rings.
#[test]
fn after_many_steps_the_rows_are_those_of_a_fresh_projection() {
    let mut b = toy().backbone();
    let mut rng = Rng::new(5);
    let mut pos = 20;
    observe(&mut b, 0, 0, &rows(0, pos));
    for step in 0..300 {
        let m = rng.below(6);
        observe(&mut b, 0, pos, &rows(pos, pos + m + 1));
        pos += m + 1;
        if step % 50 == 0 || step == 299 {
            let from = pos.saturating_sub(60);
            observe(&mut b, 1, from, &rows(from, pos));
            assert_eq!(digest(&b, 0), digest(&b, 1), "step {step} at {pos}");
            b.close(SeqId(1));
        }
    }
}

#[test]
fn holes_and_repeats_are_refused() {
    let mut b = toy().backbone();
    observe(&mut b, 0, 5, &rows(5, 9));
    let before = digest(&b, 0);
    let at = |b: &mut LocalBackbone, pos: u32| b.observe(SeqId(0), pos, &rows(0, 1));
    assert_eq!(wrong_position(at(&mut b, 10)), (9, 10));
    assert_eq!(wrong_position(at(&mut b, 8)), (9, 8));
    assert_eq!(digest(&b, 0), before);
    at(&mut b, 9).unwrap();
    // A block stands right behind the newest row.
    let block = toy().block(7);
    for pos in [9, 11] {
        let asks = [ask(0, pos, 7, 5)];
        assert_eq!(wrong_position(b.submit(&asks, &block)), (10, pos as u32));
    }
    assert!(matches!(
        b.observe(SeqId(0), 10, &rows(0, 1)[1..]),
        Err(Fault::BadState {
            field: "features",
            ..
        })
    ));
    assert!(matches!(
        b.submit(&[ask(0, 10, 7, 5)], &block[1..]),
        Err(Fault::BadState {
            field: "block rows",
            ..
        })
    ));
}

/// A call with one bad sequence changes none.
#[test]
fn a_refused_call_changes_nothing() {
    let mut b = toy().backbone();
    observe(&mut b, 0, 0, &rows(0, 9));
    observe(&mut b, 1, 0, &rows(0, 4));
    let before = [digest(&b, 0), digest(&b, 1)];
    let features = rows(9, 11);
    let o = |seq: u32, pos: u32| Observation {
        seq: SeqId(seq),
        pos,
        features: &features,
    };
    assert_eq!(wrong_position(b.observe_many(&[o(0, 9), o(1, 5)])), (4, 5));
    assert!(matches!(
        b.observe_many(&[o(0, 9), o(0, 11)]),
        Err(Fault::DuplicateSpan(SeqId(0)))
    ));
    assert!(matches!(
        b.observe_many(&[o(0, 9), o(8, 0)]),
        Err(Fault::Exhausted { .. })
    ));
    let end = u32::MAX - 1;
    assert!(matches!(
        b.observe_many(&[o(0, 9), o(2, end)]),
        Err(Fault::ContextFull { .. })
    ));
    assert_eq!([digest(&b, 0), digest(&b, 1)], before);
    assert_eq!(b.context(SeqId(2)), None);
}

/// Taking rows back and putting others there is as if the first had never been.
#[test]
fn truncation_and_new_rows_equal_the_straight_way() {
    let mut b = toy().backbone();
    for (seq, kept) in [(0u32, 100usize), (1, 93), (2, 17), (3, 0)] {
        observe(&mut b, seq, 0, &rows(0, kept));
        let want = (kept > 0).then(|| digest(&b, seq));
        // Rows that will be rejected.
        observe(&mut b, seq, kept, &rows(200, 208));
        b.truncate(SeqId(seq), kept as u32);
        if let Some(want) = want {
            assert_eq!(digest(&b, seq), want, "kept {kept}");
        }
        observe(&mut b, seq, kept, &rows(kept, 120));
        observe(&mut b, 7, 0, &rows(0, 120));
        assert_eq!(digest(&b, seq), digest(&b, 7), "kept {kept}");
        b.close(SeqId(7));
    }
    // Further back than the ring reaches: a shorter context, never a wrong one.
    observe(&mut b, 6, 0, &rows(0, 120));
    b.truncate(SeqId(6), 90);
    assert_eq!(b.context(SeqId(6)), Some(88..90));
    b.truncate(SeqId(6), 60);
    assert_eq!(b.context(SeqId(6)), None);
    b.truncate(SeqId(99), 3);
}

#[test]
fn a_closed_sequence_leaves_nothing() {
    let mut b = toy().backbone();
    observe(&mut b, 0, 0, &rows(0, 50));
    b.close(SeqId(0));
    assert!(matches!(b.digest(SeqId(0)), Err(Fault::NoSuchSequence(_))));
    b.close(SeqId(0));
    observe(&mut b, 3, 0, &rows(100, 120));
    let mut fresh = toy().backbone();
    observe(&mut fresh, 3, 0, &rows(100, 120));
    assert_eq!(digest(&b, 3), digest(&fresh, 3));
    let block = toy().block(7);
    let (a, b) = (run(&mut b, 3, 20, &block), run(&mut fresh, 3, 20, &block));
    assert_eq!(bits(&a.normed), bits(&b.normed));
}

/// Many sequences in one batch, each as alone; depths cut the answer and not the block.
#[test]
fn a_batch_gives_the_rows_of_each_alone() {
    for model in [Arc::clone(&toy().draft_model), quantised()] {
        compare_batch_with_each_alone(&model);
    }
}

fn compare_batch_with_each_alone(model: &Arc<DraftModel>) {
    let t = toy();
    let mut b = backbone_of(model);
    let places = [3usize, 16, 40, 250, 1, 90];
    for (seq, pos) in places.iter().enumerate() {
        observe(&mut b, seq as u32, 0, &rows(0, *pos));
    }
    b.poison_stale();
    let block = |seed: u32| t.block(seed);
    let alone: Vec<_> = places
        .iter()
        .enumerate()
        .map(|(s, pos)| run(&mut b, s as u32, *pos, &block(20 + s as u32)))
        .collect();
    let depths = [5u32, 1, 0, 3, 9, 2];
    let mut asks: Vec<_> = (0..places.len())
        .map(|s| ask(s as u32, places[s], 0, depths[s]))
        .collect();
    // A sequence that was never observed has nothing to draft from.
    asks.push(ask(6, 10, 0, 5));
    let blocks: Vec<f32> = (0..7).flat_map(|s| block(20 + s)).collect();
    let ticket = b.submit(&asks, &blocks).unwrap();
    let got = b.poll(ticket, None).unwrap();
    assert_eq!(got.rows, [5, 1, 0, 3, 5, 2, 0]);
    let d = t.draft_model.meta.stage.n_embd;
    let mut at = 0;
    for (alone, n) in alone.iter().zip(&got.rows) {
        let range = at * d..(at + n) * d;
        assert_eq!(
            bits(&got.normed[range.clone()]),
            bits(&alone.normed[..n * d])
        );
        assert_eq!(bits(&got.pre_norm[range]), bits(&alone.pre_norm[..n * d]));
        at += n;
    }
    assert_eq!(got.normed.len(), at * d);
}

/// How work is divided among threads is invisible.
#[test]
fn threads_do_not_matter() {
    for model in [Arc::clone(&toy().draft_model), quantised()] {
        let drafted = |threads: usize| {
            let pool = Arc::new(Pool::new(threads));
            let mut b = LocalBackbone::new(Arc::clone(&model), pool, Options::default()).unwrap();
            observe(&mut b, 0, 0, &rows(0, 40));
            (
                digest(&b, 0),
                bits(&run(&mut b, 0, 40, &toy().block(7)).normed),
            )
        };
        let one = drafted(1);
        assert_eq!(drafted(2), one);
        assert_eq!(drafted(5), one);
    }
}

#[test]
fn an_answer_is_taken_once() {
    let mut b = toy().backbone();
    observe(&mut b, 0, 0, &rows(0, 9));
    let block = toy().block(7);
    let asks = [ask(0, 9, 7, 2)];
    let (first, second) = (
        b.submit(&asks, &block).unwrap(),
        b.submit(&asks, &block).unwrap(),
    );
    b.poll(second, None).unwrap();
    b.poll(first, None).unwrap();
    assert!(matches!(b.poll(first, None), Err(Fault::NoSuchTicket(_))));
    b.health().unwrap();
}

fn saved(b: &LocalBackbone, seq: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    b.save(SeqId(seq), &mut bytes).unwrap();
    bytes
}

#[test]
fn saved_rows_continue_as_the_original() {
    let t = toy();
    let mut b = t.backbone();
    for (n, live) in [(0usize, 0usize), (7, 7), (100, 16)] {
        b.close(SeqId(0));
        if n > 0 {
            observe(&mut b, 0, 0, &rows(0, n));
        } else {
            b.load(SeqId(0), &mut empty(&t.backbone()).as_slice())
                .unwrap();
        }
        let bytes = saved(&b, 0);
        assert_eq!(bytes.len(), 52 + 2 * live * 128 * 4, "{n}");
        let mut other = t.backbone();
        // Into a slot that holds something else.
        observe(&mut other, 4, 50, &rows(50, 99));
        other.load(SeqId(4), &mut bytes.as_slice()).unwrap();
        assert_eq!(saved(&other, 4), bytes);
        other.poison_stale();
        for (b, seq) in [(&mut b, 0), (&mut other, 4)] {
            observe(b, seq, n, &rows(n, n + 5));
        }
        assert_eq!(digest(&b, 0), digest(&other, 4), "{n}");
        let block = t.block(7);
        let (x, y) = (
            run(&mut b, 0, n + 5, &block),
            run(&mut other, 4, n + 5, &block),
        );
        assert_eq!(bits(&x.normed), bits(&y.normed));
    }
}

/// A saved context without rows.
fn empty(b: &LocalBackbone) -> Vec<u8> {
    let mut bytes = b"4SPKDRF1".to_vec();
    bytes.extend(b.model().fingerprint);
    bytes.extend([0; 12]);
    bytes
}

#[test]
fn damaged_rows_are_refused_and_leave_an_empty_slot() {
    let t = toy();
    let mut b = t.backbone();
    observe(&mut b, 0, 0, &rows(0, 40));
    let good = saved(&b, 0);
    let mut refused = |bytes: &[u8], what: &str| {
        observe(&mut b, 1, 0, &rows(0, 3));
        let e = b.load(SeqId(1), &mut &*bytes).unwrap_err();
        assert!(e.to_string().contains(what), "{what}: {e}");
        assert_eq!(b.context(SeqId(1)), None, "{what}");
    };
    let with = |at: usize, xor: u8| {
        let mut bytes = good.clone();
        bytes[at] ^= xor;
        bytes
    };
    refused(&with(7, 1), "magic");
    refused(&with(8, 1), "draft fingerprint");
    refused(&with(40, 1), "kv_round");
    refused(&with(42, 1), "kv_round");
    refused(&with(44, 64), "positions");
    refused(&with(47, 128), "positions");
    refused(&with(48, 128), "positions");
    refused(&[&good[..], &[0]].concat(), "length");
    for cut in [0, 30, 51, 52, good.len() - 1] {
        refused(&good[..cut], "saved state");
    }
    assert!(matches!(
        b.load(SeqId(8), &mut good.as_slice()),
        Err(Fault::Exhausted { .. })
    ));
}

/// Rounded keys are other keys, under another stamp.
#[test]
fn rounding_of_keys_is_an_option() {
    let t = toy();
    let options = |kv_round| Options {
        kv_round,
        ..Options::default()
    };
    let new = |kv_round| {
        let pool = Arc::new(Pool::new(1));
        LocalBackbone::new(Arc::clone(&t.draft_model), pool, options(kv_round)).unwrap()
    };
    assert!(!Options::default().kv_round);
    let (mut plain, mut rounded) = (new(false), new(true));
    observe(&mut plain, 0, 0, &rows(0, 20));
    observe(&mut rounded, 0, 0, &rows(0, 20));
    let block = t.block(7);
    let (a, b) = (
        run(&mut plain, 0, 20, &block),
        run(&mut rounded, 0, 20, &block),
    );
    assert_ne!(bits(&a.normed), bits(&b.normed));
    let e = rounded.load(SeqId(1), &mut saved(&plain, 0).as_slice());
    assert!(e.unwrap_err().to_string().contains("kv_round"));
    let mut narrow = t.draft_model.as_ref().clone();
    narrow.meta.stage.n_rot = 32;
    let e = LocalBackbone::new(Arc::new(narrow), Arc::new(Pool::new(1)), options(true));
    assert!(e.unwrap_err().to_string().contains("blocks of 64"));
}

/// Rows of another drafter do not fit, however alike their shapes.
#[test]
fn rows_of_another_model_are_refused() {
    let t = toy();
    let mut other = Memory::draft(&t.draft.oracle);
    other.tensors.get_mut("dflash.fc.weight").unwrap().data[0] += 0.5;
    let other = Arc::new(DraftModel::load(&other).unwrap());
    let mut b = t.backbone();
    observe(&mut b, 0, 0, &rows(0, 5));
    let mut c = backbone_of(&other);
    let e = c.load(SeqId(0), &mut saved(&b, 0).as_slice()).unwrap_err();
    assert!(e.to_string().contains("draft fingerprint"), "{e}");
}

#[test]
fn buffers_do_not_follow_the_context() {
    let toy = toy();
    let mut b = toy.backbone();
    let n = toy.features.len() / toy.width();
    // A whole context once, then one that grows row by row from nothing.
    observe(&mut b, 0, 0, toy.rows(0..n));
    run(&mut b, 0, n, &toy.block(5));
    let warm = b.buffer_bytes();
    assert!(warm > 0);
    for at in 0..n {
        observe(&mut b, 1, at, toy.rows(at..at + 1));
        run(&mut b, 1, at + 1, &toy.block(5));
        assert_eq!(b.buffer_bytes(), warm, "context of {} rows", at + 1);
    }
}
