//! Running arms: the real one starts the binary, in a process and an empty environment of its own for
//! every run; the fake one of `selftest` makes runs up.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::command::{PROMPT, argv};
use crate::hash;
use crate::profile::{ArmSpec, Context, Profile, frozen_prompt};
use crate::run::{Run, blank};
use crate::{heat, machine};

/// Whoever can run an arm once.
pub trait Runner {
    /// One run. What goes wrong is in it: a run is never lost.
    fn run(&mut self, profile: &Profile, context: &Context, arm: &ArmSpec) -> Run;
}

/// The binary.
#[derive(Clone, Debug)]
pub struct Process {
    /// The repository's root: paths of artefacts are relative to it.
    pub root: PathBuf,
    /// The executable.
    pub program: PathBuf,
    /// A run that takes longer is ended and counted as failed.
    pub limit: Duration,
    /// Where the system says how hot it is, `/sys`.
    pub sys: PathBuf,
    /// A folder for files that are needed for a while.
    pub scratch: PathBuf,
}

impl Runner for Process {
    fn run(&mut self, profile: &Profile, context: &Context, arm: &ArmSpec) -> Run {
        let argv = argv(profile, context, arm);
        let mut run = blank(argv, arm.env.clone());
        run.exe_blake3 = hash::file(&self.program).unwrap_or_default();
        run.load_centi = machine::load_centi();
        let before = machine::clock_mhz();
        let cool = heat::read(&self.sys);
        let start = Instant::now();
        let answer = self.answer(&run, context);
        run.wall_us = micros(start.elapsed().as_secs_f64());
        run.clocks_mhz = before.zip(machine::clock_mhz());
        (run.throttled, run.heat) = heat::between(&cool, &heat::read(&self.sys));
        match answer.and_then(|text| take(&mut run, &text)) {
            Ok(()) => run.ok = true,
            Err(why) => run.error = why,
        }
        run
    }
}

impl Process {
    fn answer(&self, run: &Run, context: &Context) -> Result<String, String> {
        let prompt = frozen_prompt(&context.prompt)
            .ok_or_else(|| format!("no frozen prompt {:?}", context.prompt))?;
        let word = |w: &String| {
            if w == PROMPT {
                prompt.text.clone()
            } else {
                w.clone()
            }
        };
        let mut command = Command::new(&self.program);
        command
            .current_dir(&self.root)
            .args(run.argv.iter().map(word))
            .env_clear()
            .envs(run.env.iter().map(|(n, v)| (n, v)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|e| format!("{}: {e}", self.program.display()))?;
        let start = Instant::now();
        // An answer is a few kilobytes: it fits the pipe while the process is waited for.
        while child.try_wait().map_err(|e| e.to_string())?.is_none() {
            if start.elapsed() > self.limit {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("timeout after {} s", self.limit.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let output = child.wait_with_output().map_err(|e| e.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("{}: {}", output.status, said.trim()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn micros(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64
}

/// Fills a run from the JSON of `fourspark run`. What is missing is a failed run, not a default.
fn take(run: &mut Run, text: &str) -> Result<(), String> {
    let answer: Value = serde_json::from_str(text).map_err(|e| format!("the answer: {e}"))?;
    let at = |path: &str| {
        let found = answer.pointer(path).filter(|v| !v.is_null());
        found.ok_or_else(|| format!("the answer has no {path}"))
    };
    let number = |path: &str| {
        at(path)?
            .as_u64()
            .ok_or_else(|| format!("{path} is no number"))
    };
    let seconds = |path: &str| {
        let value = at(path)?
            .as_f64()
            .ok_or_else(|| format!("{path} is no number"))?;
        Ok::<u64, String>(micros(value))
    };
    let word = |path: &str| {
        let text = at(path)?
            .as_str()
            .ok_or_else(|| format!("{path} is no text"))?;
        Ok::<String, String>(text.to_owned())
    };
    // A count that the engine does not keep is null; one that is not even named is a failed run.
    let counted = |path: &str| match answer.pointer(path) {
        Some(Value::Null) => Ok(None),
        _ => number(path).map(Some),
    };
    let counts = |path: &str| {
        let map = at(path)?
            .as_object()
            .ok_or_else(|| format!("{path} is no list of counts"))?;
        let count = |(name, n): (&String, &Value)| Some((name.clone(), n.as_u64()?));
        let all: Option<Vec<(String, u64)>> = map.iter().map(count).collect();
        let mut all = all.ok_or_else(|| format!("{path} holds no counts"))?;
        all.sort();
        Ok::<_, String>(all)
    };
    let ids = |path: &str| {
        let list = at(path)?
            .as_array()
            .ok_or_else(|| format!("{path} is no list"))?;
        let ids = list
            .iter()
            .map(|v| v.as_u64().and_then(|n| u32::try_from(n).ok()));
        let ids: Option<Vec<u32>> = ids.collect();
        ids.ok_or_else(|| format!("{path} holds no ids"))
    };
    run.prompt_blake3 = hash::ids(&ids("/prompt_ids")?);
    run.ids_blake3 = hash::ids(&ids("/ids")?);
    run.text_blake3 = hash::text(&word("/text")?);
    run.class = word("/class")?;
    run.model_fingerprint = word("/model/fingerprint")?;
    run.prompt_tokens = number("/usage/prompt_tokens")?;
    run.completion_tokens = number("/usage/completion_tokens")?;
    run.cached_tokens = number("/usage/cached_tokens")?;
    run.proposed = number("/usage/proposed_tokens")?;
    run.accepted = number("/usage/accepted_tokens")?;
    run.passes = number("/counters/passes")?;
    run.pass_tokens = number("/counters/pass_tokens")?;
    run.weight_bytes = counted("/counters/weight_bytes")?;
    run.launches = counted("/counters/launches")?;
    run.stalls = counted("/counters/stalls")?;
    run.tensors = counts("/model/tensors")?;
    run.spec_engaged = run.proposed > 0;
    run.prefill_us = seconds("/timings/prefill_s")?;
    run.decode_us = seconds("/timings/decode_s")?;
    if let Some(lost) = answer
        .pointer("/counters/drafter_lost")
        .and_then(Value::as_str)
    {
        run.fallbacks.push(format!("the drafter was lost: {lost}"));
    }
    for (name, times) in counts("/counters/fallbacks")? {
        run.fallbacks.push(format!("{name}: {times}"));
    }
    let failed = number("/counters/failed")?;
    if failed > 0 {
        run.fallbacks.push(format!("{failed} requests failed"));
    }
    for switch in at("/switches")?.as_array().into_iter().flatten() {
        let of = |key: &str| switch[key].as_str().unwrap_or_default().to_owned();
        run.switches.push((of("name"), of("value")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        take(&mut run, &answer().to_string()).unwrap();
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
            let error = take(&mut blank(vec![], vec![]), &less.to_string()).unwrap_err();
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
            take(&mut run, &less.to_string()).unwrap();
            let unknown = [run.weight_bytes, run.launches, run.stalls];
            assert_eq!(unknown.iter().filter(|n| n.is_none()).count(), 1, "{path}");
            less["counters"].as_object_mut().unwrap().remove(path);
            let error = take(&mut blank(vec![], vec![]), &less.to_string()).unwrap_err();
            assert!(error.contains(path), "{error}");
        }
    }

    #[test]
    fn c_29_fallbacks_of_the_engine_are_taken_by_name() {
        let mut fell = answer();
        fell["counters"]["fallbacks"] = serde_json::json!({"target": 3, "pass_faults": 1});
        let mut run = blank(vec![], vec![]);
        take(&mut run, &fell.to_string()).unwrap();
        assert_eq!(run.fallbacks, ["pass_faults: 1", "target: 3"]);
    }

    #[test]
    fn c_29_a_lost_drafter_is_a_fallback() {
        let mut lost = answer();
        lost["counters"]["drafter_lost"] = "gone".into();
        let mut run = blank(vec![], vec![]);
        take(&mut run, &lost.to_string()).unwrap();
        assert_eq!(run.fallbacks, ["the drafter was lost: gone"]);
    }
}
