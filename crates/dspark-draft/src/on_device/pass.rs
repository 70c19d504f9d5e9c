//! Blocks of many asks: one pass after another, the last one fetched when somebody wants it.

use std::time::{Duration, Instant};

use device::driver::Driver;
use ds4_target::on_device::{Answer, Reads};
use engine_core::mutant::mutant;
use engine_core::seams::{Ask, DraftRows};
use engine_core::{Fault, Pos, Ticket};

use super::{DeviceBackbone, PASS_ROWS};
use crate::backbone::ANSWERS_MAX;

/// An answer on its way.
#[derive(Debug)]
pub(super) struct Flying<R: Driver> {
    pub(super) ticket: Ticket,
    /// Rows of every ask.
    rows: Vec<usize>,
    /// The rows of the asks of the last pass, and those of the passes before.
    last: Vec<usize>,
    answer: Answer<R>,
    before: DraftRows,
}

impl<R: Driver> DeviceBackbone<R> {
    /// Runs the blocks of some asks and begins to fetch their rows.
    pub(super) fn run(
        &mut self,
        asks: &[Ask],
        live: &[usize],
        block: &[f32],
    ) -> Result<Answer<R>, Fault> {
        let (b, d) = (self.model.meta.block, self.model.meta.stage.n_embd);
        let blocks = live.iter().map(|i| &block[i * b * d..(i + 1) * b * d]);
        let input = blocks.collect::<Vec<_>>().concat();
        let (pos, groups) = self.reads(asks, live)?;
        let ran = self.blocks.run(&input, &pos, &groups);
        self.keep(ran)
    }

    /// Positions of the rows of a pass, and what each block reads.
    pub(super) fn reads(
        &self,
        asks: &[Ask],
        live: &[usize],
    ) -> Result<(Vec<Pos>, Vec<Reads>), Fault> {
        let b = self.model.meta.block;
        let (mut pos, mut groups) = (Vec::new(), Vec::new());
        for (at, i) in live.iter().enumerate() {
            let ask = &asks[*i];
            pos.extend((ask.pos..).take(b));
            let owner = if mutant(376) {
                asks[live[0]].seq
            } else {
                ask.seq
            };
            let seen = self.slot(ask.seq)?.map_or(0..0, |marks| marks.live());
            let context = seen.map(|pos| self.place(owner, pos) as u32);
            groups.push(Reads {
                rows: at * b..(at + 1) * b,
                context: context.collect(),
            });
        }
        Ok((pos, groups))
    }

    /// All passes of `live` asks but the last are waited for.
    pub(super) fn fly(
        &mut self,
        ticket: Ticket,
        asks: &[Ask],
        live: &[usize],
        block: &[f32],
    ) -> Result<(), Fault> {
        let b = self.model.meta.block;
        let depth = |i: &usize| (asks[*i].depth as usize).min(b);
        let mut rows = vec![0; asks.len()];
        live.iter().for_each(|i| rows[*i] = depth(i));
        let mut before = DraftRows::default();
        let each = (PASS_ROWS / b).clamp(1, self.options.n_seq_max);
        let mut parts = live.chunks(each).peekable();
        while let Some(part) = parts.next() {
            let answer = self.run(asks, part, block)?;
            let last: Vec<usize> = part.iter().map(depth).collect();
            if parts.peek().is_none() {
                self.flying = Some(Flying {
                    ticket,
                    rows,
                    last,
                    answer,
                    before,
                });
                return Ok(());
            }
            self.take(answer, &last, &mut before)?;
        }
        self.answer(ticket, DraftRows { rows, ..before });
        Ok(())
    }

    /// Waits for a pass and appends the rows that its asks want.
    pub(super) fn take(
        &mut self,
        answer: Answer<R>,
        depths: &[usize],
        to: &mut DraftRows,
    ) -> Result<(), Fault> {
        let waited = answer.wait();
        let [before, after] = self.keep(waited)?;
        let (b, d) = (self.model.meta.block, self.model.meta.stage.n_embd);
        for (block, n) in depths.iter().enumerate() {
            let rows = block * b * d..(block * b + n) * d;
            to.pre_norm.extend_from_slice(&before[rows.clone()]);
            to.normed.extend_from_slice(&after[rows]);
        }
        Ok(())
    }

    /// What is on its way has come.
    pub(super) fn land(&mut self) -> Result<(), Fault> {
        let Some(flying) = self.flying.take() else {
            return Ok(());
        };
        let mut answer = flying.before;
        self.take(flying.answer, &flying.last, &mut answer)?;
        answer.rows = flying.rows;
        self.answer(flying.ticket, answer);
        Ok(())
    }

    pub(super) fn answer(&mut self, ticket: Ticket, answer: DraftRows) {
        if self.answers.len() == ANSWERS_MAX {
            self.answers.pop_front();
        }
        self.answers.push_back((ticket, answer));
    }

    /// Waits until the deadline for what is on its way; whether it is here.
    pub(super) fn is_here(&mut self, deadline: Option<Instant>) -> Result<bool, Fault> {
        const LOOK: Duration = Duration::from_micros(50);
        let Some(deadline) = deadline else {
            return Ok(true);
        };
        while let Some(flying) = &self.flying {
            let here = flying.answer.is_here();
            if self.keep(here)? {
                break;
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(LOOK);
        }
        Ok(true)
    }
}
