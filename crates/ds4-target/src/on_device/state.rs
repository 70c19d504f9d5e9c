//! The state of all sequences on a device: the same rows as `state::rows`, addressed by position, all sequences of
//! a layer in one store so that one launch serves a pass of many.
//!
//! Raw rings hold the longest span, not only the widest verify: a pass writes its rows before it reads them.
//! A sequence is saved, loaded and digested as a host [`SeqState`]: one layout of bytes (ADR 0002).

use std::ops::Range;

use device::driver::Driver;
use ds4_kernels::KernelError;

use super::arena::{Arena, Layout, Slot};
use super::gpu::Gpu;
use crate::meta::Ds4Meta;
use crate::state::{CompShape, CompState, LayerShape, RowKind, SeqState, StateShape};

/// A compressor's rows and open rings, a part a sequence each.
#[derive(Clone, Debug)]
pub(crate) struct Comp {
    pub(crate) shape: CompShape,
    pub(crate) kind: RowKind,
    /// `[sequences, max_rows, row bytes]`.
    pub(crate) rows: Slot,
    /// `[sequences, ring, overlap * width]` f32.
    pub(crate) keys: Slot,
    pub(crate) gates: Slot,
}

/// One layer's state.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) kind: RowKind,
    /// `[sequences, ring, row bytes]`.
    pub(crate) raw: Slot,
    /// f32 rows only: the raw rows and the compressed ones behind them, as one store.
    pub(crate) both: Slot,
    pub(crate) comp: Option<Comp>,
    pub(crate) index: Option<Comp>,
}

/// Where all of it stands.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) layout: Layout,
    pub(crate) sequences: usize,
    /// Number of the first layer.
    pub(crate) first: usize,
    /// Rows of a raw ring: a power of two, or of a store whose owner places the rows.
    pub(crate) ring: usize,
    pub(crate) layers: Vec<Layer>,
}

impl State {
    /// Places for `sequences` sequences with spans of up to `span_max` tokens, in some layers.
    ///
    /// # Errors
    /// `Shape` if the sizes overflow.
    pub(crate) fn new(
        shape: &StateShape,
        layers: &Range<usize>,
        sequences: usize,
        span_max: usize,
    ) -> Result<Self, KernelError> {
        // Of all layers: a ring is as long whatever else stands beside it.
        let window = shape.layers.iter().map(|l| l.window).max().unwrap_or(1);
        let mut state = Self {
            layout: Layout::new(Arena::State),
            sequences,
            first: layers.start,
            ring: (window - 1 + span_max).next_power_of_two(),
            layers: Vec::new(),
        };
        for l in &shape.layers[layers.clone()] {
            let layer = state.layer(l, shape.kv_sim)?;
            state.layers.push(layer);
        }
        Ok(state)
    }

    /// One store of `rows` f32 rows a layer, whose owner says which row stands where.
    ///
    /// # Errors
    /// `Shape` if the sizes overflow.
    pub(crate) fn stores(m: &Ds4Meta, rows: usize) -> Result<Self, KernelError> {
        let mut layout = Layout::new(Arena::State);
        let kind = RowKind::kv(false, m.head_dim, m.n_rot);
        let bytes = kind.row_bytes();
        let layer = |layout: &mut Layout| {
            let raw = layout.take(&[rows, bytes])?;
            Ok(Layer {
                kind,
                raw,
                both: raw,
                comp: None,
                index: None,
            })
        };
        let layers: Result<_, KernelError> = (0..m.n_layer).map(|_| layer(&mut layout)).collect();
        Ok(Self {
            layers: layers?,
            layout,
            sequences: 1,
            first: 0,
            ring: rows,
        })
    }

    fn layer(&mut self, l: &LayerShape, kv_sim: bool) -> Result<Layer, KernelError> {
        let kind = RowKind::kv(kv_sim, l.head_dim, l.n_rot);
        let (n, bytes) = (self.sequences, kind.row_bytes());
        let max_rows = l.comp.as_ref().map_or(0, |c| c.max_rows);
        let both = self.layout.take(&[n, self.ring + max_rows, bytes])?;
        let raw = both.rows(0, n * self.ring, bytes);
        let compressed = both.rows(n * self.ring, n * max_rows, bytes);
        let comp = match &l.comp {
            Some(c) => Some(self.comp(c, kind, Some(compressed))?),
            None => None,
        };
        let index = match &l.index {
            Some(c) => Some(self.comp(c, RowKind::index(kv_sim, c.width), None)?),
            None => None,
        };
        Ok(Layer {
            kind,
            raw,
            both,
            comp,
            index,
        })
    }

    fn comp(
        &mut self,
        c: &CompShape,
        kind: RowKind,
        rows: Option<Slot>,
    ) -> Result<Comp, KernelError> {
        let n = self.sequences;
        let rows = match rows {
            Some(rows) => rows,
            None => self.layout.take(&[n, c.max_rows, kind.row_bytes()])?,
        };
        let open = [n, c.ring, c.overlap * c.width, 4];
        Ok(Comp {
            shape: c.clone(),
            kind,
            rows,
            keys: self.layout.take(&open)?,
            gates: self.layout.take(&open)?,
        })
    }

    /// All slots of one sequence, whole.
    fn parts(&self, at: usize) -> Vec<Slot> {
        let mut parts = Vec::new();
        for l in &self.layers {
            let bytes = l.kind.row_bytes();
            parts.push(l.raw.rows(at * self.ring, self.ring, bytes));
            for c in [&l.comp, &l.index].into_iter().flatten() {
                parts.push(c.store(at, c.shape.max_rows));
                parts.push(c.open(c.keys, at));
                parts.push(c.open(c.gates, at));
            }
        }
        parts
    }

    /// Copies sequence `from`, which stands at `pos`, over sequence `to`.
    pub(crate) fn fork<R: Driver>(
        &self,
        gpu: &Gpu<R>,
        from: usize,
        to: usize,
        pos: usize,
    ) -> Result<(), KernelError> {
        for l in &self.layers {
            let bytes = l.kind.row_bytes();
            let raw = |at: usize| l.raw.rows(at * self.ring, self.ring, bytes);
            gpu.copy(raw(from), raw(to))?;
            for c in [&l.comp, &l.index].into_iter().flatten() {
                let rows = pos / c.shape.ratio;
                gpu.copy(c.store(from, rows), c.store(to, rows))?;
                for open in [c.keys, c.gates] {
                    gpu.copy(c.open(open, from), c.open(open, to))?;
                }
            }
        }
        Ok(())
    }

    /// Fills all rows of a sequence with a byte.
    pub(crate) fn fill<R: Driver>(
        &self,
        gpu: &Gpu<R>,
        at: usize,
        byte: u8,
    ) -> Result<(), KernelError> {
        let parts = self.parts(at);
        parts.iter().try_for_each(|p| gpu.fill_slot(*p, byte))
    }

    /// The live rows of sequence `at` in these layers into `to`, which has all layers and stands at the sequence's
    /// position.
    pub(crate) fn pull<R: Driver>(
        &self,
        gpu: &Gpu<R>,
        at: usize,
        to: &mut SeqState,
    ) -> Result<(), KernelError> {
        let pos = to.marks.pos as usize;
        for (l, host) in self.layers.iter().zip(&mut to.layers[self.first..]) {
            let bytes = l.kind.row_bytes();
            let raw = gpu.read(l.raw.rows(at * self.ring, self.ring, bytes))?;
            for x in pos.saturating_sub(host.shape.window - 1)..pos {
                let row = &raw[(x & (self.ring - 1)) * bytes..][..bytes];
                let slot = host.raw_slot(x);
                host.raw.set_bytes(slot, row);
            }
            for (c, host) in pairs(l, &mut host.comp, &mut host.index) {
                c.pull(gpu, at, pos, host)?;
            }
        }
        Ok(())
    }

    /// The live rows of a host state into sequence `at`.
    pub(crate) fn push<R: Driver>(
        &self,
        gpu: &Gpu<R>,
        at: usize,
        from: &mut SeqState,
    ) -> Result<(), KernelError> {
        let pos = from.marks.pos as usize;
        for (l, host) in self.layers.iter().zip(&mut from.layers[self.first..]) {
            let bytes = l.kind.row_bytes();
            let mut row = Vec::new();
            for x in pos.saturating_sub(host.shape.window - 1)..pos {
                row.clear();
                host.raw.append_bytes(host.raw_slot(x), &mut row);
                let place = at * self.ring + (x & (self.ring - 1));
                gpu.write(&row, l.raw.rows(place, 1, bytes))?;
            }
            for (c, host) in pairs(l, &mut host.comp, &mut host.index) {
                c.push(gpu, at, pos, host)?;
            }
        }
        Ok(())
    }
}

/// The compressors of a layer on the device and on the host.
fn pairs<'a>(
    l: &'a Layer,
    comp: &'a mut Option<CompState>,
    index: &'a mut Option<CompState>,
) -> impl Iterator<Item = (&'a Comp, &'a mut CompState)> {
    let both = l.comp.iter().zip(comp.iter_mut());
    both.chain(l.index.iter().zip(index.iter_mut()))
}

impl Comp {
    /// The first `rows` rows of a sequence.
    fn store(&self, at: usize, rows: usize) -> Slot {
        let bytes = self.kind.row_bytes();
        self.rows.rows(at * self.shape.max_rows, rows, bytes)
    }

    /// Values of an open row.
    pub(crate) fn wide(&self) -> usize {
        self.shape.overlap * self.shape.width
    }

    fn open(&self, slot: Slot, at: usize) -> Slot {
        slot.rows(at * self.shape.ring, self.shape.ring, 4 * self.wide())
    }

    fn pull<R: Driver>(
        &self,
        gpu: &Gpu<R>,
        at: usize,
        pos: usize,
        to: &mut CompState,
    ) -> Result<(), KernelError> {
        let rows = gpu.read(self.store(at, pos / self.shape.ratio))?;
        for (w, row) in rows.chunks_exact(self.kind.row_bytes()).enumerate() {
            to.rows.set_bytes(w, row);
        }
        for (slot, host) in [(self.keys, &mut to.keys), (self.gates, &mut to.gates)] {
            let (words, bytes) = (&mut host[..], gpu.read(self.open(slot, at))?);
            for (v, word) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *v = f32::from_le_bytes(*word);
            }
        }
        Ok(())
    }

    fn push<R: Driver>(
        &self,
        gpu: &Gpu<R>,
        at: usize,
        pos: usize,
        from: &CompState,
    ) -> Result<(), KernelError> {
        let rows = pos / self.shape.ratio;
        let mut bytes = Vec::with_capacity(rows * self.kind.row_bytes());
        (0..rows).for_each(|w| from.rows.append_bytes(w, &mut bytes));
        gpu.write(&bytes, self.store(at, rows))?;
        for (slot, host) in [(self.keys, &from.keys), (self.gates, &from.gates)] {
            let bytes: Vec<u8> = host.iter().flat_map(|v| v.to_le_bytes()).collect();
            gpu.write(&bytes, self.open(slot, at))?;
        }
        Ok(())
    }
}
