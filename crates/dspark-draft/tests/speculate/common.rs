//! What the tests of the loop share: a toy target whose every row depends on the whole text before it,
//! drafters that know or miss that text, receivers, and the text itself, computed without any of them.

pub(crate) mod drafters;
pub(crate) mod shipped;
pub(crate) mod toy;

use std::collections::BTreeMap;
use std::sync::Arc;

use dspark_draft::speculate::{
    Config, Emitted, Finished, Flow, Grants, Reason, Request, Rider, Sink, Speculator, StepOut,
    Turn,
};
use dspark_draft::width::Policy;
use engine_core::{Drafter, Penalties, Rows, SamplePlan, SeqId, Target, TokenId};
use sampling::Sampler;

use self::toy::{Toy, V, logits};

/// The continuation of a prompt by definition: row by row, without target, drafter or loop.
pub(crate) fn plain(request: &Request, n_ctx: usize) -> Vec<TokenId> {
    let mut sampler = Sampler::new(V);
    let (mut text, mut history) = (request.prompt.clone(), request.history.clone());
    let mut out = Vec::new();
    while out.len() < request.budget as usize && text.len() <= n_ctx {
        let row = logits(&text);
        let token = sampler
            .draw(&request.plan, &row, text.len() as u32, &history)
            .unwrap();
        text.push(token);
        history.push(token);
        out.push(token);
        if request.stops.contains(&token) {
            break;
        }
    }
    out
}

/// Prompt and continuation.
pub(crate) fn whole(request: &Request, n_ctx: usize) -> Vec<TokenId> {
    let mut text = request.prompt.clone();
    text.extend(plain(request, n_ctx));
    text
}

pub(crate) fn prompt(n: usize, seed: u64) -> Vec<TokenId> {
    let mut rng = testkit::rng::Rng::named(seed, "prompt");
    (0..n).map(|_| rng.below(V) as TokenId).collect()
}

/// Greedy, sampled, and with everything that needs a history.
pub(crate) fn plans() -> [Arc<SamplePlan>; 3] {
    let sampled = SamplePlan {
        temperature: 0.9,
        top_k: 12,
        seed: 7,
        choice: 1,
        ..SamplePlan::greedy()
    };
    let penalised = SamplePlan {
        penalties: Penalties {
            repeat: 1.3,
            presence: 0.4,
            frequency: 0.3,
            window: 6,
        },
        bias: Arc::from([(3, 0.7), (5, f32::NEG_INFINITY)]),
        ..sampled.clone()
    };
    [SamplePlan::greedy(), sampled, penalised].map(Arc::new)
}

pub(crate) fn request(prompt: Vec<TokenId>, budget: u32, plan: &Arc<SamplePlan>) -> Request {
    Request {
        plan: Arc::clone(plan),
        ..Request::greedy(prompt, budget)
    }
}

pub(crate) fn fixed(width: usize) -> Config {
    Config {
        policy: Policy::Fixed(width),
        depth: 7,
        tap_window: 16,
        ..Config::default()
    }
}

/// Records tokens; ends or cancels where told.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub(crate) tokens: BTreeMap<u32, Vec<TokenId>>,
    pub(crate) stops: Vec<Emitted>,
    /// Answer at this index of every sequence.
    pub(crate) answer: Option<(u32, Flow)>,
    /// Polls until `is_cancelled` says so.
    pub(crate) cancel_after: Option<usize>,
    pub(crate) polls: usize,
    /// Rows of riders: index, logits of its last row.
    pub(crate) rides: Vec<(usize, Vec<f32>)>,
}

impl Sink for Recorder {
    fn token(&mut self, emitted: Emitted) -> Flow {
        let tokens = self.tokens.entry(emitted.seq.0).or_default();
        assert_eq!(
            tokens.len(),
            emitted.index as usize,
            "tokens come once and in order"
        );
        tokens.push(emitted.token);
        if emitted.stop {
            self.stops.push(emitted);
        }
        match self.answer {
            Some((index, flow)) if index == emitted.index => flow,
            _ => Flow::Go,
        }
    }

    fn is_cancelled(&mut self, _: SeqId) -> bool {
        self.polls += 1;
        self.cancel_after.is_some_and(|n| self.polls > n)
    }

    fn ride(&mut self, index: usize, rows: &Rows, span: usize) {
        let logits = rows.last_logits(span).unwrap_or(&[]);
        self.rides.push((index, logits.to_vec()));
    }
}

/// One step; a drafter of any kind, prompts without limit.
pub(crate) fn step(
    s: &mut Speculator,
    target: &mut dyn Target,
    drafter: Option<&mut dyn Drafter>,
    sink: &mut Recorder,
    each: usize,
    riders: &[Rider],
) -> StepOut {
    s.step(Turn {
        target,
        drafter: drafter.map(|d| d as &mut dyn Drafter),
        sink,
        grants: Grants::Each(each),
        riders,
    })
}

/// Runs everything in the loop to its end.
pub(crate) fn drain(
    s: &mut Speculator,
    target: &mut dyn Target,
    drafter: &mut dyn Drafter,
    sink: &mut Recorder,
    each: usize,
) -> Vec<Finished> {
    let mut all = Vec::new();
    let mut steps = 0;
    while !s.is_idle() {
        all.extend(step(s, target, Some(&mut *drafter), sink, each, &[]).finished);
        steps += 1;
        assert!(steps < 100_000, "the loop does not end");
    }
    all
}

/// Checks that a sequence ended as plain decoding would: text, and state of all but the last token.
pub(crate) fn assert_plain(target: &Toy, done: &Finished, request: &Request, what: &str) {
    let want = plain(request, target.info().n_ctx as usize);
    assert_eq!(done.tokens, want, "{what}: text");
    assert_state(target, done, request, what);
}

/// Checks that the state holds the prompt and what was emitted but the last token.
pub(crate) fn assert_state(target: &Toy, done: &Finished, request: &Request, what: &str) {
    let mut state = request.prompt.clone();
    state.extend(&done.tokens);
    state.truncate(state.len() - usize::from(!done.tokens.is_empty()));
    assert_eq!(target.state(done.seq), state, "{what}: state");
    assert_eq!(done.pos as usize, state.len(), "{what}: position");
}

pub(crate) fn reason(done: &Finished) -> &'static str {
    match &done.reason {
        Reason::Stop(_) => "stop",
        Reason::Satisfied => "satisfied",
        Reason::Length => "length",
        Reason::Context => "context",
        Reason::Cancelled => "cancelled",
        Reason::Failed(_) => "failed",
        _ => "other",
    }
}
