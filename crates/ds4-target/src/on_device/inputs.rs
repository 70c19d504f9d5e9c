//! What a pass tells the device: tokens, places of rows, angles. One block of bytes, sent once; launches read
//! every position from it, so that their shapes follow from the number of tokens alone.
//!
//! Must not know: layers, kernels.

use ds4_kernels::KernelError;
use ds4_kernels::launch::compress::{SPOT_BYTES, Spot};
use ds4_kernels::launch::grouped;
use ds4_kernels::launch::head::PLAN_BYTES;
use ds4_kernels::launch::index::Place;
use ds4_kernels::launch::route::UNIT_BYTES;
use engine_core::Pos;
use engine_core::math::RopeTable;
use engine_core::mutant::mutant;

use super::arena::Slot;
use super::draws::Draws;
use super::state::State;
use crate::batch::{Batch, Piece};
use crate::layers::Ropes;
use crate::meta::{Ds4Meta, Ratio};

/// Bytes of a [`Place`].
const PLACE_BYTES: usize = 16;

/// Consecutive spans of a pass, as many as the scratch holds.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Which spans.
    pub(crate) pieces: std::ops::Range<usize>,
    /// Which tokens of the flattened list.
    pub(crate) tokens: std::ops::Range<usize>,
    /// Which of the wanted rows.
    pub(crate) out: std::ops::Range<usize>,
}

impl Part {
    /// Cuts a batch into parts of at most `most` tokens; a span is never cut.
    pub(crate) fn of(batch: &Batch, most: usize) -> Vec<Self> {
        let mut parts: Vec<Self> = Vec::new();
        for (i, p) in batch.pieces.iter().enumerate() {
            match parts.last_mut() {
                Some(last) if last.tokens.len() + p.len <= most => {
                    last.pieces.end = i + 1;
                    last.tokens.end = p.at + p.len;
                }
                _ => parts.push(Self {
                    pieces: i..i + 1,
                    tokens: p.at..p.at + p.len,
                    out: 0..0,
                }),
            }
        }
        for part in &mut parts {
            let before = |end: usize| batch.out.partition_point(|t| *t < end);
            part.out = before(part.tokens.start)..before(part.tokens.end);
        }
        parts
    }
}

/// Where a kind of layer finds its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) ratio: Ratio,
    /// `[n]` of 16 bytes: `Place`.
    pub(crate) places: Slot,
    /// `[n, n_rot / 2, 2]`: angles of the first position of the window that a token ends.
    pub(crate) window_angles: Slot,
}

/// Slots of the block, for a number of tokens.
#[derive(Clone, Debug)]
pub(crate) struct Inputs {
    pub(crate) n: usize,
    /// All of it.
    pub(crate) block: Slot,
    /// `[n]` u32 each: ids; where the raw row goes; compressed rows seen by the indexer, and where they begin.
    pub(crate) tokens: Slot,
    pub(crate) slots: Slot,
    pub(crate) visible: Slot,
    pub(crate) firsts: Slot,
    /// `[n]` of 16 bytes: `Spot`.
    pub(crate) spots: Slot,
    /// `[n, n_rot / 2, 2]` f32 of the tokens' positions, of window layers and of the others.
    pub(crate) angles: [Slot; 2],
    pub(crate) kinds: Vec<Kind>,
    /// Units `[n * groups]` of 16 bytes and order `[n * groups]` u32 of the grouped output projection.
    pub(crate) group_units: Slot,
    pub(crate) group_order: Slot,
    /// `[n]` u32: tokens that give rows, the first of them valid; `[n]` of 32 bytes: how each is drawn.
    pub(crate) out: Slot,
    pub(crate) plans: Slot,
}

/// The kinds of layers of a model, each once.
pub(crate) fn kinds(m: &Ds4Meta) -> Vec<Ratio> {
    let mut kinds = Vec::new();
    for ratio in &m.ratios {
        if !kinds.contains(ratio) {
            kinds.push(*ratio);
        }
    }
    kinds
}

impl Inputs {
    /// The slots for `n` tokens, from the start of `room`.
    pub(crate) fn new(room: Slot, m: &Ds4Meta, n: usize) -> Self {
        let mut at = 0u64;
        let mut take = |bytes: usize| {
            let slot = room.part(at, bytes as u64);
            at += (bytes as u64).next_multiple_of(64);
            slot
        };
        let angles = n * m.n_rot / 2 * 8;
        let [tokens, slots, visible, firsts, out] = [(); 5].map(|()| take(n * 4));
        let (spots, plans) = (take(n * SPOT_BYTES), take(n * PLAN_BYTES));
        let both = [take(angles), take(angles)];
        let group_units = take(n * m.o_groups * UNIT_BYTES);
        let group_order = take(n * m.o_groups * 4);
        let kinds = kinds(m).into_iter().map(|ratio| Kind {
            ratio,
            places: take(n * PLACE_BYTES),
            window_angles: take(if ratio == Ratio::None { 0 } else { angles }),
        });
        let kinds = kinds.collect();
        Self {
            n,
            tokens,
            slots,
            visible,
            firsts,
            spots,
            angles: both,
            kinds,
            group_units,
            group_order,
            out,
            plans,
            block: room.part(0, at),
        }
    }

    /// The kind of a layer.
    pub(crate) fn kind(&self, ratio: Ratio) -> Result<&Kind, KernelError> {
        let kind = self.kinds.iter().find(|k| k.ratio == ratio);
        kind.ok_or_else(|| no_kind(ratio))
    }
}

/// A kind that no layer of the model has.
pub(crate) fn no_kind(ratio: Ratio) -> KernelError {
    KernelError::Runtime {
        runtime: "device",
        message: format!("no layer of kind {ratio:?}"),
    }
}

/// What a block is made from.
pub(crate) struct Sources<'a> {
    pub(crate) meta: &'a Ds4Meta,
    pub(crate) ropes: &'a Ropes,
    pub(crate) state: &'a State,
    pub(crate) batch: &'a Batch,
    pub(crate) draws: &'a Draws,
}

/// Fills a block.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    inputs: &'a Inputs,
    bytes: &'a mut [u8],
}

impl<'a> Writer<'a> {
    /// Writes a part of a batch into `bytes`, the block of `inputs`.
    pub(crate) fn fill(
        inputs: &'a Inputs,
        bytes: &'a mut Vec<u8>,
        from: &Sources<'_>,
        part: &Part,
    ) {
        bytes.clear();
        bytes.resize(inputs.block.len as usize, 0);
        let (batch, ropes, state) = (from.batch, from.ropes, from.state);
        let (tokens, start) = (part.tokens.clone(), part.tokens.start);
        let mut w = Self { inputs, bytes };
        w.words(inputs.tokens, batch.tokens[tokens.clone()].iter().copied());
        let out = batch.out[part.out.clone()].iter();
        w.words(inputs.out, out.map(|t| (t - start) as u32));
        for (i, row) in part.out.clone().enumerate() {
            w.put(inputs.plans, PLAN_BYTES * i, &from.draws.bytes(row));
        }
        let pos = &batch.pos[tokens];
        for (slot, table) in inputs
            .angles
            .into_iter()
            .zip([&ropes.window, &ropes.compressed])
        {
            w.angles(slot, table, pos.iter().copied());
        }
        let pieces = &batch.pieces[part.pieces.clone()];
        w.places(state, pieces);
        for kind in &inputs.kinds {
            w.kind(kind, state, ropes, pieces);
        }
        w.groups(from.meta.o_groups);
    }

    /// Writes what blocks of window layers read of the inputs: every row's place in a table of input rows (its own
    /// number), the place of its key row and its angles.
    pub(crate) fn fill_rows(
        inputs: &'a Inputs,
        bytes: &'a mut Vec<u8>,
        meta: &Ds4Meta,
        ropes: &Ropes,
        pos: &[Pos],
        places: impl Iterator<Item = u32>,
    ) {
        bytes.clear();
        bytes.resize(inputs.block.len as usize, 0);
        let mut w = Self { inputs, bytes };
        w.words(inputs.tokens, 0..pos.len() as u32);
        w.words(inputs.slots, places);
        w.angles(inputs.angles[0], &ropes.window, pos.iter().copied());
        w.groups(meta.o_groups);
    }

    fn put(&mut self, slot: Slot, at: usize, value: &[u8]) {
        let start = (slot.start - self.inputs.block.start) as usize + at;
        self.bytes[start..start + value.len()].copy_from_slice(value);
    }

    fn words(&mut self, slot: Slot, words: impl Iterator<Item = u32>) {
        for (i, word) in words.enumerate() {
            self.put(slot, 4 * i, &word.to_le_bytes());
        }
    }

    fn angles(&mut self, slot: Slot, table: &RopeTable, pos: impl Iterator<Item = u32>) {
        self.put(slot, 0, bytemuck::cast_slice(&angles(table, pos)));
    }

    /// What is the same for all kinds of layers.
    fn places(&mut self, state: &State, pieces: &[Piece]) {
        let rows = state.layers.iter().filter_map(|l| l.index.as_ref());
        let max_rows = rows.map(|c| c.shape.max_rows).next().unwrap_or(0);
        let ring = state.ring;
        for (i, (piece, pos)) in tokens(pieces).enumerate() {
            let slot = piece.slot * ring + (pos & (ring - 1));
            let seen = ((pos + 1) / SPARSE).min(max_rows);
            let spot = Spot {
                pos: pos as u32,
                first: piece.pos as u32,
                end: (piece.pos + piece.len) as u32,
                sequence: piece.slot as u32,
            };
            self.put(self.inputs.slots, 4 * i, &(slot as u32).to_le_bytes());
            self.put(self.inputs.visible, 4 * i, &(seen as u32).to_le_bytes());
            let first = (piece.slot * max_rows) as u32;
            self.put(self.inputs.firsts, 4 * i, &first.to_le_bytes());
            self.put(self.inputs.spots, SPOT_BYTES * i, &spot.bytes());
        }
    }

    fn kind(&mut self, kind: &Kind, state: &State, ropes: &Ropes, pieces: &[Piece]) {
        let comp = state
            .layers
            .iter()
            .filter_map(|l| Some((l, l.comp.as_ref()?)));
        let mut comp = comp.filter(|(_, c)| kind.ratio.tokens() == Some(c.shape.ratio as u32));
        let (max_rows, before) = match comp.next() {
            // f32 rows of both kinds stand in one store, the raw ones first.
            Some((_, c)) if c.kind.is_f32() => (c.shape.max_rows, state.sequences * state.ring),
            Some((_, c)) => (c.shape.max_rows, 0),
            None => (0, 0),
        };
        for (i, (piece, pos)) in tokens(pieces).enumerate() {
            let slot = if mutant(330) { 0 } else { piece.slot };
            let place = Place {
                pos: pos as u32,
                raw_base: (piece.slot * state.ring) as u32,
                raw_from: 0,
                comp_base: (before + slot * max_rows) as u32,
            };
            self.put(kind.places, PLACE_BYTES * i, &place.bytes());
        }
        if let Some(ratio) = kind.ratio.tokens() {
            let first = tokens(pieces).map(|(_, pos)| pos as u32 / ratio * ratio);
            self.angles(kind.window_angles, ropes.of(kind.ratio), first);
        }
    }

    /// The units of a product that gives each group of heads its own matrix: slot `token * groups + group`.
    fn groups(&mut self, groups: usize) {
        let n = self.inputs.n;
        let wide = n.min(grouped::wide(n * groups, groups));
        let mut unit = 0;
        for g in 0..groups {
            for t in 0..n {
                let slot = (t * groups + g) as u32;
                self.put(
                    self.inputs.group_order,
                    4 * (g * n + t),
                    &slot.to_le_bytes(),
                );
            }
            for first in (0..n).step_by(wide) {
                let words = [g, g * n + first, wide.min(n - first), 0];
                for (j, word) in words.into_iter().enumerate() {
                    let at = UNIT_BYTES * unit + 4 * j;
                    self.put(self.inputs.group_units, at, &(word as u32).to_le_bytes());
                }
                unit += 1;
            }
        }
    }
}

/// `[n, n_rot / 2, 2]`: (cos, sin) of positions.
pub(crate) fn angles(table: &RopeTable, pos: impl Iterator<Item = Pos>) -> Vec<f32> {
    let half = table.inv_freq.len();
    let (mut cos, mut sin) = (vec![0f32; half], vec![0f32; half]);
    let mut all = Vec::new();
    for pos in pos {
        table.angles(pos, &mut cos, &mut sin);
        let pairs = cos.iter().zip(&sin);
        all.extend(pairs.flat_map(|(c, s)| [*c, *s]));
    }
    all
}

/// Tokens of a row that the indexer selects.
const SPARSE: usize = 4;

/// Every token's span and position.
fn tokens(pieces: &[Piece]) -> impl Iterator<Item = (&Piece, usize)> {
    let of = |p: &Piece| p.pos..p.pos + p.len;
    pieces
        .iter()
        .flat_map(move |p| of(p).map(move |pos| (p, pos)))
}
