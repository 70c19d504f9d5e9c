//! Distances from a reference computed in another arithmetic.

use super::{Mismatch, all_finite};

/// How many standard deviations of the permitted error one element may be off in [`nmse`]. Noise
/// never gets there (32 of a normal distribution is 1e-224); one wrong element does.
pub const OUTLIER_SIGMAS: f64 = 32.0;

fn worst<E, G>(expected: &[E], got: &[G]) -> Option<(usize, f64)>
where
    E: Copy + Into<f64>,
    G: Copy + Into<f64>,
{
    let errors = expected
        .iter()
        .zip(got)
        .map(|(e, g)| ((*e).into() - (*g).into()).abs());
    errors.enumerate().max_by(|a, b| a.1.total_cmp(&b.1))
}

/// Every element at most `limit` off, absolutely. Returns the largest distance.
///
/// # Errors
/// `Length`, `NotFinite`, `Element` with the worst.
pub fn max_abs<E, G>(expected: &[E], got: &[G], limit: f64) -> Result<f64, Mismatch>
where
    E: Copy + Into<f64>,
    G: Copy + Into<f64>,
{
    all_finite(expected, got)?;
    match worst(expected, got) {
        None => Ok(0.0),
        Some((_, distance)) if distance <= limit => Ok(distance),
        Some((index, distance)) => Err(Mismatch::Element {
            index,
            expected: expected[index].into(),
            got: got[index].into(),
            measure: "absolute error",
            distance,
            limit,
        }),
    }
}

/// Sum of squared errors by sum of squared expectations at most `limit`, and no element further
/// off than [`OUTLIER_SIGMAS`] times the deviation that the limit permits: a mean over a million
/// elements does not notice one wrong one. Against all zeros only zeros pass. Returns the nmse.
///
/// # Errors
/// `Length`, `NotFinite`, `Nmse`, `Element`.
pub fn nmse<E, G>(expected: &[E], got: &[G], limit: f64) -> Result<f64, Mismatch>
where
    E: Copy + Into<f64>,
    G: Copy + Into<f64>,
{
    all_finite(expected, got)?;
    let Some((index, distance)) = worst(expected, got) else {
        return Ok(0.0);
    };
    let square = |v: f64| v * v;
    let power: f64 = expected.iter().map(|e| square((*e).into())).sum();
    let pairs = expected.iter().zip(got);
    let error: f64 = pairs.map(|(e, g)| square((*e).into() - (*g).into())).sum();
    let nmse = if error == 0.0 { 0.0 } else { error / power };
    let (e, g) = (expected[index].into(), got[index].into());
    // A NaN (0 by 0 cannot be, overflow can) must not pass.
    if nmse.is_nan() || nmse > limit {
        return Err(Mismatch::Nmse {
            nmse,
            limit,
            index,
            expected: e,
            got: g,
        });
    }
    let sigma = (limit * power / expected.len() as f64).sqrt();
    match distance <= OUTLIER_SIGMAS * sigma {
        true => Ok(nmse),
        false => Err(Mismatch::Element {
            index,
            expected: e,
            got: g,
            measure: "error of an outlier",
            distance,
            limit: OUTLIER_SIGMAS * sigma,
        }),
    }
}
