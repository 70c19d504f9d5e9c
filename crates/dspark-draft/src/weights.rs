//! The draft model's tensors, each bound exactly once.
