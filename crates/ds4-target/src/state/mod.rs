//! The state of one sequence, addressed by position (spec/ds4-architecture.md 4, design bet 4).
//!
//! Rolling back is lowering `pos`: rings hold enough rows beyond the window that every position a
//! verify may fall back to still finds what it needs, and rows above `pos` are not state.

mod rows;
mod save;

pub use rows::{RowKind, RowStore};
pub use save::{load, save};

use engine_core::Pos;
use engine_core::mutant::mutant;

use crate::meta::{Ds4Meta, Ratio};

/// Sizes that follow from metadata and options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateShape {
    /// Positions a sequence may reach.
    pub n_ctx: usize,
    /// Widest verify.
    pub verify_max: usize,
    /// Whether rows carry the model's roundings and are stored packed.
    pub kv_sim: bool,
    /// Per layer.
    pub layers: Vec<LayerShape>,
}

/// Sizes of one layer's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerShape {
    /// Raw rows held: a power of two, at least window - 1 + verify_max.
    pub raw_rows: usize,
    /// Raw rows a query sees, itself included.
    pub window: usize,
    /// Head dimension.
    pub head_dim: usize,
    /// Rotary part of a row.
    pub n_rot: usize,
    /// Compressed rows, if the layer compresses.
    pub comp: Option<CompShape>,
    /// Indexer rows, on sparse layers.
    pub index: Option<CompShape>,
}

/// Sizes of one compressor's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompShape {
    /// Tokens per row.
    pub ratio: usize,
    /// Channels of a row.
    pub width: usize,
    /// 2 when a row also uses the first halves of the window before.
    pub overlap: usize,
    /// Open (key, gate) rows held: a power of two.
    pub ring: usize,
    /// Rows at the end of the context.
    pub max_rows: usize,
}

impl CompShape {
    fn new(ratio: usize, width: usize, overlap: usize, n_ctx: usize, verify_max: usize) -> Self {
        let ring = (ratio * overlap + verify_max).next_power_of_two();
        Self {
            ratio,
            width,
            overlap,
            ring,
            max_rows: n_ctx / ratio,
        }
    }

    /// First position whose (key, gate) the next row after `pos` positions needs.
    #[must_use]
    pub fn open_from(&self, pos: usize) -> usize {
        (pos / self.ratio * self.ratio).saturating_sub((self.overlap - 1) * self.ratio)
    }
}

impl StateShape {
    /// Sizes for a model.
    #[must_use]
    pub fn new(m: &Ds4Meta, n_ctx: usize, verify_max: usize, kv_sim: bool) -> Self {
        let layer = |ratio: &Ratio| {
            let comp = |width| match ratio {
                Ratio::None => None,
                Ratio::Sparse => Some(CompShape::new(4, width, 2, n_ctx, verify_max)),
                Ratio::Heavy(r) => Some(CompShape::new(*r as usize, width, 1, n_ctx, verify_max)),
            };
            LayerShape {
                raw_rows: (m.window - 1 + verify_max).next_power_of_two(),
                window: m.window,
                head_dim: m.head_dim,
                n_rot: m.n_rot,
                comp: comp(m.head_dim),
                index: if *ratio == Ratio::Sparse {
                    comp(m.index_dim)
                } else {
                    None
                },
            }
        };
        let layers = m.ratios.iter().map(layer).collect();
        Self {
            n_ctx,
            verify_max,
            kv_sim,
            layers,
        }
    }

    /// Bytes of one sequence's state at full context, by part: raw rows, compressed rows, indexer
    /// rows, open compressor rows.
    #[must_use]
    pub fn bytes(&self) -> [u64; 4] {
        let mut sum = [0u64; 4];
        for l in &self.layers {
            let kv = RowKind::kv(self.kv_sim, l.head_dim, l.n_rot).row_bytes() as u64;
            sum[0] += l.raw_rows as u64 * kv;
            for (c, at) in [(&l.comp, 1), (&l.index, 2)] {
                let Some(c) = c else { continue };
                let kind = match at {
                    1 => RowKind::kv(self.kv_sim, l.head_dim, l.n_rot),
                    _ => RowKind::index(self.kv_sim, c.width),
                };
                sum[at] += kind.held(c.max_rows) as u64 * kind.row_bytes() as u64;
                sum[3] += (c.ring * c.overlap * c.width * 2 * 4) as u64;
            }
        }
        sum
    }
}

/// Open rows of a compressor and the rows it has emitted.
#[derive(Clone, Debug)]
pub struct CompState {
    /// Sizes.
    pub shape: CompShape,
    /// `[ring, overlap * width]` f32, slot = position mod ring.
    pub keys: Vec<f32>,
    /// Same shape: gates, already biased.
    pub gates: Vec<f32>,
    /// Emitted rows, row w at index w.
    pub rows: RowStore,
}

impl CompState {
    fn new(shape: &CompShape, kind: RowKind) -> Self {
        let open = shape.ring * shape.overlap * shape.width;
        Self {
            shape: shape.clone(),
            keys: vec![0.0; open],
            gates: vec![0.0; open],
            rows: RowStore::new(kind, shape.max_rows),
        }
    }

    /// Where position `x` stands in `keys` and `gates`.
    #[must_use]
    pub fn slot(&self, x: usize) -> std::ops::Range<usize> {
        let wide = self.shape.overlap * self.shape.width;
        let at = (x & (self.shape.ring - 1)) * wide;
        at..at + wide
    }
}

/// One layer's state.
#[derive(Clone, Debug)]
pub struct LayerState {
    /// Sizes.
    pub shape: LayerShape,
    /// Ring of raw rows, slot = position mod rows.
    pub raw: RowStore,
    /// Attention compressor.
    pub comp: Option<CompState>,
    /// Indexer compressor.
    pub index: Option<CompState>,
}

impl LayerState {
    fn new(shape: &LayerShape, kv_sim: bool) -> Self {
        let kv = RowKind::kv(kv_sim, shape.head_dim, shape.n_rot);
        Self {
            shape: shape.clone(),
            raw: RowStore::new(kv, shape.raw_rows),
            comp: shape.comp.as_ref().map(|c| CompState::new(c, kv)),
            index: shape
                .index
                .as_ref()
                .map(|c| CompState::new(c, RowKind::index(kv_sim, c.width))),
        }
    }

    /// Ring slot of raw position `x`.
    #[must_use]
    pub fn raw_slot(&self, x: usize) -> usize {
        if mutant(9) {
            x % self.shape.window
        } else {
            x & (self.shape.raw_rows - 1)
        }
    }
}

/// Where a sequence stands, wherever its rows are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Committed positions.
    pub pos: Pos,
    /// End of the last submitted span: rows up to here are written.
    pub end: Pos,
    /// Lowest position that may be committed now.
    pub floor: Pos,
}

impl Marks {
    /// A sequence of `pos` positions.
    #[must_use]
    pub const fn at(pos: Pos) -> Self {
        Self {
            pos,
            end: pos,
            floor: pos,
        }
    }

    /// A span was run up to position `end`; of a long one only the last `verify_max` prefixes may be committed.
    pub fn ran(&mut self, end: usize, verify_max: usize) {
        self.end = end as Pos;
        self.floor = self.pos.max(end.saturating_sub(verify_max) as Pos);
    }

    /// Makes positions below `pos` the state, as [`engine_core::Target::commit`] says.
    pub fn commit(&mut self, pos: Pos) {
        let range = self.floor..=self.end;
        debug_assert!(range.contains(&pos), "commit {pos} outside {range:?}");
        let pos = if mutant(38) {
            self.end
        } else {
            pos.clamp(self.floor, self.end)
        };
        *self = Self::at(pos);
    }
}

/// A sequence.
#[derive(Clone, Debug)]
pub struct SeqState {
    /// Where it stands.
    pub marks: Marks,
    /// Per layer.
    pub layers: Vec<LayerState>,
}

impl SeqState {
    /// An empty sequence. Memory is reserved for the whole context; untouched pages cost nothing.
    #[must_use]
    pub fn new(shape: &StateShape) -> Self {
        Self {
            marks: Marks::default(),
            layers: shape
                .layers
                .iter()
                .map(|l| LayerState::new(l, shape.kv_sim))
                .collect(),
        }
    }

    /// Empties the sequence without touching its rows: stale rows are not state.
    pub fn reset(&mut self) {
        self.marks = Marks::default();
    }

    /// Fills every row with NaN patterns, so that tests see any read of a row that is not state.
    pub fn poison(&mut self) {
        for l in &mut self.layers {
            l.raw.poison();
            for c in [&mut l.comp, &mut l.index].into_iter().flatten() {
                c.keys.fill(f32::NAN);
                c.gates.fill(f32::NAN);
                c.rows.poison();
            }
        }
    }
}
