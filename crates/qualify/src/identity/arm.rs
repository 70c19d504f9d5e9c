//! What an arm is, and how one is run and compared.

use engine_core::math::{Ceiling, set_ceiling};
use fpx_quant::Isa;

use super::base::Base;
use super::means::On;
use super::pair::Pair;
use super::subject::Seat;
use super::{Difference, Row, Status, What, forced, hex, looped};

/// Where candidates come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Nowhere: plain decoding.
    Off,
    /// The DSpark drafter.
    Backbone,
    /// The DSpark drafter, its layers and its chains on the target's device.
    There,
    /// The DSpark drafter, its layers in a process of their own.
    Worker(Worker),
    /// Copies of the text.
    Suffix,
    /// Whichever of the two promises more.
    Chooser,
    /// The text itself, right for so many candidates; one entry a proposal, over and over.
    Script(Vec<usize>),
}

/// How rows travel to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// By shared memory.
    Shared,
    /// By a stream.
    Stream,
}

/// A draft worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// How rows travel.
    pub transport: Transport,
    /// Whether it is killed in the middle of the text.
    pub killed: bool,
    /// Whether its layers are on the target's device.
    pub there: bool,
}

/// How widths are chosen: the policies of `dspark_draft::width`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Always this verify width.
    Fixed(usize),
    /// By products of confidences.
    Threshold,
    /// By a moving average.
    Ewma,
    /// By the largest rate, from given costs.
    Reward,
}

/// How tokens are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// The most probable one.
    Greedy,
    /// With keyed noise.
    Sampled,
    /// Greedy, drawn inside the pass.
    InPass,
    /// With keyed noise, drawn inside the pass.
    SampledInPass,
}

impl Plan {
    /// Whether tokens are drawn inside the pass.
    #[must_use]
    pub const fn in_pass(self) -> bool {
        matches!(self, Self::InPass | Self::SampledInPass)
    }
}

/// How many sequences share the passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// The long text alone.
    One,
    /// Five texts of different lengths.
    Five,
}

/// Generation through the loop.
#[derive(Clone, Debug, PartialEq)]
pub struct Looped {
    /// Candidates.
    pub source: Source,
    /// Widths.
    pub policy: Policy,
    /// Most prompt tokens of a pass.
    pub chunk: usize,
    /// Draws.
    pub plan: Plan,
    /// Neighbours.
    pub batch: Batch,
}

/// The base's text fed as it is, every row compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forced {
    /// In chunks of so many tokens; 0 for all at once.
    Chunk(usize),
    /// Saved, the slots dirtied with another text, loaded, continued.
    SaveLoad,
    /// Forked, the origin continued with another text, the fork with this one.
    Fork,
    /// Carried from the device to the processor and back, again and again.
    Carried,
}

/// What an arm does.
#[derive(Clone, Debug, PartialEq)]
pub enum Way {
    /// Feeds.
    Forced(Forced),
    /// Generates.
    Looped(Looped),
    /// There is no such thing here, for this reason.
    Absent(String),
}

/// Where the target runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the processor.
    Cpu,
    /// On a device, or on two.
    Device(On),
}

/// A row of the matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Arm {
    /// Its name, stable.
    pub name: String,
    /// What it does.
    pub way: Way,
    /// Where.
    pub place: Place,
    /// On so many threads of the processor.
    pub threads: usize,
    /// With vector instructions up to these; `None`: all there are.
    pub isa: Option<Isa>,
}

/// What an arm made.
#[derive(Debug, Default)]
pub(crate) struct Made {
    pub(crate) ids: String,
    pub(crate) state: String,
    pub(crate) evidence: String,
    pub(crate) first: Option<Difference>,
}

/// A difference of path: what was asked for did not happen.
pub(crate) fn off_path(expected: &str, got: impl Into<String>) -> Difference {
    Difference {
        what: What::Path,
        sequence: 0,
        position: None,
        expected: expected.to_owned(),
        got: got.into(),
    }
}

/// Runs an arm. A failure of the arm is a difference, not an error: the others still run.
pub(crate) fn run(pair: &Pair, base: &Base, arm: &Arm) -> Row {
    let absent = |reason: String| Row {
        arm: arm.name.clone(),
        ids: String::new(),
        state: String::new(),
        evidence: String::new(),
        status: Status::Absent { reason },
    };
    if let Way::Absent(reason) = &arm.way {
        return absent(reason.clone());
    }
    if let Some(isa) = arm.isa.filter(|isa| !isa.available()) {
        return absent(format!("this processor has no {isa:?}"));
    }
    let made = with_isa(arm.isa, || go(pair, base, arm));
    let made = made.unwrap_or_else(|error| Made {
        first: Some(Difference {
            what: What::Fault,
            sequence: 0,
            position: None,
            expected: "no fault".to_owned(),
            got: error.to_string(),
        }),
        ..Made::default()
    });
    Row {
        arm: arm.name.clone(),
        ids: made.ids,
        state: made.state,
        evidence: made.evidence,
        status: made
            .first
            .map_or(Status::Equal, |first| Status::Differs { first }),
    }
}

fn go(pair: &Pair, base: &Base, arm: &Arm) -> Result<Made, super::Error> {
    let mut seat = pair.seat(arm)?;
    let mut made = match &arm.way {
        Way::Forced(forced) => forced::run(pair, &mut seat, base, *forced)?,
        Way::Looped(looped) => looped::run(pair, &mut seat, base, looped)?,
        Way::Absent(_) => Made::default(),
    };
    let (told, wrong) = match arm.place {
        Place::Cpu => on_cpu(&seat, arm),
        Place::Device(on) => {
            let (told, wrong) = on_device(&seat, arm, on);
            let what = match on.split {
                true => pair.means.split(on.vendor),
                false => pair.means.device(on.vendor),
            };
            let what = what.unwrap_or_default();
            (format!(", {what}, {told}"), wrong)
        }
    };
    made.evidence += &told;
    if let Some((expected, got)) = wrong {
        made.first.get_or_insert_with(|| off_path(&expected, got));
    }
    Ok(made)
}

/// What ran, in words; and what did not run as the arm says: expected, got.
type Path = (String, Option<(String, String)>);

fn on_cpu(seat: &Seat, arm: &Arm) -> Path {
    let (threads, isa) = (seat.pool.threads(), Isa::best());
    let told = format!(", {threads} threads, {isa:?} kernels");
    let wrong = if threads != arm.threads {
        Some((format!("{} threads", arm.threads), threads.to_string()))
    } else {
        let other = arm.isa.filter(|wanted| *wanted != isa);
        other.map(|wanted| (format!("{wanted:?}"), format!("{isa:?}")))
    };
    (told, wrong)
}

fn on_device(seat: &Seat, arm: &Arm, on: On) -> Path {
    let c = seat.target.counts().unwrap_or_default();
    let draws = matches!(&arm.way, Way::Looped(looped) if looped.plan.in_pass());
    let mut told = format!(
        "{} launches, {} graphs replayed, {} rows drawn there and {} on the host, {} candidates there and {} on the host",
        c.launches, c.graphs.launched, c.device_draws, c.host_draws, c.device_chains, c.host_chains
    );
    if on.split {
        let crossed = format!(
            ", {} crossings straight and {} through the host",
            c.straight, c.staged
        );
        told += &crossed;
    }
    let there = matches!(&arm.way, Way::Looped(looped) if looped.source == Source::There);
    let wrong = if c.launches == 0 {
        Some("launches on the device")
    } else if on.split != (c.straight + c.staged > 0) {
        Some(if on.split {
            "crossings"
        } else {
            "no crossings"
        })
    } else if on.graphs != (c.graphs.launched > 0) {
        Some(if on.graphs { "graphs" } else { "no graphs" })
    } else if draws != (c.device_draws > 0) || c.host_draws > 0 {
        Some("rows drawn where the arm says")
    } else if there != (c.device_chains > 0) || c.host_chains > 0 {
        Some("candidates drawn where the arm says")
    } else {
        None
    };
    (
        told.clone(),
        wrong.map(|expected| (expected.to_owned(), told)),
    )
}

/// Runs `f` with vector instructions up to `isa`, for the whole process.
pub(crate) fn with_isa<T>(isa: Option<Isa>, f: impl FnOnce() -> T) -> T {
    let ceiling = match isa {
        Some(Isa::Baseline) => Ceiling::Baseline,
        Some(Isa::Avx2) => Ceiling::Avx2,
        _ => Ceiling::Widest,
    };
    set_ceiling(ceiling);
    let out = f();
    set_ceiling(Ceiling::Widest);
    out
}

/// Compares a text and its end with the base's.
pub(crate) fn compare(
    sequence: usize,
    want: &super::base::Text,
    ids: &[u32],
    state: &[u8; 32],
    row: &[u8; 32],
) -> Option<Difference> {
    let at = (0..want.ids.len().max(ids.len())).find(|i| want.ids.get(*i) != ids.get(*i));
    if let Some(at) = at {
        let show = |t: Option<&u32>| t.map_or("no token".to_owned(), ToString::to_string);
        return Some(Difference {
            what: What::Ids,
            sequence,
            position: Some(want.prompt.len() + at),
            expected: show(want.ids.get(at)),
            got: show(ids.get(at)),
        });
    }
    let end = want.prompt.len() + ids.len() - 1;
    let digest = |what, expected: &[u8; 32], got: &[u8; 32]| Difference {
        what,
        sequence,
        position: Some(end),
        expected: hex(expected),
        got: hex(got),
    };
    if state != &want.state {
        return Some(digest(What::State, &want.state, state));
    }
    (row != &want.row).then(|| digest(What::Logits, &want.row, row))
}
