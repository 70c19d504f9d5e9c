//! What is done to model files before they are served: convert, quantise, inspect, plan, measure.
//!
//! Library functions only: a command line brings the printing and gives a [`Progress`]. Memory is
//! bounded by one chunk of one tensor, whatever the model's size. Must not know: HTTP, schedulers,
//! devices; of the target it knows metadata, state sizes and the `Target` seam.

pub mod convert;
mod error;
pub mod eval;
pub mod importance;
pub mod inspect;
pub mod pair;
pub mod plan;
mod progress;
pub mod quantize;
pub mod recipe;
pub mod recorded;
mod report;
mod role;
mod stream;

pub use error::ToolError;
pub use importance::Importance;
pub use progress::Progress;
pub use recipe::Recipe;
pub use report::{Report, TensorReport};
pub use role::{Place, Role};
