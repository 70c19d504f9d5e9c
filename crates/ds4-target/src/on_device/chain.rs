//! Chains of candidates on the device: a drafter's rows through the output matrix, then position by position a bias
//! that follows from the token before, and the draw. A vocabulary of logits stays where it is; ids come back.
//!
//! The bias is a low-rank product: a row of one matrix by the token, times another matrix. All chains take a step
//! together; longer ones come first, so that those that go on are the first rows of a step.
//!
//! Must not know: where rows come from, what is accepted.

use std::sync::Arc;

use device::driver::Driver;
use ds4_kernels::KernelError;
use ds4_kernels::launch::head::{self as token, NOTHING, PARTS, PLAN_BYTES, Plan};
use engine_core::mutant::mutant;
use engine_core::seams::Candidates;
use engine_core::{Pos, TokenId};

use super::arena::Slot;
use super::draws::{Way, plan_of};
use super::gpu::Gpu;
use super::graphs::{Graphs, Shape};
use super::products::{Input, Rows};
use super::scratch::{Scratch, rows};
use super::weights::{Matrix, Plan as Weights};
use crate::error::LoadError;
use crate::meta::Ds4Meta;
use crate::tensor::Tensor;

/// The two matrices of the bias.
#[derive(Clone, Copy, Debug)]
pub struct Markov<'a> {
    /// `[n_vocab, rank]`: a row by the token before.
    pub first: &'a Tensor,
    /// `[n_vocab, rank]`: what that row meets.
    pub second: &'a Tensor,
}

/// What chains need on the device.
#[derive(Debug)]
pub(crate) struct Chain<R: Driver> {
    first: Matrix,
    second: Matrix,
    slots: Slots,
    pub(crate) graphs: Graphs<R>,
    /// Candidates drawn here, and those of chains whose plan has no kernel.
    pub(crate) drawn: u64,
    pub(crate) fallbacks: u64,
}

/// `h` rows of the head.
#[derive(Clone, Copy, Debug)]
struct Slots {
    /// What is sent: `[h, d]` f32, `[h]` u32 seeds, `[h]` of 32 bytes plans.
    hidden: Slot,
    seeds: Slot,
    plans: Slot,
    sent: Slot,
    /// `[h, rank]`, `[h, n_vocab]`, `[h]` u32.
    rank: Rows,
    bias: Slot,
    drawn: Slot,
    /// Most rows.
    most: usize,
}

impl Slots {
    fn new(scratch: &mut Scratch, m: &Ds4Meta, rank: usize) -> Result<Self, KernelError> {
        let (h, d) = (scratch.sizes.head, m.n_embd);
        let l = &mut scratch.layout;
        let wide = 4 * d * h + PLAN_BYTES * h + 4 * h;
        let sent = l.take(&[wide])?;
        let hidden = sent.part(0, (4 * d * h) as u64);
        let plans = sent.part(hidden.len, (PLAN_BYTES * h) as u64);
        Ok(Self {
            hidden,
            plans,
            seeds: sent.part(hidden.len + plans.len, 4 * h as u64),
            sent,
            rank: rows(l, h, rank)?,
            bias: l.take(&[h, m.n_vocab, 4])?,
            drawn: l.take(&[h, 4])?,
            most: h,
        })
    }
}

/// Chains that are drawn together, the longest first.
struct Batch<'a> {
    /// Which of the caller's, and its first row there.
    chains: Vec<(usize, usize)>,
    of: &'a [Candidates<'a>],
}

impl Batch<'_> {
    fn lengths(&self) -> Vec<usize> {
        self.chains
            .iter()
            .map(|(at, _)| self.of[*at].rows)
            .collect()
    }

    /// How many chains take each step.
    fn steps(&self) -> Vec<usize> {
        let lengths = self.lengths();
        let longest = lengths.first().copied().unwrap_or(0);
        let going = |step: usize| lengths.iter().filter(|n| **n > step).count();
        (0..longest).map(going).collect()
    }

    fn plan(&self, chain: usize, step: usize) -> Plan {
        let c = &self.of[self.chains[chain].0];
        let step = if mutant(373) { step } else { step + 1 };
        // Where a sequence ends at the last position, no noise matters.
        let pos = c.pos.saturating_add(step as Pos);
        plan_of(c.plan, pos).unwrap_or_default()
    }

    fn way(&self) -> Way {
        match (0..self.chains.len()).any(|c| self.plan(c, 0).has_filter()) {
            true => Way::Filtered,
            false => Way::Plain,
        }
    }
}

impl<R: Driver> Chain<R> {
    /// Places the matrices among a target's weights, and what a step writes in its scratch.
    ///
    /// # Errors
    /// `Option` for matrices of another model, `NoKernel`, `Kernel`.
    pub(crate) fn new<'a>(
        m: &Ds4Meta,
        markov: Markov<'a>,
        plan: &mut Weights<'a>,
        scratch: &mut Scratch,
        graph_tokens: usize,
    ) -> Result<Self, LoadError> {
        let (a, b) = (markov.first, markov.second);
        if a.rows != m.n_vocab || b.rows != m.n_vocab || a.k != b.k {
            return Err(LoadError::Option {
                option: "matrices of a chain",
                expected: format!("{} rows each, of one width", m.n_vocab),
                got: format!("{} of {} and {} of {}", a.rows, a.k, b.rows, b.k),
            });
        }
        Ok(Self {
            first: plan.table(a)?,
            second: plan.matrix(b, 1)?,
            slots: Slots::new(scratch, m, a.k)?,
            graphs: Graphs::new(graph_tokens),
            drawn: 0,
            fallbacks: 0,
        })
    }

    /// Checks the launches of one chain and of the most, without making any.
    ///
    /// # Errors
    /// `Shape`, `Format`.
    pub(crate) fn try_shapes(
        &self,
        gpu: &mut Gpu<R>,
        head: &Matrix,
        scratch: &Scratch,
    ) -> Result<(), KernelError> {
        for way in [Way::Plain, Way::Filtered] {
            self.launch(gpu, head, scratch, &[self.slots.most], way)?;
        }
        self.launch(gpu, head, scratch, &[1, 1], Way::Plain)
    }

    /// Draws chains, each a list of tokens; `None` for one that has no kernel. `hidden` `[sum of rows, d]` f32.
    ///
    /// # Errors
    /// `Device`.
    pub(crate) fn draw(
        &mut self,
        gpu: &mut Gpu<R>,
        head: &Matrix,
        scratch: &Scratch,
        hidden: &[f32],
        chains: &[Candidates<'_>],
    ) -> Result<Vec<Option<Vec<TokenId>>>, KernelError> {
        let mut answers = vec![None; chains.len()];
        let chains_here = if mutant(372) { &[] } else { chains };
        for batch in self.batches(chains_here) {
            let tokens = self.run(gpu, head, scratch, hidden, &batch)?;
            for ((at, _), tokens) in batch.chains.iter().zip(tokens) {
                self.drawn += tokens.len() as u64;
                answers[*at] = Some(tokens);
            }
        }
        let other = chains.iter().zip(&answers);
        let other = other
            .filter(|(_, a)| a.is_none())
            .map(|(c, _)| c.rows as u64);
        self.fallbacks += other.sum::<u64>();
        Ok(answers)
    }

    /// Chains that can be drawn here, as many together as there is room.
    fn batches<'a>(&self, chains: &'a [Candidates<'a>]) -> Vec<Batch<'a>> {
        let mut first = 0;
        let mut order = Vec::new();
        for (at, c) in chains.iter().enumerate() {
            let neutral = c.plan.penalties.is_neutral();
            if neutral && c.rows <= self.slots.most && plan_of(c.plan, 0).is_some() {
                order.push((at, first));
            }
            first += c.rows;
        }
        order.sort_by_key(|(at, _)| std::cmp::Reverse(chains[*at].rows));
        let mut batches: Vec<Batch<'a>> = Vec::new();
        let mut room = 0;
        for chain in order {
            let rows = chains[chain.0].rows;
            match batches.last_mut().filter(|_| rows <= room) {
                Some(batch) => batch.chains.push(chain),
                None => {
                    room = self.slots.most;
                    batches.push(Batch {
                        chains: vec![chain],
                        of: chains,
                    });
                }
            }
            room -= rows;
        }
        batches
    }

    fn run(
        &mut self,
        gpu: &mut Gpu<R>,
        head: &Matrix,
        scratch: &Scratch,
        hidden: &[f32],
        batch: &Batch<'_>,
    ) -> Result<Vec<Vec<TokenId>>, KernelError> {
        let (steps, way) = (batch.steps(), batch.way());
        let total: usize = steps.iter().sum();
        if total == 0 {
            return Ok(vec![Vec::new(); batch.chains.len()]);
        }
        gpu.write(&self.sent(hidden, batch, &steps), self.slots.sent)?;
        let stream = Arc::clone(&gpu.stream);
        if self.graphs.take(total) && gpu.clock.is_none() {
            let lengths = batch.lengths();
            let shape = Shape {
                tokens: total,
                rows: lengths.len(),
                way,
                taps: vec![(0..0, lengths)],
            };
            let mut graphs = std::mem::replace(&mut self.graphs, Graphs::new(0));
            let work = || {
                self.launch(gpu, head, scratch, &steps, way)
                    .map(|()| head.bytes)
            };
            let replayed = graphs.run(shape, &stream, work);
            self.graphs = graphs;
            gpu.read += replayed?;
        } else {
            self.launch(gpu, head, scratch, &steps, way)?;
        }
        let bytes = gpu.read(self.slots.drawn.rows(0, total, 4))?;
        let words = bytes.as_chunks::<4>().0.iter();
        let drawn: Vec<u32> = words.map(|w| u32::from_le_bytes(*w)).collect();
        Ok(sorted(&drawn, &steps, batch.chains.len()))
    }

    /// Rows, plans and seeds, in the order of steps.
    fn sent(&self, hidden: &[f32], batch: &Batch<'_>, steps: &[usize]) -> Vec<u8> {
        let d = self.slots.hidden.len as usize / 4 / self.slots.most;
        let mut bytes = vec![0; self.slots.sent.len as usize];
        let mut put = |slot: Slot, at: usize, value: &[u8]| {
            let at = (slot.start - self.slots.sent.start) as usize + at;
            bytes[at..at + value.len()].copy_from_slice(value);
        };
        for (i, (at, _)) in batch.chains.iter().enumerate() {
            put(self.slots.seeds, 4 * i, &batch.of[*at].seed.to_le_bytes());
        }
        let mut row = 0;
        for (step, n) in steps.iter().enumerate() {
            for (chain, (_, first)) in batch.chains[..*n].iter().enumerate() {
                let values = &hidden[(first + step) * d..][..d];
                put(self.slots.hidden, 4 * d * row, bytemuck::cast_slice(values));
                let plan = batch.plan(chain, step).bytes();
                put(self.slots.plans, PLAN_BYTES * row, &plan);
                row += 1;
            }
        }
        bytes
    }

    /// The launches: all rows through the output matrix, then step by step. What the bias reads is not counted: it is
    /// not the target's.
    fn launch(
        &self,
        gpu: &mut Gpu<R>,
        head: &Matrix,
        scratch: &Scratch,
        steps: &[usize],
        way: Way,
    ) -> Result<(), KernelError> {
        let (s, v) = (&self.slots, self.first.rows);
        let total = steps.iter().sum();
        let mut all = scratch.hidden;
        all.x = s.hidden;
        gpu.product(head, &mut Input::new(all, total), scratch.out)?;
        let counted = gpu.read;
        let mut row = 0;
        let mut before = s.seeds;
        for n in steps.iter().copied() {
            let mut x = Input::new(s.rank, n);
            let call = token::embed(self.first.format, v, self.first.k, n, 1)?;
            gpu.put(&call, &[self.first.slot, before.rows(0, n, 4), x.rows.x])?;
            gpu.product(&self.second, &mut x, s.bias)?;
            let drawn = s.drawn.rows(row, n, 4);
            let given = [
                s.bias.rows(0, n, 4 * v),
                scratch.out.rows(row, n, 4 * v),
                s.plans.rows(row, n, PLAN_BYTES),
            ];
            select(gpu, scratch, given, n, v, way, drawn)?;
            before = drawn;
            row += n;
        }
        gpu.read = counted;
        Ok(())
    }
}

/// Draws `n` rows of bias and logits by their plans.
fn select<R: Driver>(
    gpu: &mut Gpu<R>,
    scratch: &Scratch,
    [bias, logits, plans]: [Slot; 3],
    n: usize,
    v: usize,
    way: Way,
    drawn: Slot,
) -> Result<(), KernelError> {
    if way == Way::Filtered {
        let own = scratch.filtered.rows(0, n, 4 * v);
        let call = token::filtered(n, v, true)?;
        return gpu.put(&call, &[bias, logits, plans, own, drawn]);
    }
    let best = scratch.best.rows(0, n, 8 * PARTS);
    gpu.put(&token::part(n, v, true)?, &[bias, logits, plans, best])?;
    gpu.put(&token::merge(n)?, &[best, drawn])
}

/// Tokens of steps as those of chains; a chain ends where nothing was drawn.
fn sorted(drawn: &[u32], steps: &[usize], chains: usize) -> Vec<Vec<TokenId>> {
    let mut tokens = vec![Vec::new(); chains];
    let mut row = 0;
    for (step, n) in steps.iter().enumerate() {
        for (chain, token) in drawn[row..row + n].iter().enumerate() {
            let all: &mut Vec<TokenId> = &mut tokens[chain];
            if all.len() == step && *token != NOTHING {
                all.push(*token);
            }
        }
        row += n;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_steps_are_those_of_chains() {
        let got = sorted(&[1, 2, 3, 4, 5, 6], &[3, 2, 1], 3);
        assert_eq!(got, [vec![1, 4, 6], vec![2, 5], vec![3]]);
        // What follows a row without a number is drawn from nothing.
        let got = sorted(&[1, NOTHING, 3, 4], &[2, 2], 2);
        assert_eq!(got, [vec![1, 3], vec![]]);
    }
}
