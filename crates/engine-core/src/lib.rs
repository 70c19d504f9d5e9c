//! What every layer agrees on: ids, spans, the seams between layers, fault and class vocabulary,
//! and the functions of the arithmetic contract (`docs/adr/0001-arithmetic.md`).
//!
//! Must not know: files, devices, threads, tensors' storage formats, prompts, sockets. No I/O.

#![forbid(unsafe_code)]

pub mod class;
pub mod fault;
pub mod ids;
pub mod math;
pub mod mutant;
pub mod plan;
pub mod seams;
pub mod span;

pub use class::NumericClass;
pub use fault::Fault;
pub use ids::{Epoch, ExpertId, LayerId, Pos, SeqId, TokenId};
pub use plan::{Penalties, SamplePlan};
pub use seams::{Backbone, Drafter, Owner, Target};
pub use span::{Out, Rows, Span, Tap, Ticket, Want};
