//! Counters of speculation (spec/dspark.md 10).
