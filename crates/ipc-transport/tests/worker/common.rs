//! Workers on threads, and a caller whose calls are random.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine_core::seams::{Ask, Backbone, DraftRows};
use engine_core::{Epoch, Fault, Pos, SeqId};
use ipc_transport::error::LinkError;
use ipc_transport::handshake::{Configure, Dims, Place};
use ipc_transport::launch::{Grace, Threads};
use ipc_transport::probe::Probe;
use ipc_transport::remote::{Choice, Plan, RemoteBackbone, Restarts, SavedRange, Shape, Timeouts};
use ipc_transport::worker::{self, End, Layers, Loaded};
use testkit::rng::Rng;

use crate::toy::{self, Toy};

pub(crate) const CHOICES: [Choice; 3] = [Choice::Shared, Choice::Stream, Choice::Local];

/// How the workers of a launcher ended.
pub(crate) type Ends = Arc<Mutex<Vec<Result<End, LinkError>>>>;

pub(crate) fn toy_plan(choice: Choice) -> Plan {
    plan(toy::dims(), choice, toy::saved_range)
}

pub(crate) fn plan(dims: Dims, choice: Choice, saved_range: SavedRange) -> Plan {
    let shape = Shape {
        dims,
        verify_max: 8,
        kv_round: false,
        // None is one. So the caller is awake for replies on two processors too.
        threads: 0,
        file: PathBuf::from("toy"),
        place: Place::default(),
    };
    let grace = Grace {
        quit: Duration::from_secs(20),
        term: Duration::from_secs(20),
    };
    Plan {
        transport: choice,
        saved_range,
        restarts: Restarts {
            delays: vec![Duration::ZERO; 3],
            within: Duration::from_hours(1),
        },
        timeouts: Timeouts {
            load: Duration::from_secs(60),
            first: Duration::from_secs(60),
            step: Duration::from_secs(60),
            grace,
        },
        ..Plan::new(shape)
    }
}

/// Workers that serve what `make` makes, with a probe on their side.
pub(crate) fn threads(
    make: impl Fn(&Configure) -> Result<Loaded, String> + Send + Sync + 'static,
    probe: Probe,
) -> (Threads, Ends) {
    let ends = Ends::default();
    let seen = Arc::clone(&ends);
    let threads = Threads::new(move |control, local| {
        let end = worker::run(control, local, probe.clone(), &make);
        seen.lock().unwrap().push(end);
    });
    (threads, ends)
}

pub(crate) fn toys(_: &Configure) -> Result<Loaded, String> {
    Ok(Loaded {
        backbone: Layers::Here(Box::new(Toy::new(toy::dims()))),
        dims: toy::dims(),
        device: "toy".to_owned(),
    })
}

pub(crate) fn toy_remote(plan: Plan) -> (RemoteBackbone, Ends) {
    let (threads, ends) = threads(toys, Probe::default());
    (
        RemoteBackbone::start(plan, Box::new(threads)).unwrap(),
        ends,
    )
}

pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

/// What a call came to; faults by their text.
pub(crate) type Out = Result<Vec<Vec<u32>>, String>;

fn bits(rows: DraftRows) -> Vec<Vec<u32>> {
    let words = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect();
    let counts = rows.rows.iter().map(|n| *n as u32).collect();
    vec![counts, words(&rows.normed), words(&rows.pre_norm)]
}

/// One call of a random caller.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Observe(SeqId, Pos, Vec<f32>),
    Truncate(SeqId, Pos),
    Close(SeqId),
    Ask(Vec<Ask>, Vec<f32>),
    /// Save, forget, load again.
    Turn(SeqId, SavedRange),
}

/// A caller of eight interleaved sequences.
pub(crate) struct Caller {
    rng: Rng,
    dims: Dims,
    /// Where each sequence stands.
    ends: [Option<Pos>; 8],
    epoch: u32,
    range: SavedRange,
}

impl Caller {
    pub(crate) fn new(seed: u64, dims: Dims, range: SavedRange) -> Self {
        Self {
            rng: Rng::new(seed),
            dims,
            ends: [None; 8],
            epoch: 0,
            range,
        }
    }

    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| (self.rng.normal() * 30.0) as f32).collect()
    }

    pub(crate) fn next(&mut self) -> Call {
        let at = self.rng.below(8);
        let seq = SeqId(at as u32);
        match (self.rng.below(20), self.ends[at]) {
            (0, Some(_)) => {
                self.ends[at] = None;
                Call::Close(seq)
            }
            (1..=3, Some(end)) => {
                let back = self.rng.below(6) as Pos;
                let pos = end.saturating_sub(back);
                self.ends[at] = Some(pos);
                Call::Truncate(seq, pos)
            }
            (4, Some(_)) => Call::Turn(seq, self.range),
            (5..=12, _) | (_, None) => {
                let pos = self.ends[at].unwrap_or_else(|| self.rng.below(50) as Pos);
                let most = if self.rng.below(12) == 0 {
                    3 * self.dims.ring as usize
                } else {
                    5
                };
                let n = 1 + self.rng.below(most);
                self.ends[at] = Some(pos + n as Pos);
                let values = self.values(n * self.dims.feature_width());
                Call::Observe(seq, pos, values)
            }
            _ => self.asks(),
        }
    }

    fn asks(&mut self) -> Call {
        let mut asks = Vec::new();
        for at in 0..8 {
            if self.rng.below(2) == 0 {
                self.epoch += 1;
                // One in three is drafted ahead of rows that are being verified.
                let ahead = [0, 0, 1 + self.rng.below(5) as u32][self.rng.below(3)];
                asks.push(Ask {
                    seq: SeqId(at as u32),
                    epoch: Epoch(self.epoch),
                    pos: self.ends[at].unwrap_or(9) + ahead,
                    ahead,
                    seed: 3,
                    depth: self.rng.below(self.dims.block as usize + 2) as u32,
                });
            }
        }
        let block = self.values(asks.len() * self.dims.block_width());
        Call::Ask(asks, block)
    }
}

/// Makes a call and says what came of it.
pub(crate) fn perform(backbone: &mut dyn Backbone, call: &Call) -> Out {
    let told = |fault: Fault| fault.to_string();
    match call {
        Call::Observe(seq, pos, values) => {
            backbone.observe(*seq, *pos, values).map_err(told)?;
        }
        Call::Truncate(seq, pos) => backbone.truncate(*seq, *pos),
        Call::Close(seq) => backbone.close(*seq),
        Call::Ask(asks, block) => {
            let ticket = backbone.submit(asks, block).map_err(told)?;
            return backbone.poll(ticket, None).map(bits).map_err(told);
        }
        Call::Turn(seq, range) => {
            let mut saved = Vec::new();
            // A sequence without rows may or may not be there.
            let saving = backbone.save(*seq, &mut saved);
            if saving.is_err() || range(&saved).is_none_or(|r| r.is_empty()) {
                return Ok(Vec::new());
            }
            backbone.load(*seq, &mut saved.as_slice()).map_err(told)?;
            let words = saved.as_chunks::<4>().0.iter();
            return Ok(vec![words.map(|w| u32::from_le_bytes(*w)).collect()]);
        }
    }
    Ok(Vec::new())
}
