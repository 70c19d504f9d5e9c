//! DSpark speculative decoding: the draft model, its heads, acceptance, the choice of width, and the
//! loop over the seams. A fault here may cost speed, never output.
//!
//! Two halves. The draft model: `config`, `names`, `weights`, `backbone`, `on_device`, `heads`, `drafter`. The
//! loop: `accept`, `width`, `suffix`, `speculate`, `stats`; it sees the model through the traits
//! `Target` and `Drafter` only.
//!
//! Must not know: processes, shared memory, HTTP, queues.

pub mod accept;
pub mod backbone;
pub mod config;
pub mod drafter;
pub mod error;
pub mod heads;
pub mod names;
pub mod on_device;
pub mod speculate;
pub mod stats;
pub mod suffix;
pub mod weights;
pub mod width;
