//! A made-up model on the CPU as a device, whose kernels make its weights: the bytes, logits and state of the processor's.
#![cfg(feature = "host-exec")]
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::span;
use device::cpu;
use ds4_target::on_device::{DeviceTarget, Settings};
use ds4_target::synth::{Synth, SynthSource};
use ds4_target::{CpuTarget, Model, Options};
use engine_core::{Out, SeqId, Target, TokenId};

fn model(name: &str) -> Arc<Model> {
    let synth: Synth = name.parse().unwrap();
    Arc::new(Model::load(&SynthSource::new(&synth)).unwrap())
}

fn options() -> Options {
    Options {
        n_ctx: 256,
        n_seq_max: 1,
        verify_max: 4,
        span_max: 16,
        kv_sim: true,
        threads: 2,
    }
}

/// Bits of the logits of every token.
fn run(target: &mut dyn Target, tokens: &[TokenId]) -> Vec<u32> {
    let (seq, mut bits) = (SeqId(0), Vec::new());
    let pos = target.pos(seq).unwrap();
    let ticket = target
        .submit(tokens, &[span(seq, pos, tokens.len(), Out::All)])
        .unwrap();
    let rows = target.wait(ticket, None).unwrap();
    assert!(rows.logits.iter().all(|v| v.is_finite()));
    bits.extend(rows.logits.iter().map(|v| v.to_bits()));
    target.commit(seq, pos + tokens.len() as u32);
    bits
}

#[test]
fn a_device_makes_the_weights_of_the_processor() {
    // The default, and formats with fields elsewhere in a block.
    for name in ["synth:tiny,seed=3", "synth:tiny,recipe=mxfp4-fp8-q8_0"] {
        let model = model(name);
        let device = cpu::runtime(2 << 30).open(0).unwrap();
        let (mut done, mut all) = (0, 0);
        let settings = Settings {
            cache: None,
            progress: &mut |d, t| (done, all) = (d, t),
            graph_tokens: 0,
            // Every byte is read back and compared with the definition.
            check: true,
        };
        let on_device = DeviceTarget::new(Arc::clone(&model), options(), &device, settings);
        let mut on_device = on_device.unwrap();
        assert!(done == all && all > 1 << 20, "{done} of {all}");
        // Nothing was made here for it.
        let head = &model.weights.head;
        assert!(matches!(
            head.stored().part(0..16),
            std::borrow::Cow::Owned(_)
        ));
        on_device.poison().unwrap();
        let mut on_cpu = CpuTarget::new(Arc::clone(&model), options()).unwrap();
        assert!(matches!(
            head.stored().part(0..16),
            std::borrow::Cow::Borrowed(_)
        ));
        assert_eq!(on_device.open().unwrap(), on_cpu.open().unwrap());
        let tokens: Vec<TokenId> = (0..14).map(|i| i * 97 % 4096).collect();
        for part in [&tokens[..11], &tokens[11..12], &tokens[12..]] {
            let want = run(&mut on_cpu, part);
            assert!(want == run(&mut on_device, part), "{name}: {part:?}");
        }
        let states = [on_cpu.digest(SeqId(0)), on_device.digest(SeqId(0))].map(Result::unwrap);
        assert_eq!(states[0], states[1], "{name}");
    }
}
