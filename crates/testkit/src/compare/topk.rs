//! Selections compared as sets.

use std::collections::BTreeSet;

use super::Mismatch;

/// The same set of indices below `bound`, in any order, none twice.
///
/// # Errors
/// `OutOfRange`, `Duplicate`, `Sets`.
pub fn top_k_set(expected: &[u32], got: &[u32], bound: usize) -> Result<(), Mismatch> {
    let mut set = BTreeSet::new();
    for index in got.iter().copied() {
        if index as usize >= bound {
            return Err(Mismatch::OutOfRange { index, bound });
        }
        if !set.insert(index) {
            return Err(Mismatch::Duplicate { index });
        }
    }
    let want: BTreeSet<u32> = expected.iter().copied().collect();
    let missing: Vec<u32> = want.difference(&set).copied().collect();
    let extra: Vec<u32> = set.difference(&want).copied().collect();
    match missing.is_empty() && extra.is_empty() {
        true => Ok(()),
        false => Err(Mismatch::Sets { missing, extra }),
    }
}
