//! Arms that generate through the speculative loop: texts, states and the row after them are compared,
//! and that candidates came from where the arm says.

use std::collections::BTreeMap;

use dspark_draft::speculate::{
    Clock, Config, Emitted, Flow, Grants, InPass, Request, Sink, Speculator, Turn,
};
use dspark_draft::stats::Stats;
use dspark_draft::suffix::{Chooser, Suffix};
use dspark_draft::width;
use engine_core::{Drafter, SeqId, TokenId};
use ipc_transport::report::Watch;

use super::arm::{Looped, Made, Plan, Policy, Source, Worker, compare, off_path};
use super::base::{Base, Text, feed, ids_digest, plan as sample_plan};
use super::pair::{Pair, WIDEST};
use super::script::Script;
use super::subject::{Seat, Subject};
use super::{Batch, Difference, Error, hex, worker};

/// What a run gave.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) texts: Vec<Vec<TokenId>>,
    pub(crate) states: Vec<[u8; 32]>,
    /// Digest of the row after each text.
    pub(crate) rows: Vec<[u8; 32]>,
    stats: Stats,
    lost: Option<String>,
    worker: Option<(Watch, Worker)>,
    /// Most sequences of a pass.
    together: usize,
}

#[derive(Default)]
struct Tokens(BTreeMap<u32, Vec<TokenId>>);

impl Sink for Tokens {
    fn token(&mut self, emitted: Emitted) -> Flow {
        self.0.entry(emitted.seq.0).or_default().push(emitted.token);
        Flow::Go
    }
}

/// What drafts, and what says of a worker what it did.
#[derive(Default)]
struct Drafts {
    drafter: Option<Box<dyn Drafter>>,
    watch: Option<(Watch, Worker)>,
}

impl Drafts {
    fn of(drafter: impl Drafter + 'static) -> Self {
        Self {
            drafter: Some(Box::new(drafter)),
            watch: None,
        }
    }
}

fn drafts(pair: &Pair, seat: &Seat, way: &Looped, known: Option<&Text>) -> Result<Drafts, Error> {
    Ok(match &way.source {
        Source::Off => Drafts::default(),
        Source::Backbone => Drafts::of(pair.drafter(seat)?),
        Source::There => Drafts::of(pair.there(seat)?),
        Source::Worker(how) => {
            let (drafter, watch) = pair.remote(seat, *how)?;
            Drafts {
                drafter: Some(drafter),
                watch: Some((watch, *how)),
            }
        }
        Source::Suffix => Drafts::of(Suffix::default()),
        Source::Chooser => Drafts::of(Chooser::new(pair.drafter(seat)?, 5, Suffix::default())),
        Source::Script(pattern) => {
            let text = known.map(Text::whole).unwrap_or_default();
            Drafts::of(Script::new(text, pattern))
        }
    })
}

fn policy(policy: Policy) -> width::Policy {
    match policy {
        Policy::Fixed(width) => width::Policy::Fixed(width),
        Policy::Threshold => width::Policy::threshold(),
        Policy::Ewma => width::Policy::Ewma,
        // A pass of eight rows as 1.7 plain ones.
        Policy::Reward => width::Policy::AverageReward(width::RewardOptions {
            costs: vec![(1, 1.0), (WIDEST, 1.7)],
            explore: false,
            ..width::RewardOptions::default()
        }),
    }
}

/// Tells no time: given costs stand and drafts are free, so that what an arm does is the same on every machine,
/// however busy it is.
struct NoTime;

impl Clock for NoTime {
    fn seconds(&self) -> f64 {
        f64::NAN
    }
}

/// Generates for every (prompt, budget) side by side. `known`: the text a script draws on.
pub(crate) fn generate(
    pair: &Pair,
    seat: &mut Seat,
    way: &Looped,
    prompts: &[(Vec<TokenId>, usize)],
    known: Option<&Text>,
) -> Result<Ran, Error> {
    let config = Config {
        policy: policy(way.policy),
        depth: WIDEST - 1,
        in_pass: if way.plan.in_pass() {
            InPass::Keyed
        } else {
            InPass::Never
        },
        ..Config::default()
    };
    let Drafts { mut drafter, watch } = drafts(pair, seat, way, known)?;
    let target = &mut *seat.target;
    let mut s = Speculator::with_clock(target.info(), config, Box::new(NoTime));
    let mut seqs = Vec::new();
    for (prompt, budget) in prompts {
        let seq = target.open()?;
        target.poison_stale(seq)?;
        let budget = u32::try_from(*budget).unwrap_or(u32::MAX);
        let request = Request {
            plan: sample_plan(way.plan),
            ..Request::greedy(prompt.clone(), budget)
        };
        s.admit(target, seq, request)?;
        seqs.push(seq);
    }
    let (mut sink, mut together) = (Tokens::default(), 0);
    while !s.is_idle() {
        together = together.max(s.needs().count());
        let out = s.step(Turn {
            target: &mut *target,
            drafter: drafter.as_mut().map(|d| &mut **d as &mut dyn Drafter),
            sink: &mut sink,
            grants: Grants::Each(way.chunk),
            riders: &[],
        });
        if let Some(done) = out.finished.iter().find(|f| f.tokens.is_empty()) {
            return Err(Error::Short {
                arm: format!("{way:?}"),
                expected: 1,
                got: 0,
                reason: format!("{:?}", done.reason),
            });
        }
    }
    let lost = s.drafter_lost().map(str::to_owned);
    let texts: Vec<Vec<TokenId>> = seqs
        .iter()
        .map(|s| sink.0.remove(&s.0).unwrap_or_default())
        .collect();
    let stats = s.stats().clone();
    let (states, rows) = ends(target, &seqs, &texts)?;
    Ok(Ran {
        texts,
        states,
        rows,
        stats,
        lost,
        worker: watch,
        together,
    })
}

type Ends = (Vec<[u8; 32]>, Vec<[u8; 32]>);

/// States and the rows after the texts; closes the sequences.
fn ends(target: &mut dyn Subject, seqs: &[SeqId], texts: &[Vec<TokenId>]) -> Result<Ends, Error> {
    let (mut states, mut rows) = (Vec::new(), Vec::new());
    for (seq, text) in seqs.iter().zip(texts) {
        states.push(target.digest(*seq)?);
        let last = text.last().copied().unwrap_or_default();
        rows.extend(feed(target, *seq, &[last])?);
        target.close(*seq);
    }
    Ok((states, rows))
}

/// Runs an arm.
pub(crate) fn run(pair: &Pair, seat: &mut Seat, base: &Base, way: &Looped) -> Result<Made, Error> {
    let want: Vec<&Text> = match (way.batch, way.plan) {
        (Batch::Five, _) => base.five.iter().collect(),
        (Batch::One, Plan::Sampled | Plan::SampledInPass) => vec![&base.sampled],
        (Batch::One, _) => vec![&base.greedy],
    };
    let prompts: Vec<_> = want
        .iter()
        .map(|t| (t.prompt.clone(), t.ids.len()))
        .collect();
    let ran = generate(pair, seat, way, &prompts, want.first().copied())?;
    let all: Vec<TokenId> = ran.texts.concat();
    let s = &ran.stats;
    let (told, wrong) = match &ran.worker {
        Some((watch, how)) => worker::ran(watch, *how),
        None => ("no worker".to_owned(), None),
    };
    let wrong = wrong.map(|(expected, got)| off_path(expected, got));
    Ok(Made {
        ids: ids_digest(&all),
        state: hex(blake3::hash(&ran.states.concat()).as_bytes()),
        evidence: format!(
            "{} passes, {} proposed, {} offered, {} accepted, {} sequences, {told}",
            s.passes, s.proposed, s.offered, s.matched, ran.together
        ),
        first: differs(&want, &ran)
            .or_else(|| took_its_path(way, &ran))
            .or(wrong),
    })
}

fn differs(want: &[&Text], ran: &Ran) -> Option<Difference> {
    let texts = want.iter().zip(&ran.texts).zip(&ran.states);
    texts
        .zip(&ran.rows)
        .enumerate()
        .find_map(|(i, (((want, ids), state), row))| compare(i, want, ids, state, row))
}

/// An arm that drafts must have drafted, from a drafter that lives.
fn took_its_path(way: &Looped, ran: &Ran) -> Option<Difference> {
    if let Some(lost) = &ran.lost {
        return Some(off_path("the drafter in use", lost.clone()));
    }
    let s = &ran.stats;
    let widest = match way.policy {
        Policy::Fixed(width) => width,
        _ => WIDEST,
    };
    let drafts = way.source != Source::Off && widest > 1;
    let shown = format!("{} proposed, {} offered", s.proposed, s.offered);
    if drafts && (s.proposed == 0 || s.offered == 0) {
        return Some(off_path("candidates proposed and offered", shown));
    }
    if !drafts && s.offered > 0 {
        return Some(off_path("no candidates", shown));
    }
    if s.pass_faults + s.row_faults + s.drafter_faults + s.misfits > 0 {
        let faults = format!("{} faults", s.pass_faults + s.row_faults + s.drafter_faults);
        return Some(off_path("no fault, no misfit", faults));
    }
    forced_acceptance(way, s).or_else(|| {
        (way.batch == Batch::Five && ran.together < 5)
            .then(|| off_path("5 sequences in a pass", ran.together.to_string()))
    })
}

/// A script that is always right, or never, says how many candidates are accepted.
fn forced_acceptance(way: &Looped, s: &Stats) -> Option<Difference> {
    let Source::Script(pattern) = &way.source else {
        return None;
    };
    let got = format!("{} of {} accepted", s.matched, s.offered);
    if pattern.iter().all(|n| *n >= WIDEST) && s.matched != s.offered {
        return Some(off_path("all accepted", got));
    }
    if pattern.iter().all(|n| *n == 0) && s.matched != 0 {
        return Some(off_path("none accepted", got));
    }
    None
}
