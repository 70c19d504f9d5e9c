//! From a row of logits to a token: bias, penalties, temperature, top-k, min-p, top-p, keyed noise.
//!
//! Separate because drafting, verifying and plain decoding must all draw with it. The draw is a
//! function of (logits, plan, position, earlier tokens) and of nothing else: neither of batching, of
//! drafting nor of the order in which tokens are looked at (`docs/adr/0007-keyed-noise.md`), so that
//! a device kernel gives the same token. Must not know: models, devices, text, requests. No I/O.

mod adjust;
pub mod error;
mod filter;
pub mod logprob;
pub mod noise;
pub mod plan;
mod sampler;
mod wide;

pub use error::SampleError;
pub use logprob::{Logprobs, log_sum_exp};
pub use noise::NoiseKey;
pub use plan::{PlanError, validate};
pub use sampler::{Sampler, argmax};
