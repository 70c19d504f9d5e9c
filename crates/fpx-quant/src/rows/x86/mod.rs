//! The fence of the x86 row kernels: the only place that calls code compiled for instructions
//! which the build target does not guarantee. Every entry checks the processor first; the kernels
//! themselves are safe code, except the loads and stores of [`mem`].

mod enter;
pub(crate) mod mem;

pub(crate) use enter::*;
