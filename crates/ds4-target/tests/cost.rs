//! What a pass costs, counted: weights are read once whatever the rows, visited experts once.
#![allow(clippy::unwrap_used)]

mod common;

use common::{feed, source, target};
use ds4_target::weights::Weights;
use ds4_target::{CpuTarget, Options};
use engine_core::{Out, Target};
use testkit::fixture::{Fixture, Kind};

/// Bytes of everything but embeddings and routed experts.
fn dense(w: &Weights) -> u64 {
    let layer = |l: &ds4_target::weights::Layer| {
        let a = &l.attn;
        let comp = l
            .compressor
            .iter()
            .chain(l.indexer.as_ref().map(|i| &i.compressor));
        let comp: usize = comp
            .map(|c| c.key.bytes().len() + c.gate.bytes().len())
            .sum();
        let index = l
            .indexer
            .as_ref()
            .map_or(0, |i| i.q_b.bytes().len() + i.proj.bytes().len());
        let m = &l.moe;
        [
            &l.hc_attn.mix,
            &l.hc_ffn.mix,
            &a.q_a,
            &a.q_b,
            &a.kv,
            &a.o_a,
            &a.o_b,
            &m.router,
            &m.shared_gate,
            &m.shared_up,
            &m.shared_down,
        ]
        .iter()
        .map(|t| t.bytes().len())
        .sum::<usize>()
            + comp
            + index
    };
    (w.layers.iter().map(layer).sum::<usize>() + w.hc_head.mix.bytes().len() + w.head.bytes().len())
        as u64
}

fn read_by(t: &mut CpuTarget, tokens: &[u32]) -> u64 {
    let seq = t.open().unwrap();
    let before = t.weight_bytes_read();
    feed(t, seq, tokens, Out::All);
    t.close(seq);
    t.weight_bytes_read() - before
}

#[test]
fn each_weight_is_read_once_a_pass_whatever_the_rows() {
    let options = Options {
        n_ctx: 256,
        span_max: 256,
        ..Options::default()
    };
    let fixture = Fixture::new(Kind::T0i, 7).unwrap();
    let tokens = fixture.tokens(200, 1);
    let mut t = target(&source(fixture.model), options);
    let w = t.model().weights.clone();
    let dense = dense(&w);
    let m = &w.layers[0].moe;
    let expert = ((m.gate.bytes().len() + m.up.bytes().len() + m.down.bytes().len()) / 8) as u64;
    let layers = w.layers.len() as u64;
    // One token visits 2 of 8 experts a layer.
    assert_eq!(read_by(&mut t, &tokens[..1]), dense + layers * 2 * expert);
    // Two hundred tokens visit all of them: each is read once.
    assert_eq!(read_by(&mut t, &tokens), dense + layers * 8 * expert);
}

/// C-29: the same passes count the same, however many threads there are and however often they run.
#[test]
fn c_29_counters_are_those_of_the_passes() {
    let fixture = Fixture::new(Kind::T0i, 7).unwrap();
    let tokens = fixture.tokens(9, 1);
    let source = source(fixture.model);
    let counted = |threads: usize, times: u64| {
        let options = Options {
            n_ctx: 64,
            threads,
            ..Options::default()
        };
        let mut t = target(&source, options);
        for _ in 0..times {
            let _ = read_by(&mut t, &tokens);
        }
        let told = t.counters().unwrap();
        // Stalls depend on the machine's load where there is a second thread.
        assert_eq!(told.fallbacks, 0);
        assert!(threads > 1 || told.stalls == 0);
        let bytes = told.weight_bytes.expect("the CPU counts its weight bytes");
        (bytes, told.launches)
    };
    let (bytes, launches) = counted(1, 1);
    assert!(bytes > 0 && launches > 0);
    for (threads, times) in [(1, 3), (2, 1), (3, 2)] {
        let expected = (times * bytes, times * launches);
        assert_eq!(counted(threads, times), expected, "{threads} threads");
    }
}
