//! What clients are told about speculation: the drafter in `/props`, its part in an answer's usage, the
//! loop's counters. One place, so that the command line and the API say the same.
//!
//! Must not know: how anything is drafted.

use fourspark::drafting::worker::{MEMORY_UNUSED, Standing};
use fourspark::{ChainsInfo, DraftInfo, Drafting, LayersInfo, Phase, Stats, WorkerInfo};
use serde_json::{Map, Value, json};

/// The drafter: what it is, or why there is none.
pub(crate) fn props(draft: Option<&DraftInfo>, stats: &Stats) -> Value {
    let Some(draft) = draft else {
        return json!({"on": false, "reason": "no drafter was asked for"});
    };
    let away = matches!(stats.phase, Phase::Parked | Phase::Loading).then_some(PARKED);
    json!({
        "on": stats.drafter_lost.is_none() && away.is_none(),
        "file": draft.file,
        "source": draft.source.name(),
        "policy": draft.policy.to_string(),
        "depth": draft.depth,
        "pairing": draft.pairing.map(|p| p.to_string()),
        "layers": layers(draft.layers.as_ref()),
        "worker": worker(draft.worker.as_ref(), away.is_some()),
        "reason": stats.drafter_lost.as_deref().or(away),
        "alarm": stats.drafter_alarm,
        "warm_up": warm_up(stats),
    })
}

/// Why nothing is drafted while the model is given up.
const PARKED: &str = "the model is parked, and the drafter with it";

/// What was measured before the first request: milliseconds of it all, of a plain pass and of a draft; or why
/// nothing was.
fn warm_up(stats: &Stats) -> Value {
    let ms = |seconds: f64| (1e6 * seconds).round() / 1e3;
    match &stats.warm_up {
        None => json!({"on": false, "reason": "not yet"}),
        Some(Err(why)) => json!({"on": false, "reason": why.to_string()}),
        Some(Ok(found)) => json!({
            "on": true,
            "passes": found.passes,
            "ms": ms(found.seconds),
            "pass_ms": found.plain.map(ms),
            "draft_ms": found.draft.map(ms),
        }),
    }
}

/// Where the drafter's layers run, and why there.
fn layers(layers: Option<&LayersInfo>) -> Value {
    let Some(layers) = layers else {
        return Value::Null;
    };
    json!({
        "device": layers.id(),
        "asked": layers.asked.map(|a| a.to_string()),
        "chains": match &layers.chains {
            ChainsInfo::Device(id) => id,
            ChainsInfo::Processor | ChainsInfo::Instead(_) => "cpu",
        },
        "reason": layers.to_string(),
        "fallbacks": layers.fallbacks(),
    })
}

/// The process that runs the drafter's layers: what was asked for, what it is now, and its counts since it was started.
fn worker(worker: Option<&WorkerInfo>, parked: bool) -> Value {
    let Some(worker) = worker else {
        return json!({"mode": "off"});
    };
    if parked {
        return json!({"mode": worker.mode.name(), "state": "parked", "pid": Value::Null, "reason": PARKED});
    }
    let report = worker.watch.report();
    let numbers = report.numbers().into_iter();
    let numbers: Map<_, _> = numbers
        .map(|(name, n)| (name.to_owned(), json!(n)))
        .collect();
    let serial = worker.serial();
    json!({
        "mode": worker.mode.name(),
        "state": report.state.name(),
        "transport": report.transport.map(|t| t.name()),
        "degraded": report.degraded,
        "pid": report.pid,
        "device": report.device,
        "pinned": {
            "parent": told(&report.reach.pinned_here),
            "worker": told(&report.reach.pinned_there),
        },
        "memory": memory(&report.reach.memory),
        "awake": told(&report.awake),
        "reason": report.reason,
        "overlap": {"on": serial.is_none(), "reason": serial},
        "counts": numbers,
    })
}

/// Whether something is so, and why not.
fn told(standing: &Standing) -> Value {
    match standing {
        Standing::Yes => json!({"on": true, "reason": null}),
        Standing::No(why) => json!({"on": false, "reason": why}),
    }
}

/// Whether the worker's device sees memory of the model's, and that rows do not go that way all the same.
fn memory(probed: &Standing) -> Value {
    json!({"probe": told(probed), "used": false, "reason": MEMORY_UNUSED})
}

/// Whether the drafter was there when an answer ended. Lost: it or a part of it failed, and why. Where a
/// worker was asked for, what it was then.
pub(crate) fn usage(draft: Option<&DraftInfo>, stats: &Stats, drafting: Drafting) -> Value {
    let mut usage = match drafting {
        Drafting::Off => json!({"state": "off"}),
        Drafting::On => json!({"state": "on"}),
        Drafting::Lost => json!({"state": "lost", "reason": stats.drafter_lost}),
    };
    if let Some(worker) = draft.and_then(|d| d.worker.as_ref()) {
        let report = worker.watch.report();
        usage["worker"] = json!({
            "state": report.state.name(),
            "transport": report.transport.map(|t| t.name()),
            "lost": report.lost,
            "overlap": worker.serial().is_none(),
            "reason": report.reason,
        });
    }
    usage
}

/// Where the drafter's layers run, a line.
pub(crate) fn layer_lines(draft: Option<&DraftInfo>) -> Vec<String> {
    let layers = draft.and_then(|d| d.layers.as_ref());
    let said = |l: &LayersInfo| {
        [
            l.to_string(),
            format!("draft_device.fallbacks {}", l.fallbacks()),
        ]
    };
    layers.map_or_else(Vec::new, |l| said(l).into())
}

/// What the worker counted, a line each.
pub(crate) fn worker_lines(draft: Option<&DraftInfo>) -> Vec<String> {
    let Some(worker) = draft.and_then(|d| d.worker.as_ref()) else {
        return Vec::new();
    };
    let numbers = worker.watch.report().numbers().into_iter();
    let numbers = numbers.map(|(name, n)| format!("worker.{name} {n}"));
    std::iter::once(worker.to_string()).chain(numbers).collect()
}

/// What was measured before the first request, or why nothing was.
pub(crate) fn warm_up_line(stats: &Stats) -> Option<String> {
    let found = match stats.warm_up.as_ref()? {
        Ok(found) => found,
        Err(why) => return Some(format!("no warm-up: {why}")),
    };
    let ms = |seconds: Option<f64>| seconds.map_or("-".to_owned(), |s| format!("{:.3}", 1e3 * s));
    Some(format!(
        "warm-up: {} passes, {} ms; a plain pass {} ms, a draft {} ms",
        found.passes,
        ms(Some(found.seconds)),
        ms(found.plain),
        ms(found.draft)
    ))
}

/// Everything the loop counted, by name.
pub(crate) fn numbers(stats: &Stats) -> Value {
    let numbers = stats.speculation.numbers().into_iter();
    Value::Object(numbers.map(|(name, value)| (name, json!(value))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_was_not_meant_is_counted() {
        let instead = LayersInfo {
            device: None,
            worker: None,
            asked: None,
            instead: Some("no room".to_owned()),
            chains: ChainsInfo::Device("cuda:0".to_owned()),
        };
        let said = layers(Some(&instead));
        assert_eq!(
            (&said["device"], &said["fallbacks"]),
            (&json!("cpu"), &json!(1))
        );
        assert!(
            said["reason"]
                .as_str()
                .is_some_and(|r| r.contains("instead: no room; "))
        );
    }

    #[test]
    fn a_lost_drafter_is_said_with_its_reason_everywhere() {
        let mut stats = Stats::default();
        assert_eq!(usage(None, &stats, Drafting::Off)["state"], "off");
        assert_eq!(props(None, &stats)["on"], false);
        let draft = DraftInfo {
            source: fourspark::DraftSource::Suffix,
            file: None,
            tensor_bytes: 0,
            policy: fourspark::Policy::Fixed(3),
            depth: 7,
            pairing: None,
            layers: None,
            worker: None,
        };
        let on = props(Some(&draft), &stats);
        assert_eq!(
            (&on["on"], &on["policy"]),
            (&json!(true), &json!("fixed:3"))
        );
        assert_eq!(on["alarm"], json!(null));
        assert_eq!(on["warm_up"], json!({"on": false, "reason": "not yet"}));
        stats.warm_up = Some(Err(fourspark::Cold::Off));
        let why = "switched off: it is given no time";
        let cold = props(Some(&draft), &stats);
        assert_eq!(cold["warm_up"], json!({"on": false, "reason": why}));
        let line = format!("no warm-up: {why}");
        assert_eq!(warm_up_line(&stats), Some(line));
        stats.warm_up = Some(Ok(fourspark::WarmUp {
            passes: 14,
            seconds: 0.25,
            plain: Some(0.012_345_6),
            draft: None,
        }));
        let warmed = props(Some(&draft), &stats);
        let told =
            json!({"on": true, "passes": 14, "ms": 250.0, "pass_ms": 12.346, "draft_ms": null});
        assert_eq!(warmed["warm_up"], told);
        let line = "warm-up: 14 passes, 250.000 ms; a plain pass 12.346 ms, a draft - ms";
        assert_eq!(warm_up_line(&stats).as_deref(), Some(line));
        stats.drafter_alarm = Some("1.05 tokens a draft".to_owned());
        let alarmed = props(Some(&draft), &stats);
        assert_eq!(
            (&alarmed["on"], &alarmed["alarm"]),
            (&json!(true), &json!("1.05 tokens a draft"))
        );
        stats.phase = Phase::Parked;
        let parked = props(Some(&draft), &stats);
        assert_eq!(
            (&parked["on"], &parked["reason"]),
            (&json!(false), &json!(PARKED))
        );
        stats.phase = Phase::Loaded;
        stats.drafter_lost = Some("killed".to_owned());
        let lost = props(Some(&draft), &stats);
        assert_eq!(
            (&lost["on"], &lost["reason"]),
            (&json!(false), &json!("killed"))
        );
        let told = usage(Some(&draft), &stats, Drafting::Lost);
        assert_eq!(told, json!({"state": "lost", "reason": "killed"}));
        assert_eq!(numbers(&stats)["passes"], 0.0);
        assert_eq!(lost["worker"], json!({"mode": "off"}));
        assert!(worker_lines(Some(&draft)).is_empty());
        assert_eq!(lost["layers"], Value::Null);
        assert!(layer_lines(Some(&draft)).is_empty());
    }
}
