//! DS4 names: one table of what a model needs, and what each dialect of files calls it.
//!
//! Separate so that the model code asks for roles and no name stands anywhere else. Knows names
//! and which layers have which tensors; must not know shapes' meaning or arithmetic.
//! Sources: spec/ds4-architecture.md 1.3 and 1.4; the name tables of llama.cpp as of ggml 0.26.0.

pub mod derive;
pub mod keys;
mod resolve;
mod roles;
#[cfg(test)]
mod tests;

pub use resolve::{Binding, Structure, find, parse, resolve};
pub use roles::{Dialect, Presence, Role, tensor_name};
