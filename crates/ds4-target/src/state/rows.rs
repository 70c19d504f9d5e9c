//! Rows of keys at rest: packed without loss when the model's roundings are on, f32 otherwise.

use ds4_kernels::cpu::{
    INDEX_TILE, index_row_bytes, kv_row_bytes, pack_index_row, pack_kv_row, unpack_index_row,
    unpack_kv_row,
};

/// What a row looks like at rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// fp8 codes, scales, bf16 tail.
    PackedKv {
        /// Elements.
        width: usize,
        /// Rotary part.
        n_rot: usize,
    },
    /// fp4 codes and scales.
    PackedIndex {
        /// Elements.
        width: usize,
    },
    /// f32 values.
    F32 {
        /// Elements.
        width: usize,
    },
}

impl RowKind {
    /// Rows of attention keys.
    #[must_use]
    pub const fn kv(kv_sim: bool, width: usize, n_rot: usize) -> Self {
        if kv_sim {
            Self::PackedKv { width, n_rot }
        } else {
            Self::F32 { width }
        }
    }

    /// Rows of indexer keys.
    #[must_use]
    pub const fn index(kv_sim: bool, width: usize) -> Self {
        if kv_sim {
            Self::PackedIndex { width }
        } else {
            Self::F32 { width }
        }
    }

    /// Bytes of a row.
    #[must_use]
    pub const fn row_bytes(self) -> usize {
        match self {
            Self::PackedKv { width, n_rot } => kv_row_bytes(width, n_rot),
            Self::PackedIndex { width } => index_row_bytes(width),
            Self::F32 { width } => 4 * width,
        }
    }

    /// Rows that memory is held for when `rows` are asked for: whole tiles.
    #[must_use]
    pub const fn held(self, rows: usize) -> usize {
        match self {
            Self::PackedIndex { .. } => rows.next_multiple_of(INDEX_TILE),
            _ => rows,
        }
    }

    /// Whether its rows are f32 values.
    #[must_use]
    pub const fn is_f32(self) -> bool {
        matches!(self, Self::F32 { .. })
    }

    /// Elements of a row.
    #[must_use]
    pub const fn width(self) -> usize {
        match self {
            Self::PackedKv { width, .. } | Self::PackedIndex { width } | Self::F32 { width } => {
                width
            }
        }
    }
}

/// A fixed number of rows. Indexer rows stand in tiles of [`INDEX_TILE`]: byte `i` of all rows of a
/// tile beside each other, as they are scored; at the seams a row is a row. Byte offsets are `usize`: 1M rows of 584 bytes pass 2^29, and a 32-bit
/// product would wrap at 8M.
#[derive(Clone, Debug)]
pub struct RowStore {
    kind: RowKind,
    bytes: Vec<u8>,
    floats: Vec<f32>,
}

impl RowStore {
    /// `rows` zeroed rows.
    #[must_use]
    pub fn new(kind: RowKind, rows: usize) -> Self {
        match kind {
            RowKind::F32 { width } => Self {
                kind,
                bytes: Vec::new(),
                floats: vec![0.0; rows * width],
            },
            _ => Self {
                kind,
                bytes: vec![0; kind.held(rows) * kind.row_bytes()],
                floats: Vec::new(),
            },
        }
    }

    /// The kind of its rows.
    #[must_use]
    pub fn kind(&self) -> RowKind {
        self.kind
    }

    fn byte_range(&self, row: usize) -> std::ops::Range<usize> {
        let n = self.kind.row_bytes();
        row * n..(row + 1) * n
    }

    /// Where the first byte of an indexer row stands; the others follow [`INDEX_TILE`] apart.
    fn in_tile(&self, row: usize) -> usize {
        row / INDEX_TILE * INDEX_TILE * self.kind.row_bytes() + row % INDEX_TILE
    }

    /// Stores a row (already rounded where the kind is packed).
    pub fn put(&mut self, row: usize, values: &[f32]) {
        match self.kind {
            RowKind::PackedKv { n_rot, .. } => {
                let range = self.byte_range(row);
                pack_kv_row(values, n_rot, &mut self.bytes[range]);
            }
            RowKind::PackedIndex { .. } => {
                let at = self.in_tile(row);
                pack_index_row(values, INDEX_TILE, &mut self.bytes[at..]);
            }
            RowKind::F32 { width } => {
                self.floats[row * width..(row + 1) * width].copy_from_slice(values);
            }
        }
    }

    /// Reads a row back, exactly.
    pub fn get(&self, row: usize, out: &mut [f32]) {
        match self.kind {
            RowKind::PackedKv { n_rot, .. } => {
                unpack_kv_row(&self.bytes[self.byte_range(row)], n_rot, out);
            }
            RowKind::PackedIndex { .. } => {
                unpack_index_row(&self.bytes[self.in_tile(row)..], INDEX_TILE, out);
            }
            RowKind::F32 { width } => {
                out.copy_from_slice(&self.floats[row * width..(row + 1) * width]);
            }
        }
    }

    /// The packed bytes of tile `tile` of indexer rows, `[row bytes, 16]`; empty for other kinds.
    #[must_use]
    pub fn tile(&self, tile: usize) -> &[u8] {
        match self.kind {
            RowKind::PackedIndex { .. } => {
                let n = INDEX_TILE * self.kind.row_bytes();
                &self.bytes[tile * n..(tile + 1) * n]
            }
            _ => &[],
        }
    }

    /// The values of the first `n` rows; empty for packed rows.
    #[must_use]
    pub fn floats(&self, n: usize) -> &[f32] {
        self.floats.get(..n * self.kind.width()).unwrap_or(&[])
    }

    /// Appends the bytes of row `row` to `out` (f32 little endian for f32 rows).
    pub fn append_bytes(&self, row: usize, out: &mut Vec<u8>) {
        match self.kind {
            RowKind::F32 { width } => {
                for v in &self.floats[row * width..(row + 1) * width] {
                    out.extend_from_slice(&v.to_le_bytes());
                }
            }
            RowKind::PackedIndex { .. } => {
                let bytes = self.bytes[self.in_tile(row)..].iter();
                out.extend(bytes.step_by(INDEX_TILE).take(self.kind.row_bytes()));
            }
            RowKind::PackedKv { .. } => out.extend_from_slice(&self.bytes[self.byte_range(row)]),
        }
    }

    /// Sets row `row` from what [`Self::append_bytes`] wrote.
    ///
    /// # Panics
    /// If `from` is not one row long.
    pub fn set_bytes(&mut self, row: usize, from: &[u8]) {
        match self.kind {
            RowKind::F32 { width } => {
                let (words, rest) = from.as_chunks::<4>();
                assert!(words.len() == width && rest.is_empty());
                let to = &mut self.floats[row * width..(row + 1) * width];
                for (v, w) in to.iter_mut().zip(words) {
                    *v = f32::from_le_bytes(*w);
                }
            }
            RowKind::PackedIndex { .. } => {
                assert_eq!(from.len(), self.kind.row_bytes(), "bytes of a row");
                let at = self.in_tile(row);
                let to = self.bytes[at..].iter_mut().step_by(INDEX_TILE);
                to.zip(from).for_each(|(to, from)| *to = *from);
            }
            RowKind::PackedKv { .. } => {
                let range = self.byte_range(row);
                self.bytes[range].copy_from_slice(from);
            }
        }
    }

    /// Fills all rows with patterns that decode to NaN (indexer codes: to the largest values).
    pub(super) fn poison(&mut self) {
        self.floats.fill(f32::NAN);
        self.bytes.fill(0xff);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poisoned_kv_rows_decode_to_nan() {
        let mut store = RowStore::new(RowKind::kv(true, 128, 64), 2);
        store.poison();
        let mut row = [0f32; 128];
        store.get(1, &mut row);
        assert!(row.iter().all(|v| v.is_nan()));
    }

    #[test]
    fn indexer_rows_of_a_tile_do_not_touch_each_other() {
        let mut store = RowStore::new(RowKind::index(true, 64), 20);
        assert_eq!(store.tile(1).len(), 16 * 34, "the last tile is whole");
        let row = |r: usize| -> Vec<f32> { (0..64).map(|i| ((i + r) % 7) as f32 - 3.0).collect() };
        let mut saved = Vec::new();
        for r in (0..20).rev() {
            store.put(r, &row(r));
        }
        (0..20).for_each(|r| store.append_bytes(r, &mut saved));
        let mut other = RowStore::new(RowKind::index(true, 64), 20);
        other.poison();
        for (r, bytes) in saved.chunks(34).enumerate() {
            other.set_bytes(r, bytes);
        }
        for r in 0..20 {
            let (mut a, mut b) = ([f32::NAN; 64], [f32::NAN; 64]);
            store.get(r, &mut a);
            other.get(r, &mut b);
            assert_eq!((&a[..], &b[..]), (&row(r)[..], &row(r)[..]), "row {r}");
        }
        // A row at the seam: two codes a byte, low nibble first, then the scales.
        let mut packed = Vec::new();
        store.append_bytes(17, &mut packed);
        // Values 0, 1, .. 3, -3, .. in units of 0.5: scale 2^-1, 1.0 is code 4 (2.0).
        assert_eq!((packed[0], packed[32]), (0x40, 126));
    }

    #[test]
    fn offsets_do_not_wrap_at_a_million_tokens() {
        let store = RowStore {
            kind: RowKind::kv(true, 512, 64),
            bytes: vec![],
            floats: vec![],
        };
        assert_eq!(
            store.byte_range(16 << 20).start,
            (16u64 << 20) as usize * 584
        );
    }
}
