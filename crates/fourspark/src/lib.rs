//! Fourspark as a library: load a model, put a prompt to it, stream the answer. No HTTP, no command
//! line; both are built on this crate.
//!
//! Should you use it? Yes, if your program wants a DeepSeek V4 Flash model in its own process. If you
//! only want an endpoint, run `fourspark serve`.
//!
//! ```
//! use fourspark::{ChatRequest, Engine, EngineOptions, Event, Generate, Message};
//!
//! fn main() -> Result<(), fourspark::Error> {
//!     // Or `Engine::load("model.gguf", ..)`.
//!     let engine = Engine::load_shipped(&EngineOptions::default())?;
//!     let request = ChatRequest {
//!         messages: vec![Message::user("What is the capital of France?")],
//!         generate: Generate {
//!             max_tokens: Some(64),
//!             stop: vec!["\n".to_owned()],
//!             ..Generate::default()
//!         },
//!         ..ChatRequest::default()
//!     };
//!     let mut text = String::new();
//!     for event in engine.chat(&request)? {
//!         match event {
//!             Event::Text(piece) => text += &piece, // print it as it comes
//!             Event::Finished(outcome) => println!("{} tokens", outcome.usage.completion_tokens),
//!             _ => {} // reasoning, tool calls
//!         }
//!     }
//!     assert!(text.contains("Paris"), "{text}");
//!     Ok(()) // dropping a stream early cancels it; dropping the engine stops its thread
//! }
//! ```
//!
//! | module | what |
//! | --- | --- |
//! | [`model`] | options, loading, what is loaded |
//! | [`origin`] | which model: a file, or made-up weights by name |
//! | [`engine`] | [`Engine`]: prompts in, answers out |
//! | [`parking`] | giving the model up and loading it again |
//! | [`progress`] | who hears of a model's way onto a device |
//! | [`prompt`] | requests, and prompts ready to run |
//! | [`drafting`] | which drafter speculates, and how |
//! | [`answer`] | events, outcomes, streams |
//! | [`placement`] | where the model runs |
//! | [`devices`] | which devices share its layers |
//! | [`cpu`] | which vector instructions the kernels may use |
//! | [`bench`](mod@bench) | what passes take |
//! | [`selftest`] | whether a device computes what it should |
//! | [`feature`] | what is on, what is off, and why |
//!
//! Many requests may run at once, from any threads; they share passes of the model, and no answer
//! depends on which others run beside it.

#![forbid(unsafe_code)]

pub mod answer;
pub mod bench;
pub mod cpu;
pub mod devices;
pub mod drafting;
pub mod engine;
pub mod error;
pub mod feature;
pub mod model;
pub mod origin;
pub mod parking;
pub mod placement;
pub mod progress;
pub mod prompt;
mod reader;
pub mod selftest;
pub mod shipped;
mod vocab;

pub use crate::devices::{Devices, SplitInfo};
pub use crate::placement::{DeviceChoice, DeviceInfo, DeviceOptions};
pub use answer::{Answer, AnswerStream, Call, Event, Finish, Outcome};
pub use drafting::{
    ChainsInfo, Draft, DraftDevice, DraftInfo, DraftOptions, DraftSource, LayersInfo, Pairing,
    WorkerCommand, WorkerInfo, WorkerMode, WorkerOptions, WorkerTransport,
};
pub use engine::Engine;
pub use error::Error;
pub use feature::Feature;
pub use model::{EngineOptions, EngineParts, ModelInfo, RoleFormat, TargetParts};
pub use origin::ModelName;
pub use parking::{Parked, Residency, Unparked};
pub use progress::{Progress, Upload};
pub use prompt::{ChatRequest, Generate, Prepared};
pub use scheduler::{
    Cold, Drafting, Failure, Flow, Handle, Limits, LoadFailure, LoopStats, ParkError, Phase,
    Policy, RewardOptions, Speculation, Stats, SubmitError, UnparkError, Usage, WarmUp,
};
pub use shipped::shipped_model;

pub use engine_core::seams::{Counters, Resident};
pub use engine_core::{NumericClass, Penalties, SamplePlan, TokenId};
pub use text::prompt::{Assistant, Block, Effort, Part, ToolCall, ToolResult};
pub use text::{Generation, Message, Thinking, ToolDef};
