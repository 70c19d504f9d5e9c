//! Rows straight between the device and memory of the host that somebody else owns and others write too.
//!
//! Copies are put on the device's stream and not waited for. Whoever lets others write the memory again calls `settle`
//! first: it ends when every copy from and to the memory has. Must not know: whose memory it is, processes.

use std::sync::Arc;

use device::driver::Driver;
use device::{AnyDevice, Buffer, Device, Event, HostMemory, Place, Registered, View};
use engine_core::mutant::mutant;
use engine_core::seams::{Ask, Backbone};
use engine_core::{Fault, Pos, SeqId};

use super::{DeviceBackbone, PASS_ROWS};
use crate::backbone::{PROJECT_ROWS, drafting_of, may_take};

/// A backbone that takes rows from memory of the host and puts them there by itself.
pub trait DirectBackbone: Backbone {
    /// Pins memory that rows come and go by from now on.
    ///
    /// # Errors
    /// Why it cannot be pinned; everything goes on without.
    fn pin(&mut self, memory: Arc<dyn HostMemory>) -> Result<(), device::Fault>;

    /// [`Backbone::observe`] of `n` rows, the features `[n, captured layers, n_embd]` f32 at byte `at` of the memory.
    ///
    /// # Errors
    /// As there; `Unsupported` if no memory is pinned, `BadState` if they lie outside of it.
    fn observe_at(&mut self, seq: SeqId, pos: Pos, at: u64, n: usize) -> Result<(), Fault>;

    /// [`Backbone::submit`] of blocks at byte `from` of the memory, one an ask, and its answer to byte `to` of it: the
    /// rows of all asks after the last norm, then those before it. They are there when [`DirectBackbone::settle`] has
    /// returned. Gives the rows of each ask.
    ///
    /// # Errors
    /// As there and as [`DirectBackbone::observe_at`].
    fn draft_at(&mut self, asks: &[Ask], from: u64, to: u64) -> Result<Vec<usize>, Fault>;

    /// Waits until nothing of the device's reads or writes the memory.
    ///
    /// # Errors
    /// `Lost`: then nobody knows, and the memory must not be used again.
    fn settle(&mut self) -> Result<(), Fault>;

    /// The device.
    fn device(&self) -> &dyn AnyDevice;
}

/// Pinned memory, and what of the device's may still be at it.
#[derive(Debug)]
pub(super) struct Direct<R: Driver> {
    device: Device<R>,
    memory: Option<Registered<R>>,
    /// Answers of more asks than a pass takes, `[2, asks, block, n_embd]` f32: blocks of later passes may still lie
    /// in the memory where the first rows of the answer go.
    gathered: Option<Buffer<R>>,
    busy: Busy<R>,
}

#[derive(Debug)]
enum Busy<R: Driver> {
    Nothing,
    /// Until this has fired.
    Until(Event<R>),
    /// A call failed: until the stream is idle.
    Unknown,
}

impl<R: Driver> Direct<R> {
    pub(super) fn new(device: &Device<R>) -> Self {
        Self {
            device: device.clone(),
            memory: None,
            gathered: None,
            busy: Busy::Nothing,
        }
    }

    fn lost(&self, why: &device::Fault) -> Fault {
        Fault::Lost {
            what: self.device.id().to_string(),
            why: why.to_string(),
        }
    }

    /// Bytes of the memory.
    fn part(&self, at: u64, bytes: usize) -> Result<View<R>, Fault> {
        let memory = self.memory.as_ref();
        let memory = memory.ok_or(Fault::Unsupported("rows from memory that is not pinned"))?;
        let outside = |e: device::Fault| Fault::BadState {
            field: "rows in pinned memory",
            expected: format!("within {} bytes", memory.len()),
            got: e.to_string(),
        };
        memory.part(at, bytes as u64).map_err(outside)
    }
}

impl<R: Driver> DeviceBackbone<R> {
    /// Copies from or to the memory are put on the stream by `work`; its event stands behind them.
    fn at_memory<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<(T, Event<R>), Fault>,
    ) -> Result<T, Fault> {
        self.direct.busy = Busy::Unknown;
        let done = work(self);
        let (value, event) = self.keep(done)?;
        self.direct.busy = Busy::Until(event);
        Ok(value)
    }

    /// The blocks of a pass, from byte `from` of the memory on.
    fn run_at(&mut self, asks: &[Ask], live: &[usize], from: u64) -> Result<(), Fault> {
        let each = 4 * self.model.meta.block * self.model.meta.stage.n_embd;
        // Blocks side by side are one copy.
        let mut input = Vec::new();
        for run in live.chunk_by(|a, b| a + 1 == *b) {
            let at = from + (run[0] * each) as u64;
            input.push(self.direct.part(at, run.len() * each)?);
        }
        let (pos, groups) = self.reads(asks, live)?;
        self.at_memory(|this| Ok(((), this.blocks.run_from(&input, &pos, &groups)?)))
    }

    /// Rows of the newest pass to where `place` says that row `at` and those behind it go, after the last norm or not.
    fn give_to(
        &mut self,
        depths: &[usize],
        mut at: usize,
        place: impl Fn(&Self, usize, usize, bool) -> Result<View<R>, Fault>,
    ) -> Result<(), Fault> {
        let b = self.model.meta.block;
        self.at_memory(|this| {
            for (i, depth) in depths.iter().enumerate() {
                for after in [true, false] {
                    let to = place(this, at, *depth, after)?;
                    let rows = (i * b, *depth);
                    this.blocks.give(depths.len() * b, rows, after, &to)?;
                }
                at += depth;
            }
            Ok(((), this.blocks.mark()?))
        })
    }

    /// One pass: its rows go to the memory at once.
    fn draft_once(&mut self, asks: &[Ask], live: &[usize], at: [u64; 2]) -> Result<(), Fault> {
        let [from, to] = at;
        self.run_at(asks, live, from)?;
        let row = 4 * self.model.meta.stage.n_embd;
        let depths = self.depths(asks, live);
        let total: usize = depths.iter().sum();
        self.give_to(&depths, 0, |this, at, n, after| {
            let first = at + if after { 0 } else { total };
            this.direct.part(to + (first * row) as u64, n * row)
        })
    }

    /// Several passes: their rows are gathered on the device, and go to the memory when all blocks have left it.
    fn draft_often(&mut self, asks: &[Ask], live: &[usize], at: [u64; 2]) -> Result<(), Fault> {
        let [from, to] = at;
        let row = 4 * self.model.meta.stage.n_embd;
        let total: usize = self.depths(asks, live).iter().sum();
        let gathered = |this: &Self, first: usize, n: usize| {
            let buffer = this.direct.gathered.as_ref();
            let buffer = buffer.ok_or(Fault::Unsupported("more asks than were planned for"))?;
            let part = buffer.part((first * row) as u64, (n * row) as u64);
            part.map_err(|e| this.direct.lost(&e))
        };
        let mut done = 0;
        for part in live.chunks(self.asks_of_a_pass()) {
            self.run_at(asks, part, from)?;
            let depths = self.depths(asks, part);
            self.give_to(&depths, done, |this, at, n, after| {
                gathered(this, at + if after { 0 } else { total }, n)
            })?;
            done += depths.iter().sum::<usize>();
        }
        let (all, there) = (
            gathered(self, 0, 2 * total)?,
            self.direct.part(to, 2 * total * row)?,
        );
        self.at_memory(|this| {
            this.blocks.copy(&all, &there)?;
            Ok(((), this.blocks.mark()?))
        })
    }

    /// Rows that asks get.
    fn depths(&self, asks: &[Ask], live: &[usize]) -> Vec<usize> {
        let most = self.model.meta.block;
        let depth = |i: &usize| (asks[*i].depth as usize).min(most);
        live.iter().map(depth).collect()
    }

    fn asks_of_a_pass(&self) -> usize {
        (PASS_ROWS / self.model.meta.block).clamp(1, self.options.n_seq_max)
    }

    /// Waits for the newest copy from or to the memory.
    fn wait_for_memory(&mut self) -> Result<(), Fault> {
        let waited = match &self.direct.busy {
            Busy::Nothing => Ok(()),
            Busy::Until(event) => event.wait().map_err(|e| self.direct.lost(&e)),
            Busy::Unknown => self.blocks.sync(),
        };
        self.keep(waited)?;
        self.direct.busy = Busy::Nothing;
        Ok(())
    }
}

impl<R: Driver> DirectBackbone for DeviceBackbone<R> {
    fn pin(&mut self, memory: Arc<dyn HostMemory>) -> Result<(), device::Fault> {
        let (asks, meta) = (self.options.n_seq_max, &self.model.meta);
        let device = &self.direct.device;
        if asks > self.asks_of_a_pass() {
            let bytes = 8 * (asks * meta.block * meta.stage.n_embd) as u64;
            self.direct.gathered = Some(device.alloc(Place::Device, bytes)?);
        }
        self.direct.memory = Some(device.register(memory)?);
        Ok(())
    }

    fn observe_at(&mut self, seq: SeqId, pos: Pos, at: u64, n: usize) -> Result<(), Fault> {
        self.health()?;
        may_take(seq, pos, n, self.slot(seq)?)?;
        if n == 0 {
            return Ok(());
        }
        let row = 4 * self.model.meta.feature_width();
        // Rows that the ring would not hold at the end of the call are never projected.
        let mut done = n.saturating_sub(self.shape.ring);
        while done < n {
            let part = (n - done).min(PROJECT_ROWS);
            let from = pos + done as Pos;
            let range = from..from + part as Pos;
            let places = range.clone().map(|pos| self.place(seq, pos) as u32);
            let (places, pos): (Vec<u32>, Vec<Pos>) = (places.collect(), range.collect());
            let view = self.direct.part(at + (done * row) as u64, part * row)?;
            self.at_memory(|this| Ok(((), this.blocks.observe_from(&view, &pos, &places)?)))?;
            done += part;
        }
        self.took(seq, pos, n);
        Ok(())
    }

    fn draft_at(&mut self, asks: &[Ask], from: u64, to: u64) -> Result<Vec<usize>, Fault> {
        self.health()?;
        let b = self.model.meta.block;
        let live = drafting_of(asks, b, |seq| self.slot(seq))?;
        self.land()?;
        let mut rows = vec![0; asks.len()];
        for (i, depth) in live.iter().zip(self.depths(asks, &live)) {
            rows[*i] = depth;
        }
        match live.len() {
            0 => return Ok(rows),
            n if n <= self.asks_of_a_pass() => self.draft_once(asks, &live, [from, to])?,
            _ => self.draft_often(asks, &live, [from, to])?,
        }
        Ok(rows)
    }

    fn settle(&mut self) -> Result<(), Fault> {
        if mutant(378) {
            return Ok(());
        }
        self.wait_for_memory()
    }

    fn device(&self) -> &dyn AnyDevice {
        &self.direct.device
    }
}
