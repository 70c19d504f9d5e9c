//! A model whose layers are shared by several devices: every bit as on the processor, each device holds its own layers
//! alone, and whatever is refused or fails says where. On fake devices, which run what is queued late and in a hostile
//! order.
#![cfg(feature = "host-exec")]
#![allow(clippy::unwrap_used)]

mod common;

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use common::span;
use device::watch::{Fail, Watched};
use device::{EarlyLaunch, Runtime, fake};
use ds4_target::on_device::{DeviceTarget, Settings, Share, SplitError, equal_shares};
use ds4_target::{CpuTarget, GgufSource, LoadError, Model, Options};
use engine_core::seams::Resident;
use engine_core::{Fault, LayerId, Out, SamplePlan, SeqId, Span, Tap, Target, TokenId, Want};

type Fake = Watched<fake::Fake>;

const LAYERS: usize = 7;

fn model() -> Arc<Model> {
    static MODEL: OnceLock<Arc<Model>> = OnceLock::new();
    let load = || {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny.gguf");
        let file = gguf::Gguf::open(&path, &gguf::OpenOptions::default()).unwrap();
        Arc::new(Model::load(&GgufSource::new(file)).unwrap())
    };
    Arc::clone(MODEL.get_or_init(load))
}

fn options() -> Options {
    Options {
        n_ctx: 128,
        n_seq_max: 3,
        verify_max: 4,
        span_max: 16,
        kv_sim: true,
        threads: 1,
    }
}

/// Three devices; `able`: they reach each other.
fn machine(seed: u64, able: bool) -> Runtime<Fake> {
    fake::runtime(&fake::Settings {
        seed,
        memory: 3 << 30,
        devices: 3,
        able,
        ..fake::Settings::default()
    })
}

fn shares(runtime: &Runtime<Fake>, layers: &[(u32, Range<usize>)]) -> Vec<Share<Fake>> {
    let share = |(ordinal, layers): &(u32, Range<usize>)| Share {
        device: runtime.open(*ordinal).unwrap(),
        layers: layers.clone(),
    };
    layers.iter().map(share).collect()
}

fn load(shares: &[Share<Fake>]) -> Result<DeviceTarget<Fake>, LoadError> {
    let settings = Settings {
        cache: None,
        progress: &mut |_, _| {},
        graph_tokens: 4,
        check: false,
    };
    DeviceTarget::split(model(), options(), None, shares, settings)
}

fn loaded(runtime: &Runtime<Fake>, layers: &[(u32, Range<usize>)]) -> DeviceTarget<Fake> {
    let mut target = load(&shares(runtime, layers)).unwrap();
    target.poison().unwrap();
    target
}

/// Not `unwrap_err`: a target shown whole takes minutes.
fn refused(loaded: Result<DeviceTarget<Fake>, LoadError>) -> LoadError {
    match loaded {
        Ok(_) => panic!("it was loaded"),
        Err(error) => error,
    }
}

/// Nothing is left on the devices, and no rule was broken.
fn nothing_left(runtime: &Runtime<Fake>, what: &str) {
    let fake = runtime.driver().inner();
    assert_eq!(fake.violations(), [""; 0], "{what}");
    assert_eq!(fake.alive(), 0, "{what}");
}

fn ids(n: usize) -> Vec<TokenId> {
    (0..n as u32).map(|i| (i * 37 + 11) % 4096).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn saved(t: &dyn Target, seq: SeqId) -> Vec<u8> {
    let mut bytes = Vec::new();
    t.save(seq, &mut bytes).unwrap();
    bytes
}

/// The processor and a split, the same calls; every answer and all state compared.
struct Both {
    cpu: CpuTarget,
    split: DeviceTarget<Fake>,
}

impl Both {
    fn new(runtime: &Runtime<Fake>, layers: &[(u32, Range<usize>)]) -> Self {
        Self {
            cpu: CpuTarget::new(model(), options()).unwrap(),
            split: loaded(runtime, layers),
        }
    }

    fn open(&mut self) -> SeqId {
        let seq = self.cpu.open().unwrap();
        assert_eq!(self.split.open().unwrap(), seq);
        seq
    }

    /// Commits `keep` tokens of each span, all if `None`.
    fn pass(&mut self, tokens: &[TokenId], spans: &[Span], keep: Option<usize>) {
        let ticket = self.cpu.submit(tokens, spans).unwrap();
        let want = self.cpu.wait(ticket, None).unwrap().clone();
        let ticket = self.split.submit(tokens, spans).unwrap();
        let got = self.split.wait(ticket, None).unwrap();
        assert_eq!(got.ids, want.ids);
        assert!(bits(&got.logits) == bits(&want.logits), "logits");
        assert!(bits(&got.features) == bits(&want.features), "features");
        assert_eq!(got.span_features, want.span_features);
        for s in spans {
            let pos = s.pos + keep.unwrap_or(s.range.len()) as u32;
            self.cpu.commit(s.seq, pos);
            self.split.commit(s.seq, pos);
            let both = [self.split.digest(s.seq), self.cpu.digest(s.seq)].map(Result::unwrap);
            assert_eq!(both[0], both[1], "state of {}", s.seq);
        }
    }

    fn feed(&mut self, seq: SeqId, tokens: &[TokenId], out: Out) {
        let pos = self.cpu.pos(seq).unwrap();
        self.pass(tokens, &[span(seq, pos, tokens.len(), out)], None);
    }
}

fn tap(layers: &[u32]) -> Tap {
    Tap {
        layers: layers.iter().map(|l| LayerId(*l)).collect(),
    }
}

/// Prompts, steps, company, a verify of which a part stands, features of layers on both sides of a boundary, draws, a
/// fork: as graphs where they are short.
fn everything(both: &mut Both) {
    let ids = ids(60);
    let (a, b) = (both.open(), both.open());
    both.feed(a, &ids[..14], Out::None);
    both.feed(b, &ids[14..20], Out::Last);
    let plan = SamplePlan {
        seed: 5,
        temperature: 0.8,
        ..SamplePlan::greedy()
    };
    // Layers in an order that no stage has.
    let verify = Span {
        tap: tap(&[6, 0, 3, 2, 4]),
        want: Want::Both(Arc::new(plan)),
        ..span(a, 14, 3, Out::All)
    };
    let other = Span {
        range: 3..4,
        want: Want::Ids(Arc::new(SamplePlan::greedy())),
        ..span(b, 6, 1, Out::Last)
    };
    both.pass(&ids[20..24], &[verify, other], Some(1));
    both.split.poison_stale(a).unwrap();
    // Steps of one shape: run, captured, replayed; then with a feature of either end.
    for at in 24..28 {
        let seq = if at % 2 == 0 { a } else { b };
        both.feed(seq, &ids[at..=at], Out::Last);
    }
    for (at, layer) in [(28, 0), (29, 6), (30, 0), (31, 0)] {
        let tapped = Span {
            tap: tap(&[layer]),
            ..span(a, both.cpu.pos(a).unwrap(), 1, Out::Last)
        };
        both.pass(&ids[at..=at], &[tapped], None);
    }
    let fork = both.cpu.fork(a).unwrap();
    assert_eq!(both.split.fork(a).unwrap(), fork);
    both.feed(fork, &ids[32..34], Out::All);
    let read = [both.split.counters(), both.cpu.counters()].map(|c| c.unwrap().weight_bytes);
    assert_eq!(read[0], read[1], "bytes of weights read");
    // More tokens than a part holds: the parts follow one another through the stages.
    let pos = |both: &Both, seq| both.cpu.pos(seq).unwrap();
    let spans = [a, b, fork].map(|seq| span(seq, pos(both, seq), 12, Out::None));
    let spans = spans.into_iter().enumerate().map(|(i, s)| Span {
        range: 12 * i..12 * (i + 1),
        ..s
    });
    both.pass(&ids[..36], &spans.collect::<Vec<_>>(), None);
}

#[test]
fn layers_on_two_devices_give_the_bits_of_the_processor() {
    for (seed, able) in [(1, true), (2, false)] {
        let runtime = machine(seed, able);
        let mut both = Both::new(&runtime, &[(0, 0..3), (1, 3..7)]);
        everything(&mut both);
        let counts = both.split.counts();
        assert!(counts.graphs.launched > 0 && counts.graphs.dropped == 0);
        // A pass crosses once, and once more for each further part.
        let crossed = counts.passes + 2;
        let want = if able { (crossed, 0) } else { (0, crossed) };
        assert_eq!((counts.straight, counts.staged), want);
        let told = both.split.counters().unwrap();
        assert_eq!(told.fallbacks, if able { 0 } else { crossed });
        let way = both.split.crossings().remove(0).to_string();
        let want = match able {
            true => "fake:0 to fake:1 straight: bytes were seen to arrive",
            false => {
                "fake:0 to fake:1 through the host: fake:0 cannot reach another device's memory: not asked for in its settings"
            }
        };
        assert_eq!(way, want);
        drop(both);
        nothing_left(&runtime, &way);
    }
}

#[test]
fn layers_on_three_devices_in_any_order_give_the_bits_of_the_processor() {
    let runtime = fake::runtime(&fake::Settings {
        seed: 3,
        memory: 3 << 30,
        devices: 3,
        able: true,
        early_launch: EarlyLaunch::On,
        ..fake::Settings::default()
    });
    let mut both = Both::new(&runtime, &[(2, 0..1), (0, 1..6), (1, 6..7)]);
    everything(&mut both);
    let devices: Vec<_> = both.split.devices().map(|(d, l)| (d.ordinal, l)).collect();
    assert_eq!(devices, [(2, 0..1), (0, 1..6), (1, 6..7)]);
    let routed: u64 = both.split.routed().unwrap().iter().sum();
    let tokens = (14 + 6 + 4 + 4 + 4 + 2 + 36) * 4 * LAYERS as u64;
    assert_eq!(routed, tokens, "four experts a token and layer");
    drop(both);
    assert!(runtime.driver().inner().early_launches() > 100);
    nothing_left(&runtime, "three devices");
}

/// A sequence goes from a split to the processor, to one device, to another split, and back.
#[test]
fn a_saved_sequence_knows_no_devices() {
    let (runtime, ids) = (machine(4, false), ids(20));
    let mut cpu = CpuTarget::new(model(), options()).unwrap();
    let mut others = [
        loaded(&runtime, &[(0, 0..4), (1, 4..7)]),
        loaded(&runtime, &[(2, 0..7)]),
        loaded(&runtime, &[(1, 0..2), (2, 2..5), (0, 5..7)]),
    ];
    let seq = cpu.open().unwrap();
    common::feed(&mut cpu, seq, &ids[..9], Out::None);
    let mut bytes = saved(&cpu, seq);
    for at in 9..15 {
        let other = &mut others[at % 3];
        let there = other.load(&mut bytes.as_slice()).unwrap();
        assert!(saved(other, there) == bytes, "what was loaded");
        let got = common::feed(other, there, &ids[at..=at], Out::Last);
        let want = common::feed(&mut cpu, seq, &ids[at..=at], Out::Last);
        assert!(bits(&got) == bits(&want), "step {at}");
        bytes = saved(other, there);
        assert!(bytes == saved(&cpu, seq), "state at {at}");
        other.close(there);
    }
}

#[test]
fn the_ends_of_the_model_are_on_the_devices_at_its_ends() {
    let runtime = machine(5, true);
    let mut both = Both::new(&runtime, &[(0, 0..2), (1, 2..7)]);
    let rows: Vec<f32> = (0..18 * 256)
        .map(|i| (i % 97) as f32 / 48.0 - 1.0)
        .collect();
    let (mut got, mut want) = (vec![f32::NAN; 18 * 4096], vec![f32::NAN; 18 * 4096]);
    both.split.head(&rows, &mut got).unwrap();
    both.cpu.head(&rows, &mut want).unwrap();
    assert!(bits(&got) == bits(&want));
    let seq = both.open();
    both.split.clock().unwrap();
    both.feed(seq, &ids(1), Out::Last);
    let clocked = both.split.clocked().unwrap();
    let of = |kernel: &str| {
        let mine = clocked.iter().filter(|c| c.kernel.starts_with(kernel));
        mine.map(|c| c.launches).sum::<u64>()
    };
    let once = ["embed", "hc_head"].map(of);
    // One row of the table by token, and one of the streams of wanted tokens.
    assert_eq!((once, of("attend_merge")), ([2, 1], LAYERS as u64));
    // The streams are merged where they leave a device, and where the model ends.
    assert_eq!(of("hc_post"), 2);
}

fn bytes_of(all: &[Resident], what: &str, place: &str) -> u64 {
    let one = all.iter().find(|r| r.what == what && r.place == place);
    one.unwrap().bytes.unwrap()
}

fn counted(all: &[Resident]) -> u64 {
    all.iter().filter_map(|r| r.bytes).sum()
}

/// C-19, A-44: what is listed by device is what is taken; no tensor and no row of state stands on two of them.
#[test]
fn c_19_each_device_holds_its_own_and_gives_all_of_it_back() {
    let runtime = machine(6, true);
    let device = runtime.open(0).unwrap();
    let taken = || {
        let memory = device.memory().unwrap();
        memory.total - memory.free
    };
    let whole = loaded(&runtime, &[(0, 0..7)]);
    let one = whole.residents();
    assert_eq!(Box::new(whole).retire(), []);
    for layers in [
        &[(0, 0..3), (1, 3..7)][..],
        &[(1, 0..1), (2, 1..3), (0, 3..7)],
    ] {
        let mut split = loaded(&runtime, layers);
        let seq = split.open().unwrap();
        for token in [3, 5, 7] {
            common::feed(&mut split, seq, &[token], Out::Last);
        }
        let all = split.residents();
        assert_eq!(counted(&all), taken(), "{all:#?}");
        for what in ["target weights", "target caches"] {
            let places = layers.iter().map(|(n, _)| format!("fake:{n}"));
            let sum: u64 = places.map(|place| bytes_of(&all, what, &place)).sum();
            assert_eq!(sum, bytes_of(&one, what, "fake:0"), "{what}");
        }
        let graphs = all.iter().filter(|r| r.what == "target graphs");
        assert_eq!(graphs.count(), layers.len(), "one a device");
        // Copies that nobody waits for.
        common::feed(&mut split, seq, &[9, 2, 1], Out::None);
        assert_eq!(Box::new(split).retire(), []);
        assert_eq!(taken(), 0);
    }
    drop(device);
    nothing_left(&runtime, "after retirement");
}

/// A device without room is found before anything is made on any; numbers and device are told.
#[test]
fn what_does_not_fit_the_second_device_is_refused_before_the_first_is_touched() {
    let runtime = machine(7, true);
    let total = 3 << 30;
    runtime.driver().inner().occupy(1, total - 5_000_000);
    runtime.driver().fail(Some(Fail {
        call: Some("alloc"),
        after: 0,
    }));
    let both = shares(&runtime, &[(0, 0..3), (1, 3..7)]);
    let error = refused(load(&both));
    let LoadError::DeviceMemory {
        device,
        needed,
        free,
        total: all,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!((device.as_str(), *free, *all), ("fake:1", 5_000_000, total));
    assert!(*needed > 5_000_000, "{error}");
    assert!(runtime.driver().pending(), "nothing was allocated");
    drop(both);
    nothing_left(&runtime, "a refusal");
    // With the numbers of the refusal it fits: the plan is exact.
    runtime.driver().fail(None);
    runtime.driver().inner().occupy(1, 0);
    let split = loaded(&runtime, &[(0, 0..3), (1, 3..7)]);
    let all = split.residents();
    let there = all.iter().filter(|r| r.place == "fake:1");
    let bytes: u64 = there.filter_map(|r| r.bytes).sum();
    assert_eq!(bytes + (64 << 20), *needed, "and room for a load");
}

#[test]
fn shares_that_cannot_be_are_refused() {
    let runtime = machine(8, true);
    let refusal = |layers: &[(u32, Range<usize>)]| {
        let error = refused(load(&shares(&runtime, layers)));
        let LoadError::Split(why) = error else {
            panic!("{error}");
        };
        why
    };
    let gap = refusal(&[(0, 0..3), (1, 4..7)]);
    assert!(
        matches!(
            gap,
            SplitError::Begins {
                expected: 3,
                got: 4,
                ..
            }
        ),
        "{gap}"
    );
    assert!(matches!(
        refusal(&[(0, 0..3), (1, 3..6)]),
        SplitError::Ends { .. }
    ));
    assert!(matches!(
        refusal(&[(2, 0..3), (2, 3..7)]),
        SplitError::Twice { .. }
    ));
    let mut two = shares(&runtime, &[(0, 0..3)]);
    two.extend(shares(&runtime.twin(), &[(1, 3..7)]));
    let error = refused(load(&two));
    assert!(
        matches!(error, LoadError::Split(SplitError::Runtimes { .. })),
        "{error}"
    );
    let many = equal_shares(&model(), &options(), None, 8).unwrap_err();
    let many = many.to_string();
    assert_eq!(many, "8 devices share 7 layers: each needs one at least");
}

#[test]
fn equal_shares_are_equal_by_bytes() {
    let model = model();
    let all = |n| equal_shares(&model, &options(), None, n).unwrap();
    assert_eq!(all(1), vec![Range { start: 0, end: 7 }]);
    assert_eq!(all(7), [0..1, 1..2, 2..3, 3..4, 4..5, 5..6, 6..7]);
    let runtime = machine(9, false);
    let [first, second] = &all(2)[..] else {
        panic!("two shares");
    };
    assert_eq!((first.start, first.end, second.end), (0, second.start, 7));
    // Moving a layer either way makes the larger share no smaller.
    let largest = |cut: usize| {
        let split = loaded(&runtime, &[(0, 0..cut), (1, cut..7)]);
        let all = split.residents();
        let of = |place| {
            let sum = ["target weights", "target caches"].map(|w| bytes_of(&all, w, place));
            sum.iter().sum::<u64>()
        };
        of("fake:0").max(of("fake:1"))
    };
    let best = largest(first.end);
    let others = [first.end - 1, first.end + 1].map(largest);
    assert!(
        others.iter().all(|other| *other >= best),
        "{others:?} {best}"
    );
}

/// C-20: whichever call of a load fails, nothing is left on any device.
#[test]
fn c_20_nothing_is_left_whichever_call_fails_while_loading() {
    for after in [0, 3, 9, 12, 20, 25, 30, 40, 200, 400, 1_000_000] {
        let runtime = machine(10, true);
        let both = shares(&runtime, &[(0, 0..3), (1, 3..7)]);
        runtime.driver().fail(Some(Fail { call: None, after }));
        let split = load(&both);
        let failed = !runtime.driver().pending();
        match &split {
            // Calls whose failure is no failure of the load: of the way between the devices, and releases, which are made
            // again.
            Ok(split) if failed => {
                let staged = split.crossings().remove(0).staged.is_some();
                let again = both.iter().map(|s| s.device.counters().failed_releases);
                assert!(staged || again.sum::<u64>() == 1, "call {after}");
            }
            Ok(_) => assert_eq!(after, 1_000_000),
            Err(_) => assert!(failed),
        }
        if let Err(error) = &split {
            let error = error.to_string();
            assert!(
                error.contains("fake:0") || error.contains("fake:1"),
                "{error}"
            );
        }
        drop((split, both));
        nothing_left(&runtime, &format!("call {after}"));
    }
}

/// A probe of the way between devices that fails is no failure of the load: bytes go through the host, and why is told.
#[test]
fn a_way_that_cannot_be_opened_is_told_and_counted() {
    let runtime = machine(11, true);
    let two = shares(&runtime, &[(0, 0..3), (1, 3..7)]);
    let taken = device::Peers::open(&two[0].device, &two[1].device).unwrap();
    let mut split = load(&two).unwrap();
    let way = split.crossings().remove(0).to_string();
    assert!(
        way.contains("through the host") && way.contains("704"),
        "{way}"
    );
    let seq = split.open().unwrap();
    common::feed(&mut split, seq, &[3], Out::Last);
    assert_eq!((split.counts().staged, split.counts().straight), (1, 0));
    drop((split, two, taken));
    nothing_left(&runtime, "after the other way was closed");
}

/// A failure in a pass is `Lost` and names a device; all of it can be given back.
#[test]
fn whichever_call_fails_in_a_pass_a_device_is_named() {
    let mut named = std::collections::BTreeSet::new();
    for able in [true, false] {
        let runtime = machine(12, able);
        let mut split = loaded(&runtime, &[(0, 0..3), (1, 3..7)]);
        let seq = split.open().unwrap();
        common::feed(&mut split, seq, &[3], Out::Last);
        // Launched, then captured, then replayed.
        let mut at = 0;
        while at < 700 {
            let pos = split.pos(seq).unwrap();
            runtime.driver().fail(Some(Fail {
                call: None,
                after: at,
            }));
            let ran = split.submit(&[5], &[span(seq, pos, 1, Out::Last)]);
            let failed = !runtime.driver().pending();
            runtime.driver().fail(None);
            match ran {
                Err(Fault::Lost { what, why }) => {
                    assert!(why.contains("fake:"), "{why}");
                    named.insert(what);
                }
                Err(other) => panic!("{other}"),
                Ok(_) if failed => {}
                Ok(_) => break,
            }
            at += 23;
        }
        assert_eq!(Box::new(split).retire(), []);
        nothing_left(&runtime, "after failures");
    }
    let named: Vec<_> = named.iter().map(String::as_str).collect();
    assert_eq!(named, ["fake:0", "fake:1"]);
}

/// Bytes sent are told for all devices as one, and looked at on each if that was asked for.
#[test]
fn a_load_is_told_and_checked_on_every_device() {
    let runtime = machine(13, false);
    let both = shares(&runtime, &[(0, 0..3), (1, 3..7)]);
    let mut heard = Vec::new();
    let settings = Settings {
        cache: None,
        progress: &mut |done, total| heard.push((done, total)),
        graph_tokens: 4,
        check: true,
    };
    let split = DeviceTarget::split(model(), options(), None, &both, settings).unwrap();
    assert!(heard.is_sorted() && heard.len() > 20);
    let (done, total) = *heard.last().unwrap();
    let all = split.residents();
    let there = ["fake:0", "fake:1"].map(|place| bytes_of(&all, "target weights", place));
    assert_eq!(done, total);
    // Slots are whole units of 256 bytes.
    let sum: u64 = there.iter().sum();
    assert!(
        total <= sum && total > sum - 256 * heard.len() as u64,
        "{total} of {sum}"
    );
}
