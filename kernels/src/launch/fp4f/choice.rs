//! Which product of an FP4_FAST matrix is the fastest for so many rows, from times measured on an H200
//! (benches/records/2026-12-01-products-h200.json). All give the same bits.

use super::{Gemm, Gemv, STACK_SEGMENTS, Tile32, gemm, gemv, meets, mma};
use crate::KernelError;
use crate::launch::Call;

impl Gemm {
    /// The faster one on a device of so many processors whose matrix step has `width` columns: the sums of A do not fit
    /// an AMD device's registers (`kernels/resources.txt`); on NVIDIA's they do, and A is faster where its blocks fill
    /// the device as well as D's.
    #[must_use]
    pub fn choose(w: &Tile32, cols: usize, width: usize, processors: usize) -> Self {
        if width == 8 && Self::A.time(w, cols, processors) <= Self::D.time(w, cols, processors) {
            Self::A
        } else {
            Self::D
        }
    }

    /// Time as [`narrow_time`] has it: that of as many blocks as a device holds at once, times how often that is. A wave of A
    /// (one block a processor) is 570 units a processor, one of D (two) 800: medians of the shapes of
    /// benches/records/2026-12-01-products-h200.json.
    fn time(self, w: &Tile32, cols: usize, processors: usize) -> usize {
        let (_, rows, columns) = self.parts();
        let blocks = w.rows.div_ceil(rows) * cols.div_ceil(columns);
        let (at_once, wave) = match self {
            Self::A | Self::FreeA => (processors, 570),
            Self::D | Self::FreeD => (2 * processors, 800),
        };
        blocks.div_ceil(at_once.max(1)) * wave * processors
    }
}

/// Time of [`mma`] in units of a row of the matrix and a group of columns, whatever the k: every group decodes the weights
/// anew, and all processors have their share.
fn narrow_time(w: &Tile32, cols: usize, width: usize) -> usize {
    cols.div_ceil(width) * w.rows
}

/// The fastest product of so many activation rows on a device of so many processors: 4-way dots for one row, and for two if
/// they can spread wide; matrix units in groups for few, in large blocks for many. `None`: up to `width` rows of a
/// matrix whose rows are too long for these; the general kernels of tile order take them. Buffers: see [`gemm`].
///
/// # Errors
/// Those of [`gemv`], [`mma`] and [`gemm`].
pub fn fastest(
    w: &Tile32,
    cols: usize,
    width: usize,
    processors: usize,
) -> Result<Option<Call>, KernelError> {
    if cols <= width && !meets(w) {
        return Ok(None);
    }
    let wide = Gemm::choose(w, cols, width, processors);
    let grouped = cols <= width
        || (meets(w) && narrow_time(w, cols, width) <= wide.time(w, cols, processors));
    match Gemv::choose(w, processors) {
        _ if !grouped => gemm(w, cols, wide),
        Gemv::Wide if cols <= 2 => gemv(w, cols, Gemv::Wide),
        Gemv::Fine if cols <= 1 => gemv(w, cols, Gemv::Fine),
        _ => mma(w, cols, width),
    }
    .map(Some)
}

/// Whether [`super::stack`] takes `cols` columns and is the fastest that does: as many as [`fastest`] gives to groups.
#[must_use]
pub fn stacks(w: &Tile32, matrices: usize, cols: usize, width: usize, processors: usize) -> bool {
    let all = Tile32 {
        rows: w.rows.saturating_mul(matrices),
        ..*w
    };
    let wide = Gemm::choose(&all, cols, width, processors);
    w.segments() <= STACK_SEGMENTS
        && cols > 1
        && (cols <= width || narrow_time(&all, cols, width) <= wide.time(&all, cols, processors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_follows_the_measurements() {
        let of = |rows, k, cols, width| {
            let w = Tile32::new(rows, k).unwrap();
            fastest(&w, cols, width, 132).unwrap().map(|c| c.kernel)
        };
        let name = |rows, k, cols| of(rows, k, cols, 8).unwrap();
        assert_eq!(name(4096, 4096, 1), "fp4f_gemv_1");
        assert_eq!(name(4096, 4096, 2), "fp4f_mma_n");
        assert_eq!(name(4096, 8192, 1), "fp4f_gemv_1");
        assert_eq!(name(32_768, 1024, 2), "fp4f_gemv_wide_2");
        assert_eq!(name(129_280, 4096, 1), "fp4f_gemv_wide_1");
        assert_eq!(name(129_280, 4096, 3), "fp4f_mma_n");
        for (cols, kernel) in [
            (32, "fp4f_mma_n"),
            (128, "fp4f_mma_n"),
            (256, "fp4f_gemm_a"),
        ] {
            assert_eq!(name(4096, 4096, cols), kernel, "{cols}");
        }
        for (cols, kernel) in [
            (24, "fp4f_mma_n"),
            (32, "fp4f_gemm_d"),
            (64, "fp4f_gemm_d"),
            (128, "fp4f_gemm_a"),
            (256, "fp4f_gemm_a"),
        ] {
            assert_eq!(name(32_768, 1024, cols), kernel, "{cols}");
        }
        assert_eq!(name(4096, 4096, 2048), "fp4f_gemm_a");
        assert_eq!(of(4096, 4096, 2048, 16), Some("fp4f_gemm_d"), "AMD");
        assert_eq!(of(64, 33 * 512, 8, 8), None, "rows too long");
        assert_eq!(of(64, 33 * 512, 9, 8), Some("fp4f_gemm_a"));
    }

    #[test]
    fn stacks_are_for_few_rows() {
        let w = Tile32::new(1024, 4096).unwrap();
        let long = Tile32::new(64, 17 * 512).unwrap();
        let pays = |cols| stacks(&w, 8, cols, 8, 132);
        assert!(!pays(1) && pays(2) && pays(8) && pays(32) && !pays(2048));
        assert!(!stacks(&long, 8, 2, 8, 132));
    }
}
