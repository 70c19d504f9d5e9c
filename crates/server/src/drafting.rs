//! What clients are told about speculation: the drafter in `/props`, its part in an answer's usage, the
//! loop's counters. One place, so that the command line and the API say the same.
//!
//! Must not know: how anything is drafted.

use fourspark::{DraftInfo, Drafting, Stats};
use serde_json::{Value, json};

/// The drafter: what it is, or why there is none.
pub(crate) fn props(draft: Option<&DraftInfo>, stats: &Stats) -> Value {
    let Some(draft) = draft else {
        return json!({"on": false, "reason": "no drafter was asked for"});
    };
    json!({
        "on": stats.drafter_lost.is_none(),
        "file": draft.file,
        "source": draft.source.name(),
        "policy": draft.policy.to_string(),
        "depth": draft.depth,
        "pairing": draft.pairing.map(|p| p.to_string()),
        "reason": stats.drafter_lost,
        "alarm": stats.drafter_alarm,
    })
}

/// Whether the drafter was there when an answer ended. Lost: it or a part of it failed, and why.
pub(crate) fn usage(stats: &Stats, drafting: Drafting) -> Value {
    match drafting {
        Drafting::Off => json!({"state": "off"}),
        Drafting::On => json!({"state": "on"}),
        Drafting::Lost => json!({"state": "lost", "reason": stats.drafter_lost}),
    }
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
    fn a_lost_drafter_is_said_with_its_reason_everywhere() {
        let mut stats = Stats::default();
        assert_eq!(usage(&stats, Drafting::Off)["state"], "off");
        assert_eq!(props(None, &stats)["on"], false);
        let draft = DraftInfo {
            source: fourspark::DraftSource::Suffix,
            file: None,
            policy: fourspark::Policy::Fixed(3),
            depth: 7,
            pairing: None,
        };
        let on = props(Some(&draft), &stats);
        assert_eq!(
            (&on["on"], &on["policy"]),
            (&json!(true), &json!("fixed:3"))
        );
        assert_eq!(on["alarm"], json!(null));
        stats.drafter_alarm = Some("1.05 tokens a draft".to_owned());
        let alarmed = props(Some(&draft), &stats);
        assert_eq!(
            (&alarmed["on"], &alarmed["alarm"]),
            (&json!(true), &json!("1.05 tokens a draft"))
        );
        stats.drafter_lost = Some("killed".to_owned());
        let lost = props(Some(&draft), &stats);
        assert_eq!(
            (&lost["on"], &lost["reason"]),
            (&json!(false), &json!("killed"))
        );
        let told = usage(&stats, Drafting::Lost);
        assert_eq!(told, json!({"state": "lost", "reason": "killed"}));
        assert_eq!(numbers(&stats)["passes"], 0.0);
    }
}
