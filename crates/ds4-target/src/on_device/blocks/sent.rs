//! What a call of blocks sends, in one copy, and the slots that it needs beside those of a target's pass.
//!
//! Must not know: launches.

use ds4_kernels::KernelError;
use engine_core::Pos;

use super::{BlockSizes, Reads};
use crate::layers::Ropes;
use crate::meta::{Ds4Meta, Ratio};
use crate::on_device::arena::Slot;
use crate::on_device::inputs::{Inputs, Writer, angles};
use crate::on_device::products::Rows;
use crate::on_device::scratch::{Scratch, list_stride, rows};

/// Slots beside those of a target's pass. `f` features of a call, `n` rows of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    /// What is sent for a call, in one copy.
    pub(super) sent: Slot,
    /// `[f, width]` normed, `[f, d]` projected, `[f, d]` normed, `[f, head_dim]`.
    pub(super) features: Rows,
    pub(super) raw: Slot,
    pub(super) context: Rows,
    pub(super) kv: Slot,
    /// `[n, 4]` twice; `[2, n, d]`: rows before and after the last norm.
    pub(super) head_m: Slot,
    pub(super) head_mix: Slot,
    pub(super) out: Slot,
}

impl Slots {
    /// Takes them behind those of a pass, for features of `width` values.
    ///
    /// # Errors
    /// `Shape` if the sizes overflow.
    pub(super) fn new(
        scratch: &mut Scratch,
        m: &Ds4Meta,
        width: usize,
        sizes: &BlockSizes,
    ) -> Result<Self, KernelError> {
        let (f, n, d) = (sizes.features, sizes.rows, m.n_embd);
        let inputs = scratch.inputs.len as usize;
        let lists = n * (list_stride(m, Ratio::None, sizes.keys) + 1 + d) * 4;
        let features = f * (1 + m.n_rot + width) * 4;
        // Slots of what is sent begin at multiples of 64.
        let sent = inputs.saturating_add(lists).max(features) + 8 * 64;
        let l = &mut scratch.layout;
        Ok(Self {
            sent: l.take(&[sent])?,
            features: rows(l, f, width)?,
            raw: l.take(&[f, d, 4])?,
            context: rows(l, f, d)?,
            kv: l.take(&[f, m.head_dim, 4])?,
            head_m: l.take(&[n, 4, 4])?,
            head_mix: l.take(&[n, 4, 4])?,
            out: l.take(&[2, n, d, 4])?,
        })
    }
}

/// What is sent for a pass of rows: the inputs, then the rest.
#[derive(Debug)]
pub(super) struct SentRows {
    pub(super) inputs: Inputs,
    /// `[n, stride]` u32, `[n]` u32.
    pub(super) keys: Slot,
    pub(super) counts: Slot,
    /// `[n, d]` f32.
    pub(super) rows: Slot,
    /// All of it.
    pub(super) block: Slot,
}

impl SentRows {
    /// The slots for `n` rows, from the start of `room`. The window of `m` is the longest key list.
    pub(super) fn new(room: Slot, m: &Ds4Meta, n: usize) -> Self {
        let inputs = Inputs::new(room, m, n);
        let used = inputs.block.len;
        let mut cut = Cut { room, used };
        let stride = list_stride(m, Ratio::None, m.window);
        Self {
            inputs,
            keys: cut.take(n * stride * 4),
            counts: cut.take(n * 4),
            rows: cut.take(n * m.n_embd * 4),
            block: cut.all(),
        }
    }

    /// Writes a batch into `bytes`. `store`: where the batch's own key rows begin. Without input only what stands before
    /// it is written.
    pub(super) fn write(
        &self,
        bytes: &mut Vec<u8>,
        (m, ropes): (&Ds4Meta, &Ropes),
        store: usize,
        batch: &Batch<'_>,
    ) {
        let own = |row: usize| (store + row) as u32;
        let n = batch.pos.len();
        Writer::fill_rows(&self.inputs, bytes, m, ropes, batch.pos, (0..n).map(own));
        bytes.resize(end(self.block, self.rows, batch.input), 0);
        let stride = self.keys.len as usize / 4 / n;
        for group in batch.groups {
            let mut list = group.context.clone();
            list.extend(group.rows.clone().map(own));
            let count = (list.len() as u32).to_le_bytes();
            for row in group.rows.clone() {
                let keys = self.keys.rows(row, 1, 4 * stride);
                put(bytes, self.block, keys, bytemuck::cast_slice(&list));
                put(bytes, self.block, self.counts.rows(row, 1, 4), &count);
            }
        }
        put(
            bytes,
            self.block,
            self.rows,
            bytemuck::cast_slice(batch.input),
        );
    }
}

/// What a pass of rows is made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch<'a> {
    /// `[n, d]`.
    pub(super) input: &'a [f32],
    /// `[n]`.
    pub(super) pos: &'a [Pos],
    /// Cover all rows.
    pub(super) groups: &'a [Reads],
}

/// What is sent for features.
#[derive(Debug)]
pub(super) struct SentFeatures {
    /// `[n]` u32, `[n, n_rot / 2, 2]` f32, `[n, width]` f32.
    pub(super) places: Slot,
    pub(super) angles: Slot,
    pub(super) features: Slot,
    /// All of it.
    pub(super) block: Slot,
}

impl SentFeatures {
    /// The slots for `n` rows of `width` values, from the start of `room`.
    pub(super) fn new(room: Slot, m: &Ds4Meta, width: usize, n: usize) -> Self {
        let mut cut = Cut { room, used: 0 };
        Self {
            places: cut.take(n * 4),
            angles: cut.take(n * m.n_rot / 2 * 8),
            features: cut.take(n * width * 4),
            block: cut.all(),
        }
    }

    /// Writes features, positions and places into `bytes`; without features only what stands before them.
    pub(super) fn write(
        &self,
        bytes: &mut Vec<u8>,
        ropes: &Ropes,
        features: &[f32],
        pos: &[Pos],
        places: &[u32],
    ) {
        bytes.clear();
        bytes.resize(end(self.block, self.features, features), 0);
        let turned = angles(&ropes.window, pos.iter().copied());
        put(bytes, self.block, self.places, bytemuck::cast_slice(places));
        put(
            bytes,
            self.block,
            self.angles,
            bytemuck::cast_slice(&turned),
        );
        put(
            bytes,
            self.block,
            self.features,
            bytemuck::cast_slice(features),
        );
    }
}

/// Cuts what is sent into slots.
struct Cut {
    room: Slot,
    used: u64,
}

impl Cut {
    fn take(&mut self, bytes: usize) -> Slot {
        let slot = self.room.part(self.used, bytes as u64);
        self.used += (bytes as u64).next_multiple_of(64);
        slot
    }

    fn all(&self) -> Slot {
        self.room.part(0, self.used)
    }
}

/// Bytes of a block that ends with `rows`, or of what stands before them if there are none.
fn end(block: Slot, rows: Slot, values: &[f32]) -> usize {
    let all = if values.is_empty() {
        rows.start - block.start
    } else {
        block.len
    };
    all as usize
}

/// Writes into the bytes of `block`.
fn put(bytes: &mut [u8], block: Slot, slot: Slot, value: &[u8]) {
    let at = (slot.start - block.start) as usize;
    bytes[at..at + value.len()].copy_from_slice(value);
}
