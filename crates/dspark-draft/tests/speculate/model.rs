//! The loop over the real target: text and state after every commit are those of plain decoding, for
//! every width and for drafters that are right, wrong and random. Rollbacks happen at every phase of the
//! short windows here, and of the long ones in a soak test.

use std::collections::BTreeMap;
use std::sync::Arc;

use ds4_target::{CpuTarget, GgufSource, Model, Options};
use dspark_draft::speculate::{Config, Emitted, Flow, Grants, Request, Sink, Speculator, Turn};
use dspark_draft::stats::Stats;
use dspark_draft::suffix::Suffix;
use dspark_draft::width::Policy;
use engine_core::seams::{Ask, Proposal};
use engine_core::{Drafter, Fault, LayerId, Pos, SamplePlan, SeqId, Tap, Target, TokenId};
use fpx_quant::Format;
use gguf::{Gguf, OpenOptions};
use testkit::fixture::{Fixture, Kind, plain, write_gguf};
use testkit::rng::Rng;

fn model() -> Arc<Model> {
    let fixture = Fixture::new(Kind::T0i, 7).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t0i.gguf");
    let shapes = fixture.model.config.tensors();
    let dims: BTreeMap<_, _> = shapes
        .into_iter()
        .map(|(name, shape)| (name, shape.len()))
        .collect();
    write_gguf(&path, &fixture, |name| plain(name, dims[name], Format::F32)).unwrap();
    let file = Gguf::open(&path, &OpenOptions::default()).unwrap();
    Arc::new(Model::load(&GgufSource::new(file)).unwrap())
}

fn target(model: &Arc<Model>) -> CpuTarget {
    let options = Options {
        n_ctx: 1024,
        n_seq_max: 4,
        verify_max: 8,
        span_max: 64,
        kv_sim: true,
        threads: 1,
    };
    CpuTarget::new(Arc::clone(model), options).unwrap()
}

#[derive(Default)]
struct Tokens(Vec<TokenId>);

impl Sink for Tokens {
    fn token(&mut self, emitted: Emitted) -> Flow {
        self.0.push(emitted.token);
        Flow::Go
    }
}

/// Plain decoding: the text, and the digest of the state at every position.
struct Plain {
    text: Vec<TokenId>,
    digests: Vec<[u8; 32]>,
}

fn config(width: usize) -> Config {
    Config {
        policy: Policy::Fixed(width),
        depth: 7,
        tap_window: 16,
        ..Config::default()
    }
}

fn plainly(t: &mut CpuTarget, request: &Request) -> Plain {
    let seq = t.open().unwrap();
    t.poison_stale(seq).unwrap();
    let mut s = Speculator::new(t.info(), config(1));
    s.admit(t, seq, request.clone()).unwrap();
    let (mut sink, mut digests) = (Tokens::default(), Vec::new());
    while !s.is_idle() {
        let turn = Turn {
            target: &mut *t,
            drafter: None,
            sink: &mut sink,
            grants: Grants::Each(1),
            riders: &[],
        };
        s.step(turn);
        digests.push(t.digest(seq).unwrap());
        assert_eq!(t.pos(seq), Some(digests.len() as Pos));
    }
    t.close(seq);
    let mut text = request.prompt.clone();
    text.extend(sink.0);
    Plain { text, digests }
}

/// How often a candidate is right.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Right,
    Wrong,
    /// Right with this chance.
    Often(f64),
}

struct Scripted {
    text: Vec<TokenId>,
    kind: Fate,
    rng: Rng,
    n_embd: usize,
    shown: usize,
    features: Vec<Vec<u32>>,
}

impl Drafter for Scripted {
    fn propose(
        &mut self,
        _: &mut dyn Target,
        asks: &[Ask],
        _: &[&SamplePlan],
    ) -> Result<Vec<Proposal>, Fault> {
        let one = |ask: &Ask| {
            let tokens = (1..=ask.depth as usize).map(|k| {
                let right = self.text.get(ask.pos as usize + k).copied().unwrap_or(0);
                let good = match self.kind {
                    Fate::Right => true,
                    Fate::Wrong => false,
                    Fate::Often(p) => self.rng.unit() < p,
                };
                if good {
                    right
                } else {
                    (right + 1 + self.rng.below(500) as TokenId) % 512
                }
            });
            Proposal {
                tokens: tokens.collect(),
                confidence_logits: Vec::new(),
            }
        };
        Ok(asks.iter().map(one).collect())
    }

    fn tap(&self) -> Tap {
        Tap {
            layers: Arc::from([LayerId(3), LayerId(5)]),
        }
    }

    fn observe(
        &mut self,
        _: SeqId,
        pos: Pos,
        tokens: &[TokenId],
        features: &[f32],
    ) -> Result<(), Fault> {
        assert_eq!(self.shown, pos as usize);
        assert_eq!(self.text[self.shown..self.shown + tokens.len()], *tokens);
        self.shown += tokens.len();
        let width = 2 * self.n_embd;
        assert!(features.is_empty() || features.len() == tokens.len() * width);
        for row in features.chunks_exact(width) {
            assert!(row.iter().all(|f| f.is_finite()));
            self.features
                .push(row.iter().map(|f| f.to_bits()).collect());
        }
        Ok(())
    }

    fn truncate(&mut self, _: SeqId, _: Pos) {}
    fn close(&mut self, _: SeqId) {}
}

/// Steps that rejected something, by phase of the first position that was taken back.
#[derive(Default)]
struct Rollbacks(BTreeMap<usize, usize>);

/// Runs a request with a drafter and compares text and state after every step; answers the counters.
fn compare(
    t: &mut CpuTarget,
    request: &Request,
    want: &Plain,
    width: usize,
    drafter: &mut dyn Drafter,
    rollbacks: &mut Rollbacks,
) -> Stats {
    let seq = t.open().unwrap();
    t.poison_stale(seq).unwrap();
    let mut s = Speculator::new(t.info(), config(width));
    s.admit(t, seq, request.clone()).unwrap();
    let mut sink = Tokens::default();
    while !s.is_idle() {
        let before = (t.pos(seq).unwrap(), sink.0.len());
        let turn = Turn {
            target: &mut *t,
            drafter: Some(&mut *drafter),
            sink: &mut sink,
            grants: Grants::Each(64),
            riders: &[],
        };
        let rows = s.step(turn).rows;
        let pos = t.pos(seq).unwrap() as usize;
        assert_eq!(
            t.digest(seq).unwrap(),
            want.digests[pos - 1],
            "width {width}: state at {pos}"
        );
        if before.1 > 0 && pos - (before.0 as usize) < rows {
            *rollbacks.0.entry(pos % 128).or_default() += 1;
            t.poison_stale(seq).unwrap();
        }
    }
    let n = request.prompt.len();
    assert_eq!(sink.0, want.text[n..], "width {width}: text");
    t.close(seq);
    s.stats().clone()
}

fn request(n: usize, budget: u32, plan: SamplePlan) -> Request {
    let mut rng = Rng::named(n as u64, "prompt");
    Request {
        plan: Arc::new(plan),
        ..Request::greedy((0..n).map(|_| rng.below(512) as TokenId).collect(), budget)
    }
}

fn sampled() -> SamplePlan {
    SamplePlan {
        temperature: 1.0,
        seed: 5,
        ..SamplePlan::greedy()
    }
}

fn scripted(t: &CpuTarget, want: &Plain, kind: Fate, seed: u64) -> Scripted {
    Scripted {
        text: want.text.clone(),
        kind,
        rng: Rng::new(seed),
        n_embd: t.info().n_embd,
        shown: 0,
        features: Vec::new(),
    }
}

const KINDS: [Fate; 3] = [Fate::Right, Fate::Wrong, Fate::Often(0.6)];

#[test]
fn text_and_state_are_plain_for_every_width_and_drafter() {
    let model = model();
    let mut t = target(&model);
    let mut rollbacks = Rollbacks::default();
    for (plan, budget, kinds) in [
        (sampled(), 60, &KINDS[..]),
        (SamplePlan::greedy(), 40, &KINDS[2..]),
    ] {
        let request = request(10, budget, plan);
        let want = plainly(&mut t, &request);
        for width in 1..=8 {
            for kind in kinds {
                let mut drafter = scripted(&t, &want, *kind, width as u64);
                compare(&mut t, &request, &want, width, &mut drafter, &mut rollbacks);
                let (shown, seen) = (drafter.shown, drafter.features.len());
                assert_eq!(shown, seen, "all of a short prompt is tapped");
            }
        }
    }
    let mut phases = [0; 4];
    rollbacks.0.iter().for_each(|(p, n)| phases[p % 4] += n);
    assert!(
        phases.iter().all(|n| *n > 20),
        "rollbacks by phase: {phases:?}"
    );
}

#[test]
fn features_are_those_of_plain_decoding() {
    // A drafter sees the same rows whatever was verified beside them.
    let model = model();
    let mut t = target(&model);
    let request = request(10, 40, sampled());
    let want = plainly(&mut t, &request);
    let mut seen: Option<Vec<Vec<u32>>> = None;
    for (width, kind) in [
        (1, Fate::Right),
        (8, Fate::Right),
        (8, Fate::Wrong),
        (5, Fate::Often(0.5)),
    ] {
        let mut drafter = scripted(&t, &want, kind, 1);
        compare(
            &mut t,
            &request,
            &want,
            width,
            &mut drafter,
            &mut Rollbacks::default(),
        );
        assert_eq!(drafter.features.len(), 49);
        assert_eq!(
            *seen.get_or_insert(drafter.features.clone()),
            drafter.features,
            "width {width}"
        );
    }
}

#[test]
fn copies_of_the_text_are_accepted_and_change_nothing() {
    let model = model();
    let mut t = target(&model);
    // A random model does not repeat itself; with three tokens to choose from it must.
    let banned = (3..512).map(|token| (token, f32::NEG_INFINITY));
    let plan = SamplePlan {
        bias: banned.collect(),
        ..SamplePlan::greedy()
    };
    let request = request(12, 100, plan);
    let want = plainly(&mut t, &request);
    let (mut suffix, mut rollbacks) = (Suffix::default(), Rollbacks::default());
    let stats = compare(&mut t, &request, &want, 8, &mut suffix, &mut rollbacks);
    assert!(stats.matched > 20, "{} of {}", stats.matched, stats.offered);
}

#[test]
#[ignore = "soak: several minutes of decoding; every phase of the long windows"]
fn rollbacks_at_every_phase_of_the_long_windows() {
    let model = model();
    let mut t = target(&model);
    let mut rollbacks = Rollbacks::default();
    for seed in 0..2 {
        let plan = SamplePlan { seed, ..sampled() };
        let request = request(10, 700, plan);
        let want = plainly(&mut t, &request);
        for width in [2, 5, 8] {
            for kind in [Fate::Wrong, Fate::Often(0.5), Fate::Often(0.8)] {
                let mut drafter = scripted(&t, &want, kind, seed);
                compare(&mut t, &request, &want, width, &mut drafter, &mut rollbacks);
            }
        }
    }
    let missing: Vec<usize> = (0..128).filter(|p| !rollbacks.0.contains_key(p)).collect();
    assert!(missing.is_empty(), "phases without a rollback: {missing:?}");
}
