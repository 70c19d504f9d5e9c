//! The engine's operations: CPU implementations that define the bits, and the GPU sources that
//! equal them (`docs/adr/0001-arithmetic.md`).

pub mod cpu;
