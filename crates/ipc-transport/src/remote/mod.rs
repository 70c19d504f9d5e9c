//! The parent's side: a `Backbone` whose layers run in a worker.
//!
//! It keeps the newest feature rows of every sequence, merges what changed with the asks of a step into one
//! frame, and waits for one reply, always with a deadline. A worker that is lost costs drafts, not
//! tokens: asks are answered with nothing while a thread starts another, which is then sent the rows it
//! needs. When that has failed too often, drafting goes on in this process if there is a way to, and is
//! over otherwise. Must not know: heads, tokens, what the worker's backbone is.

mod ask;
mod keeper;
mod life;
mod lookout;
mod mirror;
mod reply;
mod step;
mod whole;

use std::cell::RefCell;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::AnyDevice;
use engine_core::seams::{Ask, Backbone, DraftRows};
use engine_core::{Fault, Pos, SeqId, Ticket};

use crate::error::StartError;
use crate::handshake::{Dims, Place, Transport};
use crate::launch::{Grace, Launch};
use crate::probe::Probe;
use crate::report::Watch;
use ask::Session;

/// How payload may travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Shared memory, or else a stream, which is then said.
    #[default]
    Auto,
    /// Shared memory or nothing.
    Shared,
    /// A stream.
    Stream,
    /// Memory of this process: for workers on threads.
    Local,
}

impl Choice {
    const fn order(self) -> (Transport, Option<Transport>) {
        match self {
            Self::Auto => (Transport::Shared, Some(Transport::Stream)),
            Self::Shared => (Transport::Shared, None),
            Self::Stream => (Transport::Stream, None),
            Self::Local => (Transport::Local, None),
        }
    }
}

/// The longest waits. None of them is ever expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the start to ready.
    pub load: Duration,
    /// For the answer to the first step of a worker.
    pub first: Duration,
    /// For any other answer.
    pub step: Duration,
    /// For its end.
    pub grace: Grace,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            load: Duration::from_mins(5),
            first: Duration::from_mins(1),
            step: Duration::from_secs(10),
            grace: Grace {
                quit: Duration::from_secs(5),
                term: Duration::from_secs(2),
            },
        }
    }
}

/// How often a lost worker is started again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restarts {
    /// The wait before each start; as many as there are waits.
    pub delays: Vec<Duration>,
    /// Losses older than this are forgiven.
    pub within: Duration,
}

impl Default for Restarts {
    fn default() -> Self {
        Self {
            delays: [1, 5, 25].map(Duration::from_secs).to_vec(),
            within: Duration::from_mins(10),
        }
    }
}

/// What the worker is to load, and what it must turn out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The backbone.
    pub dims: Dims,
    /// Widest verify.
    pub verify_max: u32,
    /// Whether draft keys are rounded.
    pub kv_round: bool,
    /// Threads of the worker.
    pub threads: u32,
    /// The draft model's file.
    pub file: PathBuf,
    /// Where its layers are to run.
    pub place: Place,
}

impl Shape {
    /// Threads that the worker computes with: one feeds a device.
    const fn busy(&self) -> usize {
        match self.place.device.as_bytes() {
            b"" | b"cpu" | b"host" => self.threads as usize,
            _ => 1,
        }
    }
}

/// Positions of a saved context, by its bytes.
pub type SavedRange = fn(&[u8]) -> Option<std::ops::Range<Pos>>;

/// How to use a worker.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What it loads.
    pub shape: Shape,
    /// How payload may travel.
    pub transport: Choice,
    /// Payload bytes beyond what the shapes need; never fewer.
    pub capacity: usize,
    /// Sends rows when they are observed instead of with the next ask. The same bytes result.
    pub eager: bool,
    /// The longest waits.
    pub timeouts: Timeouts,
    /// Starts after a loss.
    pub restarts: Restarts,
    /// The model's device, which pins the shared memory too; `None`: the model runs on the processor.
    pub device: Option<Arc<dyn AnyDevice>>,
    /// Reads the header of a saved context.
    pub saved_range: SavedRange,
    /// For tests.
    pub probe: Probe,
}

impl Plan {
    /// The defaults over a shape, for the backbone of this project.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self {
            shape,
            transport: Choice::Auto,
            capacity: 0,
            eager: false,
            timeouts: Timeouts::default(),
            restarts: Restarts::default(),
            device: None,
            saved_range: crate::worker::saved_range,
            probe: Probe::default(),
        }
    }
}

/// Makes a backbone of this process, for when there will be no worker any more.
pub type Fallback = Box<dyn FnOnce() -> Result<Box<dyn Backbone + Send>, Fault> + Send>;

/// A backbone in a worker.
#[derive(Debug)]
pub struct RemoteBackbone {
    // `save` takes the backbone by shared reference and must talk to the worker.
    session: RefCell<Session>,
}

impl RemoteBackbone {
    /// Starts a worker and waits until it is ready.
    ///
    /// # Errors
    /// The step that failed, and why.
    pub fn start(plan: Plan, launch: Box<dyn Launch>) -> Result<Self, StartError> {
        let session = RefCell::new(Session::start(Arc::new(plan), launch)?);
        Ok(Self { session })
    }

    /// What drafts when the worker is lost for good.
    #[must_use]
    pub fn with_fallback(mut self, fallback: Fallback) -> Self {
        self.session.get_mut().fallback = Some(fallback);
        self
    }

    /// The report that this backbone fills in.
    #[must_use]
    pub fn watch(&self) -> Watch {
        self.session.borrow().watch.clone()
    }

    /// Waits until a worker that is being started again is up, or that has failed. For tests and for
    /// callers that have nothing else to do.
    pub fn wait_until_settled(&mut self, deadline: Instant) {
        self.session.get_mut().wait_until_settled(deadline);
    }
}

impl Backbone for RemoteBackbone {
    fn observe(&mut self, seq: SeqId, pos: Pos, features: &[f32]) -> Result<(), Fault> {
        self.session.get_mut().observe(seq, pos, features)
    }

    /// One frame a call, or none if no ask has context. While the worker is away the answer is empty.
    fn submit(&mut self, asks: &[Ask], block: &[f32]) -> Result<Ticket, Fault> {
        self.session.get_mut().submit(asks, block)
    }

    fn poll(&mut self, ticket: Ticket, deadline: Option<Instant>) -> Result<DraftRows, Fault> {
        self.session.get_mut().poll(ticket, deadline)
    }

    fn truncate(&mut self, seq: SeqId, pos: Pos) {
        self.session.get_mut().truncate(seq, pos);
    }

    fn close(&mut self, seq: SeqId) {
        self.session.get_mut().close(seq);
    }

    /// The bytes that a backbone in this process would write.
    fn save(&self, seq: SeqId, to: &mut dyn Write) -> Result<(), Fault> {
        let saved = self.session.borrow_mut().save(seq)?;
        Ok(to.write_all(&saved)?)
    }

    /// Rows that were loaded are in the worker alone: they do not survive it.
    fn load(&mut self, seq: SeqId, from: &mut dyn Read) -> Result<(), Fault> {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes)?;
        self.session.get_mut().load(seq, &bytes)
    }

    fn health(&self) -> Result<(), Fault> {
        self.session.borrow().health()
    }

    /// While there is a worker: a backbone of this process computes when it is asked.
    fn is_apart(&self) -> bool {
        self.session.borrow().life.is_up()
    }
}
