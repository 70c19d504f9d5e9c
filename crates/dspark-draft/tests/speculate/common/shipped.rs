//! The shipped pair: target, drafter, prompts, plain decoding as the yardstick, and drafters that know
//! the text. Nothing here is skipped: the files are part of the repository.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use ds4_target::{CpuTarget, GgufSource, Model, Options};
use dspark_draft::backbone::{self, LocalBackbone};
use dspark_draft::drafter::DsparkDrafter;
use dspark_draft::speculate::{
    Config, Emitted, Flow, Grants, InPass, Request, Sink, Speculator, Turn,
};
use dspark_draft::stats::Stats;
use dspark_draft::suffix::{Chooser, Suffix};
use dspark_draft::weights::DraftModel;
use dspark_draft::width::Policy;
use engine_core::seams::{Ask, Proposal};
use engine_core::{Drafter, Fault, Pos, SamplePlan, SeqId, Tap, Target, TokenId};
use gguf::{Gguf, OpenOptions};
use testkit::prompts::Prompt;

/// The shipped drafter over its target.
pub(crate) type Real = DsparkDrafter<LocalBackbone>;

/// Most candidates of a span.
pub(crate) const DEEPEST: usize = 7;

/// A digest of saved state.
pub(crate) type State = [u8; 32];

pub(crate) struct Pair {
    pub(crate) model: Arc<Model>,
    pub(crate) draft: Arc<DraftModel>,
}

pub(crate) fn pair() -> &'static Pair {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    PAIR.get_or_init(|| {
        let open = |name: &str| {
            let models = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models");
            let file = Gguf::open(models.join(name), &OpenOptions::default()).unwrap();
            GgufSource::new(file)
        };
        Pair {
            model: Arc::new(Model::load(&open("tiny.gguf")).unwrap()),
            draft: Arc::new(DraftModel::load(&open("tiny-draft.gguf")).unwrap()),
        }
    })
}

impl Pair {
    pub(crate) fn target(&self) -> CpuTarget {
        let options = Options {
            n_ctx: 1024,
            n_seq_max: 4,
            threads: 1,
            ..Options::default()
        };
        CpuTarget::new(Arc::clone(&self.model), options).unwrap()
    }

    pub(crate) fn drafter(&self, target: &CpuTarget) -> Real {
        let (model, pool) = (Arc::clone(&self.draft), Arc::clone(target.pool()));
        let options = backbone::Options::default();
        let backbone = LocalBackbone::new(Arc::clone(&model), Arc::clone(&pool), options).unwrap();
        DsparkDrafter::new(model, backbone, target.info(), pool).unwrap()
    }

    pub(crate) fn chooser(&self, target: &CpuTarget) -> Chooser<Real> {
        let block = self.draft.meta.block as u32;
        Chooser::new(self.drafter(target), block, Suffix::default())
    }
}

/// Prompts of every kind, `each` of each.
pub(crate) fn prompts(each: usize) -> Vec<Prompt> {
    let all = testkit::prompts::prompts().unwrap();
    all.chunks(15)
        .flat_map(|kind| kind[..each].to_vec())
        .collect()
}

/// Greedy, and as it is at temperature 1 with a seed.
pub(crate) fn plans() -> [Arc<SamplePlan>; 2] {
    let seeded = SamplePlan {
        temperature: 1.0,
        seed: 20_26,
        ..SamplePlan::greedy()
    };
    [SamplePlan::greedy(), seeded].map(Arc::new)
}

pub(crate) fn request(ids: &[TokenId], plan: &Arc<SamplePlan>, budget: u32) -> Request {
    Request {
        plan: Arc::clone(plan),
        ..Request::greedy(ids.to_vec(), budget)
    }
}

/// A text by plain decoding.
pub(crate) struct Plain {
    pub(crate) tokens: Vec<TokenId>,
    /// By position: the digest of the state that holds what is below it.
    pub(crate) states: BTreeMap<Pos, State>,
}

impl Plain {
    /// Prompt and text.
    pub(crate) fn whole(&self, request: &Request) -> Vec<TokenId> {
        let mut all = request.prompt.clone();
        all.extend(&self.tokens);
        all
    }
}

#[derive(Default)]
struct Tokens(Vec<TokenId>);

impl Sink for Tokens {
    fn token(&mut self, emitted: Emitted) -> Flow {
        self.0.push(emitted.token);
        Flow::Go
    }
}

/// What a run with a drafter showed.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) stats: Stats,
    /// Positions of the seed modulo 128 at which a candidate was rejected.
    pub(crate) rejected: BTreeSet<Pos>,
    /// Target passes a step: the largest.
    pub(crate) most_passes: u64,
}

impl Seen {
    pub(crate) fn add(&mut self, other: Self) {
        self.stats.merge(&other.stats);
        self.rejected.extend(other.rejected);
        self.most_passes = self.most_passes.max(other.most_passes);
    }

    /// Phases of windows of four at which something was rejected.
    pub(crate) fn phases_of_four(&self) -> BTreeSet<Pos> {
        self.rejected.iter().map(|p| p % 4).collect()
    }
}

pub(crate) fn config(policy: Policy) -> Config {
    Config {
        policy,
        depth: DEEPEST,
        tap_window: pair().draft.meta.stage.window,
        in_pass: InPass::Keyed,
        ..Config::default()
    }
}

/// Runs one request alone, looking at every commit.
fn steps(
    t: &mut CpuTarget,
    mut drafter: Option<&mut dyn Drafter>,
    config: Config,
    request: &Request,
    mut look: impl FnMut(&CpuTarget, SeqId, Pos),
) -> (Vec<TokenId>, Seen) {
    let seq = t.open().unwrap();
    let mut s = Speculator::new(t.info(), config);
    s.admit(t, seq, request.clone()).unwrap();
    let (mut sink, mut seen) = (Tokens::default(), Seen::default());
    while !s.is_idle() {
        let (stood, before) = (s.stands(seq).map_or(0, |(pos, _)| pos), s.stats().clone());
        s.step(Turn {
            target: &mut *t,
            drafter: drafter.as_mut().map(|d| &mut **d as &mut dyn Drafter),
            sink: &mut sink,
            grants: Grants::Each(48),
            riders: &[],
        });
        let after = s.stats();
        let (offered, matched) = (
            after.offered - before.offered,
            after.matched - before.matched,
        );
        if offered > matched && after.emitted - before.emitted > matched {
            seen.rejected.insert(stood % 128);
        }
        seen.most_passes = seen.most_passes.max(after.passes - before.passes);
        look(t, seq, t.pos(seq).unwrap());
    }
    assert_eq!(s.drafter_lost(), None);
    seen.stats = s.stats().clone();
    t.close(seq);
    if let Some(drafter) = drafter {
        drafter.close(seq);
    }
    (sink.0, seen)
}

pub(crate) fn plain(t: &mut CpuTarget, request: &Request) -> Plain {
    let mut states = BTreeMap::new();
    let (tokens, seen) = steps(t, None, config(Policy::Fixed(1)), request, |t, seq, pos| {
        states.insert(pos, t.digest(seq).unwrap());
    });
    assert_eq!(tokens.len(), request.budget as usize);
    assert_eq!(seen.stats.offered, 0);
    Plain { tokens, states }
}

/// Runs a request with a drafter: the text and the state at every commit are those of plain decoding.
pub(crate) fn check(
    t: &mut CpuTarget,
    drafter: &mut dyn Drafter,
    config: Config,
    (request, want): (&Request, &Plain),
    what: &str,
) -> Seen {
    let (tokens, seen) = steps(t, Some(drafter), config, request, |t, seq, pos| {
        // Chunks of the prompt end at the same places.
        assert_eq!(
            t.digest(seq).unwrap(),
            want.states[&pos],
            "{what}: state at {pos}"
        );
    });
    assert_eq!(tokens, want.tokens, "{what}: text");
    seen
}

/// Proposes the text itself for so many candidates, then what it is not; one entry a proposal, over and
/// over.
pub(crate) struct Forced {
    text: Vec<TokenId>,
    right: Vec<usize>,
    at: usize,
}

impl Forced {
    pub(crate) fn new(text: Vec<TokenId>, right: &[usize]) -> Self {
        let right = right.to_vec();
        Self { text, right, at: 0 }
    }
}

impl Drafter for Forced {
    fn propose(
        &mut self,
        target: &mut dyn Target,
        asks: &[Ask],
        _: &[&SamplePlan],
    ) -> Result<Vec<Proposal>, Fault> {
        let n_vocab = target.info().n_vocab as TokenId;
        let (text, right, at) = (&self.text, &self.right, &mut self.at);
        let propose = |ask: &Ask| {
            let from = ask.pos as usize;
            assert_eq!(text[from], ask.seed, "the seed is the text's");
            let good = right[*at % right.len()];
            *at += 1;
            let token = |k: usize| {
                let own = text.get(from + 1 + k).copied().unwrap_or(0);
                if k < good { own } else { (own + 1) % n_vocab }
            };
            Proposal {
                tokens: (0..ask.depth as usize).map(token).collect(),
                confidence_logits: Vec::new(),
            }
        };
        Ok(asks.iter().map(propose).collect())
    }

    fn tap(&self) -> Tap {
        Tap::default()
    }

    fn observe(&mut self, _: SeqId, _: Pos, _: &[TokenId], _: &[f32]) -> Result<(), Fault> {
        Ok(())
    }

    fn truncate(&mut self, _: SeqId, _: Pos) {}

    fn close(&mut self, _: SeqId) {}
}
