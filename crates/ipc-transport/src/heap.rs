//! Memory of a step that stays with the process.
//!
//! The usual C library hands the top of its heap back to the system as soon as 128 KiB of it are free, and
//! an answer is larger than that: each step would give its pages back and find new ones, a fault a page.
//! The library raises that limit by itself, to twice the largest block that was mapped and freed (its
//! manual, "Malloc Tunable Parameters": dynamic adjustment). So one such block is freed before the first
//! step. Elsewhere this does nothing.

/// A block of this size is below the most that moves the limit, 32 MiB on 64 bits, with what the library adds.
const MOST: usize = 31 << 20;

/// From now on steps with payload up to `bytes` keep their memory.
pub(crate) fn keep(bytes: usize) {
    // Never touched, so it costs address space alone.
    drop(std::hint::black_box(vec![0u8; bytes.min(MOST)]));
}
