//! The fence of the row kernels: the only place that calls code compiled for instructions which
//! the build target does not guarantee. Every entry checks the processor first; the kernels
//! themselves are safe code, except the loads and stores of [`x86`].

#[cfg(target_arch = "x86_64")]
mod enter;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

#[cfg(target_arch = "x86_64")]
pub(crate) use enter::*;
