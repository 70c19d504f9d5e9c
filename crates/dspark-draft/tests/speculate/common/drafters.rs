//! Drafters that know the text, or miss it as told. Each checks that it is shown every position once, in
//! order, with the text's token and the features of that token.

use std::collections::BTreeMap;

use engine_core::seams::{Ask, Proposal};
use engine_core::{Drafter, Fault, Pos, SamplePlan, SeqId, Tap, Target, TokenId};
use testkit::rng::Rng;

use super::toy::{HandClock, N_EMBD, V, features, tap};

/// What is proposed.
#[derive(Clone, Debug)]
pub(crate) enum Script {
    /// The text.
    Right,
    /// Never the text.
    Wrong,
    /// The text, for so many candidates; one entry a proposal, over and over.
    First(Vec<usize>),
    /// The text, each candidate with this chance.
    Often(f64),
    /// Any tokens.
    Random,
    /// Nothing.
    Nothing,
    /// As `Right` with a token of no vocabulary at this place.
    Bad(usize),
    /// As `Right`, and more than asked.
    TooMany,
}

pub(crate) struct Known {
    /// Prompt and continuation of each sequence.
    texts: BTreeMap<u32, Vec<TokenId>>,
    /// Positions shown, from the first with features on.
    shown: BTreeMap<u32, Pos>,
    /// Positions shown without features.
    pub(crate) bare: BTreeMap<u32, Vec<Pos>>,
    /// Positions shown with features.
    pub(crate) tapped: BTreeMap<u32, Vec<Pos>>,
    script: Script,
    pub(crate) confidence: Option<f32>,
    pub(crate) asks: Vec<Ask>,
    pub(crate) proposals: usize,
    pub(crate) observes: usize,
    /// Calls, from 1, that fail.
    pub(crate) propose_dies: Option<usize>,
    pub(crate) observe_dies: Option<usize>,
    /// Answers for fewer sequences than asked.
    pub(crate) forgets_one: bool,
    pub(crate) dead: bool,
    pub(crate) clock: HandClock,
    pub(crate) draft_time: f64,
    rng: Rng,
    turn: usize,
}

impl Known {
    pub(crate) fn new(script: Script) -> Self {
        Self {
            texts: BTreeMap::new(),
            shown: BTreeMap::new(),
            bare: BTreeMap::new(),
            tapped: BTreeMap::new(),
            script,
            confidence: Some(1.0),
            asks: Vec::new(),
            proposals: 0,
            observes: 0,
            propose_dies: None,
            observe_dies: None,
            forgets_one: false,
            dead: false,
            clock: HandClock::default(),
            draft_time: 0.0,
            rng: Rng::new(1),
            turn: 0,
        }
    }

    pub(crate) fn learn(&mut self, seq: SeqId, text: Vec<TokenId>) {
        self.texts.insert(seq.0, text);
    }

    /// Positions shown of a sequence.
    pub(crate) fn shown(&self, seq: SeqId) -> usize {
        self.shown.get(&seq.0).map_or(0, |p| *p as usize)
    }

    fn alive(&mut self, dies: bool) -> Result<(), Fault> {
        assert!(!self.dead, "a dead drafter is not called");
        if dies {
            self.dead = true;
            return Err(Fault::Lost {
                what: "drafter".to_owned(),
                why: "test".to_owned(),
            });
        }
        Ok(())
    }

    fn one(&mut self, ask: &Ask) -> Proposal {
        assert!(ask.depth > 0);
        assert_eq!(
            self.shown(ask.seq),
            ask.pos as usize,
            "shown all below the seed"
        );
        let text = &self.texts[&ask.seq.0];
        assert_eq!(text[ask.pos as usize], ask.seed, "the seed is the text's");
        let right = |k: usize| text.get(ask.pos as usize + 1 + k).copied().unwrap_or(1);
        let wrong = |k: usize| (right(k) + 1) % V as TokenId;
        let n = ask.depth as usize;
        let turn = self.turn;
        self.turn += 1;
        let tokens: Vec<TokenId> = match &self.script {
            Script::Right => (0..n).map(right).collect(),
            Script::Wrong => (0..n).map(wrong).collect(),
            Script::First(list) => {
                let m = list[turn % list.len()];
                (0..n)
                    .map(|k| if k < m { right(k) } else { wrong(k) })
                    .collect()
            }
            Script::Often(p) => {
                let p = *p;
                let rng = &mut self.rng;
                (0..n)
                    .map(|k| if rng.unit() < p { right(k) } else { wrong(k) })
                    .collect()
            }
            Script::Random => {
                let rng = &mut self.rng;
                (0..n).map(|_| rng.below(V) as TokenId).collect()
            }
            Script::Nothing => Vec::new(),
            Script::Bad(at) => (0..n)
                .map(|k| if k == *at { 9999 } else { right(k) })
                .collect(),
            Script::TooMany => (0..n + 5).map(right).collect(),
        };
        Proposal {
            confidence_logits: self
                .confidence
                .map_or(Vec::new(), |c| vec![c; tokens.len()]),
            tokens,
        }
    }
}

impl Drafter for Known {
    fn propose(
        &mut self,
        _: &mut dyn Target,
        asks: &[Ask],
        plans: &[&SamplePlan],
    ) -> Result<Vec<Proposal>, Fault> {
        assert_eq!(asks.len(), plans.len());
        self.proposals += 1;
        self.clock.advance(self.draft_time);
        self.alive(self.propose_dies == Some(self.proposals))?;
        self.asks.extend_from_slice(asks);
        let mut out: Vec<Proposal> = asks.iter().map(|ask| self.one(ask)).collect();
        if self.forgets_one {
            out.pop();
        }
        Ok(out)
    }

    fn tap(&self) -> Tap {
        tap()
    }

    fn observe(
        &mut self,
        seq: SeqId,
        pos: Pos,
        tokens: &[TokenId],
        given: &[f32],
    ) -> Result<(), Fault> {
        self.observes += 1;
        self.alive(self.observe_dies == Some(self.observes))?;
        assert!(!tokens.is_empty());
        assert_eq!(
            self.shown(seq),
            pos as usize,
            "positions are shown once, in order"
        );
        let text = &self.texts[&seq.0];
        assert_eq!(
            &text[pos as usize..][..tokens.len()],
            tokens,
            "only the text is shown"
        );
        let width = tap().layers.len() * N_EMBD;
        let list = if given.is_empty() {
            &mut self.bare
        } else {
            &mut self.tapped
        };
        list.entry(seq.0)
            .or_default()
            .extend(pos..pos + tokens.len() as Pos);
        if !given.is_empty() {
            assert_eq!(given.len(), tokens.len() * width);
            for ((at, token), row) in (pos..).zip(tokens).zip(given.chunks_exact(width)) {
                let layers = tap().layers;
                let want: Vec<f32> = layers
                    .iter()
                    .flat_map(|l| features(at, *token, *l))
                    .collect();
                assert_eq!(row, want, "features of position {at}");
            }
        }
        self.shown.insert(seq.0, pos + tokens.len() as Pos);
        Ok(())
    }

    fn truncate(&mut self, _: SeqId, _: Pos) {
        panic!("the loop never takes back what it has shown");
    }

    fn close(&mut self, seq: SeqId) {
        self.shown.remove(&seq.0);
        self.bare.remove(&seq.0);
        self.tapped.remove(&seq.0);
    }
}
