//! Rows that a device takes from memory of the host, and puts there, by itself: no copy of the host's between.
//!
//! The copy is put on the stream like a launch. Whose memory it is may write it again when the event behind the copy
//! has fired, and not before. Must not know: whose memory it is.

use device::driver::Driver;
use device::{Event, View};
use ds4_kernels::KernelError;
use engine_core::{Fault, Pos};

use super::sent::{Batch, SentRows};
use super::{DeviceBlocks, Reads, misfit};

impl<R: Driver> DeviceBlocks<R> {
    /// [`DeviceBlocks::observe`] of features that lie in pinned memory of the host.
    ///
    /// # Errors
    /// As there. A copy may be under way all the same: [`DeviceBlocks::sync`] ends it.
    pub fn observe_from(
        &mut self,
        features: &View<R>,
        pos: &[Pos],
        places: &[u32],
    ) -> Result<Event<R>, Fault> {
        let (n, width) = (pos.len(), self.weights.projection.k);
        let right = features.len() == 4 * (n * width) as u64;
        let fits = n > 0 && n <= self.sizes.features && places.len() == n;
        if !fits || !right || self.outside(places) {
            return Err(misfit("features", n, features.len() as usize / 4));
        }
        let sent = self.features(n);
        sent.write(&mut self.bytes, &self.ropes, &[], pos, places);
        let copied = self.send_head(sent.block, sent.features, &[features]);
        let copied = copied.map_err(|e| self.lost(&e))?;
        self.project(n, &sent).map_err(|e| self.lost(&e))?;
        Ok(copied)
    }

    /// [`DeviceBlocks::run`] of rows that lie in pinned memory of the host, one part behind the other. What comes out
    /// stays on the device, for [`DeviceBlocks::give`], until the next call.
    ///
    /// # Errors
    /// As there. A copy may be under way all the same: [`DeviceBlocks::sync`] ends it.
    pub fn run_from(
        &mut self,
        input: &[View<R>],
        pos: &[Pos],
        groups: &[Reads],
    ) -> Result<Event<R>, Fault> {
        let (n, d) = (pos.len(), self.meta.n_embd);
        let bytes: u64 = input.iter().map(View::len).sum();
        if !self.covers(n, groups) || bytes != 4 * (n * d) as u64 {
            return Err(misfit("rows", n, bytes as usize / 4));
        }
        let sent = SentRows::new(self.slots.sent, &self.meta, n);
        let batch = Batch {
            input: &[],
            pos,
            groups,
        };
        let shapes = (&self.meta, &self.ropes);
        sent.write(&mut self.bytes, shapes, self.sizes.store, &batch);
        let input: Vec<&View<R>> = input.iter().collect();
        let copied = self.send_head(sent.block, sent.rows, &input);
        let copied = copied.map_err(|e| self.lost(&e))?;
        self.pass_of(n, &sent).map_err(|e| self.lost(&e))?;
        Ok(copied)
    }

    /// Copies rows `first..first + count` of a pass of `n`, before or after the last norm, to memory of the host.
    ///
    /// # Errors
    /// `BadState` for sizes that do not fit, `Lost`.
    pub fn give(
        &self,
        n: usize,
        (first, count): (usize, usize),
        after: bool,
        to: &View<R>,
    ) -> Result<(), Fault> {
        let row = 4 * self.meta.n_embd;
        if n > self.sizes.rows || first + count > n || to.len() != (count * row) as u64 {
            return Err(misfit("rows", count, to.len() as usize / 4));
        }
        let half = if after { n } else { 0 };
        let rows = self.slots.out.rows(half + first, count, row);
        let copy = || Ok(self.gpu.stream.copy(&self.gpu.view(rows)?, to)?);
        copy().map_err(|e: KernelError| self.lost(&e))
    }

    /// Copies memory behind everything before.
    ///
    /// # Errors
    /// `Lost`.
    pub fn copy(&self, from: &View<R>, to: &View<R>) -> Result<(), Fault> {
        let copied = self.gpu.stream.copy(from, to);
        copied.map_err(|e| self.lost(&e.into()))
    }

    /// Marks the point that the device's work has reached.
    ///
    /// # Errors
    /// `Lost`.
    pub fn mark(&self) -> Result<Event<R>, Fault> {
        let marked = self.gpu.stream.record();
        marked.map_err(|e| self.lost(&e.into()))
    }

    /// Waits until everything is done.
    ///
    /// # Errors
    /// `Lost`.
    pub fn sync(&self) -> Result<(), Fault> {
        let done = self.gpu.stream.sync();
        done.map_err(|e| self.lost(&e.into()))
    }

    /// Sends what stands before `rows` in `block` as ever, and lets the device copy the rows themselves; the event
    /// stands behind that copy.
    fn send_head(
        &self,
        block: super::Slot,
        rows: super::Slot,
        from: &[&View<R>],
    ) -> Result<Event<R>, KernelError> {
        let head = rows.start - block.start;
        self.gpu
            .write(&self.bytes[..head as usize], block.part(0, head))?;
        let mut at = 0;
        for part in from {
            let to = self.gpu.view(rows.part(at, part.len()))?;
            self.gpu.stream.copy(part, &to)?;
            at += part.len();
        }
        Ok(self.gpu.stream.record()?)
    }
}
