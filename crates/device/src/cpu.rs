//! The CPU as a device: host memory, one worker that runs work in the order of submission, images
//! that are functions of this process.
//!
//! The worker is the order of the device, not its speed: a kernel spreads its own work over threads.

use crate::ability::{Ability, Lack};
use crate::driver::{EarlyLaunch, Facts, Limits};
use crate::host::{Host, Worker};
use crate::runtime::Runtime;

/// The driver of the CPU.
pub type Cpu = Host<Worker>;

/// What host kernels are built for: 32 lanes, blocks and shared memory as on a GPU (ADR 0005).
pub(crate) fn facts(name: String, memory: u64, processors: u32) -> Facts {
    Facts {
        name,
        arch: "host".into(),
        memory,
        processors,
        lanes: 32,
        integrated: true,
        unified: true,
        limits: Limits {
            threads: 1024,
            threads_axis: [1024, 1024, 64],
            grid: [i32::MAX as u32, u16::MAX as u32, u16::MAX as u32],
            shared: 64 << 10,
            items_axis: u64::MAX,
        },
        early_launch: EarlyLaunch::Off("one operation runs at a time on the host".into()),
        register: Ability::No(Lack::Kind(
            "its memory is the host's: nothing needs to be pinned",
        )),
        share: Ability::No(Lack::Kind(
            "its memory is the host's: shared memory is for that",
        )),
    }
}

/// The CPU's driver. `memory` bytes may be allocated in all.
#[must_use]
pub fn driver(memory: u64) -> Cpu {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let facts = facts(std::env::consts::ARCH.into(), memory, threads as u32);
    Cpu::new(facts, 1, memory, None)
}

/// The CPU's runtime.
#[must_use]
pub fn runtime(memory: u64) -> Runtime<Cpu> {
    Runtime::new(driver(memory))
}
