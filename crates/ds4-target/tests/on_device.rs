//! The shipped small model on devices: every bit of logits and state as on the CPU. The CPU as a device, and the
//! fake device in a hostile order, run the kernels' host build.
#![cfg(feature = "host-exec")]
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use common::span;
use device::driver::Driver;
use device::watch::Fail;
use device::{Device, EarlyLaunch, cpu, fake};
use ds4_target::on_device::{DeviceTarget, Settings};
use ds4_target::{CpuTarget, GgufSource, LoadError, Model, Options};
use engine_core::{LayerId, Out, SamplePlan, SeqId, Span, Tap, Target, TokenId, Want};
use testkit::fixture::{Fixture, Kind};
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

fn on<R: Driver>(device: &Device<R>, options: &Options, graph_tokens: usize) -> DeviceTarget<R> {
    let settings = Settings {
        cache: None,
        progress: &mut |_, _| {},
        graph_tokens,
        check: false,
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
/// Bytes of weights read.
fn read(c: Option<engine_core::seams::Counters>) -> u64 {
    c.unwrap().weight_bytes.unwrap()
}

struct Both<R: Driver> {
    cpu: CpuTarget,
    device: DeviceTarget<R>,
    /// Bytes of weights that the CPU read for sequences it handed over.
    handed: u64,
}

impl<R: Driver> Both<R> {
    fn new(device: &Device<R>, options: &Options) -> Self {
        Self::graphs(device, options, 0)
    }

    /// With graphs for passes of up to so many tokens.
    fn graphs(device: &Device<R>, options: &Options, tokens: usize) -> Self {
        Self {
            cpu: CpuTarget::new(model(), options.clone()).unwrap(),
            device: on(device, options, tokens),
            handed: 0,
        }
    }

    fn open(&mut self) -> SeqId {
        let seq = self.cpu.open().unwrap();
        assert_eq!(self.device.open().unwrap(), seq);
        seq
    }

    /// A sequence of these tokens, run by the CPU and handed to the device: the executor is slow.
    fn started(&mut self, tokens: &[TokenId]) -> SeqId {
        let before = read(self.cpu.counters());
        let seq = self.cpu.open().unwrap();
        tokens.chunks(64).for_each(|part| {
            common::feed(&mut self.cpu, seq, part, Out::None);
        });
        self.handed += read(self.cpu.counters()) - before;
        let mut saved = Vec::new();
        self.cpu.save(seq, &mut saved).unwrap();
        assert_eq!(self.device.load(&mut saved.as_slice()).unwrap(), seq);
        self.same_state(seq, "a sequence that was handed over");
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

    /// Both ran the same passes: they read the same matrices, of the experts those that were visited.
    fn same_weights_read(&self, what: &str) {
        let want = read(self.cpu.counters()) - self.handed;
        let got = read(self.device.counters());
        assert!(want > 0, "{what}");
        assert_eq!(got, want, "{what}: bytes of weights read");
    }
}

#[test]
fn prefill_decode_and_verify_equal_the_cpu() {
    let mut both = Both::new(&cpu_device(), &options());
    let ids = ids(200, 1);
    let seq = both.open();
    both.feed(seq, &ids[..5], Out::Last);
    both.feed(seq, &ids[5..36], Out::None);
    both.device.close(seq);
    both.cpu.close(seq);
    // Around the window and the first row of 128 tokens.
    let seq = both.started(&ids[..101]);
    both.feed(seq, &ids[101..125], Out::Last);
    for at in 125..129 {
        both.feed(seq, &ids[at..=at], Out::All);
    }
    // A verify of four, of which two stand; then on from there.
    let verify = span(seq, 129, 4, Out::All);
    both.pass(&ids[129..133], &[verify], Some(2));
    both.device.poison_stale(seq).unwrap();
    both.feed(seq, &ids[131..134], Out::All);
    let counts = both.device.counts();
    assert_eq!(counts.passes, 9);
    let routed: u64 = both.device.routed().unwrap().iter().sum();
    // Four experts a token in each of seven layers.
    assert_eq!(routed, (36 + 28 + 4 + 3) * 4 * 7);
}

#[test]
fn sequences_in_one_pass_equal_the_cpu() {
    let mut both = Both::new(&cpu_device(), &options());
    let (a, b) = (both.open(), both.open());
    let ids = ids(60, 2);
    both.feed(b, &ids[..13], Out::None);
    both.feed(a, &ids[20..26], Out::None);
    let plan = |seed| {
        Arc::new(SamplePlan {
            seed,
            temperature: 0.8,
            top_k: 20,
            ..SamplePlan::greedy()
        })
    };
    let layers = |list: &[u32]| list.iter().map(|l| LayerId(*l)).collect();
    // A verify with features of one, a token drawn for the other.
    let first = Span {
        want: Want::Both(plan(3)),
        tap: Tap {
            layers: layers(&[6, 2, 4]),
        },
        ..span(b, 13, 3, Out::All)
    };
    let second = Span {
        range: 3..4,
        want: Want::Ids(plan(9)),
        ..span(a, 6, 1, Out::Last)
    };
    both.pass(&ids[40..44], &[first, second], Some(1));
    // More tokens than a part of a pass holds: the second span goes in a part of its own.
    let long = Span {
        range: 0..31,
        ..span(a, 7, 31, Out::Last)
    };
    let longer = Span {
        range: 26..60,
        tap: Tap {
            layers: layers(&[0]),
        },
        ..span(b, 14, 34, Out::Last)
    };
    both.pass(&ids, &[longer, long], None);
}

/// a pass with features is never replayed by a graph without them, nor the other way; passes of
/// one token without features are replayed, all but the first.
#[test]
fn replayed_passes_equal_the_cpu() {
    let options = Options {
        n_ctx: 256,
        ..options()
    };
    let mut both = Both::graphs(&cpu_device(), &options, 4);
    let ids = ids(160, 6);
    let (a, b) = (both.started(&ids[..61]), both.started(&ids[..125]));
    // One token of one, then of the other: one shape. The rows of window and ratios change under it.
    for at in 124..129 {
        let seq = if at % 2 == 0 { a } else { b };
        both.feed(seq, &ids[at..=at], Out::Last);
    }
    let counts = both.device.counts();
    assert_eq!((counts.graphs.built, counts.graphs.launched), (1, 4));
    // Three replays, each of what was captured once; a replay counts like the launches it stands for.
    assert!(counts.graphs.operations > 0 && counts.graphs.operations.is_multiple_of(3));
    let told = both.device.counters().unwrap().launches;
    both.feed(a, &ids[129..=129], Out::Last);
    let step = both.device.counters().unwrap().launches - told;
    assert_eq!(step, counts.graphs.operations / 3);
    // The same with features is another shape, which is run and captured anew.
    for at in 130..133 {
        let tapped = Span {
            tap: Tap {
                layers: [LayerId(3)].into_iter().collect(),
            },
            ..span(a, both.cpu.pos(a).unwrap(), 1, Out::Last)
        };
        both.pass(&ids[at..=at], &[tapped], None);
    }
    let counts = both.device.counts();
    assert_eq!((counts.graphs.built, counts.graphs.launched), (2, 7));
    // Verifies of both in one pass, of which one token stands, with features of one.
    for at in 0..3 {
        let tapped = Span {
            tap: Tap {
                layers: [LayerId(3)].into_iter().collect(),
            },
            ..span(a, both.cpu.pos(a).unwrap(), 2, Out::All)
        };
        let other = Span {
            range: 2..4,
            ..span(b, both.cpu.pos(b).unwrap(), 2, Out::Last)
        };
        both.pass(&ids[131 + at..135 + at], &[tapped, other], Some(1));
    }
    let counts = both.device.counts();
    assert_eq!((counts.graphs.built, counts.graphs.launched), (3, 9));
    assert_eq!(counts.graphs.dropped, 0);
    both.same_weights_read("chunks, steps, verifies");
}

#[test]
fn a_timed_pass_is_launched_one_by_one_and_equals_the_cpu() {
    let mut both = Both::graphs(&cpu_device(), &options(), 4);
    let tokens = ids(5, 29);
    let seq = both.started(&tokens[..2]);
    both.feed(seq, &tokens[2..3], Out::All);
    both.feed(seq, &tokens[3..4], Out::All);
    assert_eq!(both.device.clocked().unwrap(), [], "not begun");
    let before = both.device.counts();
    both.device.clock().unwrap();
    both.feed(seq, &tokens[4..5], Out::All);
    let clocked = both.device.clocked().unwrap();
    let after = both.device.counts();
    assert_eq!(after.graphs, before.graphs, "nothing was replayed");
    let launches: u64 = clocked.iter().map(|c| c.launches).sum();
    assert_eq!(launches, after.launches - before.launches);
    let of = |kernel: &str| {
        let mine = clocked.iter().filter(|c| c.kernel.starts_with(kernel));
        mine.map(|c| c.launches).sum::<u64>()
    };
    let layers = both.device.info().n_layer as u64;
    assert_eq!(of("attend_merge"), layers, "one a layer");
    // What stands behind one another is joined: a launch that comes back is slower than what it does.
    assert_eq!(of("a8_quantise"), 0, "rows come with their blocks");
    assert_eq!((of("hc_dots"), of("hc_post")), (2 * layers, 1));
    assert_eq!((of("heads_and_keys"), of("compress_keep")), (layers, 0));
    assert_eq!(launches, 177, "{clocked:#?}");
    assert!(clocked.iter().all(|c| c.millis >= 0.0));
    both.same_state(seq, "after a timed pass");
}

#[test]
fn tokens_drawn_on_the_device_are_those_of_the_sampler() {
    let mut both = Both::graphs(&cpu_device(), &options(), 4);
    let ids = ids(40, 8);
    let (a, b) = (both.started(&ids[..9]), both.started(&ids[9..20]));
    let plan = |seed, temperature, top_k, top_p, min_p| SamplePlan {
        seed,
        temperature,
        top_k,
        top_p,
        min_p,
        ..SamplePlan::greedy()
    };
    let biased = SamplePlan {
        bias: [(7, 3.5)].into_iter().collect(),
        ..plan(5, 1.0, 0, 1.0, 0.0)
    };
    let plans = [
        [SamplePlan::greedy(), plan(1, 1.2, 0, 1.0, 0.0)],
        [plan(2, 0.9, 40, 1.0, 0.0), plan(3, 1.0, 0, 0.8, 0.02)],
        [biased, plan(4, 1.5, 0, 1.0, 0.0)],
    ];
    for (at, [first, second]) in plans.into_iter().enumerate() {
        let ask = |seq, at: usize, range: std::ops::Range<usize>, plan| Span {
            want: Want::Ids(Arc::new(plan)),
            range: range.clone(),
            ..span(seq, at as u32, range.len(), Out::All)
        };
        let spans = [ask(a, 9 + at, 0..2, first), ask(b, 11 + at, 2..4, second)];
        both.pass(&ids[20 + at..24 + at], &spans, Some(1));
    }
    assert_eq!(both.device.counts().host_draws, 2, "the rows with a bias");
    assert_eq!(both.device.counters().unwrap().fallbacks, 2);
}

#[test]
fn saved_forked_and_refused_sequences_are_those_of_the_cpu() {
    let mut both = Both::new(&cpu_device(), &options());
    let ids = ids(40, 3);
    let seq = both.open();
    both.feed(seq, &ids[..22], Out::None);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    both.device.save(seq, &mut ours).unwrap();
    both.cpu.save(seq, &mut theirs).unwrap();
    assert!(ours == theirs, "the bytes of a saved sequence");
    // Saved by one, loaded by the other, both ways.
    let loaded = both.device.load(&mut theirs.as_slice()).unwrap();
    assert_eq!(both.cpu.load(&mut ours.as_slice()).unwrap(), loaded);
    both.feed(loaded, &ids[22..25], Out::All);
    let fork = both.device.fork(seq).unwrap();
    assert_eq!(both.cpu.fork(seq).unwrap(), fork);
    both.feed(fork, &ids[25..28], Out::Last);
    both.same_state(seq, "the sequence that was forked");
    // What is refused changes nothing.
    let full = both.device.open().unwrap_err().to_string();
    assert_eq!(full, both.cpu.open().unwrap_err().to_string());
    let wrong = span(seq, 7, 1, Out::All);
    let refused = both.device.submit(&ids[..1], &[wrong]).unwrap_err();
    assert!(refused.to_string().contains("position 7"), "{refused}");
    let greedy = Span {
        tap: Tap {
            layers: (0..9).map(|i| LayerId(i % 7)).collect(),
        },
        ..span(seq, 22, 1, Out::None)
    };
    let refused = both.device.submit(&ids[..1], &[greedy]).unwrap_err();
    let text = "tapped layers of a span: 9 wanted, 8 available";
    assert_eq!(refused.to_string(), text);
    theirs.pop();
    both.device.close(fork);
    assert!(both.device.load(&mut theirs.as_slice()).is_err());
    both.same_state(seq, "after refusals");
}

#[test]
fn the_ends_of_the_model_equal_the_cpu() {
    let mut both = Both::new(&cpu_device(), &options());
    let mut rng = Rng::named(5, "hidden rows");
    let rows: Vec<f32> = (0..20 * 256).map(|_| rng.normal() as f32).collect();
    let (mut got, mut want) = (vec![f32::NAN; 20 * 4096], vec![f32::NAN; 20 * 4096]);
    both.device.head(&rows, &mut got).unwrap();
    both.cpu.head(&rows, &mut want).unwrap();
    assert_eq!(bits(&got), bits(&want));
    assert!(both.device.head(&rows[1..], &mut got).is_err());
    let (mut got, mut want) = (vec![f32::NAN; 2 * 256], vec![f32::NAN; 2 * 256]);
    both.device.embed(&[7, 4095], &mut got).unwrap();
    both.cpu.embed(&[7, 4095], &mut want).unwrap();
    assert_eq!(bits(&got), bits(&want));
}

#[test]
fn without_roundings_the_bits_are_the_same() {
    let options = Options {
        kv_sim: false,
        ..options()
    };
    let mut both = Both::new(&cpu_device(), &options);
    let ids = ids(40, 4);
    let (a, b) = (both.open(), both.open());
    both.feed(b, &ids[..35], Out::Last);
    both.feed(a, &ids[..9], Out::None);
    let second = Span {
        range: 2..3,
        ..span(a, 9, 1, Out::Last)
    };
    both.pass(&ids[37..40], &[span(b, 35, 2, Out::All), second], Some(1));
}

#[test]
fn a_hostile_device_gives_the_same_bits() {
    let off = fake::Settings::default().early_launch;
    for (seed, early_launch) in [(3, off), (4, EarlyLaunch::On)] {
        let early = early_launch == EarlyLaunch::On;
        let settings = fake::Settings {
            seed,
            memory: 2 << 30,
            early_launch,
            ..fake::Settings::default()
        };
        let runtime = fake::runtime(&settings);
        let mut both = Both::graphs(&runtime.open(0).unwrap(), &options(), 4);
        let ids = ids(20, 10 + seed);
        let (a, b) = (both.open(), both.open());
        both.feed(a, &ids[..9], Out::Last);
        both.feed(b, &ids[9..15], Out::None);
        let second = Span {
            range: 3..4,
            ..span(b, 6, 1, Out::Last)
        };
        both.pass(&ids[15..19], &[span(a, 9, 3, Out::All), second], Some(1));
        for at in [3, 7, 11] {
            both.feed(a, &ids[at..=at], Out::Last);
        }
        drop(both);
        // Most launches of a pass stand behind another kernel.
        let count = runtime.driver().inner().early_launches();
        assert_eq!(count > 100, early, "{count} early launches");
        assert!(early || count == 0);
        assert_eq!(runtime.driver().inner().violations(), [""; 0]);
        assert_eq!(
            runtime.driver().inner().alive(),
            0,
            "everything was given back"
        );
    }
}

fn refusal(model: Arc<Model>, options: &Options, memory: u64) -> LoadError {
    let device = cpu::runtime(memory).open(0).unwrap();
    let settings = Settings {
        cache: None,
        progress: &mut |_, _| {},
        graph_tokens: 8,
        check: false,
    };
    let error = DeviceTarget::new(model, options.clone(), &device, settings).unwrap_err();
    let left = device.memory().unwrap();
    assert_eq!(left.free, left.total, "nothing is allocated");
    error
}

#[test]
fn what_does_not_fit_a_device_is_refused_before_anything_is_allocated() {
    let error = refusal(model(), &options(), 50_000_000);
    let LoadError::DeviceMemory { needed, free, .. } = error else {
        panic!("{error}");
    };
    assert!(needed > 50_000_000 && free == 50_000_000, "{error}");
    // A fixture in floats: there is no kernel for a stack of float experts.
    let floats = common::source(Fixture::new(Kind::T0i, 7).unwrap().model);
    let error = refusal(Arc::new(Model::load(&floats).unwrap()), &options(), 2 << 30);
    let LoadError::NoKernel { tensor, got, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(
        (tensor.as_str(), got.as_str()),
        ("blk.0.ffn_gate_exps.weight", "F32")
    );
    let none = Options {
        n_ctx: 0,
        ..options()
    };
    assert!(matches!(
        refusal(model(), &none, 2 << 30),
        LoadError::Option { .. }
    ));
}

#[test]
fn nothing_is_left_whichever_call_fails_while_loading() {
    // The last one is later than any call of a load: it must succeed.
    for after in [0, 3, 5, 7, 9, 12, 30, 200, 1_000_000] {
        let settings = fake::Settings {
            memory: 2 << 30,
            ..fake::Settings::default()
        };
        let runtime = fake::runtime(&settings);
        let device = runtime.open(0).unwrap();
        runtime.driver().fail(Some(Fail { call: None, after }));
        let settings = Settings {
            cache: None,
            progress: &mut |_, _| {},
            graph_tokens: 4,
            check: false,
        };
        let loaded = DeviceTarget::new(model(), options(), &device, settings);
        assert_eq!(loaded.is_ok(), after == 1_000_000, "call {after}");
        if let Err(error) = &loaded {
            assert!(error.to_string().contains("fake:0"), "{error}");
        }
        drop((loaded, device));
        assert_eq!(
            runtime.driver().inner().violations(),
            [""; 0],
            "call {after}"
        );
        assert_eq!(runtime.driver().inner().alive(), 0, "call {after}");
    }
}
