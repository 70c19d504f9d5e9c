//! Acceptance of candidates against the target's rows (spec/dspark.md 7).
