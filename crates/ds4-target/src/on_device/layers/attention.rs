//! Attention of a layer: projections, rows into the state, scores, key lists, attention, projections back.

use device::driver::Driver;
use ds4_kernels::KernelError;
use ds4_kernels::launch::attend::{self, Output};
use ds4_kernels::launch::compress::{self, Kind};
use ds4_kernels::launch::index::{self, COMPRESSED, Lists, Scores};
use ds4_kernels::launch::rows::{self, Row, Tokens};
use ds4_kernels::launch::{dense, norm};
use ds4_kernels::launch::{grouped, tiled::Work};

use super::{KeysFrom, Pass};
use crate::meta::Ratio;
use crate::on_device::arena::Slot;
use crate::on_device::inputs::no_kind;
use crate::on_device::products::{Input, Units};
use crate::on_device::scratch::list_stride;
use crate::on_device::state::Comp;
use crate::on_device::weights::{Attention, Compressor, Layer};

/// Positions `first..first + n` of a part, and what follows from them.
struct Slice {
    first: usize,
    n: usize,
}

impl<R: Driver> Pass<'_, R> {
    /// The sublayer: `h` normed input; writes `block`.
    pub(super) fn attention(
        &mut self,
        at: usize,
        layer: &Layer,
        h: &mut Input,
    ) -> Result<(), KernelError> {
        let mut low = self.projections(layer, h)?;
        self.heads(at, layer, &mut low)?;
        let state = &self.state.layers[at];
        let s = self.scratch;
        if let (Some(w), Some(comp)) = (&layer.compressor, &state.comp) {
            let kind = if self.kv_sim { Kind::Kv } else { Kind::F32 };
            self.compress(layer.ratio, w, comp, s.comp, kind)?;
        }
        if let (Some(w), Some(comp)) = (&layer.indexer, &state.index) {
            let kind = if self.kv_sim { Kind::Index } else { Kind::F32 };
            self.compress(layer.ratio, &w.compressor, comp, s.index, kind)?;
        }
        let most = s.sizes.positions;
        for first in (0..self.n()).step_by(most) {
            let n = most.min(self.n() - first);
            self.attend(at, layer, &Slice { first, n })?;
        }
        self.back(&layer.attn)
    }

    /// Everything that reads `h`; the normed low-rank query.
    fn projections(&mut self, layer: &Layer, h: &mut Input) -> Result<Input, KernelError> {
        let (s, m, n) = (self.scratch, self.meta, self.n());
        let w = &layer.attn;
        let mut reads = vec![(&w.q_a, s.qa), (&w.kv, s.kv)];
        if let Some(c) = &layer.compressor {
            reads.extend([(&c.key, s.comp[0]), (&c.gate, s.comp[1])]);
        }
        if let Some(i) = &layer.indexer {
            let c = &i.compressor;
            reads.extend([(&c.key, s.index[0]), (&c.gate, s.index[1]), (&i.proj, s.iw)]);
        }
        self.gpu.products(&reads, h)?;
        let blocks = w.q_b.tiles.is_some();
        let call = norm::rms(n, m.q_lora, true, blocks, m.rms_eps)?;
        let qr = Input::made(s.qr, n, blocks);
        let mut slots = vec![s.qa.rows(0, n, 4 * m.q_lora), w.q_a_norm, qr.rows.x];
        slots.extend(qr.block_slots());
        self.gpu.put(&call, &slots)?;
        Ok(qr)
    }

    /// Query heads and the indexer's, turned; the tokens' own key rows, straight into the rings: they hold a span beside
    /// the window.
    fn heads(&mut self, at: usize, layer: &Layer, qr: &mut Input) -> Result<(), KernelError> {
        let (s, m, n) = (self.scratch, self.meta, self.n());
        let mut reads = vec![(&layer.attn.q_b, s.q)];
        reads.extend(layer.indexer.as_ref().map(|i| (&i.q_b, s.iq)));
        self.gpu.products(&reads, qr)?;
        let index = layer.indexer.as_ref().map(|_| (m.index_heads, m.index_dim));
        let tokens = Tokens {
            n,
            heads: m.n_head,
            rows: self.state.sequences * self.state.ring,
            packed: self.kv_sim,
            index: index.filter(|_| self.kv_sim),
        };
        let site = self.take_site();
        let open = site.as_ref().map(|(open, _)| open);
        let call = rows::heads_and_keys_beside(&self.key_row(), &tokens, m.rms_eps, open)?;
        let angles = self.angles(layer.ratio);
        let q = s.q.rows(0, n, 4 * m.n_head * m.head_dim);
        let kv = s.kv.rows(0, n, 4 * m.head_dim);
        let (norm, raw) = (layer.attn.kv_norm, self.state.layers[at].raw);
        let mut slots = vec![q, kv, norm, angles, self.inputs.slots, raw];
        let wide = m.index_heads * m.index_dim;
        let iq = s.iq.rows(0, n, 4 * wide);
        if tokens.index.is_some() {
            let (twice, scale) = (s.iq_twice.rows(0, n, wide), s.iq_scale.rows(0, n, wide / 8));
            slots.extend([iq, twice, scale]);
        }
        slots.extend(site.map(|(_, mix)| mix));
        self.gpu.put(&call, &slots)?;
        match index.filter(|_| !self.kv_sim) {
            Some((heads, dim)) => {
                let n_rot = m.n_rot;
                let call = rows::turned(&Row { dim, n_rot }, n, heads)?;
                self.gpu.put(&call, &[iq, angles])
            }
            None => Ok(()),
        }
    }

    /// Rows whose windows end in the pass, then the open rows that later ones need.
    fn compress(
        &mut self,
        ratio: Ratio,
        w: &Compressor,
        comp: &Comp,
        [key, gate]: [Slot; 2],
        kind: Kind,
    ) -> Result<(), KernelError> {
        let (m, n) = (self.meta, self.n());
        let c = &comp.shape;
        let pass = compress::Pass {
            row: Row {
                dim: c.width,
                n_rot: m.n_rot,
            },
            ratio: c.ratio,
            overlap: c.overlap,
            ring: c.ring,
            tokens: n,
            sequences: self.state.sequences,
            eps: m.rms_eps,
        };
        let row = 4 * comp.wide();
        let (key, gate) = (key.rows(0, n, row), gate.rows(0, n, row));
        let spots = self.inputs.spots;
        let angles = self.inputs.kind(ratio)?.window_angles;
        let call = compress::rows(&pass, kind, c.max_rows)?;
        let (keys, gates) = (comp.keys, comp.gates);
        let slots = [
            key, gate, keys, gates, w.ape, w.norm, angles, spots, comp.rows,
        ];
        self.gpu.put(&call, &slots)?;
        if pass.keeps() {
            return Ok(());
        }
        let call = compress::keep(&pass)?;
        self.gpu.put(&call, &[key, gate, w.ape, spots, keys, gates])
    }

    /// Scores, lists and attention of some positions.
    fn attend(&mut self, at: usize, layer: &Layer, slice: &Slice) -> Result<(), KernelError> {
        let comp = self.state.layers[at].index.as_ref();
        let scored = comp.filter(|_| self.bound / 4 > self.meta.index_top_k);
        let score_stride = (self.bound / 4).max(1);
        if let Some(index) = scored {
            self.scores(index, slice, score_stride)?;
        }
        let stride = list_stride(self.meta, layer.ratio, self.bound);
        // Lists without scores depend on positions alone: the first layer of a kind makes them for the others.
        let shared = scored.is_none() && slice.n == self.n();
        let stands = match &self.lists {
            KeysFrom::Positions(made) => shared && made.contains(&layer.ratio),
            KeysFrom::Caller => true,
        };
        if !stands {
            self.list(at, layer.ratio, slice, [stride, score_stride])?;
        }
        if let (KeysFrom::Positions(made), true, false) = (&mut self.lists, shared, stands) {
            made.push(layer.ratio);
        }
        self.attend_lists(at, layer, slice, stride)
    }

    /// Key lists of some positions of a layer.
    fn list(
        &mut self,
        at: usize,
        ratio: Ratio,
        slice: &Slice,
        [stride, score_stride]: [usize; 2],
    ) -> Result<(), KernelError> {
        let s = self.scratch;
        let comp = self.state.layers[at].index.as_ref();
        let lists = Lists {
            n: slice.n,
            last: self.bound - 1,
            window: self.meta.window,
            mask: (self.state.ring - 1) as u32,
            ratio: ratio.tokens().unwrap_or(0) as usize,
            top_k: comp.map(|_| self.meta.index_top_k),
            score_stride,
            stride,
            flag: if self.kv_sim { COMPRESSED } else { 0 },
        };
        let places = self.inputs.kind(ratio)?.places;
        let mut slots = vec![places.rows(slice.first, slice.n, 16)];
        slots.extend(comp.map(|_| s.scores.rows(0, slice.n, 4 * score_stride)));
        slots.extend(self.list_slots(ratio, slice, stride)?);
        self.gpu.put(&index::lists(&lists)?, &slots)
    }

    /// Where the lists of some positions stand for a kind of layer: keys, lengths.
    fn list_slots(
        &self,
        ratio: Ratio,
        slice: &Slice,
        stride: usize,
    ) -> Result<[Slot; 2], KernelError> {
        let l = self.scratch.lists.iter().find(|l| l.ratio == ratio);
        let l = l.ok_or_else(|| no_kind(ratio))?;
        // A slice's own lists are made over those of the slice before.
        let first = match self.lists {
            KeysFrom::Positions(_) => 0,
            KeysFrom::Caller => slice.first,
        };
        let keys = l.keys.rows(first, slice.n, 4 * stride);
        Ok([keys, l.counts.rows(first, slice.n, 4)])
    }

    fn scores(&mut self, comp: &Comp, slice: &Slice, stride: usize) -> Result<(), KernelError> {
        let (s, m) = (self.scratch, self.meta);
        let (heads, dim) = (m.index_heads, m.index_dim);
        let shape = Scores {
            n: slice.n,
            heads,
            dim,
            rows: self.state.sequences * comp.shape.max_rows,
            stride,
            skip: m.index_top_k,
            factor: (1.0 / ((dim * heads) as f64).sqrt()) as f32,
        };
        let part = |slot: Slot, row: usize| slot.rows(slice.first, slice.n, row);
        let words = |slot: Slot| part(slot, 4);
        let (w, out) = (part(s.iw, 4 * heads), s.scores.rows(0, slice.n, 4 * stride));
        let (seen, firsts) = (words(self.inputs.visible), words(self.inputs.firsts));
        if self.kv_sim {
            let (twice, scale) = (
                part(s.iq_twice, heads * dim),
                part(s.iq_scale, heads * dim / 8),
            );
            let slots = [twice, scale, w, comp.rows, seen, firsts, out];
            return self.gpu.put(&index::packed(&shape)?, &slots);
        }
        let q = part(s.iq, 4 * heads * dim);
        let slots = [q, w, comp.rows, seen, firsts, out];
        self.gpu.put(&index::floats(&shape)?, &slots)
    }

    fn attend_lists(
        &mut self,
        at: usize,
        layer: &Layer,
        slice: &Slice,
        stride: usize,
    ) -> Result<(), KernelError> {
        let (s, m) = (self.scratch, self.meta);
        let state = &self.state.layers[at];
        let (ring, sequences) = (self.state.ring, self.state.sequences);
        let max_rows = state.comp.as_ref().map_or(0, |c| c.shape.max_rows);
        let mut shape = attend::Shape {
            positions: slice.n,
            heads: m.n_head,
            dim: m.head_dim,
            rows: sequences * ring,
            stride,
        };
        let many = self.kv_sim && attend::many(slice.n, m.head_dim, m.n_rot);
        let partial = slice.n * shape.chunks() * m.n_head;
        let (peaks, sums) = (s.peaks.rows(0, partial, 4), s.sums.rows(0, partial, 4));
        let entries = attend::entries(many, m.head_dim);
        let values = s.values.rows(0, partial, 4 * entries);
        let [keys, counts] = self.list_slots(layer.ratio, slice, stride)?;
        let wide = m.n_head * m.head_dim;
        let q = s.q.rows(slice.first, slice.n, 4 * wide);
        let scale = (1.0 / (m.head_dim as f64).sqrt()) as f32;
        let comp = state.comp.as_ref().map_or(state.raw.part(0, 0), |c| c.rows);
        let lists = [state.raw, comp, keys, counts];
        let parts = [peaks, sums, values];
        let compressed = sequences * max_rows;
        if many {
            let call = attend::many_weights(&shape, m.n_rot, compressed, scale)?;
            self.gpu.put(&call, &[&[q], &lists[..], &parts].concat())?;
        } else if self.kv_sim {
            let call = attend::chunks_packed(&shape, m.n_rot, compressed, scale)?;
            self.gpu.put(&call, &[&[q], &lists[..], &parts].concat())?;
        } else {
            shape.rows = sequences * (ring + max_rows);
            let call = attend::chunks(&shape, scale)?;
            let slots = [q, state.both, keys, counts, peaks, sums, values];
            self.gpu.put(&call, &slots)?;
        }
        let blocks = layer.attn.o_a.tiles.is_some();
        let output = Output {
            n_rot: m.n_rot,
            floats: !blocks,
            a8: blocks,
        };
        let angles = self
            .angles(layer.ratio)
            .rows(slice.first, slice.n, m.n_rot / 2 * 8);
        let o = s.o.part(slice.first, slice.n);
        let sinks = layer.attn.sinks;
        let outs = if blocks { vec![o.q, o.meta] } else { vec![o.x] };
        if many {
            let call = attend::many_values(&shape, m.n_rot, compressed, &output)?;
            let given = [&lists[..], &parts, &[sinks, angles], &outs].concat();
            return self.gpu.put(&call, &given);
        }
        let given = [&parts[..], &[sinks, counts, angles], &outs].concat();
        self.gpu.put(&attend::merge(&shape, &output)?, &given)
    }

    /// Each group of heads through its own matrix, then back to the width of a stream.
    fn back(&mut self, w: &Attention) -> Result<(), KernelError> {
        let (s, m, n) = (self.scratch, self.meta, self.n());
        let group = m.n_head * m.head_dim / m.o_groups;
        let slots = n * m.o_groups;
        // Every group has a slot of every token: all matrices are read.
        self.gpu.read += w.o_a.bytes;
        let low = s.low.part(0, n);
        let blocks = match &w.o_a.tiles {
            Some(stack) => {
                let mut o = Input::blocks(s.o.folded(group), slots);
                let blocks = w.o_b.tiles.is_some();
                let gpu = &mut self.gpu;
                match gpu.every_matrix(&w.o_a, stack, &mut o, n, &low, blocks)? {
                    Some(blocks) => blocks,
                    None => {
                        let units = self.group_units(slots);
                        self.gpu
                            .stacked_rows(&w.o_a, stack, &mut o, &units, &low, blocks)?
                    }
                }
            }
            None => {
                self.back_floats(w, group)?;
                false
            }
        };
        let mut low = Input::made(s.low, n, blocks);
        self.gpu.product(&w.o_b, &mut low, s.block)
    }

    /// The units of the groups of heads.
    fn group_units(&self, slots: usize) -> Units {
        let groups = self.meta.o_groups;
        Units {
            work: Work {
                slots,
                per: 1,
                wide: self.n().min(grouped::wide(slots, groups)),
                ordered: true,
            },
            units: self.inputs.group_units,
            order: self.inputs.group_order,
        }
    }

    /// Groups of float matrices one by one: there is no kernel for a stack of them.
    fn back_floats(&mut self, w: &Attention, group: usize) -> Result<(), KernelError> {
        let (s, m) = (self.scratch, self.meta);
        let call = dense::product(w.o_a.format, m.o_lora, group, 1)?;
        let bytes = m.o_lora * group * w.o_a.format.block_bytes();
        for slot in 0..self.n() * m.o_groups {
            let matrix = w.o_a.slot.rows(slot % m.o_groups, 1, bytes);
            let x = s.o.x.rows(slot, 1, 4 * group);
            let y = s.low.x.rows(slot, 1, 4 * m.o_lora);
            self.gpu.put(&call, &[matrix, x, y])?;
        }
        Ok(())
    }

    fn key_row(&self) -> Row {
        Row {
            dim: self.meta.head_dim,
            n_rot: self.meta.n_rot,
        }
    }

    /// Angles of the tokens' own positions.
    fn angles(&self, ratio: Ratio) -> Slot {
        self.inputs.angles[usize::from(ratio != Ratio::None)]
    }
}
