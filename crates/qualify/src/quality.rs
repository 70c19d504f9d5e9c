//! The quality gate of class near: teacher-forced KL and agreement of the first choice between the two
//! arms' models over at least 1,024 rows, by `fourspark eval kl`, and the reference against itself,
//! which must give exactly 0. The bounds stand in the profile before anything is measured.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::profile::{ArmSpec, Comparison, Profile, QualityBound};
use crate::report::QualityRecord;
use crate::runner::Process;

/// The model file of an arm: its own `--model`, else the profile's target.
fn model<'a>(profile: &'a Profile, arm: &'a ArmSpec) -> Option<&'a str> {
    let own = arm
        .args
        .windows(2)
        .find(|w| w[0] == "--model")
        .map(|w| w[1].as_str());
    let target = profile.artefacts.iter().find(|a| a.role == "target");
    own.or(target.map(|a| a.path.as_str()))
}

/// Scores arm B's model against arm A's, and A's against itself.
///
/// # Errors
/// What of it could not be measured; the verdict then says `QualityGateMissing`.
pub fn measure(
    process: &Process,
    profile: &Profile,
    comparison: &Comparison,
) -> Result<QualityRecord, String> {
    let bound = comparison
        .quality
        .as_ref()
        .ok_or("the profile has no bounds")?;
    let a = model(profile, &comparison.a).ok_or("arm A has no model")?;
    let b = model(profile, &comparison.b).ok_or("arm B has no model")?;
    let ours = kl(process, a, b, bound)?;
    let replay = kl(process, a, a, bound)?;
    record(&ours, &replay)
}

fn kl(
    process: &Process,
    reference: &str,
    model: &str,
    bound: &QualityBound,
) -> Result<Value, String> {
    let text = Path::new(&bound.text);
    let output = Command::new(&process.program)
        .current_dir(&process.root)
        .args([
            "eval",
            "kl",
            "--json",
            "--reference",
            reference,
            "--model",
            model,
            "--text",
        ])
        .arg(text)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{}: {e}", process.program.display()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())
}

/// The record of two outputs of `eval kl`.
///
/// # Errors
/// A field that is missing or no number.
pub fn record(ours: &Value, replay: &Value) -> Result<QualityRecord, String> {
    let millionths = |value: &Value, key: &str| {
        let number = value[key].as_f64().filter(|n| n.is_finite());
        // Rounded up: a divergence too small to show must not pass for none.
        let number = number.ok_or_else(|| format!("eval kl gave no {key}"))?;
        Ok::<u64, String>((number.max(0.0) * 1e6).ceil() as u64)
    };
    Ok(QualityRecord {
        rows: ours["scored"].as_u64().ok_or("eval kl gave no scored")?,
        kl_micronats: millionths(ours, "kl")?,
        // Rounded down: an agreement must not pass for more than it is.
        top1_ppm: (ours["top1"].as_f64().ok_or("eval kl gave no top1")? * 1e6).floor() as u64,
        replay_kl_micronats: millionths(replay, "kl_max")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn c_32_a_record_rounds_against_the_claim() {
        let ours = json!({"kl": 0.005_999_1, "top1": 0.950_000_9, "scored": 2040});
        let record = record(&ours, &json!({"kl_max": 1e-12})).unwrap();
        assert_eq!(record.kl_micronats, 6000);
        assert_eq!(record.top1_ppm, 950_000);
        assert_eq!(record.replay_kl_micronats, 1, "any difference is one");
        for key in ["kl", "top1", "scored"] {
            let mut less = ours.clone();
            less[key] = Value::Null;
            assert!(
                super::record(&less, &json!({"kl_max": 0.0})).is_err(),
                "{key}"
            );
        }
    }
}
