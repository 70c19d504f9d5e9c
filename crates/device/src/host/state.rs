//! What the device knows: memory, streams with their queues, events, graphs, modules; and which
//! operation is next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::memory::Memory;
use super::ops::{self, Gate, Op};
use super::{failed, unknown};
use crate::driver::{Class, DriverError, DriverResult, HostModule, Place, Raw};

/// A way in which the fake device is wrong on purpose, to see that the conformance suite objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Events fire before the work they stand behind.
    EventsFireEarly,
    /// Waiting for an event does nothing.
    WaitsIgnored,
    /// Copies lose their last byte.
    CopiesShort,
    /// Graphs lose their last operation.
    GraphsShort,
    /// Waiting for a stream returns at once.
    SyncIgnored,
    /// Any amount of memory is given.
    MemoryEndless,
    /// Sizes of arguments are not compared.
    ArgumentsUnchecked,
    /// Freed memory stays accounted.
    FreesLeak,
    /// Copies from memory of the host that was pinned lose their first byte.
    PinnedShort,
    /// Bytes to another device arrive as others.
    PeersMangle,
}

/// Settings of the seeded order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chaos {
    pub(crate) seed: u64,
    /// Most steps an operation is held back.
    pub(crate) delay: u32,
    pub(crate) defect: Option<Defect>,
}

#[derive(Debug)]
struct Queued {
    /// Place in the order of submission.
    order: u64,
    delay: u32,
    op: Op,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    ops: VecDeque<Queued>,
    pub(super) capture: Option<Vec<Op>>,
    running: bool,
}

impl Queue {
    pub(super) fn idle(&self) -> bool {
        self.ops.is_empty() && !self.running
    }
}

/// What to do next.
pub(super) enum Ready {
    Run(Raw, Op),
    Nothing,
    Stopped,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) memory: Memory,
    pub(super) capacity: u64,
    /// Bytes that somebody else holds of a device.
    pub(super) occupied: BTreeMap<Raw, u64>,
    pub(super) streams: BTreeMap<Raw, Queue>,
    pub(super) events: BTreeMap<Raw, Arc<Gate>>,
    pub(super) graphs: BTreeMap<Raw, Arc<Vec<Op>>>,
    pub(super) modules: BTreeMap<Raw, Arc<dyn HostModule>>,
    pub(super) functions: BTreeMap<Raw, (Raw, Arc<str>)>,
    pub(super) violations: Vec<String>,
    pub(super) stopped: bool,
    /// Launches that were asked to be early.
    pub(super) early: u64,
    /// Memory of the host that is pinned: starts and sizes.
    pub(super) registered: BTreeMap<Raw, u64>,
    /// Devices that reach others.
    pub(super) peers: BTreeSet<(Raw, Raw)>,
    chaos: Option<Chaos>,
    lost: Option<DriverError>,
    running: Option<Op>,
    handles: Raw,
    submitted: u64,
    random: u64,
    ticks: u64,
    start: Instant,
}

impl State {
    /// Bytes that are free on a device. What all of them hold is one: they are the host's memory.
    pub(super) fn room(&self, device: Raw) -> u64 {
        let others = self.occupied.get(&device).copied().unwrap_or(0);
        self.capacity
            .saturating_sub(self.memory.used)
            .saturating_sub(others)
    }

    pub(super) fn new(capacity: u64, chaos: Option<Chaos>) -> Self {
        let mut memory = Memory::default();
        memory.keep_freed = chaos.is_some();
        Self {
            memory,
            capacity,
            occupied: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            graphs: BTreeMap::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            violations: Vec::new(),
            stopped: false,
            early: 0,
            registered: BTreeMap::new(),
            peers: BTreeSet::new(),
            chaos,
            lost: None,
            running: None,
            handles: 0,
            submitted: 0,
            random: chaos.map_or(1, |c| c.seed | 1),
            ticks: 0,
            start: Instant::now(),
        }
    }

    pub(super) fn has(&self, defect: Defect) -> bool {
        self.chaos.is_some_and(|c| c.defect == Some(defect))
    }

    pub(super) fn handle(&mut self) -> Raw {
        self.handles += 1;
        self.handles
    }

    pub(super) fn alive(&self) -> usize {
        let handles = self.streams.len() + self.events.len() + self.graphs.len();
        self.memory.live() + handles + self.modules.len()
    }

    /// The loss of the device, if there was one.
    pub(super) fn sticky(&self, call: &'static str) -> DriverResult<()> {
        match &self.lost {
            Some(e) => Err(DriverError { call, ..e.clone() }),
            None => Ok(()),
        }
    }

    /// Draws a number below `n` (xorshift64, Marsaglia 2003; any sequence would do).
    pub(super) fn draw(&mut self, n: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % n.max(1)
    }

    /// Puts operations into a stream or into its capture.
    pub(super) fn submit(
        &mut self,
        call: &'static str,
        stream: Raw,
        ops: &[Op],
    ) -> DriverResult<()> {
        self.sticky(call)?;
        let most = self.chaos.map_or(0, |c| c.delay);
        let delays: Vec<u32> = ops
            .iter()
            .map(|_| self.draw(u64::from(most) + 1) as u32)
            .collect();
        let queue = self.streams.get_mut(&stream).ok_or_else(|| unknown(call))?;
        if let Some(capture) = &mut queue.capture {
            capture.extend_from_slice(ops);
            return Ok(());
        }
        for (op, delay) in ops.iter().zip(delays) {
            self.submitted += 1;
            queue.ops.push_back(Queued {
                order: self.submitted,
                delay,
                op: op.clone(),
            });
        }
        Ok(())
    }

    /// Streams whose first operation may run.
    fn ready(&self) -> impl Iterator<Item = (Raw, &Queued)> {
        let ignored = self.has(Defect::WaitsIgnored);
        self.streams.iter().filter_map(move |(stream, queue)| {
            let first = queue.ops.front()?;
            let held = match &first.op {
                Op::Wait(gate, record) => gate.fired.load(Ordering::Acquire) < *record,
                _ => false,
            };
            (!held || ignored).then_some((*stream, first))
        })
    }

    /// The worker's next operation: the one submitted first.
    pub(super) fn next(&mut self) -> Ready {
        if self.stopped {
            return Ready::Stopped;
        }
        let first = self.ready().min_by_key(|(_, q)| q.order).map(|(s, _)| s);
        match first {
            Some(stream) => self.begin(stream),
            None => Ready::Nothing,
        }
    }

    fn begin(&mut self, stream: Raw) -> Ready {
        let Some(queue) = self.streams.get_mut(&stream) else {
            return Ready::Nothing;
        };
        let Some(Queued { op, .. }) = queue.ops.pop_front() else {
            return Ready::Nothing;
        };
        queue.running = true;
        self.running = Some(op.clone());
        let objection = op
            .ranges()
            .into_iter()
            .find_map(|(address, bytes)| self.memory.objection(address, bytes));
        if let Some(objection) = objection {
            self.violations.push(format!("{op:?}: {objection}"));
            self.finished(stream, &op, Err(objection));
            return Ready::Nothing;
        }
        Ready::Run(stream, op)
    }

    /// Notes the end of an operation.
    pub(super) fn finished(&mut self, stream: Raw, op: &Op, result: Result<(), String>) {
        self.running = None;
        if let Some(queue) = self.streams.get_mut(&stream) {
            queue.running = false;
        }
        match result {
            Ok(()) => {}
            // 719 is hipErrorLaunchFailure.
            Err(words) => {
                let words = format!("{op:?}: {words}");
                self.lost
                    .get_or_insert_with(|| failed("run", 719, words, Class::Lost));
            }
        }
        if let Op::Record(gate, record) = op {
            let now = match self.chaos {
                Some(_) => self.ticks * 1_000,
                None => self.start.elapsed().as_nanos() as u64,
            };
            gate.at.store(now, Ordering::Release);
            gate.fired.fetch_max(*record, Ordering::AcqRel);
        }
    }

    /// One step in the seeded order. `false` if nothing can run.
    pub(super) fn step(&mut self) -> bool {
        self.ticks += 1;
        let streams: Vec<Raw> = self.ready().map(|(stream, _)| stream).collect();
        if streams.is_empty() {
            return false;
        }
        let stream = streams[self.draw(streams.len() as u64) as usize];
        if let Some(first) = self
            .streams
            .get_mut(&stream)
            .and_then(|q| q.ops.front_mut())
            && first.delay > 0
        {
            first.delay -= 1;
            return true;
        }
        if let Ready::Run(stream, mut op) = self.begin(stream) {
            if self.has(Defect::CopiesShort)
                && let Op::Copy { bytes, .. } = &mut op
            {
                *bytes = bytes.saturating_sub(1);
            }
            self.spoil(&mut op);
            let result = ops::run(&op);
            self.finished(stream, &op, result);
        }
        true
    }

    /// Makes a copy wrong on purpose.
    fn spoil(&self, op: &mut Op) {
        let pinned = self.has(Defect::PinnedShort);
        let peers = self.has(Defect::PeersMangle);
        if let Op::Copy { to, from, bytes } = op {
            let theirs = |at: Raw| self.registered.range(..=at).next_back();
            let theirs = theirs(*from).is_some_and(|(start, len)| *from - start < *len);
            let between = !self.peers.is_empty() && *bytes == 64 << 10 && *to != *from;
            let is_device = |at| self.memory.place(at) == Some(Place::Device);
            let between = between && is_device(*to) && is_device(*from);
            if (pinned && theirs || peers && between) && *bytes > 0 {
                (*to, *from, *bytes) = (*to + 1, *from + 1, *bytes - 1);
            }
        }
    }

    /// Work that still touches a block.
    pub(super) fn uses(&self, start: Raw) -> Option<String> {
        let len = self.memory.block(start).map_or(1, |b| b.bytes.max(1));
        let inside = |at: Raw| at.checked_sub(start).is_some_and(|offset| offset < len);
        let touches = |op: &&Op| op.ranges().iter().any(|(at, _)| inside(*at));
        let queued = self.streams.values().flat_map(|q| &q.ops).map(|q| &q.op);
        let mut all = queued.chain(&self.running);
        all.find(touches).map(|op| format!("{op:?}"))
    }
}
