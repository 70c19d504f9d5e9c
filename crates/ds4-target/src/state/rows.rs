//! Rows of keys at rest: packed without loss when the model's roundings are on, f32 otherwise.

use ds4_kernels::cpu::{
    index_row_bytes, kv_row_bytes, pack_index_row, pack_kv_row, unpack_index_row, unpack_kv_row,
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

/// A fixed number of rows. Byte offsets are `usize`: 1M rows of 584 bytes pass 2^29, and a 32-bit
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
                bytes: vec![0; rows * kind.row_bytes()],
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

    /// Stores a row (already rounded where the kind is packed).
    pub fn put(&mut self, row: usize, values: &[f32]) {
        let range = self.byte_range(row);
        match self.kind {
            RowKind::PackedKv { n_rot, .. } => pack_kv_row(values, n_rot, &mut self.bytes[range]),
            RowKind::PackedIndex { .. } => pack_index_row(values, &mut self.bytes[range]),
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
            RowKind::PackedIndex { width } => {
                let (mut twice, mut scale) = (vec![0i8; width], vec![0f32; width / 32]);
                unpack_index_row(&self.bytes[self.byte_range(row)], &mut twice, &mut scale);
                for (i, (o, t)) in out.iter_mut().zip(&twice).enumerate() {
                    *o = f32::from(*t) * 0.5 * scale[i / 32];
                }
            }
            RowKind::F32 { width } => {
                out.copy_from_slice(&self.floats[row * width..(row + 1) * width]);
            }
        }
    }

    /// The packed bytes of the first `n` rows; empty for f32 rows.
    #[must_use]
    pub fn packed(&self, n: usize) -> &[u8] {
        self.bytes.get(..n * self.kind.row_bytes()).unwrap_or(&[])
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
            _ => out.extend_from_slice(&self.bytes[self.byte_range(row)]),
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
            _ => {
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
