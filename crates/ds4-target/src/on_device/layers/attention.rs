//! Attention of a layer: projections, rows into the state, scores, key lists, attention, projections back.

use device::driver::Driver;
use ds4_kernels::KernelError;
use ds4_kernels::launch::attend::{self, Output};
use ds4_kernels::launch::compress::{self, Kind};
use ds4_kernels::launch::index::{self, COMPRESSED, Lists, Scores};
use ds4_kernels::launch::rows::{self, Row};
use ds4_kernels::launch::{dense, norm};
use ds4_kernels::launch::{grouped, tiled::Work};

use super::Pass;
use crate::meta::Ratio;
use crate::on_device::arena::Slot;
use crate::on_device::products::{Input, Units};
use crate::on_device::scratch::list_stride;
use crate::on_device::state::Comp;
use crate::on_device::weights::{Attention, Compressor, Indexer, Layer};

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
        self.heads(layer, &mut low)?;
        self.key_rows(at, layer)?;
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
        self.gpu.product(&w.q_a, h, s.qa)?;
        self.gpu.product(&w.kv, h, s.kv)?;
        if let Some(c) = &layer.compressor {
            self.gpu.product(&c.key, h, s.comp[0])?;
            self.gpu.product(&c.gate, h, s.comp[1])?;
        }
        if let Some(i) = &layer.indexer {
            self.gpu.product(&i.compressor.key, h, s.index[0])?;
            self.gpu.product(&i.compressor.gate, h, s.index[1])?;
            self.gpu.product(&i.proj, h, s.iw)?;
        }
        let blocks = w.q_b.tiles.is_some();
        let call = norm::rms(n, m.q_lora, true, blocks, m.rms_eps)?;
        let qr = Input::made(s.qr, n, blocks);
        let mut slots = vec![s.qa.rows(0, n, 4 * m.q_lora), w.q_a_norm, qr.rows.x];
        slots.extend(qr.block_slots());
        self.gpu.put(&call, &slots)?;
        Ok(qr)
    }

    /// Query heads, turned; the indexer's too.
    fn heads(&mut self, layer: &Layer, qr: &mut Input) -> Result<(), KernelError> {
        let (s, m, n) = (self.scratch, self.meta, self.n());
        self.gpu.product(&layer.attn.q_b, qr, s.q)?;
        let angles = self.angles(layer.ratio);
        let q = s.q.rows(0, n, 4 * m.n_head * m.head_dim);
        let call = rows::queries(&self.key_row(), n, m.n_head, Some(m.rms_eps))?;
        self.gpu.put(&call, &[q, angles])?;
        match &layer.indexer {
            Some(i) => self.index_heads(i, qr, angles),
            None => Ok(()),
        }
    }

    fn index_heads(
        &mut self,
        w: &Indexer,
        qr: &mut Input,
        angles: Slot,
    ) -> Result<(), KernelError> {
        let (s, m, n) = (self.scratch, self.meta, self.n());
        self.gpu.product(&w.q_b, qr, s.iq)?;
        let wide = m.index_heads * m.index_dim;
        let q = s.iq.rows(0, n, 4 * wide);
        let row = Row {
            dim: m.index_dim,
            n_rot: m.n_rot,
        };
        if !self.kv_sim {
            let call = rows::queries(&row, n, m.index_heads, None)?;
            return self.gpu.put(&call, &[q, angles]);
        }
        let call = rows::index_queries(&row, n, m.index_heads)?;
        let (twice, scale) = (s.iq_twice.rows(0, n, wide), s.iq_scale.rows(0, n, wide / 8));
        self.gpu.put(&call, &[q, angles, twice, scale])
    }

    /// The tokens' own key rows, straight into the rings: they hold a span beside the window.
    fn key_rows(&mut self, at: usize, layer: &Layer) -> Result<(), KernelError> {
        let (s, m, n) = (self.scratch, self.meta, self.n());
        let raw = self.state.layers[at].raw;
        let all = self.state.sequences * self.state.ring;
        let call = rows::keys(&self.key_row(), n, all, self.kv_sim, m.rms_eps)?;
        let kv = s.kv.rows(0, n, 4 * m.head_dim);
        let angles = self.angles(layer.ratio);
        let slots = [kv, layer.attn.kv_norm, angles, self.inputs.slots, raw];
        self.gpu.put(&call, &slots)
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
        let call = compress::keep(&pass)?;
        self.gpu.put(&call, &[key, gate, w.ape, spots, keys, gates])
    }

    /// Scores, lists and attention of some positions.
    fn attend(&mut self, at: usize, layer: &Layer, slice: &Slice) -> Result<(), KernelError> {
        let s = self.scratch;
        let comp = self.state.layers[at].index.as_ref();
        let score_stride = (self.bound / 4).max(1);
        if let Some(index) = comp.filter(|_| self.bound / 4 > self.meta.index_top_k) {
            self.scores(index, slice, score_stride)?;
        }
        let stride = list_stride(self.meta, layer.ratio, self.bound);
        let (keys, counts) = (
            s.keys.rows(0, slice.n, 4 * stride),
            s.counts.rows(0, slice.n, 4),
        );
        let lists = Lists {
            n: slice.n,
            last: self.bound - 1,
            window: self.meta.window,
            mask: (self.state.ring - 1) as u32,
            ratio: layer.ratio.tokens().unwrap_or(0) as usize,
            top_k: comp.map(|_| self.meta.index_top_k),
            score_stride,
            stride,
            flag: if self.kv_sim { COMPRESSED } else { 0 },
        };
        let places = self
            .inputs
            .kind(layer.ratio)?
            .places
            .rows(slice.first, slice.n, 16);
        let scores = s.scores.rows(0, slice.n, 4 * score_stride);
        let mut slots = vec![places];
        slots.extend(comp.map(|_| scores));
        slots.extend([keys, counts]);
        self.gpu.put(&index::lists(&lists)?, &slots)?;
        self.attend_lists(at, layer, slice, stride)
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
        let partial = slice.n * shape.chunks() * m.n_head;
        let (peaks, sums) = (s.peaks.rows(0, partial, 4), s.sums.rows(0, partial, 4));
        let values = s.values.rows(0, partial, 4 * m.head_dim);
        let (keys, counts) = (
            s.keys.rows(0, slice.n, 4 * stride),
            s.counts.rows(0, slice.n, 4),
        );
        let wide = m.n_head * m.head_dim;
        let q = s.q.rows(slice.first, slice.n, 4 * wide);
        let scale = (1.0 / (m.head_dim as f64).sqrt()) as f32;
        if self.kv_sim {
            let call = attend::chunks_packed(&shape, m.n_rot, sequences * max_rows, scale)?;
            let comp = state.comp.as_ref().map_or(state.raw.part(0, 0), |c| c.rows);
            let slots = [q, state.raw, comp, keys, counts, peaks, sums, values];
            self.gpu.put(&call, &slots)?;
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
        let mut slots = vec![peaks, sums, values, layer.attn.sinks, counts, angles];
        slots.extend(if blocks { vec![o.q, o.meta] } else { vec![o.x] });
        self.gpu.put(&attend::merge(&shape, &output)?, &slots)
    }

    /// Each group of heads through its own matrix, then back to the width of a stream.
    fn back(&mut self, w: &Attention) -> Result<(), KernelError> {
        let (s, m, n) = (self.scratch, self.meta, self.n());
        let group = m.n_head * m.head_dim / m.o_groups;
        let slots = n * m.o_groups;
        // Every group has a slot of every token: all matrices are read.
        self.gpu.read += w.o_a.slot.len;
        let low = s.low.part(0, n);
        let blocks = match &w.o_a.tiles {
            Some(stack) => {
                let mut o = Input::blocks(s.o.folded(group), slots);
                let wide = n.min(grouped::wide(slots, m.o_groups));
                let units = Units {
                    work: Work {
                        slots,
                        per: 1,
                        wide,
                        ordered: true,
                        // One unit a group, in their order.
                        fixed: if wide == n { m.o_groups } else { 0 },
                    },
                    units: self.inputs.group_units,
                    order: self.inputs.group_order,
                };
                let blocks = w.o_b.tiles.is_some();
                self.gpu
                    .stacked_rows(&w.o_a, stack, &mut o, &units, &low, blocks)?
            }
            None => {
                self.back_floats(w, group)?;
                false
            }
        };
        let mut low = Input::made(s.low, n, blocks);
        self.gpu.product(&w.o_b, &mut low, s.block)
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
