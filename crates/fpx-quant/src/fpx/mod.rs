//! Rows of ROCmFPX formats that need no codebook: fast decoding and encoding.
//!
//! Apart from `block` (the reference) because these are the forms written for speed, checked
//! against it by equality. Must not know: the other families of formats, files, codebooks.

mod affine;
mod coder;
pub(crate) mod decode;
pub(crate) mod encode;
mod search;
mod weights;
