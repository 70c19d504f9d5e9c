//! Context rows to and from the device: projected there, saved and loaded through the host.

use device::driver::Driver;
use engine_core::mutant::mutant;
use engine_core::{Fault, Pos, SeqId};

use super::DeviceBackbone;
use crate::backbone::{Observation, PROJECT_ROWS};

impl<R: Driver> DeviceBackbone<R> {
    pub(super) fn observe_rows(&mut self, o: &Observation<'_>, n: usize) -> Result<(), Fault> {
        let width = self.model.meta.feature_width();
        // Rows that the ring would not hold at the end of the call are never projected.
        let skip = n.saturating_sub(self.shape.ring);
        let rows = &o.features[skip * width..];
        let mut pos = o.pos + if mutant(374) { 0 } else { skip as Pos };
        for part in rows.chunks(PROJECT_ROWS * width) {
            let range = pos..pos + (part.len() / width) as Pos;
            pos = range.end;
            let places = range.clone().map(|pos| self.place(o.seq, pos) as u32);
            let places: Vec<u32> = places.collect();
            let pos: Vec<Pos> = range.collect();
            let observed = self.blocks.observe(part, &pos, &places);
            self.keep(observed)?;
        }
        Ok(())
    }

    /// The live rows of every stage, in order, `[stages, live, width]` f32 as bytes.
    pub(super) fn pull(&self, seq: SeqId, live: &std::ops::Range<Pos>) -> Result<Vec<u8>, Fault> {
        let mut bytes = Vec::new();
        for stage in 0..self.shape.stages {
            for part in self.runs(live) {
                let place = self.place(seq, part.start);
                bytes.extend(self.blocks.read(stage, place, part.len())?);
            }
        }
        Ok(bytes)
    }

    /// Positions cut where the ring turns.
    fn runs(
        &self,
        live: &std::ops::Range<Pos>,
    ) -> impl Iterator<Item = std::ops::Range<Pos>> + use<R> {
        let ring = self.shape.ring as u64;
        let turn = (u64::from(live.start) / ring + 1) * ring;
        let turn = Pos::try_from(turn).map_or(live.end, |t| t.min(live.end));
        [live.start..turn, turn..live.end]
            .into_iter()
            .filter(|r| !r.is_empty())
    }

    pub(super) fn push(
        &mut self,
        seq: SeqId,
        live: &std::ops::Range<Pos>,
        rows: &[u8],
    ) -> Result<(), Fault> {
        let row = 4 * self.shape.width;
        let mut at = 0;
        for stage in 0..self.shape.stages {
            for part in self.runs(live) {
                let (place, len) = (self.place(seq, part.start), part.len() * row);
                if !mutant(375) || part.start == live.start {
                    let pushed = self.blocks.write(stage, place, &rows[at..at + len]);
                    self.keep(pushed)?;
                }
                at += len;
            }
        }
        Ok(())
    }
}
