//! One result: chunking, verify width and accept length, neighbours in the pass, threads, and
//! saving and loading never change a bit of logits or of saved state (design bet 1).
#![allow(clippy::unwrap_used)]

mod common;

use common::{feed, source, span, target};
use ds4_target::{CpuTarget, Options};
use engine_core::{Out, SeqId, Target, TokenId};
use testkit::fixture::{Fixture, Kind};
use testkit::rng::Rng;

/// What plain decoding gives at every position: the reference of every other way.
struct Plain {
    ids: Vec<TokenId>,
    /// `[n, n_vocab]` bits.
    logits: Vec<Vec<u32>>,
    /// State digest after `p` tokens.
    digests: Vec<[u8; 32]>,
}

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|v| v.to_bits()).collect()
}

fn options(kv_sim: bool, threads: usize) -> Options {
    Options {
        n_ctx: 512,
        span_max: 400,
        n_seq_max: 6,
        kv_sim,
        threads,
        ..Options::default()
    }
}

fn t0(kv_sim: bool, threads: usize) -> CpuTarget {
    let model = Fixture::new(Kind::T0i, 7).unwrap().model;
    target(&source(model), options(kv_sim, threads))
}

fn ids(t: &CpuTarget, n: usize, seed: u64) -> Vec<TokenId> {
    let mut rng = Rng::named(seed, "ids");
    (0..n)
        .map(|_| (rng.next_u64() % t.info().n_vocab as u64) as TokenId)
        .collect()
}

fn plain(t: &mut CpuTarget, ids: &[TokenId]) -> Plain {
    let seq = t.open().unwrap();
    t.poison_stale(seq).unwrap();
    let mut p = Plain {
        ids: ids.to_vec(),
        logits: vec![],
        digests: vec![t.digest(seq).unwrap()],
    };
    for id in ids {
        let row = feed(t, seq, &[*id], Out::All);
        assert!(
            row.iter().all(|v| v.is_finite()),
            "position {}",
            p.logits.len()
        );
        p.logits.push(bits(&row));
        p.digests.push(t.digest(seq).unwrap());
    }
    t.close(seq);
    p
}

fn assert_rows(t: &CpuTarget, logits: &[f32], want: &Plain, from: usize, what: &str) {
    for (i, row) in logits.chunks_exact(t.info().n_vocab).enumerate() {
        assert_eq!(
            bits(row),
            want.logits[from + i],
            "{what}: logits at position {}",
            from + i
        );
    }
}

#[test]
fn any_chunking_gives_the_bits_of_plain_decoding() {
    for (kv_sim, threads) in [(true, 1), (false, 2)] {
        let mut t = t0(kv_sim, threads);
        let ids = ids(&t, 270, 1);
        let want = plain(&mut t, &ids);
        for chunk in [1, 3, 4, 5, 127, 128, 129, 270] {
            let what = format!("kv_sim {kv_sim}, threads {threads}, chunk {chunk}");
            let seq = t.open().unwrap();
            t.poison_stale(seq).unwrap();
            let mut at = 0;
            for part in ids.chunks(chunk) {
                let logits = feed(&mut t, seq, part, Out::All);
                assert_rows(&t, &logits, &want, at, &what);
                at += part.len();
                assert_eq!(
                    t.digest(seq).unwrap(),
                    want.digests[at],
                    "{what}: state after {at}"
                );
            }
            t.close(seq);
        }
    }
}

/// Verifies `q` tokens at `pos` of which the first `accept` are right, commits, and checks state and
/// the next row.
fn verify(t: &mut CpuTarget, base: SeqId, want: &Plain, pos: usize, q: usize, accept: usize) {
    let what = format!("position {pos}, q {q}, accepted {accept}");
    let n_vocab = t.info().n_vocab as TokenId;
    let seq = t.fork(base).unwrap();
    let mut tokens = want.ids[pos..pos + q].to_vec();
    for token in &mut tokens[accept..] {
        *token = (*token + 1) % n_vocab;
    }
    let ticket = t
        .submit(&tokens, &[span(seq, pos as u32, q, Out::All)])
        .unwrap();
    let logits = t.wait(ticket, None).unwrap().logits.clone();
    let right = accept.min(q);
    assert_rows(t, &logits[..right * n_vocab as usize], want, pos, &what);
    t.commit(seq, (pos + accept) as u32);
    assert_eq!(
        t.digest(seq).unwrap(),
        want.digests[pos + accept],
        "{what}: state"
    );
    t.poison_stale(seq).unwrap();
    let next = feed(t, seq, &[want.ids[pos + accept]], Out::All);
    assert_rows(t, &next, want, pos + accept, &what);
    t.close(seq);
}

/// Every width and accept length from each of `positions` (ascending).
fn sweep(positions: impl Iterator<Item = usize>) {
    let mut t = t0(true, 1);
    let ids = ids(&t, 70, 2);
    let want = plain(&mut t, &ids);
    let base = t.open().unwrap();
    let mut at = 0;
    for pos in positions {
        if pos > at {
            feed(&mut t, base, &ids[at..pos], Out::None);
            at = pos;
        }
        for q in 1..=8 {
            for accept in 0..=q {
                verify(&mut t, base, &want, pos, q, accept);
            }
        }
    }
}

#[test]
fn verify_of_any_width_and_any_accept_length_is_plain_decoding() {
    // All phases of the sparse ratio, the start, and both sides of the window's first wrap.
    sweep((0..5).chain(13..19));
}

#[test]
#[ignore = "soak: every position of three windows"]
fn verify_at_every_position_of_three_windows_is_plain_decoding() {
    sweep(0..52);
}

fn across(boundaries: &[usize], positions: std::ops::Range<usize>, widths: &[usize]) {
    let mut t = t0(true, 2);
    let ids = ids(&t, 400, 3);
    let want = plain(&mut t, &ids[..boundaries[boundaries.len() - 1] + 12]);
    for boundary in boundaries {
        let base = t.open().unwrap();
        let first = boundary - 9 + positions.start;
        feed(&mut t, base, &ids[..first], Out::None);
        for pos in first..boundary - 9 + positions.end {
            for q in widths {
                for accept in [0, 1, q / 2, *q] {
                    verify(&mut t, base, &want, pos, *q, accept);
                }
            }
            feed(&mut t, base, &ids[pos..=pos], Out::None);
        }
        t.close(base);
    }
}

#[test]
fn verify_across_a_long_window_is_plain_decoding() {
    across(&[128], 5..11, &[2, 8]);
}

#[test]
#[ignore = "soak: three long windows"]
fn verify_across_three_long_windows_is_plain_decoding() {
    across(&[128, 256, 384], 0..11, &[1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn saved_state_continues_identically_in_a_dirty_slot() {
    for kv_sim in [true, false] {
        let mut t = t0(kv_sim, 1);
        let ids = ids(&t, 200, 4);
        let want = plain(&mut t, &ids);
        let other: Vec<TokenId> = ids.iter().map(|id| (id + 17) % 512).collect();
        for pos in [0usize, 1, 3, 4, 17, 127, 128, 131] {
            let seq = t.open().unwrap();
            if pos > 0 {
                feed(&mut t, seq, &ids[..pos], Out::None);
            }
            let mut saved = Vec::new();
            t.save(seq, &mut saved).unwrap();
            t.close(seq);
            // Dirty every slot that load could reuse.
            let dirty = t.open().unwrap();
            feed(&mut t, dirty, &other, Out::None);
            t.close(dirty);
            let seq = t.load(&mut saved.as_slice()).unwrap();
            assert_eq!(t.digest(seq).unwrap(), want.digests[pos], "saved at {pos}");
            for at in pos..pos + 50 {
                let row = feed(&mut t, seq, &ids[at..=at], Out::All);
                assert_rows(
                    &t,
                    &row,
                    &want,
                    at,
                    &format!("saved at {pos}, kv_sim {kv_sim}"),
                );
            }
            t.close(seq);
        }
    }
}

#[test]
fn neighbours_in_the_pass_do_not_matter() {
    let mut t = t0(true, 2);
    let all: Vec<Vec<TokenId>> = (0..5).map(|i| ids(&t, 150, 10 + i)).collect();
    let want: Vec<Plain> = all.iter().map(|ids| plain(&mut t, ids)).collect();
    let seqs: Vec<SeqId> = (0..5).map(|_| t.open().unwrap()).collect();
    let mut at = [0usize; 5];
    let mut rng = Rng::named(5, "spans");
    while at.iter().any(|p| *p < 150) {
        let (mut tokens, mut spans, mut which) = (vec![], vec![], vec![]);
        for i in 0..5 {
            let n = (rng.next_u64() % 24) as usize;
            let n = n.min(150 - at[i]);
            if n == 0 {
                continue;
            }
            let mut s = span(seqs[i], at[i] as u32, n, Out::All);
            s.range = tokens.len()..tokens.len() + n;
            tokens.extend_from_slice(&all[i][at[i]..at[i] + n]);
            spans.push(s);
            which.push((i, n));
        }
        if spans.is_empty() {
            continue;
        }
        let ticket = t.submit(&tokens, &spans).unwrap();
        let rows = t.wait(ticket, None).unwrap().clone();
        for (span, (i, n)) in which.into_iter().enumerate() {
            for (k, row) in rows.span_rows[span].clone().enumerate() {
                let got = bits(rows.logits(row).unwrap());
                assert_eq!(
                    got,
                    want[i].logits[at[i] + k],
                    "sequence {i} position {}",
                    at[i] + k
                );
            }
            at[i] += n;
            t.commit(seqs[i], at[i] as u32);
            assert_eq!(
                t.digest(seqs[i]).unwrap(),
                want[i].digests[at[i]],
                "sequence {i}"
            );
        }
    }
}

#[test]
fn a_closed_slot_starts_empty() {
    let mut t = t0(true, 1);
    let ids = ids(&t, 150, 6);
    let first = plain(&mut t, &ids);
    let seq = t.open().unwrap();
    let other: Vec<TokenId> = ids.iter().rev().copied().collect();
    feed(&mut t, seq, &other, Out::None);
    t.close(seq);
    let seq = t.open().unwrap();
    for (at, id) in ids.iter().enumerate() {
        let row = feed(&mut t, seq, &[*id], Out::All);
        assert_rows(&t, &row, &first, at, "reused slot");
    }
}
