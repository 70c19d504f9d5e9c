//! Target, DSpark drafter and loop together over a random pair, whose drafts are rarely right, many
//! sequences side by side. The drafter must be shown what it needs and nothing may depend on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ds4_target::CpuTarget;
use dspark_draft::speculate::{Config, Emitted, Flow, Grants, Request, Sink, Speculator, Turn};
use dspark_draft::stats::Stats;
use dspark_draft::suffix::{Chooser, Suffix};
use dspark_draft::width::Policy;
use engine_core::{Drafter, SamplePlan, SeqId, Target, TokenId};

use crate::support::toy;

#[derive(Default)]
struct Tokens(BTreeMap<u32, Vec<TokenId>>);

impl Sink for Tokens {
    fn token(&mut self, emitted: Emitted) -> Flow {
        self.0.entry(emitted.seq.0).or_default().push(emitted.token);
        Flow::Go
    }
}

/// Texts and final state digests of requests run side by side, and the counters.
struct Ran {
    texts: Vec<Vec<TokenId>>,
    digests: Vec<[u8; 32]>,
    stats: Stats,
}

fn run(
    t: &mut CpuTarget,
    mut drafter: Option<&mut dyn Drafter>,
    policy: Policy,
    requests: &[Request],
) -> Ran {
    let config = Config {
        policy,
        depth: 7,
        tap_window: 16,
        ..Config::default()
    };
    let mut s = Speculator::new(t.info(), config);
    let seqs: Vec<SeqId> = requests.iter().map(|_| t.open().unwrap()).collect();
    for (seq, request) in seqs.iter().zip(requests) {
        s.admit(t, *seq, request.clone()).unwrap();
    }
    let mut sink = Tokens::default();
    while !s.is_idle() {
        s.step(Turn {
            target: &mut *t,
            drafter: drafter.as_mut().map(|d| &mut **d as &mut dyn Drafter),
            sink: &mut sink,
            grants: Grants::Each(20),
            riders: &[],
        });
    }
    assert_eq!(
        s.drafter_lost(),
        None,
        "the drafter was shown what it needs"
    );
    let digests = seqs.iter().map(|seq| t.digest(*seq).unwrap()).collect();
    for seq in &seqs {
        t.close(*seq);
        if let Some(drafter) = drafter.as_mut() {
            drafter.close(*seq);
        }
    }
    let texts = seqs.iter().map(|seq| sink.0[&seq.0].clone()).collect();
    Ran {
        texts,
        digests,
        stats: s.stats().clone(),
    }
}

/// Short and long prompts, cut from `ids`; the long ones begin before the drafter's window.
fn requests(ids: &[TokenId], plan: &SamplePlan, budget: u32) -> Vec<Request> {
    [3usize, 40, 70]
        .iter()
        .map(|n| Request {
            plan: Arc::new(plan.clone()),
            ..Request::greedy(ids[..*n].to_vec(), budget)
        })
        .collect()
}

fn sampled() -> SamplePlan {
    SamplePlan {
        temperature: 0.8,
        top_p: 0.95,
        seed: 9,
        ..SamplePlan::greedy()
    }
}

#[test]
fn a_random_drafter_beside_its_target_changes_nothing() {
    let toy = toy();
    let mut t = toy.cpu_target();
    for plan in [SamplePlan::greedy(), sampled()] {
        let requests = requests(&toy.tokens, &plan, 24);
        let want = run(&mut t, None, Policy::Fixed(1), &requests);
        for width in [2, 6, 8] {
            let mut drafter = toy.drafter(&t);
            let got = run(&mut t, Some(&mut drafter), Policy::Fixed(width), &requests);
            assert_eq!(got.texts, want.texts, "width {width}");
            assert_eq!(got.digests, want.digests, "width {width}");
            let s = drafter.stats();
            assert_eq!(s.blind, 0, "every ask had context rows");
            assert!(s.candidates > 100 && got.stats.offered > 20, "{s:?}");
            // A block has five candidates, whatever is asked.
            assert_eq!(
                got.stats
                    .widths
                    .iter()
                    .map(|w| w[6..].iter().sum::<u64>())
                    .sum::<u64>(),
                0
            );
        }
        let mut chooser = Chooser::new(toy.drafter(&t), 5, Suffix::default());
        let got = run(
            &mut t,
            Some(&mut chooser),
            Policy::AverageReward(Default::default()),
            &requests,
        );
        assert_eq!(
            (got.texts, got.digests),
            (want.texts, want.digests),
            "chooser"
        );
        assert_eq!(chooser.lost(), None);
    }
}
