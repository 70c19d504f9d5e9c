//! Rows and contexts beside `LocalBackbone`.

use std::sync::Arc;
use std::time::Instant;

use device::driver::Driver;
use device::{Device, cpu};
use ds4_target::LoadError;
use ds4_target::pool::Pool;
use dspark_draft::backbone::{LocalBackbone, Options, ring_rows};
use dspark_draft::error::DraftError;
use dspark_draft::on_device::DeviceBackbone;
use dspark_draft::weights::DraftModel;
use engine_core::seams::{Ask, Backbone, DraftRows};
use engine_core::{Epoch, Fault, Pos, SeqId};
use testkit::rng::Rng;

use crate::common::{
    as_shipped, bits, cpu_device, fake_device, halves, model, narrow, options, settings,
};

fn saved(b: &impl Backbone, seq: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    b.save(SeqId(seq), &mut bytes).unwrap();
    bytes
}

fn ask(seq: u32, pos: Pos, ahead: u32, depth: u32) -> Ask {
    Ask {
        seq: SeqId(seq),
        epoch: Epoch(0),
        pos: pos + ahead,
        ahead,
        seed: 0,
        depth,
    }
}
/// Both backbones, the same calls; every answer compared.
struct Both<R: Driver> {
    local: LocalBackbone,
    device: DeviceBackbone<R>,
    rng: Rng,
}

impl<R: Driver> Both<R> {
    fn new(model: &Arc<DraftModel>, device: &Device<R>, graph_tokens: usize, seed: u64) -> Self {
        let pool = Arc::new(Pool::new(2));
        let mut on_device =
            DeviceBackbone::new(Arc::clone(model), options(), device, settings(graph_tokens))
                .unwrap();
        on_device.blocks_mut().poison().unwrap();
        Self {
            local: LocalBackbone::new(Arc::clone(model), pool, options()).unwrap(),
            device: on_device,
            rng: Rng::named(seed, "draft device"),
        }
    }

    /// Values as features and embeddings have them: of either sign and all sizes.
    fn values(&mut self, n: usize) -> Vec<f32> {
        let mut value = || (self.rng.next_u64() % 4001) as f32 / 1000.0 - 2.0;
        (0..n).map(|_| value()).collect()
    }

    fn observe(&mut self, seq: u32, pos: Pos, n: usize) {
        let width = self.local.model().meta.feature_width();
        let rows = self.values(n * width);
        self.local.observe(SeqId(seq), pos, &rows).unwrap();
        self.device.observe(SeqId(seq), pos, &rows).unwrap();
        self.same_context(seq, &format!("{n} rows at {pos}"));
    }

    fn same_context(&self, seq: u32, what: &str) {
        let id = SeqId(seq);
        assert_eq!(self.device.context(id), self.local.context(id), "{what}");
        assert!(
            saved(&self.device, seq) == saved(&self.local, seq),
            "{what}: rows of {seq}"
        );
    }

    fn truncate(&mut self, seq: u32, pos: Pos) {
        self.local.truncate(SeqId(seq), pos);
        self.device.truncate(SeqId(seq), pos);
        self.same_context(seq, &format!("truncated to {pos}"));
    }

    fn end(&self, seq: u32) -> Pos {
        self.local.context(SeqId(seq)).unwrap().end
    }

    /// What both answer, which is the same.
    fn draft(&mut self, asks: &[Ask]) -> DraftRows {
        let meta = &self.local.model().meta;
        let n = asks.len() * meta.block * meta.stage.n_embd;
        let block = self.values(n);
        let ticket = self.local.submit(asks, &block).unwrap();
        let want = self.local.poll(ticket, None).unwrap();
        let ticket = self.device.submit(asks, &block).unwrap();
        let got = self.device.poll(ticket, None).unwrap();
        assert_eq!(got.rows, want.rows, "{asks:?}");
        assert!(bits(&got.normed) == bits(&want.normed), "{asks:?}: normed");
        assert!(
            bits(&got.pre_norm) == bits(&want.pre_norm),
            "{asks:?}: before the norm"
        );
        assert!(got.normed.iter().any(|v| *v != 0.0) || got.rows.iter().all(|n| *n == 0));
        got
    }
}

/// Several sequences, each with rows of its own: short contexts, full windows, rings that turned.
fn a_day<R: Driver>(both: &mut Both<R>) {
    let ring = ring_rows(&both.local.model().meta, &options()) as Pos;
    both.observe(0, 3, 1);
    both.observe(1, ring - 5, 20);
    both.draft(&[ask(0, 4, 0, 5)]);
    both.draft(&[ask(0, 4, 0, 5), ask(1, ring + 15, 0, 2)]);
    // A verify of four of which one stands; then a block that leaves out rows under verification.
    both.observe(0, 4, 4);
    both.truncate(0, 5);
    both.draft(&[ask(1, ring + 15, 3, 5), ask(2, 9, 0, 5), ask(0, 5, 0, 0)]);
    both.observe(0, 5, 2 * ring as usize + 7);
    let end = both.end(0);
    both.draft(&[ask(0, end, 0, 1), ask(1, ring + 15, 0, 5)]);
    both.truncate(0, end - 6);
    both.draft(&[ask(0, end - 6, 0, 4)]);
}

#[test]
fn on_the_cpu_as_a_device_rows_and_contexts_are_the_cpu_s() {
    let device = cpu_device();
    for (seed, format_of) in [as_shipped, narrow, halves].into_iter().enumerate() {
        let mut both = Both::new(&model(format_of), &device, 0, seed as u64);
        a_day(&mut both);
    }
}

/// Graphs are captured and replayed over other rows, places and lengths of lists.
#[test]
fn graphs_on_a_device_in_a_hostile_order_give_the_same_bits() {
    for seed in [1, 2] {
        let device = fake_device(seed);
        let mut both = Both::new(&model(as_shipped), &device, 16, 7 + seed);
        for turn in 0..4 {
            both.observe(0, 10 + 3 * turn, 3);
            both.draft(&[ask(0, 13 + 3 * turn, 0, 5)]);
        }
        let (_, graphs) = both.device.blocks().launches();
        assert_eq!(
            (graphs.built, graphs.launched),
            (2, 6),
            "passes and features"
        );
        a_day_after(&mut both);
    }
}

/// More of it, where sequence 0 has rows already.
fn a_day_after<R: Driver>(both: &mut Both<R>) {
    let end = both.end(0);
    both.truncate(0, end - 4);
    both.draft(&[ask(0, end - 4, 0, 3)]);
    both.observe(0, end - 4, 90);
    both.observe(1, 0, 2);
    both.draft(&[ask(0, end + 86, 0, 5), ask(1, 2, 2, 5)]);
}

#[test]
fn a_context_moves_between_processor_and_device() {
    let device = cpu_device();
    let mut both = Both::new(&model(as_shipped), &device, 0, 40);
    let ring = ring_rows(&both.local.model().meta, &options()) as Pos;
    both.observe(0, 2 * ring - 9, 30);
    both.observe(1, 7, 5);
    // Exchanged: each loads what the other saved.
    let (a, b) = (saved(&both.local, 0), saved(&both.device, 1));
    both.device.load(SeqId(2), &mut a.as_slice()).unwrap();
    both.local.load(SeqId(2), &mut a.as_slice()).unwrap();
    both.same_context(2, "loaded");
    both.local.load(SeqId(0), &mut b.as_slice()).unwrap();
    both.device.load(SeqId(0), &mut b.as_slice()).unwrap();
    both.same_context(0, "loaded over another");
    both.draft(&[ask(2, 2 * ring + 21, 0, 5), ask(0, 12, 0, 5)]);
    both.observe(2, 2 * ring + 21, 3);
    both.draft(&[ask(2, 2 * ring + 24, 0, 5)]);
    assert_eq!(
        both.device.digest(SeqId(2)).unwrap(),
        both.local.digest(SeqId(2)).unwrap()
    );
}

#[test]
fn damaged_rows_leave_no_context() {
    let device = cpu_device();
    let mut both = Both::new(&model(as_shipped), &device, 0, 41);
    both.observe(0, 0, 9);
    let good = saved(&both.device, 0);
    let mut longer = good.clone();
    longer.push(0);
    for bad in [&good[..good.len() - 1], &longer[..], &good[1..]] {
        both.observe(1, 0, 2);
        assert!(both.device.load(SeqId(1), &mut &bad[..]).is_err());
        assert_eq!(both.device.context(SeqId(1)), None);
        both.local.close(SeqId(1));
        both.device.close(SeqId(1));
    }
    both.device.health().unwrap();
    let missing = both.device.save(SeqId(1), &mut Vec::new());
    assert!(matches!(missing, Err(Fault::NoSuchSequence(SeqId(1)))));
}

#[test]
fn calls_are_refused_as_the_cpu_refuses_them() {
    let device = cpu_device();
    let mut both = Both::new(&model(as_shipped), &device, 0, 42);
    both.observe(0, 5, 4);
    let meta = both.local.model().meta.clone();
    let block = vec![0.5; meta.block * meta.stage.n_embd];
    let rows = vec![0.5; meta.feature_width()];
    let before = saved(&both.device, 0);
    let b = &mut both.device;
    let said = |r: Result<(), Fault>| r.unwrap_err().to_string();
    let l = &mut both.local;
    let mut both_say = |seq, pos, rows: &[f32]| {
        let want = said(l.observe(SeqId(seq), pos, rows));
        assert_eq!(said(b.observe(SeqId(seq), pos, rows)), want);
        want
    };
    assert!(both_say(0, 10, &rows).contains('9'), "a hole");
    both_say(0, 9, &rows[1..]);
    both_say(3, 0, &rows);
    both_say(1, Pos::MAX, &rows);
    let off = [ask(0, 11, 0, 5)];
    let want = l.submit(&off, &block).unwrap_err().to_string();
    assert_eq!(b.submit(&off, &block).unwrap_err().to_string(), want);
    let short = b.submit(&[ask(0, 9, 0, 5)], &block[1..]).unwrap_err();
    assert!(matches!(
        short,
        Fault::BadState {
            field: "block rows",
            ..
        }
    ));
    assert!(saved(b, 0) == before, "nothing changed");
    // An answer is taken once; two may be on their way.
    let asks = [ask(0, 9, 0, 2)];
    let first = b.submit(&asks, &block).unwrap();
    let second = b.submit(&asks, &block).unwrap();
    let rows = [b.poll(second, None).unwrap(), b.poll(first, None).unwrap()];
    assert_eq!(rows[0].rows, [2]);
    assert_eq!(bits(&rows[0].normed), bits(&rows[1].normed));
    assert!(matches!(b.poll(first, None), Err(Fault::NoSuchTicket(_))));
}

/// More asks than a pass takes: in passes one after another, each ask with its own rows.
#[test]
fn many_asks_are_answered_in_order() {
    let device = cpu_device();
    let many = Options {
        n_seq_max: 15,
        ..options()
    };
    let model = model(as_shipped);
    let local = LocalBackbone::new(Arc::clone(&model), Arc::new(Pool::new(2)), many.clone());
    let on_device = DeviceBackbone::new(model, many, &device, settings(0)).unwrap();
    let mut both = Both {
        local: local.unwrap(),
        device: on_device,
        rng: Rng::named(3, "many"),
    };
    let mut asks = Vec::new();
    for seq in 0..15 {
        both.observe(seq, 20 * seq, 1 + seq as usize % 4);
        asks.push(ask(seq, 20 * seq + 1 + seq % 4, 0, 1 + seq % 5));
    }
    assert_eq!(both.draft(&asks).rows.len(), 15);
}

#[test]
fn what_a_device_cannot_do_is_refused_with_both_values() {
    let small = cpu::runtime(1 << 20).open(0).unwrap();
    let model = model(as_shipped);
    let new = |options, device: &Device<cpu::Cpu>| {
        DeviceBackbone::new(Arc::clone(&model), options, device, settings(0)).map(|_| ())
    };
    match new(options(), &small).unwrap_err() {
        DraftError::Load(LoadError::DeviceMemory {
            needed, free, plan, ..
        }) => {
            assert!(needed > free && free <= 1 << 20, "{needed} of {free}");
            assert!(plan.contains("weights") && plan.contains("state"), "{plan}");
        }
        other => panic!("{other}"),
    }
    let rounded = Options {
        kv_round: true,
        ..options()
    };
    let refusal = new(rounded, &cpu_device()).unwrap_err().to_string();
    assert_eq!(refusal, "kv_round: expected off on a device, got on");
}

/// The answer of a device that works on is not there at once, and is when one waits.
#[test]
fn a_deadline_that_has_passed_is_said() {
    let device = fake_device(3);
    let mut b = DeviceBackbone::new(model(as_shipped), options(), &device, settings(0)).unwrap();
    let meta = b.model().meta.clone();
    b.observe(SeqId(0), 0, &vec![0.5; meta.feature_width()])
        .unwrap();
    let block = vec![0.25; meta.block * meta.stage.n_embd];
    let ticket = b.submit(&[ask(0, 1, 0, 3)], &block).unwrap();
    match b.poll(ticket, Some(Instant::now())) {
        Err(Fault::Deadline) => assert_eq!(b.poll(ticket, None).unwrap().rows, [3]),
        other => assert_eq!(other.unwrap().rows, [3]),
    }
}
