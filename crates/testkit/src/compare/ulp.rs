//! Distance in representable f32 values.

use super::{Mismatch, all_finite};

/// Steps from one finite f32 to another; -0 and +0 are the same place.
#[must_use]
pub fn ulp_distance(a: f32, b: f32) -> u32 {
    let place = |v: f32| {
        let magnitude = i64::from(v.to_bits() & 0x7fff_ffff);
        if v.is_sign_negative() {
            -magnitude
        } else {
            magnitude
        }
    };
    // At most 2 * 0x7f7fffff, which fits.
    (place(a) - place(b)).unsigned_abs() as u32
}

/// Every element at most `limit` steps off. Returns the largest distance.
///
/// # Errors
/// `Length`, `NotFinite`, `Element` with the worst.
pub fn ulp(expected: &[f32], got: &[f32], limit: u32) -> Result<u32, Mismatch> {
    all_finite(expected, got)?;
    let distance = |i: usize| ulp_distance(expected[i], got[i]);
    let Some(index) = (0..got.len()).max_by_key(|i| distance(*i)) else {
        return Ok(0);
    };
    match distance(index) {
        d if d <= limit => Ok(d),
        d => Err(Mismatch::Element {
            index,
            expected: f64::from(expected[index]),
            got: f64::from(got[index]),
            measure: "ulp",
            distance: f64::from(d),
            limit: f64::from(limit),
        }),
    }
}
