//! Chains drawn beside a target on a device, and beside one on the processor.

use std::path::Path;
use std::sync::Arc;

use device::driver::Driver;
use device::{Device, fake};
use ds4_target::on_device::{DeviceTarget, Markov, Share, equal_shares};
use ds4_target::{CpuTarget, GgufSource, Model};
use dspark_draft::heads::{Chain, Heads};
use dspark_draft::weights::DraftModel;
use engine_core::seams::{Candidates, Target};
use engine_core::{Fault, Pos, SamplePlan, TokenId};
use testkit::rng::Rng;

use crate::common::{as_shipped, bits, cpu_device, fake_device, halves_in_heads, model, settings};

fn target_model() -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny.gguf");
    let file = gguf::Gguf::open(&path, &gguf::OpenOptions::default()).unwrap();
    Arc::new(Model::load(&GgufSource::new(file)).unwrap())
}

fn target_options() -> ds4_target::Options {
    ds4_target::Options {
        n_ctx: 128,
        n_seq_max: 1,
        verify_max: 4,
        span_max: 16,
        kv_sim: true,
        threads: 2,
    }
}

/// A target with the drafter's chains on a device; nothing of its scratch is a number.
fn with_chains<R: Driver>(
    draft: &DraftModel,
    device: &Device<R>,
    graphs: usize,
) -> DeviceTarget<R> {
    shared_with_chains(draft, std::slice::from_ref(device), graphs)
}

/// [`with_chains`] with the target's layers shared by some devices.
fn shared_with_chains<R: Driver>(
    draft: &DraftModel,
    devices: &[Device<R>],
    graphs: usize,
) -> DeviceTarget<R> {
    let markov = Markov {
        first: &draft.heads.w1,
        second: &draft.heads.w2,
    };
    let (model, options) = (target_model(), target_options());
    let layers = equal_shares(&model, &options, Some(markov), devices.len()).unwrap();
    let shares = devices.iter().cloned().zip(layers);
    let shares = shares.map(|(device, layers)| Share { device, layers });
    let shares: Vec<_> = shares.collect();
    let target = DeviceTarget::split(model, options, Some(markov), &shares, settings(graphs));
    let mut target = target.unwrap();
    target.poison().unwrap();
    target
}

fn plans() -> Vec<SamplePlan> {
    let greedy = SamplePlan::greedy();
    let sampled = SamplePlan {
        temperature: 0.9,
        seed: 11,
        choice: 2,
        ..greedy.clone()
    };
    let filtered = SamplePlan {
        top_k: 40,
        top_p: 0.8,
        ..sampled.clone()
    };
    let biased = SamplePlan {
        bias: Arc::from([(17, 3.0)]),
        ..greedy.clone()
    };
    let penalised = SamplePlan {
        penalties: engine_core::Penalties {
            repeat: 1.3,
            window: 32,
            ..engine_core::Penalties::default()
        },
        ..sampled.clone()
    };
    vec![greedy, sampled, filtered, biased, penalised]
}

/// Draws of chains beside a target on a device and beside one on the processor; both answers.
struct Beside<R: Driver> {
    cpu: CpuTarget,
    device: DeviceTarget<R>,
    heads: [Heads; 2],
    rng: Rng,
}

impl<R: Driver> Beside<R> {
    fn new(draft: &Arc<DraftModel>, device: &Device<R>, graphs: usize, seed: u64) -> Self {
        Self::shared(draft, std::slice::from_ref(device), graphs, seed)
    }

    fn shared(draft: &Arc<DraftModel>, devices: &[Device<R>], graphs: usize, seed: u64) -> Self {
        let cpu = CpuTarget::new(target_model(), target_options()).unwrap();
        let heads = || Heads::new(Arc::clone(draft), Arc::clone(cpu.pool()));
        Self {
            heads: [heads(), heads()],
            device: shared_with_chains(draft, devices, graphs),
            rng: Rng::named(seed, "chains"),
            cpu,
        }
    }

    /// Chains of these lengths with a plan each; rows `nan` hold no number.
    fn same(&mut self, lengths: &[usize], plans: &[&SamplePlan], nan: &[usize]) {
        let (d, n_vocab) = (self.cpu.info().n_embd, self.cpu.info().n_vocab);
        let rows: usize = lengths.iter().sum();
        let mut value = || (self.rng.next_u64() % 4001) as f32 / 1000.0 - 2.0;
        let mut normed: Vec<f32> = (0..rows * d).map(|_| value()).collect();
        let pre_norm: Vec<f32> = (0..rows * d).map(|_| value()).collect();
        for row in nan {
            normed[row * d..(row + 1) * d].fill(f32::NAN);
        }
        let seed = |i: usize| ((i * 977 + 5) % n_vocab) as TokenId;
        let history: Vec<TokenId> = (0..40).map(|i| i * 3).collect();
        let chains: Vec<Chain<'_>> = lengths
            .iter()
            .enumerate()
            .map(|(i, rows)| Chain {
                rows: *rows,
                pos: 30 + i as Pos,
                seed: seed(i),
                plan: plans[i % plans.len()],
                history: &history,
            })
            .collect();
        let [a, b] = &mut self.heads;
        let want = a.draw(&mut self.cpu, &chains, &normed, &pre_norm).unwrap();
        let got = b
            .draw(&mut self.device, &chains, &normed, &pre_norm)
            .unwrap();
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(got.tokens, want.tokens, "chain {i} of {lengths:?}");
            let bits = [bits(&got.confidence_logits), bits(&want.confidence_logits)];
            assert_eq!(bits[0], bits[1], "chain {i} of {lengths:?}: confidences");
            let cut = !nan.is_empty() || got.tokens.len() == lengths[i];
            assert!(cut, "chain {i} is whole");
        }
        assert_eq!(got.len(), want.len());
    }
}

#[test]
fn chains_on_a_device_are_those_of_the_processor() {
    let device = cpu_device();
    let plans = plans();
    let all: Vec<&SamplePlan> = plans.iter().collect();
    for format_of in [as_shipped, halves_in_heads] {
        let mut t = Beside::new(&model(format_of), &device, 0, 5);
        t.same(&[5], &all[..1], &[]);
        t.same(&[2, 5, 0, 1], &all[1..2], &[]);
        t.same(&[5, 4, 5], &all[..3], &[]);
        // More than the head takes at once, and plans of all kinds.
        t.same(&[5, 3, 5, 1, 5, 2, 4], &all, &[]);
        let counts = t.device.counts();
        let (there, here) = (counts.device_chains, counts.host_chains);
        assert_eq!(
            (there, here),
            (5 + 8 + 14 + 19, 6),
            "chains of {:?}",
            counts
        );
        assert_eq!(t.device.counters().unwrap().fallbacks, 6);
    }
}

/// A chain ends where its row holds no number, and others go on.
#[test]
fn a_row_without_a_number_ends_its_chain() {
    let device = cpu_device();
    let plans = plans();
    let all: Vec<&SamplePlan> = plans.iter().collect();
    let mut t = Beside::new(&model(as_shipped), &device, 0, 6);
    t.same(&[5, 5, 3], &all[..2], &[2, 5]);
    t.same(&[4], &all[2..3], &[1]);
}

#[test]
fn chains_are_replayed_as_graphs() {
    let device = fake_device(9);
    let plans = plans();
    let all: Vec<&SamplePlan> = plans.iter().collect();
    let mut t = Beside::new(&model(as_shipped), &device, 16, 7);
    for _ in 0..4 {
        t.same(&[5], &all[..1], &[]);
        t.same(&[3, 4], &all[1..2], &[]);
    }
    let graphs = t.device.counts().graphs;
    assert_eq!((graphs.built, graphs.launched), (2, 6));
}

/// Beside a target whose layers are shared: the matrices stand with the output matrix, on the last device alone.
#[test]
fn chains_are_drawn_where_the_model_ends() {
    let runtime = fake::runtime(&fake::Settings {
        seed: 10,
        memory: 2 << 30,
        devices: 2,
        ..fake::Settings::default()
    });
    let devices = [0, 1].map(|n| runtime.open(n).unwrap());
    let plans = plans();
    let all: Vec<&SamplePlan> = plans.iter().collect();
    let draft = model(as_shipped);
    let mut t = Beside::shared(&draft, &devices, 16, 8);
    for _ in 0..3 {
        t.same(&[5], &all[..1], &[]);
        t.same(&[3, 4], &all[1..3], &[]);
    }
    let counts = t.device.counts();
    assert_eq!((counts.device_chains, counts.host_chains), (36, 0));
    assert_eq!((counts.graphs.built, counts.graphs.launched), (2, 4));
    let residents = t.device.residents();
    let graphs = residents.iter().filter(|r| r.what == "target graphs");
    let places: Vec<_> = graphs.map(|r| r.place.as_str()).collect();
    assert_eq!(places, ["fake:1"], "no pass ran, only chains");
}

#[test]
fn chains_that_do_not_fit_are_refused() {
    let draft = model(as_shipped);
    let device = cpu_device();
    let markov = Markov {
        first: &draft.backbone.fc,
        second: &draft.heads.w2,
    };
    let refused = DeviceTarget::with_chains(
        target_model(),
        target_options(),
        Some(markov),
        &device,
        settings(0),
    );
    let said = refused.unwrap_err().to_string();
    assert!(
        said.starts_with("matrices of a chain: expected 4096 rows each"),
        "{said}"
    );
    let mut t = with_chains(&draft, &device, 0);
    let plan = SamplePlan::greedy();
    let chain = |rows, seed| Candidates {
        rows,
        pos: 3,
        seed,
        plan: &plan,
    };
    let d = t.info().n_embd;
    let short = t.chains(&vec![0.0; d], &[chain(2, 0)]);
    assert!(matches!(
        short,
        Err(Fault::BadState {
            field: "rows of chains",
            ..
        })
    ));
    let seed = t.chains(&vec![0.0; d], &[chain(1, 4096)]);
    assert!(matches!(seed, Err(Fault::BadToken { token: 4096, .. })));
    // A target without the matrices draws none, and that is no fallback of its own.
    let plain = DeviceTarget::new(target_model(), target_options(), &device, settings(0));
    let mut plain = plain.unwrap();
    let drawn = plain.chains(&vec![0.0; d], &[chain(1, 3)]).unwrap();
    assert_eq!((drawn, plain.counts().host_chains), (Vec::new(), 0));
}
