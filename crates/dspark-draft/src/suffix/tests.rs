use engine_core::Epoch;
use engine_core::seams::TargetInfo;
use engine_core::{NumericClass, Rows, Span, Ticket};

use super::*;

/// A target nobody may ask anything.
struct NoTarget(TargetInfo);

impl NoTarget {
    fn new() -> Self {
        Self(TargetInfo {
            n_vocab: 100,
            n_embd: 1,
            n_layer: 1,
            n_ctx: 1000,
            n_seq_max: 1,
            verify_max: 8,
            span_max: 8,
            class: NumericClass::Equal,
            fingerprint: [0; 32],
        })
    }
}

impl Target for NoTarget {
    fn info(&self) -> &TargetInfo {
        &self.0
    }
    fn open(&mut self) -> Result<SeqId, Fault> {
        Err(Fault::Unsupported("anything"))
    }
    fn fork(&mut self, seq: SeqId) -> Result<SeqId, Fault> {
        Err(Fault::NoSuchSequence(seq))
    }
    fn close(&mut self, _: SeqId) {}
    fn pos(&self, _: SeqId) -> Option<Pos> {
        None
    }
    fn submit(&mut self, _: &[TokenId], _: &[Span]) -> Result<Ticket, Fault> {
        Err(Fault::Unsupported("a copy costs no pass"))
    }
    fn wait(&mut self, ticket: Ticket, _: Option<std::time::Instant>) -> Result<&Rows, Fault> {
        Err(Fault::NoSuchTicket(ticket.0))
    }
    fn commit(&mut self, _: SeqId, _: Pos) {}
    fn head(&mut self, _: &[f32], _: &mut [f32]) -> Result<(), Fault> {
        Err(Fault::Unsupported("a copy needs no head"))
    }
    fn embed(&mut self, _: &[TokenId], _: &mut [f32]) -> Result<(), Fault> {
        Err(Fault::Unsupported("a copy needs no embedding"))
    }
    fn save(&self, seq: SeqId, _: &mut dyn std::io::Write) -> Result<(), Fault> {
        Err(Fault::NoSuchSequence(seq))
    }
    fn load(&mut self, _: &mut dyn std::io::Read) -> Result<SeqId, Fault> {
        Err(Fault::Unsupported("anything"))
    }
}

fn ask(seq: u32, pos: usize, seed: TokenId, depth: u32) -> Ask {
    Ask {
        seq: SeqId(seq),
        epoch: Epoch(0),
        pos: pos as Pos,
        ahead: 0,
        seed,
        depth,
    }
}

fn propose(drafter: &mut dyn Drafter, ask: Ask) -> Proposal {
    let plan = SamplePlan::greedy();
    let mut all = drafter
        .propose(&mut NoTarget::new(), &[ask], &[&plan])
        .unwrap();
    assert_eq!(all.len(), 1);
    all.pop().unwrap()
}

/// Runs a text through a drafter token by token; the tokens accepted, by greedy comparison.
fn accepted(
    drafter: &mut dyn Drafter,
    seq: u32,
    text: &[TokenId],
    prompt: usize,
    depth: u32,
) -> usize {
    drafter
        .observe(SeqId(seq), 0, &text[..prompt], &[])
        .unwrap();
    let (mut pos, mut right) = (prompt, 0);
    while pos + 1 < text.len() {
        let proposal = propose(drafter, ask(seq, pos, text[pos], depth));
        let rest = &text[pos + 1..];
        let m = proposal
            .tokens
            .iter()
            .zip(rest)
            .take_while(|(a, b)| a == b)
            .count();
        right += m;
        let end = (pos + 1 + m).min(text.len());
        drafter
            .observe(SeqId(seq), pos as Pos, &text[pos..end], &[])
            .unwrap();
        pos = end;
    }
    right
}

#[test]
fn edited_text_is_copied_and_random_text_is_left_alone() {
    let mut rng = testkit::rng::Rng::new(4);
    let source: Vec<TokenId> = (0..300).map(|_| rng.below(90) as TokenId).collect();
    // The same text again, every 40th token changed.
    let edited = source
        .iter()
        .enumerate()
        .map(|(i, t)| if i % 40 == 39 { 95 } else { *t });
    let text: Vec<TokenId> = source.iter().copied().chain(edited).collect();
    let mut suffix = Suffix::default();
    let right = accepted(&mut suffix, 0, &text, 300, 7);
    assert!(right > 230, "{right}");
    let noise: Vec<TokenId> = (0..600).map(|_| rng.below(90) as TokenId).collect();
    let mut suffix = Suffix::default();
    suffix.observe(SeqId(1), 0, &noise[..300], &[]).unwrap();
    let mut proposed = 0;
    for pos in 300..599 {
        proposed += propose(&mut suffix, ask(1, pos, noise[pos], 7))
            .tokens
            .len();
        suffix
            .observe(SeqId(1), pos as Pos, &noise[pos..=pos], &[])
            .unwrap();
    }
    // Chance matches of two tokens are unlearned.
    assert!(proposed < 100, "{proposed}");
}

#[test]
fn confidences_are_log_odds_that_come_true() {
    let mut rng = testkit::rng::Rng::new(6);
    // A loop of 50 tokens with one in ten replaced: matches of any length break at that rate.
    let text: Vec<TokenId> = (0..4000u32)
        .map(|i| {
            if rng.unit() < 0.1 {
                60 + rng.below(30) as TokenId
            } else {
                i % 50
            }
        })
        .collect();
    let mut suffix = Suffix::default();
    suffix.observe(SeqId(0), 0, &text[..200], &[]).unwrap();
    let (mut sure, mut hits, mut n) = (0.0, 0.0, 0.0);
    for pos in 200..3990 {
        let proposal = propose(&mut suffix, ask(0, pos, text[pos], 1));
        if pos > 1000
            && let Some(token) = proposal.tokens.first()
        {
            sure += 1.0 / (1.0 + (-f64::from(proposal.confidence_logits[0])).exp());
            hits += f64::from(u8::from(*token == text[pos + 1]));
            n += 1.0;
        }
        suffix
            .observe(SeqId(0), pos as Pos, &text[pos..=pos], &[])
            .unwrap();
    }
    assert!(
        n > 1000.0 && ((sure - hits) / n).abs() < 0.05,
        "{sure} {hits} {n}"
    );
}

#[test]
fn sequences_are_apart_and_closing_forgets() {
    let mut suffix = Suffix::default();
    suffix
        .observe(SeqId(0), 0, &[1, 2, 3, 4, 5, 1, 2], &[])
        .unwrap();
    suffix
        .observe(SeqId(1), 0, &[1, 2, 9, 9, 9, 1, 2], &[])
        .unwrap();
    let tokens = |s: &mut Suffix, seq, pos, seed| propose(s, ask(seq, pos, seed, 3)).tokens;
    suffix.truncate(SeqId(0), 6);
    suffix.truncate(SeqId(1), 6);
    assert_eq!(tokens(&mut suffix, 0, 6, 2), [3, 4, 5]);
    assert_eq!(tokens(&mut suffix, 1, 6, 2), [9, 9, 9]);
    assert_eq!(
        tokens(&mut suffix, 0, 5, 2),
        [0u32; 0],
        "another position than it stands at"
    );
    suffix.close(SeqId(0));
    assert_eq!(tokens(&mut suffix, 0, 6, 2), [0u32; 0]);
    assert_eq!(tokens(&mut suffix, 1, 6, 2), [9, 9, 9]);
    // A reused id starts empty, also when nobody closed it.
    suffix.observe(SeqId(1), 0, &[7], &[]).unwrap();
    assert_eq!(suffix.remembered(SeqId(1)), 1);
    // Positions that were skipped are no reason to continue from the wrong place.
    suffix.observe(SeqId(1), 10, &[1, 2, 3, 1], &[]).unwrap();
    assert_eq!(suffix.remembered(SeqId(1)), 4);
    assert_eq!(tokens(&mut suffix, 1, 14, 2), [3, 1, 2]);
}

#[test]
fn memory_is_bounded_in_texts_and_tokens() {
    let mut suffix = Suffix::new(SuffixOptions {
        text_max: 64,
        texts_max: 3,
        ..SuffixOptions::default()
    });
    for seq in 0..10 {
        for pos in 0..500 {
            suffix.observe(SeqId(seq), pos, &[pos % 7], &[]).unwrap();
            assert!(suffix.remembered(SeqId(seq)) <= 64);
        }
    }
    assert_eq!(suffix.known.len(), 3);
    let next = propose(&mut suffix, ask(9, 500, 500 % 7, 3)).tokens;
    assert_eq!(next, [1, 2, 3].map(|k| (500 + k) % 7));
}

/// A model that is right with a given chance and says so.
struct Model {
    text: Vec<TokenId>,
    right: f64,
    depth_seen: u32,
    asked: usize,
    dies_at: usize,
    rng: testkit::rng::Rng,
}

impl Model {
    fn new(text: &[TokenId], right: f64) -> Self {
        Self {
            text: text.to_vec(),
            right,
            depth_seen: 0,
            asked: 0,
            dies_at: usize::MAX,
            rng: testkit::rng::Rng::new(2),
        }
    }
}

impl Drafter for Model {
    fn propose(
        &mut self,
        _: &mut dyn Target,
        asks: &[Ask],
        plans: &[&SamplePlan],
    ) -> Result<Vec<Proposal>, Fault> {
        assert_eq!(asks.len(), plans.len());
        self.asked += 1;
        if self.asked == self.dies_at {
            return Err(Fault::Lost {
                what: "model".to_owned(),
                why: "test".to_owned(),
            });
        }
        let one = |ask: &Ask| {
            self.depth_seen = self.depth_seen.max(ask.depth);
            let from = ask.pos as usize + 1;
            let tokens = (from..from + ask.depth as usize).map(|at| {
                let right = self.rng.unit() < self.right;
                self.text.get(at).map_or(0, |t| if right { *t } else { 99 })
            });
            Proposal {
                tokens: tokens.collect(),
                // Says too much.
                confidence_logits: vec![3.0; ask.depth as usize],
            }
        };
        Ok(asks.iter().map(one).collect())
    }
    fn tap(&self) -> Tap {
        Tap {
            layers: std::sync::Arc::from([engine_core::LayerId(3)]),
        }
    }
    fn observe(&mut self, _: SeqId, _: Pos, _: &[TokenId], _: &[f32]) -> Result<(), Fault> {
        Ok(())
    }
    fn truncate(&mut self, _: SeqId, _: Pos) {}
    fn close(&mut self, _: SeqId) {}
}

#[test]
fn the_chooser_takes_whoever_gets_more_accepted() {
    let mut rng = testkit::rng::Rng::new(14);
    let first: Vec<TokenId> = (0..400).map(|_| rng.below(90) as TokenId).collect();
    // New text, then the same again.
    let text: Vec<TokenId> = first.iter().chain(&first).copied().collect();
    let alone = [
        accepted(&mut Suffix::default(), 0, &text, 10, 7),
        accepted(&mut Model::new(&text, 0.6), 0, &text, 10, 5),
    ];
    let mut chooser = Chooser::new(Model::new(&text, 0.6), 5, Suffix::default());
    let both = accepted(&mut chooser, 0, &text, 10, 7);
    assert!(both > alone[0] && both > alone[1], "{both} {alone:?}");
    let (model, copies, spared) = chooser.counts();
    assert!(
        model > 100 && copies > 30 && spared > 30,
        "{model} {copies} {spared}"
    );
    assert_eq!(chooser.model().depth_seen, 5, "never asked past its block");
    assert_eq!(chooser.tap().layers.len(), 1);
}

#[test]
fn copies_outlive_the_model() {
    let text: Vec<TokenId> = (0..300).map(|i| i % 23).collect();
    for dies_at in [1, 2, 5] {
        let mut model = Model::new(&text, 0.3);
        model.dies_at = dies_at;
        let mut chooser = Chooser::new(model, 5, Suffix::default());
        let right = accepted(&mut chooser, 0, &text, 5, 7);
        assert!(right > 200, "{right}");
        let lost = chooser.lost().is_some();
        assert_eq!(lost, chooser.model().asked >= dies_at);
        assert_eq!(chooser.tap().layers.is_empty(), lost);
    }
}

#[test]
fn a_copy_is_offered_without_the_model_and_judged_once() {
    let text: Vec<TokenId> = (0..40).map(|i| i % 7).collect();
    let mut chooser = Chooser::new(Model::new(&text, 0.0), 1, Suffix::default());
    let seq = SeqId(0);
    chooser.observe(seq, 0, &text, &[]).unwrap();
    let ask = ask(0, 40, 40 % 7, 4);
    let offered = chooser.glance(&[ask]);
    assert_eq!(offered[0].tokens, [6, 0, 1, 2]);
    assert_eq!(offered[0].confidence_logits.len(), 4);
    assert_eq!(chooser.model().asked, 0);
    // The same again, and then a draft: still one copy.
    assert_eq!(chooser.glance(&[ask]), offered);
    let plan = SamplePlan::greedy();
    let drafted = chooser
        .propose(&mut NoTarget::new(), &[ask], &[&plan])
        .unwrap();
    assert_eq!(
        drafted[0].tokens, offered[0].tokens,
        "the model cannot promise as much"
    );
    assert_eq!(chooser.counts(), (0, 1, 1));
    // One that nobody followed up counts as handed out once the text goes on.
    chooser.observe(seq, 40, &[5, 6], &[]).unwrap();
    let next = Ask {
        pos: 42,
        seed: 0,
        ..ask
    };
    assert_eq!(chooser.glance(&[next])[0].tokens, [1, 2, 3, 4]);
    assert_eq!(chooser.counts(), (0, 1, 1));
    chooser.observe(seq, 42, &[0], &[]).unwrap();
    assert_eq!(chooser.counts(), (0, 2, 1));
    // Positions taken back take the offer with them.
    chooser.glance(&[Ask {
        pos: 43,
        seed: 1,
        ..ask
    }]);
    chooser.truncate(seq, 43);
    chooser.observe(seq, 43, &[1], &[]).unwrap();
    assert_eq!(chooser.counts(), (0, 2, 1));
}

/// A prompt whose pairs of tokens recur and go on differently, and one that says everything twice.
fn prompts() -> [Vec<TokenId>; 2] {
    let once: Vec<TokenId> = (0..40).flat_map(|i| [1, 2, 10 + i]).collect();
    let line: Vec<TokenId> = (10..50).collect();
    [once, [&line[..], &line[..]].concat()]
}

#[test]
fn a_prompt_tells_how_much_a_text_repeats_itself() {
    let first = |prompt: &[TokenId]| {
        let mut suffix = Suffix::default();
        suffix
            .observe(SeqId(0), 0, &[prompt, &[1]].concat(), &[])
            .unwrap();
        let at = prompt.len() + 1;
        // `1 2` stood in the first prompt only: the second text shows it once, by hand.
        let proposal = propose(&mut suffix, ask(0, at, 2, 4));
        (suffix, proposal)
    };
    let [varied, twice] = prompts();
    let (suffix, proposal) = first(&varied);
    // 1 2 was followed by another token each of 39 times: no copy is offered.
    assert_eq!(proposal, Proposal::default());
    assert!(suffix.log_odds(2) < -2.0, "{}", suffix.log_odds(2));
    let (mut suffix, _) = first(&[&twice[..], &[1, 2, 7]].concat());
    assert!(suffix.log_odds(2) > 0.0);
    let sure = suffix.log_odds(20);
    assert!(sure > Suffix::default().log_odds(20), "{sure}");
    suffix.forget();
    assert_eq!(suffix.log_odds(20), Suffix::default().log_odds(20));
}

#[test]
fn prompts_are_not_asked_once_answers_have_told() {
    let [varied, _] = prompts();
    let mut suffix = Suffix::default();
    // An answer that repeats two tokens: copies after matches of all lengths are right.
    let text: Vec<TokenId> = (0..200).map(|i| 90 + i % 2).collect();
    accepted(&mut suffix, 0, &text, 8, 4);
    let told: Vec<f32> = (0..=MATCH_MAX).map(|len| suffix.log_odds(len)).collect();
    suffix.observe(SeqId(1), 0, &varied, &[]).unwrap();
    let now: Vec<f32> = (0..=MATCH_MAX).map(|len| suffix.log_odds(len)).collect();
    // Long matches were proposed and judged; matches of two tokens never were, and still learn.
    assert_eq!(told[30..], now[30..]);
    assert!(now[2] < told[2], "{now:?}");
}
