//! The shipped small model on devices: every bit of logits and state as on the CPU. The CPU as a device, and the
//! fake device in a hostile order, run the kernels' host build.
#![cfg(feature = "host-exec")]
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use common::span;
use device::driver::Driver;
use device::{Device, cpu, fake};
use ds4_target::on_device::{DeviceTarget, Settings};
use ds4_target::{CpuTarget, GgufSource, Model, Options};
use engine_core::{LayerId, Out, SeqId, Span, Tap, Target, TokenId};
use testkit::rng::Rng;

fn model() -> Arc<Model> {
    static MODEL: OnceLock<Arc<Model>> = OnceLock::new();
    let load = || {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny.gguf");
        let source =
            GgufSource::new(gguf::Gguf::open(&path, &gguf::OpenOptions::default()).unwrap());
        Arc::new(Model::load(&source).unwrap())
    };
    Arc::clone(MODEL.get_or_init(load))
}

fn options() -> Options {
    Options {
        n_ctx: 512,
        n_seq_max: 3,
        verify_max: 4,
        span_max: 64,
        kv_sim: true,
        threads: 2,
    }
}

fn on<R: Driver>(device: &Device<R>, options: &Options) -> DeviceTarget<R> {
    let settings = Settings {
        cache: None,
        progress: &mut |_, _| {},
    };
    let mut target = DeviceTarget::new(model(), options.clone(), device, settings).unwrap();
    target.poison().unwrap();
    target
}

fn cpu_device() -> Device<cpu::Cpu> {
    cpu::runtime(2 << 30).open(0).unwrap()
}

fn ids(n: usize, seed: u64) -> Vec<TokenId> {
    let mut rng = Rng::named(seed, "device ids");
    (0..n).map(|_| (rng.next_u64() % 4096) as TokenId).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Both targets, the same calls; every answer compared.
struct Both<R: Driver> {
    cpu: CpuTarget,
    device: DeviceTarget<R>,
}

impl<R: Driver> Both<R> {
    fn new(device: &Device<R>, options: &Options) -> Self {
        Self {
            cpu: CpuTarget::new(model(), options.clone()).unwrap(),
            device: on(device, options),
        }
    }

    fn open(&mut self) -> SeqId {
        let seq = self.cpu.open().unwrap();
        assert_eq!(self.device.open().unwrap(), seq);
        seq
    }

    /// Runs a pass on both and commits `accept` tokens of each span (all if `None`).
    fn pass(&mut self, tokens: &[TokenId], spans: &[Span], accept: Option<usize>) {
        let what = format!("{} tokens in {} spans", tokens.len(), spans.len());
        let ticket = self.cpu.submit(tokens, spans).unwrap();
        let want = self.cpu.wait(ticket, None).unwrap().clone();
        let ticket = self.device.submit(tokens, spans).unwrap();
        let got = self.device.wait(ticket, None).unwrap();
        assert_eq!(got.span_rows, want.span_rows, "{what}");
        assert_eq!(got.ids, want.ids, "{what}");
        for (row, (g, w)) in got
            .logits
            .chunks(4096)
            .zip(want.logits.chunks(4096))
            .enumerate()
        {
            assert_eq!(bits(g), bits(w), "{what}: logits of row {row}");
        }
        assert_eq!(got.logits.len(), want.logits.len(), "{what}");
        assert_eq!(
            bits(&got.features),
            bits(&want.features),
            "{what}: features"
        );
        for s in spans {
            let pos = s.pos + accept.unwrap_or(s.range.len()) as u32;
            self.cpu.commit(s.seq, pos);
            self.device.commit(s.seq, pos);
            self.same_state(s.seq, &what);
        }
    }

    /// One span of one sequence.
    fn feed(&mut self, seq: SeqId, tokens: &[TokenId], out: Out) {
        let pos = self.cpu.pos(seq).unwrap();
        self.pass(tokens, &[span(seq, pos, tokens.len(), out)], None);
    }

    fn same_state(&self, seq: SeqId, what: &str) {
        assert_eq!(self.device.pos(seq), self.cpu.pos(seq), "{what}");
        let (got, want) = (self.device.digest(seq), self.cpu.digest(seq));
        assert_eq!(got.unwrap(), want.unwrap(), "{what}: state of {seq}");
    }
}

#[test]
fn prefill_decode_and_verify_equal_the_cpu() {
    let mut both = Both::new(&cpu_device(), &options());
    let ids = ids(200, 1);
    let seq = both.open();
    // Chunks around the window, the ratios and the first row of 128 tokens.
    both.feed(seq, &ids[..5], Out::Last);
    both.feed(seq, &ids[5..61], Out::None);
    both.feed(seq, &ids[61..125], Out::Last);
    for at in 125..130 {
        both.feed(seq, &ids[at..=at], Out::All);
    }
    // A verify of four, of which two stand; then on from there.
    let verify = span(seq, 130, 4, Out::All);
    both.pass(&ids[130..134], &[verify], Some(2));
    both.device.poison_stale(seq).unwrap();
    both.feed(seq, &ids[132..135], Out::All);
}
