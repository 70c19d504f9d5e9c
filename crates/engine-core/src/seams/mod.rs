//! The seams between layers, as traits shaped for many sequences, several owners of experts and
//! drafters that may live elsewhere. Nothing here knows how a seam is implemented.

mod drafter;
mod owner;
mod resident;
mod target;

pub use drafter::{AheadCounts, Ask, Backbone, DraftRows, Drafter, Proposal, Verifying};
pub use owner::{Fence, Owner, RouteSlot};
pub use resident::Resident;
pub use target::{Candidates, Clocked, Counters, Target, TargetInfo};
