//! The speculative loop over the seams `Target` and `Drafter`.
