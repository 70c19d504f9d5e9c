//! What the engine counted of its own work, for `/props`, `run --json` and `run --stats`: which path was
//! taken, and what fell back. One place, so that the command line and the API say the same.
//!
//! Must not know: what a count is good for; devices.

use fourspark::Stats;
use serde_json::{Map, Value, json};

/// The counts by name. A target that counts nothing has null for each of its own: not 0.
pub(crate) fn add(to: &mut Map<String, Value>, stats: &Stats) {
    let target = stats.target;
    let fallbacks = stats.fallbacks().into_iter();
    let fallbacks = fallbacks.map(|(name, times)| (name.to_owned(), json!(times)));
    to.extend([
        (
            "weight_bytes".to_owned(),
            json!(target.and_then(|t| t.weight_bytes)),
        ),
        ("launches".to_owned(), json!(target.map(|t| t.launches))),
        ("stalls".to_owned(), json!(target.map(|t| t.stalls))),
        ("fallbacks".to_owned(), Value::Object(fallbacks.collect())),
    ]);
}

/// The same as lines `name value`.
pub(crate) fn lines(stats: &Stats) -> Vec<String> {
    let mut lines = match stats.target {
        None => vec!["the target counts nothing".to_owned()],
        Some(t) => vec![
            match t.weight_bytes {
                Some(bytes) => format!("weight_bytes {bytes}"),
                None => "weight_bytes not counted".to_owned(),
            },
            format!("launches {}", t.launches),
            format!("stalls {}", t.stalls),
        ],
    };
    let fallbacks = stats.fallbacks();
    if fallbacks.is_empty() {
        lines.push("fallbacks 0".to_owned());
    }
    let named = fallbacks.into_iter();
    lines.extend(named.map(|(name, times)| format!("fallbacks.{name} {times}")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_29_a_count_that_is_missing_is_not_zero() {
        let mut stats = Stats::default();
        let mut map = Map::new();
        add(&mut map, &stats);
        assert_eq!(
            Value::Object(map.clone()),
            json!({"weight_bytes": null, "launches": null, "stalls": null, "fallbacks": {}})
        );
        assert_eq!(lines(&stats), ["the target counts nothing", "fallbacks 0"]);
        stats.target = Some(fourspark::Counters {
            weight_bytes: Some(7),
            launches: 3,
            fallbacks: 2,
            stalls: 1,
        });
        add(&mut map, &stats);
        assert_eq!(
            Value::Object(map),
            json!({"weight_bytes": 7, "launches": 3, "stalls": 1, "fallbacks": {"target": 2}})
        );
        let expected = [
            "weight_bytes 7",
            "launches 3",
            "stalls 1",
            "fallbacks.target 2",
        ];
        assert_eq!(lines(&stats), expected);
        stats.target = Some(fourspark::Counters {
            weight_bytes: None,
            ..fourspark::Counters::default()
        });
        assert_eq!(lines(&stats)[0], "weight_bytes not counted");
    }
}
