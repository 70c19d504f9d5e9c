//! One vocabulary for three runtimes: devices, streams, events, buffers, images and graphs on the
//! CPU, on CUDA and on HIP, each opened at run time (`docs/adr/0004-run-time-loading.md`).
//!
//! * [`Runtime`], [`Device`]: what was found, opened; a missing library is an [`Absent`].
//! * [`Buffer`], [`Stream`], [`Event`], [`Graph`], [`Image`], [`Kernel`]: typed by their runtime, so
//!   that handles of two vendors do not meet; those of two devices of one vendor are compared.
//! * [`Staging`]: pinned slots, free again only when their copy has completed.
//! * [`Registered`]: somebody else's host memory, pinned; [`shared`]: device memory across processes; [`Peers`]: two
//!   devices that reach each other. What a device cannot is an [`Ability`] with its [`Lack`].
//! * [`Quiesced`]: the proof that nothing runs, needed to retire graphs and free buffers at once.
//! * [`cpu`], [`fake`], [`cuda`], [`hip`]: the runtimes, all behind [`driver::Driver`].
//! * [`watch`]: counts what is alive and lets the n-th call fail, on any runtime.
//! * [`cache`]: compiled images on disk. [`survey`]: what this machine has, for `fourspark doctor`.
//! * [`conformance`]: what every runtime must do, as one suite.
//!
//! A stream owns what it still uses until an event says it is done: freeing early cannot be
//! written. Settings are arguments: nothing here reads the environment.
//!
//! Buffers of two runtimes are of two types:
//!
//! ```compile_fail
//! # use device::{Buffer, Stream, View, cpu::Cpu, cuda::Cuda};
//! fn mixed(stream: &Stream<Cuda>, host: &View<Cpu>, card: &View<Cuda>) {
//!     stream.copy(host, card).unwrap();
//! }
//! ```
//!
//! Must not know: kernel names, quant formats, shapes of models, switches.

mod ability;
mod any;
mod buffer;
pub mod cache;
pub mod conformance;
pub mod cpu;
pub mod cuda;
mod device;
pub mod driver;
mod event;
pub mod fake;
mod fault;
mod graph;
mod held;
pub mod hip;
mod host;
mod image;
pub mod known_bad;
mod launch;
mod owned;
mod peers;
mod quiesced;
mod registered;
mod runtime;
pub mod shared;
mod staging;
mod stream;
pub mod survey;
pub mod watch;

pub use ability::{Ability, Lack};
pub use any::{AnyDevice, Lending, Pin};
pub use buffer::{Buffer, View};
pub use device::{Counters, Device};
pub use driver::{Code, EarlyLaunch, Facts, Geometry, HostModule, Kind, Limits, Place, RawArg};
pub use event::Event;
pub use fault::{Absent, DeviceId, Fault};
pub use graph::Graph;
pub use image::{ArgKind, Image, Kernel, Resources};
pub use launch::Arg;
pub use peers::Peers;
pub use quiesced::Quiesced;
pub use registered::{HostMemory, Registered};
pub use runtime::Runtime;
pub use staging::{Download, Slot, Staging};
pub use stream::Stream;
