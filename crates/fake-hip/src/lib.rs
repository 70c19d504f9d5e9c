//! A HIP runtime and hipRTC for machines without an AMD GPU: a library with the symbols that
//! `device::hip` loads, so that the real module, its table and its calls run in tests.
//!
//! Memory, streams and order are those of `device::fake`: nothing runs before somebody waits or asks,
//! independent streams are reordered, operations are held back, freed memory stays poisoned. On top
//! of that this library keeps HIP's own rules: a current device for each thread, handles and memory that
//! belong to a device, codes of the vendor. Freeing what a queued operation still uses ends the
//! process. "Compiling" a source checks that its kernels have a host build.
//!
//! * `world`: the machine: devices, what belongs to which, the n-th call that fails.
//! * `api`, `launch`, `reach`, `rtc`: the vendor's symbols. `control`: symbols for tests.
//!
//! Must not know: how `device::hip` uses it. Test artefact: nothing the product ships links it.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a declaration's contract covers its out parameters and the driver's call alike"
)]

mod answers;
mod api;
mod control;
mod launch;
mod modules;
mod reach;
mod rtc;
mod world;
