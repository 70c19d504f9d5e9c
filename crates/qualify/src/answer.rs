//! The answer of `fourspark run --json`, read into a run. What is missing is a failed run, not a default.
//!
//! Must not know: how the answer came about.

use serde_json::Value;

use crate::hash;
use crate::profile::Label;
use crate::run::Run;

/// Seconds as whole microseconds.
pub(crate) fn micros(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64
}

/// An answer, its fields by path; an error names the path.
struct Answer(Value);

impl Answer {
    fn at(&self, path: &str) -> Result<&Value, String> {
        let found = self.0.pointer(path).filter(|v| !v.is_null());
        found.ok_or_else(|| format!("the answer has no {path}"))
    }

    fn number(&self, path: &str) -> Result<u64, String> {
        let found = self.at(path)?.as_u64();
        found.ok_or_else(|| format!("{path} is no number"))
    }

    fn seconds(&self, path: &str) -> Result<u64, String> {
        let found = self.at(path)?.as_f64().map(micros);
        found.ok_or_else(|| format!("{path} is no number"))
    }

    fn word(&self, path: &str) -> Result<String, String> {
        let found = self.at(path)?.as_str().map(str::to_owned);
        found.ok_or_else(|| format!("{path} is no text"))
    }

    fn list(&self, path: &str) -> Result<&[Value], String> {
        let found = self.at(path)?.as_array().map(Vec::as_slice);
        found.ok_or_else(|| format!("{path} is no list"))
    }

    /// Digest of a list of ids.
    fn ids(&self, path: &str) -> Result<String, String> {
        let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        let ids: Option<Vec<u32>> = self.list(path)?.iter().map(id).collect();
        let ids = ids.ok_or_else(|| format!("{path} holds no ids"))?;
        Ok(hash::ids(&ids))
    }

    /// A count that the engine may not keep: it is null then, and `None` here. One that is not even
    /// named is an error.
    fn counted(&self, path: &str) -> Result<Option<u64>, String> {
        match self.0.pointer(path) {
            Some(Value::Null) => Ok(None),
            _ => self.number(path).map(Some),
        }
    }

    /// Counts by name, sorted.
    fn counts(&self, path: &str) -> Result<Vec<(String, u64)>, String> {
        let map = self.at(path)?.as_object();
        let map = map.ok_or_else(|| format!("{path} is no list of counts"))?;
        let count = |(name, n): (&String, &Value)| Some((name.clone(), n.as_u64()?));
        let all: Option<Vec<(String, u64)>> = map.iter().map(count).collect();
        let mut all = all.ok_or_else(|| format!("{path} holds no counts"))?;
        all.sort();
        Ok(all)
    }
}

/// Fills a run of a profile with a label from an answer. Made-up weights are never taken for a model.
pub(crate) fn take(run: &mut Run, text: &str, label: Label) -> Result<(), String> {
    let answer = Answer(serde_json::from_str(text).map_err(|e| format!("the answer: {e}"))?);
    let made_up = answer.0.pointer("/model/label").and_then(Value::as_str);
    if let (Some(got), false) = (made_up, label == Label::Synth) {
        return Err(format!(
            "the model has the label {got}, the profile {label:?}"
        ));
    }
    run.prompt_blake3 = answer.ids("/prompt_ids")?;
    run.ids_blake3 = answer.ids("/ids")?;
    run.text_blake3 = hash::text(&answer.word("/text")?);
    run.class = answer.word("/class")?;
    run.model_fingerprint = answer.word("/model/fingerprint")?;
    run.tensors = answer.counts("/model/tensors")?;
    run.prompt_tokens = answer.number("/usage/prompt_tokens")?;
    run.completion_tokens = answer.number("/usage/completion_tokens")?;
    run.cached_tokens = answer.number("/usage/cached_tokens")?;
    run.prefill_us = answer.seconds("/timings/prefill_s")?;
    run.decode_us = answer.seconds("/timings/decode_s")?;
    for switch in answer.list("/switches")? {
        let of = |key: &str| switch[key].as_str().unwrap_or_default().to_owned();
        run.switches.push((of("name"), of("value")));
    }
    take_path(run, &answer)
}

/// What shows which path was taken.
fn take_path(run: &mut Run, answer: &Answer) -> Result<(), String> {
    run.proposed = answer.number("/usage/proposed_tokens")?;
    run.accepted = answer.number("/usage/accepted_tokens")?;
    run.spec_engaged = run.proposed > 0;
    run.passes = answer.number("/counters/passes")?;
    run.pass_tokens = answer.number("/counters/pass_tokens")?;
    run.weight_bytes = answer.counted("/counters/weight_bytes")?;
    run.launches = answer.counted("/counters/launches")?;
    run.stalls = answer.counted("/counters/stalls")?;
    let lost = answer.0.pointer("/counters/drafter_lost");
    if let Some(lost) = lost.and_then(Value::as_str) {
        run.fallbacks.push(format!("the drafter was lost: {lost}"));
    }
    for (name, times) in answer.counts("/counters/fallbacks")? {
        run.fallbacks.push(format!("{name}: {times}"));
    }
    let failed = answer.number("/counters/failed")?;
    if failed > 0 {
        run.fallbacks.push(format!("{failed} requests failed"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::blank;

    fn answer() -> Value {
        serde_json::json!({
            "text": "x", "prompt_ids": [1, 2], "ids": [3], "class": "equal",
            "model": {"fingerprint": "ab", "tensors": {"F32": 3, "F16": 2}},
            "usage": {"prompt_tokens": 2, "completion_tokens": 1, "cached_tokens": 0,
                      "proposed_tokens": 4, "accepted_tokens": 1},
            "counters": {"passes": 2, "pass_tokens": 3, "failed": 0, "drafter_lost": null,
                         "weight_bytes": 1000, "launches": 20, "stalls": 0, "fallbacks": {}},
            "timings": {"prefill_s": 0.5, "decode_s": 0.25},
            "switches": [{"name": "cpu.isa", "value": "avx2"}],
        })
    }

    #[test]
    fn an_answer_is_taken_whole_or_not() {
        let mut run = blank(vec![], vec![]);
        take(&mut run, &answer().to_string(), Label::Tiny).unwrap();
        assert_eq!(
            (run.prefill_us, run.decode_us, run.proposed),
            (500_000, 250_000, 4)
        );
        assert!(run.spec_engaged && run.fallbacks.is_empty());
        assert_eq!(run.switches, [("cpu.isa".to_owned(), "avx2".to_owned())]);
        let counted = (run.weight_bytes, run.launches, run.stalls);
        assert_eq!(counted, (Some(1000), Some(20), Some(0)));
        let tensors = [("F16".to_owned(), 2), ("F32".to_owned(), 3)];
        assert_eq!(run.tensors, tensors);
        for path in [
            "/ids",
            "/counters/passes",
            "/counters/fallbacks",
            "/model/tensors",
            "/class",
            "/timings/decode_s",
            "/switches",
        ] {
            let mut less = answer();
            *less.pointer_mut(path).unwrap() = Value::Null;
            let error =
                take(&mut blank(vec![], vec![]), &less.to_string(), Label::Tiny).unwrap_err();
            assert!(error.contains(path), "{error}");
        }
    }

    /// A count that is null is not known; one that the answer does not have at all is a failed run.
    #[test]
    fn c_29_a_count_that_is_missing_is_not_zero() {
        for path in ["weight_bytes", "launches", "stalls"] {
            let mut less = answer();
            less["counters"][path] = Value::Null;
            let mut run = blank(vec![], vec![]);
            take(&mut run, &less.to_string(), Label::Tiny).unwrap();
            let unknown = [run.weight_bytes, run.launches, run.stalls];
            assert_eq!(unknown.iter().filter(|n| n.is_none()).count(), 1, "{path}");
            less["counters"].as_object_mut().unwrap().remove(path);
            let error =
                take(&mut blank(vec![], vec![]), &less.to_string(), Label::Tiny).unwrap_err();
            assert!(error.contains(path), "{error}");
        }
    }

    #[test]
    fn c_29_fallbacks_of_the_engine_are_taken_by_name() {
        let mut fell = answer();
        fell["counters"]["fallbacks"] = serde_json::json!({"target": 3, "pass_faults": 1});
        let mut run = blank(vec![], vec![]);
        take(&mut run, &fell.to_string(), Label::Tiny).unwrap();
        assert_eq!(run.fallbacks, ["pass_faults: 1", "target: 3"]);
    }

    #[test]
    fn c_29_a_lost_drafter_is_a_fallback() {
        let mut lost = answer();
        lost["counters"]["drafter_lost"] = "gone".into();
        let mut run = blank(vec![], vec![]);
        take(&mut run, &lost.to_string(), Label::Tiny).unwrap();
        assert_eq!(run.fallbacks, ["the drafter was lost: gone"]);
    }

    #[test]
    fn made_up_weights_are_taken_for_no_model() {
        let mut made = answer();
        made["model"]["label"] = "synth".into();
        let read = |label| take(&mut blank(vec![], vec![]), &made.to_string(), label);
        for label in [Label::Tiny, Label::Real] {
            let error = read(label).unwrap_err();
            assert!(error.contains("the model has the label synth"), "{error}");
        }
        read(Label::Synth).unwrap();
    }
}
