//! The shipped small model on two HIP devices of one process: logits and state are the CPU's.
#![cfg(feature = "host-exec")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;
use std::sync::Arc;

use device::hip;
use ds4_target::on_device::{DeviceTarget, Settings};
use ds4_target::synth::SynthSource;
use ds4_target::{CpuTarget, GgufSource, Model, Options};
use engine_core::{Out, Pos, SeqId, Span, Tap, Target, TokenId, Want};

fn model() -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny.gguf");
    let file = gguf::Gguf::open(&path, &gguf::OpenOptions::default()).unwrap();
    Arc::new(Model::load(&GgufSource::new(file)).unwrap())
}

/// Logits of a pass, `[tokens, n_vocab]` as bits, of which `keep` tokens are committed.
fn pass(t: &mut dyn Target, seq: SeqId, tokens: &[TokenId], keep: usize) -> Vec<u32> {
    let pos = t.pos(seq).unwrap();
    let span = Span {
        seq,
        pos,
        range: 0..tokens.len(),
        out: Out::All,
        want: Want::Logits,
        tap: Tap::default(),
    };
    let ticket = t.submit(tokens, &[span]).unwrap();
    let rows = t.wait(ticket, None).unwrap();
    let bits = rows.logits.iter().map(|v| v.to_bits()).collect();
    t.commit(seq, pos + keep as Pos);
    bits
}

fn saved(t: &dyn Target, seq: SeqId) -> Vec<u8> {
    let mut bytes = Vec::new();
    t.save(seq, &mut bytes).unwrap();
    bytes
}

#[test]
fn both_devices_give_the_bits_of_the_cpu_and_read_each_other_s_state() {
    let (model, runtime) = (model(), hip::runtime(&common::settings()).unwrap());
    let options = Options {
        n_ctx: 256,
        n_seq_max: 2,
        verify_max: 4,
        span_max: 64,
        kv_sim: true,
        threads: 1,
    };
    let mut cpu = CpuTarget::new(Arc::clone(&model), options.clone()).unwrap();
    let mut devices = [0, 1].map(|ordinal| {
        let device = runtime.open(ordinal).unwrap();
        let settings = Settings {
            cache: None,
            progress: &mut |_, _| {},
            // Short passes as graphs, from the second of a shape on.
            graph_tokens: 4,
            check: false,
        };
        let mut t =
            DeviceTarget::new(Arc::clone(&model), options.clone(), &device, settings).unwrap();
        t.poison().unwrap();
        t
    });
    let ids: Vec<TokenId> = (0..80).map(|i| (i * 37 + 11) % 4096).collect();
    let seq = cpu.open().unwrap();
    for device in &mut devices {
        assert_eq!(device.open().unwrap(), seq);
    }
    let mut at = 0;
    // A chunk, a step, a verify of four of which two stand, and a step from there.
    for (n, keep) in [(21, 21), (1, 1), (4, 2), (1, 1), (1, 1)] {
        let want = pass(&mut cpu, seq, &ids[at..at + n], keep);
        for (ordinal, device) in devices.iter_mut().enumerate() {
            let got = pass(device, seq, &ids[at..at + n], keep);
            assert!(got == want, "hip:{ordinal}: logits at {at}");
            assert!(
                saved(device, seq) == saved(&cpu, seq),
                "hip:{ordinal}: state at {at}"
            );
        }
        at += keep;
    }
    // A state moves from one device to the other.
    let moved = saved(&devices[0], seq);
    let there = devices[1].load(&mut moved.as_slice()).unwrap();
    let want = pass(&mut cpu, seq, &ids[at..=at], 1);
    assert!(
        pass(&mut devices[1], there, &ids[at..=at], 1) == want,
        "after a move"
    );
}

/// Through the real HIP module, in a hostile order: the weights that a device makes are read back and compared, and give the
/// processor's bits.
#[test]
fn a_device_makes_the_weights_of_a_made_up_model() {
    let source = SynthSource::new(&"synth:tiny,seed=2".parse().unwrap());
    let model = Arc::new(Model::load(&source).unwrap());
    let device = hip::runtime(&common::settings()).unwrap().open(0).unwrap();
    let options = Options {
        n_ctx: 64,
        n_seq_max: 1,
        verify_max: 4,
        span_max: 16,
        kv_sim: true,
        threads: 1,
    };
    let settings = Settings {
        cache: None,
        progress: &mut |_, _| {},
        graph_tokens: 4,
        check: true,
    };
    let mut cpu = CpuTarget::new(Arc::clone(&model), options.clone()).unwrap();
    let mut there = DeviceTarget::new(model, options, &device, settings).unwrap();
    let seq = cpu.open().unwrap();
    assert_eq!(there.open().unwrap(), seq);
    for tokens in [&[5u32, 4000, 77, 9, 9, 1234][..], &[3]] {
        let want = pass(&mut cpu, seq, tokens, tokens.len());
        assert!(pass(&mut there, seq, tokens, tokens.len()) == want);
    }
    assert!(saved(&there, seq) == saved(&cpu, seq));
}
