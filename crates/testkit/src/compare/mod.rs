//! Comparers. Each looks for NaN and infinity first, and each is tested on wrong answers: a
//! yardstick that passes everything is worse than none.
//!
//! * [`exact`]: same bits. The default of this project.
//! * [`ulp`]: f32 steps apart.
//! * [`nmse`] and [`max_abs`]: distance from a reference in another arithmetic.
//! * [`top_k_set`]: a selection.
//!
//! All take (expected, got) and return a [`Mismatch`] that says where and what.

mod close;
mod exact;
mod topk;
mod ulp;

pub use close::{OUTLIER_SIGMAS, max_abs, nmse};
pub use exact::{Bits, exact};
pub use topk::top_k_set;
pub use ulp::{ulp, ulp_distance};

/// Why two results are not the same.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// Different numbers of elements.
    #[error("expected {expected} elements, got {got}")]
    Length {
        /// Elements expected.
        expected: usize,
        /// Elements got.
        got: usize,
    },
    /// NaN or infinity on a side, where a distance has no meaning.
    #[error("element {index}: not finite: expected {expected:e}, got {got:e}")]
    NotFinite {
        /// Where first.
        index: usize,
        /// The value expected.
        expected: f64,
        /// The value got.
        got: f64,
    },
    /// Bits differ.
    #[error("{count} of {len} elements differ, first at {index}: expected {expected}, got {got}")]
    Bits {
        /// Where first.
        index: usize,
        /// Hexadecimal bits and value expected there.
        expected: String,
        /// Hexadecimal bits and value got there.
        got: String,
        /// Elements that differ.
        count: usize,
        /// Elements.
        len: usize,
    },
    /// An element is too far off.
    #[error(
        "element {index}: expected {expected:e}, got {got:e}: {measure} {distance:e} > {limit:e}"
    )]
    Element {
        /// The worst element.
        index: usize,
        /// The value expected there.
        expected: f64,
        /// The value got there.
        got: f64,
        /// What was measured.
        measure: &'static str,
        /// How far it is off.
        distance: f64,
        /// How far it may be.
        limit: f64,
    },
    /// The whole is too far off.
    #[error("nmse {nmse:e} > {limit:e}; worst at {index}: expected {expected:e}, got {got:e}")]
    Nmse {
        /// Squared error by squared expectation.
        nmse: f64,
        /// How large it may be.
        limit: f64,
        /// The element with the largest error.
        index: usize,
        /// The value expected there.
        expected: f64,
        /// The value got there.
        got: f64,
    },
    /// A selection names an index twice.
    #[error("index {index} is selected twice")]
    Duplicate {
        /// The index.
        index: u32,
    },
    /// A selection names an index that does not exist.
    #[error("index {index} is outside 0..{bound}")]
    OutOfRange {
        /// The index.
        index: u32,
        /// Number of candidates.
        bound: usize,
    },
    /// Selections differ.
    #[error("missing {missing:?}, not expected {extra:?}")]
    Sets {
        /// Expected but not selected, ascending.
        missing: Vec<u32>,
        /// Selected but not expected, ascending.
        extra: Vec<u32>,
    },
}

fn same_length(expected: usize, got: usize) -> Result<(), Mismatch> {
    match expected == got {
        true => Ok(()),
        false => Err(Mismatch::Length { expected, got }),
    }
}

/// Lengths, then the first element that is not finite on either side.
fn all_finite<E, G>(expected: &[E], got: &[G]) -> Result<(), Mismatch>
where
    E: Copy + Into<f64>,
    G: Copy + Into<f64>,
{
    same_length(expected.len(), got.len())?;
    for (index, (e, g)) in expected.iter().zip(got).enumerate() {
        let (expected, got) = ((*e).into(), (*g).into());
        if !(expected.is_finite() && got.is_finite()) {
            return Err(Mismatch::NotFinite {
                index,
                expected,
                got,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
