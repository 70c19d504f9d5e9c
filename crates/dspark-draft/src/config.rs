//! Hyper-parameters of a draft model, read strictly from metadata.
