//! DSpark behind the seam `Drafter`.
