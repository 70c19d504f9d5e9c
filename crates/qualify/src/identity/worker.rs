//! What a draft worker did for an arm, by its report, against what the arm is named for.
//!
//! Must not know: processes.

use ipc_transport::report::Watch;

use super::arm::{Transport, Worker};

/// A worker that is to be killed is, once it had so many requests.
pub(crate) const KILLED_AT: u64 = 2;

/// What a worker did, in words; and what it did not do as the arm says: expected, got.
pub(crate) fn ran(watch: &Watch, how: Worker) -> (String, Option<(&'static str, String)>) {
    let r = watch.report();
    let transport = r.transport.map_or("none", |t| t.name());
    let on = r.device.as_str();
    let told = format!(
        "worker over {transport} on {on}, {} requests, lost {}, started again {}",
        r.steps, r.lost, r.restarts
    );
    let right = match how.transport {
        Transport::Shared => "shared",
        Transport::Stream => "stream",
    };
    let losses = u64::from(how.killed);
    let wrong = if transport != right || r.degraded.is_some() {
        Some("the transport of its name")
    } else if how.there == on.starts_with("cpu") {
        Some("layers where the arm says")
    } else if r.steps == 0 || (how.killed && r.steps <= KILLED_AT) {
        Some("drafts from a worker")
    } else if r.fallbacks > 0 || (r.lost, r.restarts) != (losses, losses) {
        Some("a worker that is lost as often as it is killed")
    } else if r.refused > 0 || (!how.killed && r.unanswered > 0) {
        Some("an answer to each request")
    } else {
        None
    };
    (told.clone(), wrong.map(|expected| (expected, told)))
}
