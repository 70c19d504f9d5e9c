//! Products of activation rows with a matrix, whatever its format: rules 1 to 4 of ADR 0001.
//!
//! Must not know: layers.

use device::driver::Driver;
use ds4_kernels::KernelError;
use ds4_kernels::launch::a8::{META_BYTES, quantise};
use ds4_kernels::launch::dense;
use ds4_kernels::launch::fp4f::{self, Tile32};
use ds4_kernels::launch::tiled::{self, Stack, Work};
use ds4_kernels::launch::{Call, grouped};
use fpx_quant::Format;

use super::arena::Slot;
use super::gpu::Gpu;
use super::weights::Matrix;

/// Activation rows: f32 `[n, k]`, and room for their int8 blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) x: Slot,
    pub(crate) q: Slot,
    pub(crate) meta: Slot,
    pub(crate) k: usize,
}

impl Rows {
    /// Rows `first..first + n`.
    pub(crate) fn part(self, first: usize, n: usize) -> Self {
        Self {
            x: self.x.rows(first, n, 4 * self.k),
            q: self.q.rows(first, n, self.k),
            meta: self.meta.rows(first, n, self.k / 32 * META_BYTES),
            k: self.k,
        }
    }

    /// The same values as rows of another width.
    pub(crate) fn folded(self, k: usize) -> Self {
        Self { k, ..self }
    }
}

/// The first `n` of some rows in a pass: blocks are there if what made the rows wrote them, or are made when a matrix
/// first needs them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input {
    pub(crate) rows: Rows,
    pub(crate) n: usize,
    /// Whether the blocks are there.
    pub(crate) quantised: bool,
}

impl Input {
    /// f32 rows without blocks yet.
    pub(crate) fn new(rows: Rows, n: usize) -> Self {
        Self {
            rows: rows.part(0, n),
            n,
            quantised: false,
        }
    }

    /// Rows whose blocks are there.
    pub(crate) fn blocks(rows: Rows, n: usize) -> Self {
        Self::made(rows, n, true)
    }

    /// Rows that are about to be made, with their blocks if `blocks`.
    pub(crate) fn made(rows: Rows, n: usize, blocks: bool) -> Self {
        Self {
            quantised: blocks,
            ..Self::new(rows, n)
        }
    }

    /// The slots of the blocks for what makes the rows; none if it does not make blocks.
    pub(crate) fn block_slots(&self) -> impl Iterator<Item = Slot> {
        let (q, meta) = (self.rows.q, self.rows.meta);
        [q, meta].into_iter().filter(move |_| self.quantised)
    }

    /// Makes the blocks.
    pub(crate) fn quantise<R: Driver>(&mut self, gpu: &mut Gpu<R>) -> Result<(), KernelError> {
        if !self.quantised {
            let r = &self.rows;
            gpu.put(&quantise(self.n, r.k)?, &[r.x, r.q, r.meta])?;
            self.quantised = true;
        }
        Ok(())
    }
}

/// Units of work on a stack: which rows meet which matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Units {
    pub(crate) work: Work,
    pub(crate) units: Slot,
    pub(crate) order: Slot,
}

impl Units {
    /// The slots of the launch's unit and order arguments.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        let units = (self.work.wide > 0).then_some(self.units);
        let order = self.work.ordered.then_some(self.order);
        units.into_iter().chain(order)
    }
}

impl<R: Driver> Gpu<R> {
    /// `out` `[n, w.rows]` f32.
    pub(crate) fn product(
        &mut self,
        w: &Matrix,
        input: &mut Input,
        out: Slot,
    ) -> Result<(), KernelError> {
        let n = input.n;
        let out = out.rows(0, n, 4 * w.rows);
        self.read += w.bytes;
        let Some(stack) = &w.tiles else {
            let call = dense::product(w.format, w.rows, w.k, n)?;
            return self.put(&call, &[w.slot, input.rows.x, out]);
        };
        input.quantise(self)?;
        let call = self.tiled(stack, n)?;
        self.put(&call, &[w.slot, input.rows.q, input.rows.meta, out])
    }

    /// Several matrices with the same rows, each as [`Self::product`]: those of one float format share launches where
    /// rows are few.
    pub(crate) fn products(
        &mut self,
        all: &[(&Matrix, Slot)],
        input: &mut Input,
    ) -> Result<(), KernelError> {
        let mut rest = all.to_vec();
        if input.n <= dense::SET_COLS {
            for format in [Format::F32, Format::F16, Format::BF16] {
                let same = rest.extract_if(.., |(w, _)| w.tiles.is_none() && w.format == format);
                let same: Vec<_> = same.collect();
                for set in same.chunks(dense::SET) {
                    self.set(format, set, input)?;
                }
            }
        }
        if input.n <= self.kernels.width() {
            let pairs = rest.extract_if(.., |(w, _)| pairable(w));
            let pairs: Vec<_> = pairs.collect();
            for pair in pairs.chunks(2) {
                self.pair(pair, input)?;
            }
        }
        rest.into_iter()
            .try_for_each(|(w, out)| self.product(w, input, out))
    }

    /// Two matrices of FP4_FAST and a few rows in one launch.
    fn pair(&mut self, pair: &[(&Matrix, Slot)], input: &mut Input) -> Result<(), KernelError> {
        let [(a, to_a), (b, to_b)] = pair else {
            let mut rest = pair.iter();
            return rest.try_for_each(|(w, out)| self.product(w, input, *out));
        };
        self.read += a.bytes + b.bytes;
        input.quantise(self)?;
        let processors = self.device().facts().processors as usize;
        let w = [Tile32::new(a.rows, a.k)?, Tile32::new(b.rows, b.k)?];
        let (n, width) = (input.n, self.kernels.width());
        let call = fp4f::pair([&w[0], &w[1]], n, width, processors)?;
        let part = |w: &Matrix, out: &Slot| [w.slot, out.rows(0, n, 4 * w.rows)];
        let mut slots = vec![input.rows.q, input.rows.meta];
        slots.extend([part(a, to_a), part(b, to_b)].concat());
        self.put(&call, &slots)
    }

    /// Float matrices in one launch; one alone has kernels that suit it better.
    fn set(
        &mut self,
        format: Format,
        set: &[(&Matrix, Slot)],
        input: &mut Input,
    ) -> Result<(), KernelError> {
        if let [(w, out)] = set {
            return self.product(w, input, *out);
        }
        self.read += set.iter().map(|(w, _)| w.bytes).sum::<u64>();
        let rows: Vec<usize> = set.iter().map(|(w, _)| w.rows).collect();
        let call = dense::set(format, &rows, input.rows.k, input.n)?;
        let each = |(w, out): &(&Matrix, Slot)| [w.slot, out.rows(0, input.n, 4 * w.rows)];
        let mut slots = vec![input.rows.x];
        slots.extend(set.iter().flat_map(each));
        self.put(&call, &slots)
    }

    /// The launch of a product in tile order that suits this device.
    fn tiled(&self, w: &Stack, n: usize) -> Result<Call, KernelError> {
        let width = self.kernels.width();
        if w.format != Format::Fp4Fast {
            return self.on_stack(w, &Work::plain(n));
        }
        let tile = Tile32::new(w.rows, w.k)?;
        let processors = self.device().facts().processors as usize;
        match fp4f::fastest(&tile, n, width, processors)? {
            Some(call) => Ok(call),
            None => tiled::gemv(w, &Work::plain(n)),
        }
    }

    /// The launch of a product with a stack: every format has kernels for few and for many rows.
    fn on_stack(&self, w: &Stack, work: &Work) -> Result<Call, KernelError> {
        if many(work, self.kernels.width()) {
            grouped::product(w, work)
        } else {
            tiled::gemv(w, work)
        }
    }

    /// Rows of a stack in units. `out` `[slots, w.rows]` f32.
    pub(crate) fn stacked(
        &mut self,
        w: &Matrix,
        stack: &Stack,
        input: &mut Input,
        units: &Units,
        out: Slot,
    ) -> Result<(), KernelError> {
        input.quantise(self)?;
        self.read += read_whole(&[w], &units.work);
        let call = self.on_stack(stack, &units.work)?;
        let mut slots = vec![w.slot, input.rows.q, input.rows.meta];
        slots.extend(units.slots());
        slots.push(out);
        self.put(&call, &slots)
    }

    /// [`Self::stacked`] into rows that a matrix reads: as blocks if `blocks` asks for them and the kernel for these
    /// rows writes them, as f32 else. Returns whether they are blocks.
    pub(crate) fn stacked_rows(
        &mut self,
        w: &Matrix,
        stack: &Stack,
        input: &mut Input,
        units: &Units,
        out: &Rows,
        blocks: bool,
    ) -> Result<bool, KernelError> {
        let whole = stack.rows.is_multiple_of(32);
        if !blocks || !whole || many(&units.work, self.kernels.width()) {
            self.stacked(w, stack, input, units, out.x)?;
            return Ok(false);
        }
        input.quantise(self)?;
        self.read += read_whole(&[w], &units.work);
        let call = tiled::gemv_blocks(stack, &units.work)?;
        let mut slots = vec![w.slot, input.rows.q, input.rows.meta];
        slots.extend(units.slots());
        slots.extend([out.q, out.meta]);
        self.put(&call, &slots)?;
        Ok(true)
    }

    /// A stack of which every matrix meets a row of each of `n` tokens, slot `token * matrices + matrix`, into rows that a
    /// matrix reads, as [`Self::stacked_rows`]; `None` where matrix units for a few rows are not the fastest. The caller
    /// counts what is read.
    pub(crate) fn every_matrix(
        &mut self,
        w: &Matrix,
        stack: &Stack,
        input: &mut Input,
        n: usize,
        out: &Rows,
        blocks: bool,
    ) -> Result<Option<bool>, KernelError> {
        if stack.format != Format::Fp4Fast {
            return Ok(None);
        }
        let tile = Tile32::new(stack.rows, stack.k)?;
        let width = self.kernels.width();
        let processors = self.device().facts().processors as usize;
        if !fp4f::stacks(&tile, stack.matrices, n, width, processors) {
            return Ok(None);
        }
        let blocks = blocks && stack.rows.is_multiple_of(32);
        input.quantise(self)?;
        let call = fp4f::stack(&tile, stack.matrices, n, width, blocks)?;
        let mut slots = vec![w.slot, input.rows.q, input.rows.meta];
        match blocks {
            true => slots.extend([out.q, out.meta]),
            false => slots.push(out.x),
        }
        self.put(&call, &slots)?;
        Ok(Some(blocks))
    }

    /// Gate, up and activation of a stack in units, as blocks and, if `floats`, as f32 too.
    pub(crate) fn gate_up(
        &mut self,
        w: [&Matrix; 2],
        stack: &Stack,
        input: &mut Input,
        units: &Units,
        weights: Option<Slot>,
        floats: bool,
        limit: f32,
        out: &Rows,
    ) -> Result<(), KernelError> {
        input.quantise(self)?;
        self.read += read_whole(&w, &units.work);
        let launch = if many(&units.work, self.kernels.width()) {
            grouped::gate_up
        } else {
            tiled::gate_up
        };
        let call = launch(stack, &units.work, weights.is_some(), floats, limit)?;
        let mut slots = vec![w[0].slot, w[1].slot, input.rows.q, input.rows.meta];
        slots.extend(units.slots());
        slots.extend(weights);
        slots.extend([out.q, out.meta]);
        slots.extend(floats.then_some(out.x));
        self.put(&call, &slots)
    }
}

/// Bytes of matrices that are all read; none where a list says which are.
fn read_whole(w: &[&Matrix], work: &Work) -> u64 {
    match work.wide {
        0 => w.iter().map(|w| w.bytes).sum(),
        _ => 0,
    }
}

/// Whether a matrix may share a launch with another one: its rows' partial sums meet in shared memory.
fn pairable(w: &Matrix) -> bool {
    w.tiles.is_some() && w.format == Format::Fp4Fast && w.k <= 32 * 512
}

/// Whether work is for matrix units: units wider than others take, or more rows of one matrix than a matrix step has
/// columns.
fn many(work: &Work, width: usize) -> bool {
    work.wide > tiled::WIDE || (work.wide == 0 && work.slots > width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(slots: usize, matrices: usize) -> Work {
        Work {
            slots,
            per: 1,
            wide: grouped::wide(slots, matrices),
            ordered: true,
        }
    }

    #[test]
    fn matrix_units_take_many_rows() {
        assert!(many(&work(12_288, 256), 8), "experts of 2,048 tokens");
        assert!(!many(&work(48, 256), 8), "experts of 8 tokens");
        assert!(
            many(&work(72, 8), 8) && !many(&work(64, 8), 8),
            "heads in 8 groups"
        );
        assert!(many(&Work::plain(9), 8) && !many(&Work::plain(8), 8));
        assert!(many(&Work::plain(17), 16) && !many(&Work::plain(16), 16));
        let one = Work {
            wide: 1,
            ..Work::plain(6)
        };
        assert!(!many(&one, 8), "experts of one token");
    }
}
