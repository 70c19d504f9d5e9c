//! Drafting beside a target: depths, noise, penalties, faults of a backbone.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dspark_draft::backbone::LocalBackbone;
use dspark_draft::drafter::{DrafterStats, DsparkDrafter};
use dspark_draft::heads::Heads;
use engine_core::seams::{Ask, Backbone, DraftRows, Drafter, Proposal, Target};
use engine_core::{Fault, Penalties, Pos, SamplePlan, SeqId, Ticket, TokenId};
use sampling::Sampler;

use crate::support::{ask, bits, run, toy};

/// A backbone that answers what it was told.
#[derive(Debug, Default)]
struct Script {
    answer: DraftRows,
    deadline: bool,
    /// Depths and values of the last submit.
    asked: Vec<u32>,
    given: usize,
}

impl Backbone for Script {
    fn observe(&mut self, _: SeqId, _: Pos, _: &[f32]) -> Result<(), Fault> {
        Ok(())
    }
    fn submit(&mut self, asks: &[Ask], block: &[f32]) -> Result<Ticket, Fault> {
        self.asked = asks.iter().map(|a| a.depth).collect();
        self.given = block.len();
        Ok(Ticket(1))
    }
    fn poll(&mut self, _: Ticket, deadline: Option<Instant>) -> Result<DraftRows, Fault> {
        match self.deadline {
            true => Err(deadline.map_or(Fault::NoSuchTicket(0), |_| Fault::Deadline)),
            false => Ok(self.answer.clone()),
        }
    }
    fn truncate(&mut self, _: SeqId, _: Pos) {}
    fn close(&mut self, _: SeqId) {}
    fn save(&self, _: SeqId, _: &mut dyn Write) -> Result<(), Fault> {
        Err(Fault::Unsupported("saving"))
    }
    fn load(&mut self, _: SeqId, _: &mut dyn Read) -> Result<(), Fault> {
        Err(Fault::Unsupported("loading"))
    }
    fn health(&self) -> Result<(), Fault> {
        Ok(())
    }
}

/// Hidden rows whose best token is the one named: multiples of that row of the output matrix.
fn pointing_at(tokens: &[TokenId]) -> DraftRows {
    let head = toy().target.model.tensor("output.weight").unwrap();
    let row = |t: &TokenId| {
        head.row(*t as usize)
            .iter()
            .map(|v| 100.0 * v)
            .collect::<Vec<_>>()
    };
    let normed = tokens.iter().flat_map(row).collect::<Vec<f32>>();
    DraftRows {
        rows: vec![tokens.len()],
        pre_norm: normed.clone(),
        normed,
    }
}

fn scripted(answer: DraftRows) -> (impl Target, DsparkDrafter<Script>) {
    let target = toy().cpu_target();
    let script = Script {
        answer,
        ..Script::default()
    };
    let (model, pool) = (Arc::clone(&toy().draft_model), Arc::clone(target.pool()));
    let drafter = DsparkDrafter::new(model, script, target.info(), pool).unwrap();
    (target, drafter)
}

fn propose<B: Backbone>(
    d: &mut DsparkDrafter<B>,
    target: &mut dyn Target,
    ask: Ask,
    plan: &SamplePlan,
) -> Proposal {
    d.propose(target, &[ask], &[plan]).unwrap().remove(0)
}

/// Row i predicts the token after i more: all rows are candidates, none is shifted.
#[test]
fn row_i_is_candidate_i() {
    let (mut target, mut d) = scripted(pointing_at(&[10, 11, 12, 13, 14]));
    let p = propose(&mut d, &mut target, ask(0, 50, 7, 5), &SamplePlan::greedy());
    assert_eq!(p.tokens, [10, 11, 12, 13, 14]);
    assert_eq!(p.confidence_logits.len(), 5);
    // Every row has its say.
    for row in 0..5 {
        let mut tokens = [10, 11, 12, 13, 14];
        tokens[row] = 300;
        let (mut target, mut d) = scripted(pointing_at(&tokens));
        let p = propose(&mut d, &mut target, ask(0, 50, 7, 5), &SamplePlan::greedy());
        assert_eq!(p.tokens, tokens);
    }
}

/// Asking for seven gives the five of the trained block, from a block of five rows.
#[test]
fn more_than_the_block_is_never_drafted() {
    let (mut target, mut d) = scripted(pointing_at(&[10, 11, 12, 13, 14]));
    let p = propose(&mut d, &mut target, ask(0, 50, 7, 7), &SamplePlan::greedy());
    assert_eq!(p.tokens.len(), 5);
    assert_eq!(
        (d.stats().clamped, d.stats().asks, d.stats().candidates),
        (1, 1, 5)
    );
    let script = d.backbone();
    assert_eq!((script.asked.as_slice(), script.given), (&[5][..], 5 * 256));
    for depth in 0..=20 {
        let mut t = toy().cpu_target();
        let mut d = toy().drafter(&t);
        d.observe(SeqId(0), 0, &toy().tokens[..4], toy().rows(0..4))
            .unwrap();
        let p = propose(&mut d, &mut t, ask(0, 4, 7, depth), &SamplePlan::greedy());
        assert_eq!(p.tokens.len(), depth.min(5) as usize);
        assert_eq!(d.stats().clamped, u64::from(depth > 5));
        if depth == 5 {
            break;
        }
    }
}

/// Without context rows there is nothing to draft from: an empty proposal, counted.
#[test]
fn a_sequence_without_context_gets_nothing() {
    let mut target = toy().cpu_target();
    let mut d = toy().drafter(&target);
    let p = propose(&mut d, &mut target, ask(0, 4, 7, 5), &SamplePlan::greedy());
    assert_eq!(p, Proposal::default());
    assert_eq!((d.stats().blind, d.stats().candidates), (1, 0));
}

/// A sampled request's candidates are drawn as the target will draw: same filters, and the noise of
/// the candidate's own position.
#[test]
fn candidates_are_drawn_with_the_requests_noise() {
    let t = toy();
    let mut target = t.cpu_target();
    let mut d = t.drafter(&target);
    let (pos, seed) = (40, 9);
    d.observe(SeqId(0), 0, &t.tokens[..pos], t.rows(0..pos))
        .unwrap();
    let mut heads = Heads::new(Arc::clone(&t.draft_model), Arc::clone(target.pool()));
    d.settle(SeqId(0)).unwrap();
    let hidden = run(d.backbone_mut(), 0, pos, &t.block(seed));
    let mut sampler = Sampler::new(512);
    let mut texts = Vec::new();
    for (noise, choice) in [(1u64, 0u32), (2, 0), (1, 1)] {
        let plan = SamplePlan {
            temperature: 1.3,
            top_k: 200,
            top_p: 0.95,
            seed: noise,
            choice,
            ..SamplePlan::greedy()
        };
        let p = propose(&mut d, &mut target, ask(0, pos, seed, 5), &plan);
        let mut previous = vec![seed];
        previous.extend(&p.tokens[..4]);
        let logits = heads
            .logits(&mut target, &hidden.normed, &previous)
            .unwrap();
        for (i, row) in logits.chunks_exact(512).enumerate() {
            let at = (pos + 1 + i) as u32;
            let want = sampler.draw(&plan, row, at, &[]).unwrap();
            assert_eq!(
                p.tokens[i], want,
                "seed {noise} choice {choice} candidate {i}"
            );
        }
        texts.push(p.tokens);
    }
    assert!(texts[0] != texts[1] && texts[0] != texts[2], "{texts:?}");
}

/// The chain: each candidate's bias comes from the one before.
#[test]
fn another_seed_changes_the_first_bias_only_through_the_chain() {
    let t = toy();
    let mut target = t.cpu_target();
    let mut heads = Heads::new(Arc::clone(&t.draft_model), Arc::clone(target.pool()));
    let rows = pointing_at(&[10, 11]);
    let a = heads.logits(&mut target, &rows.normed, &[7, 10]).unwrap();
    let b = heads.logits(&mut target, &rows.normed, &[8, 10]).unwrap();
    assert_ne!(bits(&a[..512]), bits(&b[..512]));
    assert_eq!(bits(&a[512..]), bits(&b[512..]));
    let bad = heads.logits(&mut target, &rows.normed, &[7, 512]);
    assert!(matches!(
        bad,
        Err(Fault::BadToken {
            token: 512,
            index: 1,
            ..
        })
    ));
    let bad = heads.logits(&mut target, &rows.normed, &[7]);
    assert!(matches!(bad, Err(Fault::BadState { .. })));
}

/// Penalties count the observed text, the seed and the candidates so far.
#[test]
fn penalties_see_the_text_and_the_draft() {
    let plan = SamplePlan {
        penalties: Penalties {
            presence: 1e6,
            window: 64,
            ..Penalties::default()
        },
        ..SamplePlan::greedy()
    };
    // All rows want 10, then 11: with a prohibitive penalty each may be drawn once.
    let draw = |text: &[TokenId], seed: TokenId| {
        let (mut target, mut d) = scripted(pointing_at(&[10, 10, 10]));
        let features = vec![1.0; text.len() * toy().width()];
        d.observe(SeqId(0), 0, text, &features).unwrap();
        propose(&mut d, &mut target, ask(0, text.len(), seed, 5), &plan).tokens
    };
    let free = draw(&[1], 7);
    assert_eq!(free[0], 10);
    assert!(
        free[1] != 10 && free[2] != 10 && free[1] != free[2],
        "{free:?}"
    );
    assert_ne!(draw(&[1], 10)[0], 10, "the seed counts");
    assert_ne!(draw(&[10, 1], 7)[0], 10, "the text counts");
}

/// Sequences of one batch do not touch each other, whatever their plans.
#[test]
fn a_batch_proposes_what_each_alone_would() {
    let t = toy();
    let mut target = t.cpu_target();
    let mut d = t.drafter(&target);
    let places = [3usize, 16, 40, 250];
    for (seq, pos) in places.iter().enumerate() {
        let id = SeqId(seq as u32);
        d.observe(id, 0, &t.tokens[..*pos], t.rows(0..*pos))
            .unwrap();
    }
    let plans: Vec<SamplePlan> = (0..4)
        .map(|i| SamplePlan {
            temperature: if i % 2 == 0 { 0.0 } else { 1.5 },
            seed: i,
            ..SamplePlan::greedy()
        })
        .collect();
    let depths = [5, 2, 5, 4];
    let asks: Vec<Ask> = (0..4)
        .map(|s| ask(s as u32, places[s], 9, depths[s]))
        .collect();
    let plan_list: Vec<&SamplePlan> = plans.iter().collect();
    let batch = d.propose(&mut target, &asks, &plan_list).unwrap();
    for (i, together) in batch.iter().enumerate() {
        let alone = propose(&mut d, &mut target, asks[i], &plans[i]);
        assert_eq!(alone.tokens, together.tokens, "{i}");
        assert_eq!(
            bits(&alone.confidence_logits),
            bits(&together.confidence_logits),
            "{i}"
        );
        assert_eq!(alone.tokens.len(), depths[i] as usize);
    }
}

/// A row without numbers ends the chain; what came before it stands.
#[test]
fn a_row_of_nan_cuts_the_chain() {
    let mut rows = pointing_at(&[10, 11, 12, 13, 14]);
    rows.normed[2 * 256..3 * 256].fill(f32::NAN);
    let (mut target, mut d) = scripted(rows);
    let p = propose(&mut d, &mut target, ask(0, 50, 7, 5), &SamplePlan::greedy());
    assert_eq!(
        (p.tokens.as_slice(), p.confidence_logits.len()),
        (&[10, 11][..], 2)
    );
    assert_eq!((d.stats().cut, d.stats().candidates), (1, 2));
}

/// A worker's answer is checked before it is used.
#[test]
fn a_wrong_answer_is_a_lost_backbone() {
    let change: [fn(&mut DraftRows); 5] = [
        |a| a.rows = vec![],
        |a| a.rows = vec![2, 0],
        |a| a.rows = vec![9],
        |a| a.normed.truncate(5),
        |a| a.pre_norm.truncate(5),
    ];
    for change in change {
        let mut answer = pointing_at(&[10, 11]);
        change(&mut answer);
        let (mut target, mut d) = scripted(answer);
        let plan = SamplePlan::greedy();
        let e = d.propose(&mut target, &[ask(0, 50, 7, 5)], &[&plan]);
        assert!(matches!(e, Err(Fault::Lost { .. })), "{e:?}");
    }
}

#[test]
fn a_late_answer_is_an_empty_proposal() {
    let (mut target, d) = scripted(DraftRows::default());
    let mut d = d.with_patience(Some(Duration::ZERO));
    d.backbone_mut().deadline = true;
    let p = propose(&mut d, &mut target, ask(0, 50, 7, 5), &SamplePlan::greedy());
    assert_eq!(p, Proposal::default());
    let want = DrafterStats {
        asks: 1,
        late: 1,
        ..DrafterStats::default()
    };
    assert_eq!(*d.stats(), want);
}

#[test]
fn calls_that_do_not_fit_are_refused() {
    let (mut target, mut d) = scripted(pointing_at(&[10]));
    let plan = SamplePlan::greedy();
    let e = d.propose(&mut target, &[ask(0, 50, 7, 5)], &[]);
    assert!(matches!(e, Err(Fault::BadState { field: "plans", .. })));
    let e = d.propose(&mut target, &[ask(0, 50, 512, 5)], &[&plan]);
    assert!(matches!(e, Err(Fault::BadToken { token: 512, .. })));
    let e = d.observe(SeqId(0), 0, &[1, 2], &[0.0; 768]);
    assert!(matches!(
        e,
        Err(Fault::BadState {
            field: "features",
            ..
        })
    ));
}

/// Of a long prompt only the end has features; what comes before is text. Text in the middle breaks the
/// context, and no block ever sees across the gap.
#[test]
fn tokens_without_features_start_a_new_context() {
    let t = toy();
    let target = t.cpu_target();
    let mut d = t.drafter(&target);
    let id = SeqId(1);
    d.observe(id, 0, &t.tokens[..20], &[]).unwrap();
    assert_eq!(d.backbone().context(id), None);
    d.observe(id, 20, &t.tokens[20..25], t.rows(20..25))
        .unwrap();
    d.settle(id).unwrap();
    assert_eq!(d.backbone().context(id), Some(20..25));
    d.observe(id, 25, &t.tokens[25..27], &[]).unwrap();
    assert_eq!(d.backbone().context(id), None);
    d.observe(id, 27, &t.tokens[27..30], t.rows(27..30))
        .unwrap();
    d.settle(id).unwrap();
    assert_eq!(d.backbone().context(id), Some(27..30));
}

/// Rows wait for a draft: one that comes after a long pause finds what one that was asked at every step
/// finds, and says the same.
#[test]
fn a_pause_changes_no_draft() {
    let t = toy();
    let mut target = t.cpu_target();
    let (mut busy, mut idle) = (t.drafter(&target), t.drafter(&target));
    let (id, plan, n) = (SeqId(0), SamplePlan::greedy(), t.tokens.len() - 1);
    let mut last = Proposal::default();
    for at in 0..n {
        for d in [&mut busy, &mut idle] {
            d.observe(id, at as Pos, &t.tokens[at..=at], t.rows(at..at + 1))
                .unwrap();
        }
        let seed = t.tokens[at + 1];
        last = propose(&mut busy, &mut target, ask(0, at + 1, seed, 5), &plan);
        if at == 3 {
            assert_eq!(
                propose(&mut idle, &mut target, ask(0, 4, seed, 5), &plan),
                last
            );
        }
    }
    let window = t.draft_model.meta.stage.window;
    assert!(n - 4 > 2 * window, "rows were dropped");
    assert_eq!(idle.backbone().context(id), Some(0..4));
    let seed = t.tokens[n];
    assert_eq!(
        propose(&mut idle, &mut target, ask(0, n, seed, 5), &plan),
        last
    );
    let live = (n - window) as Pos..n as Pos;
    assert_eq!(idle.backbone().context(id), Some(live.clone()));
    assert_eq!(busy.backbone().context(id), Some(live));
    let digest = |d: &DsparkDrafter<LocalBackbone>| d.backbone().digest(id).unwrap();
    assert_eq!(digest(&idle), digest(&busy));
}

/// Through the seam: rejected rows taken back, the sequence closed.
#[test]
fn the_seam_passes_everything_on() {
    let t = toy();
    let target = t.cpu_target();
    let mut d = t.drafter(&target);
    let id = SeqId(2);
    d.observe(id, 0, &t.tokens[..9], t.rows(0..9)).unwrap();
    d.truncate(id, 6);
    d.settle(id).unwrap();
    assert_eq!(d.backbone().context(id), Some(0..6));
    let hole = d.observe(id, 8, &t.tokens[8..9], t.rows(8..9));
    assert!(matches!(
        hole,
        Err(Fault::WrongPosition {
            expected: 6,
            got: 8,
            ..
        })
    ));
    d.observe(id, 6, &t.tokens[6..9], t.rows(6..9)).unwrap();
    d.settle(id).unwrap();
    assert_eq!(d.backbone().context(id), Some(0..9));
    d.close(id);
    assert_eq!(d.backbone().context(id), None);
    assert_eq!(d.tap().layers.len(), 3);
}
