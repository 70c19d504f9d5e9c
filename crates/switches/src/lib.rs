//! Every run-time switch of the engine, and the only code that reads the environment.
//!
//! A switch is a row of [`TABLE`]: its name, what it does to the bits (its class), its default, the
//! value that kills it, and the test that stands for it. Names of the reference engine are mapped to
//! a row or refused by name. A variable that cannot be read stops the start: a switch that is set and
//! has no effect is the commonest way to measure nothing.
//!
//! ```
//! let set = [("FOURSPARK_CPU_ISA", "baseline")];
//! let effective = switches::Effective::of(set).unwrap();
//! assert_eq!(effective.value("cpu.isa"), "baseline");
//! assert_eq!(effective.line().unwrap(), "switches: cpu.isa = baseline (FOURSPARK_CPU_ISA)");
//! assert!(switches::Effective::of([("FOURSPARK_CPU_ISA", "fast")]).is_err());
//! ```
//!
//! Must not know: what a switch does. Owners ask for a value and act on it.

#![forbid(unsafe_code)]

mod page;
mod parse;
mod read;
mod row;
mod table;

pub use page::page;
pub use parse::{Effective, Refusal, Setting, Source};
pub use read::{environment, host_variables, start};
pub use row::{Alias, Class, Kind, State, Switch};
pub use table::{REFUSED, Refused, TABLE};
