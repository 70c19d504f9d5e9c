//! Drafts begun while the target verifies: when they are used, what they are then, and that nothing of
//! them is used otherwise.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Instant;

use dspark_draft::backbone::LocalBackbone;
use dspark_draft::drafter::DsparkDrafter;
use dspark_draft::heads::{Chain, Heads};
use engine_core::seams::{AheadCounts, Ask, Backbone, DraftRows, Drafter, Proposal, Verifying};
use engine_core::{Fault, Pos, SamplePlan, SeqId, Target, Ticket};

use crate::support::{ask, toy};

/// A backbone of this process that says it is another's, unless told not to.
struct Apart {
    local: LocalBackbone,
    apart: bool,
    submits: usize,
    /// Polls that come too early.
    early: usize,
}

impl Backbone for Apart {
    fn observe(&mut self, seq: SeqId, pos: Pos, features: &[f32]) -> Result<(), Fault> {
        self.local.observe(seq, pos, features)
    }
    fn submit(&mut self, asks: &[Ask], block: &[f32]) -> Result<Ticket, Fault> {
        self.submits += 1;
        self.local.submit(asks, block)
    }
    fn poll(&mut self, ticket: Ticket, deadline: Option<Instant>) -> Result<DraftRows, Fault> {
        if deadline.is_some() && self.early > 0 {
            self.early -= 1;
            return Err(Fault::Deadline);
        }
        self.local.poll(ticket, deadline)
    }
    fn truncate(&mut self, seq: SeqId, pos: Pos) {
        self.local.truncate(seq, pos);
    }
    fn close(&mut self, seq: SeqId) {
        self.local.close(seq);
    }
    fn save(&self, seq: SeqId, to: &mut dyn Write) -> Result<(), Fault> {
        self.local.save(seq, to)
    }
    fn load(&mut self, seq: SeqId, from: &mut dyn Read) -> Result<(), Fault> {
        self.local.load(seq, from)
    }
    fn health(&self) -> Result<(), Fault> {
        self.local.health()
    }
    fn is_apart(&self) -> bool {
        self.apart
    }
}

struct Case<T: Target> {
    target: T,
    drafter: DsparkDrafter<Apart>,
}

fn case() -> Case<impl Target> {
    let target = toy().cpu_target();
    let (model, pool) = (Arc::clone(&toy().draft_model), Arc::clone(target.pool()));
    let apart = Apart {
        local: toy().backbone(),
        apart: true,
        submits: 0,
        early: 0,
    };
    let drafter = DsparkDrafter::new(model, apart, target.info(), pool).unwrap();
    Case { target, drafter }
}

impl<T: Target> Case<T> {
    /// The text at `from..to` became state.
    fn observe(&mut self, seq: u32, from: usize, to: usize) {
        let (tokens, rows) = (&toy().tokens[from..to], toy().rows(from..to));
        self.drafter
            .observe(SeqId(seq), from as Pos, tokens, rows)
            .unwrap();
    }

    /// The target is about to verify the text at `from..to`.
    fn ahead(&mut self, spans: &[(u32, usize, usize)]) {
        let span = |(seq, from, to): &(u32, usize, usize)| Verifying {
            seq: SeqId(*seq),
            pos: *from as Pos,
            tokens: &toy().tokens[*from..*to],
        };
        let spans: Vec<Verifying<'_>> = spans.iter().map(span).collect();
        self.drafter.ahead(&mut self.target, &spans).unwrap();
    }

    /// Proposals behind the text up to each place.
    fn propose(&mut self, places: &[(u32, usize)]) -> Vec<Proposal> {
        let asks: Vec<Ask> = places
            .iter()
            .map(|(seq, at)| ask(*seq, *at, toy().tokens[*at], 5))
            .collect();
        let plan = SamplePlan::greedy();
        let plans = vec![&plan; asks.len()];
        self.drafter
            .propose(&mut self.target, &asks, &plans)
            .unwrap()
    }

    fn counts(&self) -> (u64, u64, u64) {
        let c = self.drafter.ahead_counts();
        (c.begun, c.used, c.lapsed)
    }
}

/// What a drafter proposes that never drafted ahead and saw the text from `from` on.
fn alone(from: usize, at: usize) -> Proposal {
    let mut case = case();
    case.observe(0, from, at);
    case.propose(&[(0, at)]).remove(0)
}

/// What a draft ahead is by its definition: the block behind the last candidate over a context that ends
/// before the seed, without its first row, drawn from the token that came.
fn by_definition(pos: usize, end: usize) -> Proposal {
    let t = toy();
    let mut target = t.cpu_target();
    let mut backbone = t.backbone();
    backbone.observe(SeqId(0), 0, t.rows(0..pos)).unwrap();
    let seed = t.tokens[end - 1];
    let behind = Ask {
        ahead: (end - 1 - pos) as u32,
        ..ask(0, end - 1, seed, 5)
    };
    let ticket = backbone.submit(&[behind], &t.block(seed)).unwrap();
    let rows = backbone.poll(ticket, None).unwrap();
    let width = rows.normed.len() / 5;
    let mut heads = Heads::new(Arc::clone(&t.draft_model), Arc::clone(target.pool()));
    let chain = Chain {
        rows: 4,
        pos: end as Pos,
        seed: t.tokens[end],
        plan: &SamplePlan::greedy(),
        history: &[],
    };
    let (normed, pre) = (&rows.normed[width..], &rows.pre_norm[width..]);
    heads
        .draw(&mut target, &[chain], normed, pre)
        .unwrap()
        .remove(0)
}

/// what was drafted while all candidates were accepted is the next proposal, and nothing else is
/// asked of the backbone.
#[test]
fn a_40_a_draft_ahead_is_used_where_all_was_accepted() {
    for (pos, end) in [(40, 43), (40, 41), (17, 22), (200, 202)] {
        let mut c = case();
        c.observe(0, 0, pos);
        assert_eq!(c.propose(&[(0, pos)])[0], alone(0, pos));
        c.ahead(&[(0, pos, end)]);
        c.observe(0, pos, end);
        let got = c.propose(&[(0, end)]).remove(0);
        assert_eq!(got, by_definition(pos, end), "{pos}..{end}");
        assert_eq!(got.tokens.len(), 4);
        assert_eq!((c.counts(), c.drafter.backbone().submits), ((1, 1, 0), 2));
        // The rows that were missing are not missing in the next one.
        c.observe(0, end, end + 2);
        assert_eq!(c.propose(&[(0, end + 2)])[0], alone(0, end + 2));
    }
}

/// a draft behind candidates of which one was rejected is thrown away, also where later steps reach
/// the place that it was begun for.
#[test]
fn a_40_a_draft_ahead_of_a_rejected_candidate_lapses() {
    let t = toy();
    let mut wrong = t.tokens[40..43].to_vec();
    wrong[1] = (wrong[1] + 1) % 512;
    for end in [41, 42, 43, 44] {
        let mut c = case();
        c.observe(0, 0, 40);
        let span = Verifying {
            seq: SeqId(0),
            pos: 40,
            tokens: &wrong,
        };
        c.drafter.ahead(&mut c.target, &[span]).unwrap();
        // Token by token, as plain steps would.
        (40..end).for_each(|at| c.observe(0, at, at + 1));
        assert_eq!(c.propose(&[(0, end)])[0], alone(0, end), "{end}");
        assert_eq!(c.counts(), (1, 0, 1));
    }
}

/// a draft of an earlier use of a sequence, or of a text that was taken back, is thrown away.
#[test]
fn a_40_a_draft_ahead_of_another_use_lapses() {
    for (taken_back, from) in [(false, 10), (true, 0)] {
        let mut c = case();
        c.observe(0, 0, 40);
        c.ahead(&[(0, 40, 42)]);
        if taken_back {
            c.drafter.truncate(SeqId(0), 35);
            c.observe(0, 35, 42);
        } else {
            c.drafter.close(SeqId(0));
            c.observe(0, from, 42);
        }
        assert_eq!(c.propose(&[(0, 42)])[0], alone(from, 42));
        assert_eq!(c.counts(), (1, 0, 1));
    }
}

/// In one batch some drafts are used, some lapse, and some sequences had none.
#[test]
fn a_batch_takes_from_a_draft_ahead_what_fits() {
    let mut c = case();
    for (seq, pos) in [(0, 40), (1, 60), (2, 80)] {
        c.observe(seq, 0, pos);
    }
    c.ahead(&[(1, 60, 63), (0, 40, 43)]);
    c.observe(0, 40, 43);
    c.observe(1, 60, 62);
    c.observe(2, 80, 81);
    let got = c.propose(&[(2, 81), (0, 43), (1, 62)]);
    let want = [alone(0, 81), by_definition(40, 43), alone(0, 62)];
    assert_eq!(got, want);
    assert_eq!(c.counts(), (2, 1, 1));
    assert_eq!(c.drafter.stats().blind, 0);
}

/// Where nobody else computes, nothing is begun, and it is counted; nor while the last one is computed.
#[test]
fn nothing_is_begun_where_it_would_be_waited_for() {
    let mut c = case();
    c.drafter.backbone_mut().apart = false;
    c.observe(0, 0, 40);
    c.ahead(&[(0, 40, 42)]);
    c.observe(0, 40, 42);
    assert_eq!(c.propose(&[(0, 42)])[0], alone(0, 42));
    let idle = AheadCounts {
        idle: 1,
        ..AheadCounts::default()
    };
    assert_eq!(
        (c.drafter.ahead_counts(), c.drafter.backbone().submits),
        (idle, 1)
    );
    c.drafter.backbone_mut().apart = true;
    c.ahead(&[(0, 42, 43)]);
    c.drafter.backbone_mut().early = 1;
    c.ahead(&[(0, 42, 44)]);
    let counts = c.drafter.ahead_counts();
    assert_eq!((counts.begun, counts.busy, counts.lapsed), (1, 1, 1));
    c.ahead(&[(0, 42, 44)]);
    c.observe(0, 42, 44);
    assert_eq!(c.propose(&[(0, 44)])[0], by_definition(42, 44));
}

/// A context that ends elsewhere than the ask says is refused.
#[test]
fn a_17_a_seed_that_stands_elsewhere_is_refused() {
    let mut backbone = toy().backbone();
    backbone.observe(SeqId(0), 0, toy().rows(0..40)).unwrap();
    let block = toy().block(3);
    for (pos, ahead, ok) in [
        (40, 0, true),
        (43, 3, true),
        (43, 2, false),
        (43, 0, false),
        (40, 1, false),
    ] {
        let ask = Ask {
            ahead,
            ..ask(0, pos, 3, 5)
        };
        let got = backbone.submit(&[ask], &block);
        assert_eq!(got.is_ok(), ok, "{pos} {ahead}: {got:?}");
        if let Err(fault) = got {
            assert!(matches!(fault, Fault::WrongPosition { .. }), "{fault}");
        }
    }
    let far = Ask {
        ahead: u32::MAX,
        ..ask(0, 50, 3, 5)
    };
    assert!(backbone.submit(&[far], &block).is_err());
}

/// The text tells what drafts of either kind were worth.
#[test]
fn the_text_judges_both_kinds() {
    let mut c = case();
    c.observe(0, 0, 40);
    for pos in (40..100).step_by(3) {
        c.propose(&[(0, pos)]);
        c.ahead(&[(0, pos, pos + 2)]);
        c.observe(0, pos, pos + 2);
        c.propose(&[(0, pos + 2)]);
        c.observe(0, pos + 2, pos + 3);
    }
    let counts = c.drafter.ahead_counts();
    assert_eq!((counts.begun, counts.used, counts.lapsed), (20, 20, 0));
    assert!(
        counts.judged >= 18 && counts.alone_judged >= 18,
        "{counts:?}"
    );
    assert!(counts.right <= 4 * counts.judged);
    // What a warm-up counted is forgotten.
    c.drafter.forget();
    assert_eq!(c.drafter.ahead_counts(), AheadCounts::default());
    let sums = AheadCounts {
        judged: 10,
        right: 15,
        alone_judged: 20,
        alone_right: 40,
        ..AheadCounts::default()
    };
    assert_eq!((sums.kappa(10), sums.kappa(11)), (Some(0.75), None));
}
