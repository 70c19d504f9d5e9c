//! Filled by the golden vectors.
