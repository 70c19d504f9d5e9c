//! The quality gate of class near: teacher-forced KL and agreement of the first choice over at least 1,024
//! rows. Arm A writes its rows (`eval rows`), arm B is scored against them (`eval kl`), and arm A again in
//! a process of its own, which must give exactly 0. Each runs with the options and the environment of its
//! arm, so that arms may differ by a file or by a setting alone. Bounds and text stand in the profile
//! before anything is measured.
//!
//! Must not know: what a setting does.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use engine_core::mutant::mutant;
use serde_json::Value;

use crate::hash;
use crate::profile::{ArmSpec, Comparison, Profile, QualityBound};
use crate::report::{QualityRecord, Scored};
use crate::runner::Process;

/// Stands for the file of rows in recorded commands.
pub const ROWS: &str = "ROWS";

/// Options of a run that reach the model, and whether a value follows.
const REACH: &[(&str, bool)] = &[
    ("--model", true),
    ("--threads", true),
    ("--chunk", true),
    ("--no-kv-sim", false),
    ("--fp2", true),
    ("--fp6", true),
];

/// Whether an option takes a value, and whether it reaches the model; `None` if that is not known.
/// Options of drafting only choose candidates: given tokens are predicted, so there is nothing to draft.
fn known(name: &str) -> Option<(bool, bool)> {
    let reach = REACH.iter().find(|(n, _)| *n == name);
    match reach {
        Some((_, takes)) => Some((*takes, true)),
        None if name == "--draft" => Some((false, false)),
        None if name.starts_with("--draft-") => Some((true, false)),
        None => None,
    }
}

/// Options of an arm that reach the model, the file among them.
///
/// # Errors
/// An option of which it is not known whether it does: a gate that leaves one out would score another
/// arm.
fn settings(profile: &Profile, arm: &ArmSpec) -> Result<Vec<String>, String> {
    let mut kept: Vec<String> = Vec::new();
    let mut words = arm.args.iter();
    while let Some(word) = words.next() {
        let name = word.split('=').next().unwrap_or_default();
        let unknown = || format!("arm {}: {word} cannot be scored", arm.name);
        let (takes, reaches) = known(name).ok_or_else(unknown)?;
        let reaches = reaches && !mutant(324);
        let value = (takes && !word.contains('=')).then(|| words.next());
        // A word that is an option itself must not go with the one before it.
        if value.is_some_and(|v| v.is_none_or(|v| v.starts_with("--"))) {
            return Err(format!("arm {}: {word} has no value", arm.name));
        }
        if reaches {
            kept.push(word.clone());
            kept.extend(value.flatten().cloned());
        }
    }
    let target = profile.artefacts.iter().find(|a| a.role == "target");
    if !kept.iter().any(|w| w.starts_with("--model")) {
        let target = target.ok_or_else(|| format!("arm {} has no model", arm.name))?;
        kept.extend(["--model".to_owned(), target.path.clone()]);
    }
    Ok(kept)
}

/// The command that writes an arm's rows, or scores an arm against them, with [`ROWS`] for the file: a
/// pure function of the profile, so that a report can be checked for having scored what it says.
///
/// # Errors
/// As the arm's options: one that cannot be scored.
pub fn argv(
    profile: &Profile,
    arm: &ArmSpec,
    bound: &QualityBound,
    reference: bool,
) -> Result<Vec<String>, String> {
    let verb: &[&str] = if reference {
        &["eval", "rows", ROWS, "--json"]
    } else {
        &["eval", "kl", "--reference-rows", ROWS, "--json"]
    };
    let mut argv: Vec<String> = verb.iter().map(|w| (*w).to_owned()).collect();
    argv.extend(settings(profile, arm)?);
    argv.extend(["--text".to_owned(), bound.text.clone()]);
    Ok(argv)
}

/// Whoever can run `eval`.
pub trait Evaluator {
    /// One command, its answer as JSON.
    ///
    /// # Errors
    /// Why there is none.
    fn eval(&mut self, argv: &[String], env: &[(String, String)]) -> Result<Value, String>;
}

/// The binary, with a file of rows that goes when this does.
#[derive(Debug)]
pub struct Binary<'a> {
    process: &'a Process,
    rows: PathBuf,
}

impl<'a> Binary<'a> {
    /// The binary of a process, its file in the scratch folder.
    #[must_use]
    pub fn new(process: &'a Process) -> Self {
        let name = format!("gate-{}.rows", std::process::id());
        let rows = process.scratch.join(name);
        Self { process, rows }
    }
}

impl Drop for Binary<'_> {
    fn drop(&mut self) {
        // Never written if nothing was scored.
        let _ = std::fs::remove_file(&self.rows);
    }
}

impl Evaluator for Binary<'_> {
    fn eval(&mut self, argv: &[String], env: &[(String, String)]) -> Result<Value, String> {
        let program = &self.process.program;
        let word = |w: &String| match w == ROWS {
            true => self.rows.clone().into_os_string(),
            false => w.into(),
        };
        let output = Command::new(program)
            .current_dir(&self.process.root)
            .args(argv.iter().map(word))
            .env_clear()
            .envs(env.iter().map(|(n, v)| (n, v)))
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("{}: {e}", program.display()))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())
    }
}

/// Scores arm B against arm A, and A against itself. `root`: what the text's path is relative to.
///
/// # Errors
/// What of it could not be measured; the verdict then says `QualityGateMissing`.
pub fn measure(
    evaluator: &mut dyn Evaluator,
    root: &Path,
    profile: &Profile,
    comparison: &Comparison,
) -> Result<QualityRecord, String> {
    let bound = comparison
        .quality
        .as_ref()
        .ok_or("the profile has no bounds")?;
    let text = root.join(&bound.text);
    let text_blake3 =
        hash::file(&text).ok_or_else(|| format!("{}: cannot read", text.display()))?;
    let mut score = |arm: &ArmSpec, reference: bool| {
        let argv = argv(profile, arm, bound, reference)?;
        let answer = evaluator.eval(&argv, &arm.env)?;
        Ok::<_, String>((scored(argv, arm, &answer)?, answer))
    };
    let (reference, _) = score(&comparison.a, true)?;
    let (model, ours) = score(&comparison.b, false)?;
    let (replay, again) = score(&comparison.a, false)?;
    Ok(QualityRecord {
        text_blake3,
        reference,
        model,
        replay,
        ..figures(&ours, &again)?
    })
}

fn scored(argv: Vec<String>, arm: &ArmSpec, answer: &Value) -> Result<Scored, String> {
    let fingerprint = answer["fingerprint"].as_str();
    let switches = answer["switches"]
        .as_array()
        .ok_or("eval gave no switches")?;
    let of = |s: &Value, key: &str| s[key].as_str().unwrap_or_default().to_owned();
    Ok(Scored {
        argv,
        env: arm.env.clone(),
        fingerprint: fingerprint.ok_or("eval gave no fingerprint")?.to_owned(),
        switches: switches
            .iter()
            .map(|s| (of(s, "name"), of(s, "value")))
            .collect(),
    })
}

/// The figures of two outputs of `eval kl`.
///
/// # Errors
/// A field that is missing or no number.
pub fn figures(ours: &Value, replay: &Value) -> Result<QualityRecord, String> {
    let millionths = |value: &Value, key: &str| {
        let number = value[key].as_f64().filter(|n| n.is_finite());
        // Rounded up: a divergence too small to show must not pass for none.
        let number = number.ok_or_else(|| format!("eval kl gave no {key}"))?;
        Ok::<u64, String>((number.max(0.0) * 1e6).ceil() as u64)
    };
    Ok(QualityRecord {
        text_blake3: String::new(),
        reference: Scored::default(),
        model: Scored::default(),
        replay: Scored::default(),
        rows: ours["scored"].as_u64().ok_or("eval kl gave no scored")?,
        kl_micronats: millionths(ours, "kl")?,
        // Rounded down: an agreement must not pass for more than it is.
        top1_ppm: (ours["top1"].as_f64().ok_or("eval kl gave no top1")? * 1e6).floor() as u64,
        replay_kl_micronats: millionths(replay, "kl_max")?,
    })
}

/// What a record lacks, so that arms whose outputs differ may stand; `None`: nothing.
#[must_use]
pub fn lacks(
    profile: &Profile,
    comparison: &Comparison,
    record: Option<&QualityRecord>,
) -> Option<String> {
    let (Some(bound), Some(got)) = (&comparison.quality, record) else {
        return Some("outputs differ and nothing was scored".to_owned());
    };
    let failed = got.rows < bound.rows_min.max(1024)
        || got.kl_micronats > bound.kl_max_micronats
        || got.top1_ppm < bound.top1_min_ppm
        || got.replay_kl_micronats != 0;
    if failed {
        return Some(format!(
            "{} rows, KL {} micronats, top-1 {} ppm, replay {} micronats; bounds {bound:?}",
            got.rows, got.kl_micronats, got.top1_ppm, got.replay_kl_micronats
        ));
    }
    if bound.text_blake3 != got.text_blake3 {
        return Some("another text was scored than the profile's".to_owned());
    }
    let (a, b) = (&comparison.a, &comparison.b);
    let all = [
        (a, true, &got.reference),
        (b, false, &got.model),
        (a, false, &got.replay),
    ];
    all.into_iter().find_map(|(arm, reference, scored)| {
        let meant = argv(profile, arm, bound, reference);
        let same = meant.as_ref() == Ok(&scored.argv) && scored.env == arm.env;
        let what = format!("arm {} was not scored: {:?} ran", arm.name, scored.argv);
        (!same).then_some(what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn c_32_a_record_rounds_against_the_claim() {
        let ours = json!({"kl": 0.005_999_1, "top1": 0.950_000_9, "scored": 2040});
        let record = figures(&ours, &json!({"kl_max": 1e-12})).unwrap();
        assert_eq!(record.kl_micronats, 6000);
        assert_eq!(record.top1_ppm, 950_000);
        assert_eq!(record.replay_kl_micronats, 1, "any difference is one");
        for key in ["kl", "top1", "scored"] {
            let mut less = ours.clone();
            less[key] = Value::Null;
            assert!(figures(&less, &json!({"kl_max": 0.0})).is_err(), "{key}");
        }
    }

    /// An engine whose rows depend on its settings: each adds its own divergence, and an unsteady one
    /// never gives the same rows twice.
    struct Toy {
        asked: Vec<Vec<String>>,
        rows: Option<f64>,
        unsteady: f64,
    }

    impl Toy {
        const fn new(unsteady: f64) -> Self {
            Self {
                asked: Vec::new(),
                rows: None,
                unsteady,
            }
        }
    }

    impl Evaluator for Toy {
        fn eval(&mut self, argv: &[String], env: &[(String, String)]) -> Result<Value, String> {
            let drift = self.unsteady * self.asked.len() as f64;
            self.asked.push(argv.to_vec());
            let has = |word: &str| argv.iter().any(|w| w == word);
            let isa = env.iter().any(|(n, _)| n == "FOURSPARK_CPU_ISA");
            // Only the roundings are planted as a difference; the others are of class equal.
            let row = f64::from(u8::from(has("--no-kv-sim"))) * 0.004 + drift;
            let switches = if isa {
                json!([{"name": "cpu.isa", "value": "baseline"}])
            } else {
                json!([])
            };
            let mut answer = json!({"fingerprint": "ab", "switches": switches});
            if argv[1] == "rows" {
                self.rows = Some(row);
            } else {
                let kl = (row - self.rows.ok_or("no rows")?).abs();
                answer["kl"] = kl.into();
                answer["kl_max"] = (3.0 * kl).into();
                answer["top1"] = (1.0 - kl).into();
                answer["scored"] = 2040.into();
            }
            Ok(answer)
        }
    }

    /// Arms of one file that differ by these options and variables of B.
    fn arms(args: &[&str], env: &[(&str, &str)]) -> (Profile, Comparison, tempfile::TempDir) {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("text"), "prose").unwrap();
        let mut profile = Profile::named("cpu-smoke").unwrap();
        let comparison = profile.comparison.as_mut().unwrap();
        comparison.class = crate::profile::Class::Near;
        comparison.b.args = args.iter().map(|w| (*w).to_owned()).collect();
        let pair = |(n, v): &(&str, &str)| ((*n).to_owned(), (*v).to_owned());
        comparison.b.env = env.iter().map(pair).collect();
        comparison.quality = Some(QualityBound {
            rows_min: 1024,
            kl_max_micronats: 6000,
            top1_min_ppm: 900_000,
            text: "text".to_owned(),
            text_blake3: hash::text("prose"),
        });
        let comparison = comparison.clone();
        (profile, comparison, root)
    }

    fn go(toy: &mut Toy, args: &[&str], env: &[(&str, &str)]) -> (QualityRecord, Option<String>) {
        let (profile, comparison, root) = arms(args, env);
        let record = measure(toy, root.path(), &profile, &comparison).unwrap();
        let lacks = lacks(&profile, &comparison, Some(&record));
        (record, lacks)
    }

    #[test]
    fn c_32_arms_that_differ_by_a_setting_are_scored_with_it() {
        let mut toy = Toy::new(0.0);
        let (record, lacks) = go(
            &mut toy,
            &[
                "--draft-depth",
                "3",
                "--no-kv-sim",
                "--threads",
                "1",
                "--draft",
            ],
            &[],
        );
        assert_eq!((record.kl_micronats, record.rows), (4000, 2040));
        assert_eq!(record.top1_ppm, 996_000);
        assert_eq!((record.replay_kl_micronats, lacks), (0, None));
        let model = "--model models/tiny.gguf";
        let said: Vec<String> = toy.asked.iter().map(|argv| argv.join(" ")).collect();
        let expected = [
            format!("eval rows ROWS --json {model} --text text"),
            format!(
                "eval kl --reference-rows ROWS --json --no-kv-sim --threads 1 {model} --text text"
            ),
            format!("eval kl --reference-rows ROWS --json {model} --text text"),
        ];
        assert_eq!(said, expected);
        // Settings of class equal: no divergence at all.
        for args in [&["--threads=3"][..], &["--chunk", "9"]] {
            let (record, lacks) = go(&mut Toy::new(0.0), args, &[]);
            assert_eq!((record.kl_micronats, record.top1_ppm), (0, 1_000_000));
            assert_eq!(lacks, None);
        }
        let kill = [("FOURSPARK_CPU_ISA", "baseline")];
        let (record, lacks) = go(&mut Toy::new(0.0), &[], &kill);
        assert_eq!((record.kl_micronats, lacks), (0, None));
        let isa = ("cpu.isa".to_owned(), "baseline".to_owned());
        assert_eq!(record.model.switches, [isa]);
        assert_eq!(record.reference.switches, []);
    }

    /// Planted: a reference that does not repeat itself, however little.
    #[test]
    fn c_32_a_replay_that_is_not_exact_is_caught() {
        let (record, lacks) = go(&mut Toy::new(1e-12), &["--no-kv-sim"], &[]);
        assert_eq!(record.replay_kl_micronats, 1);
        assert!(lacks.unwrap().contains("replay 1 micronats"));
    }

    #[test]
    fn c_32_an_option_that_cannot_be_scored_is_refused() {
        for (args, named) in [
            (&["--seed", "7"][..], "--seed cannot be scored"),
            (&["--threads"], "--threads has no value"),
            (&["--draft-new", "--no-kv-sim"], "--draft-new has no value"),
            (&["7"], "7 cannot be scored"),
        ] {
            let (profile, comparison, root) = arms(args, &[]);
            let found = measure(&mut Toy::new(0.0), root.path(), &profile, &comparison);
            let error = found.unwrap_err();
            assert!(error.contains(named), "{error}");
        }
        let (profile, comparison, root) = arms(&[], &[]);
        std::fs::remove_file(root.path().join("text")).unwrap();
        assert!(measure(&mut Toy::new(0.0), root.path(), &profile, &comparison).is_err());
    }

    /// A record counts for the arms, the text and the commands it was made of, for nothing else.
    #[test]
    fn c_32_a_record_of_other_arms_is_no_gate() {
        let (profile, comparison, root) = arms(&["--no-kv-sim"], &[]);
        let record = measure(&mut Toy::new(0.0), root.path(), &profile, &comparison).unwrap();
        let found = |record: &QualityRecord| lacks(&profile, &comparison, Some(record));
        assert_eq!(found(&record), None);
        let with = |change: fn(&mut QualityRecord)| {
            let mut other = record.clone();
            change(&mut other);
            found(&other).unwrap()
        };
        assert!(with(|r| r.text_blake3 = hash::text("easy")).contains("another text"));
        assert!(with(|r| r.model.argv = r.replay.argv.clone()).contains("arm on"));
        assert!(with(|r| r.replay.argv = r.model.argv.clone()).contains("arm off"));
        assert!(with(|r| r.reference.env = vec![("X".into(), "1".into())]).contains("arm off"));
        assert!(with(|r| r.rows = 1023).contains("1023 rows"));
        assert!(lacks(&profile, &comparison, None).is_some());
    }

    /// The real evaluator: empty environment but the arm's, the file of rows in the scratch folder and gone
    /// afterwards. The program is the shell, which runs the script `eval` of the root.
    #[cfg(unix)]
    #[test]
    fn c_32_the_binary_is_scored_in_processes_of_its_own() {
        const SCRIPT: &str = r#"
[ -z "$HOME" ] || exit 7
case "$1" in
rows) [ ! -e "$2" ] || exit 8
    echo "$FOURSPARK_CPU_ISA" > "$2"
    echo '{"fingerprint": "ab", "switches": []}' ;;
kl) read -r isa < "$3"
    kl=0.0
    [ "$isa" = "$FOURSPARK_CPU_ISA" ] || kl=0.002
    echo "{\"fingerprint\": \"ab\", \"switches\": [], \"scored\": 2040, \"top1\": 1.0,"
    echo "\"kl\": $kl, \"kl_max\": $kl}" ;;
esac
"#;
        let (profile, comparison, root) = arms(&[], &[("FOURSPARK_CPU_ISA", "baseline")]);
        std::fs::write(root.path().join("eval"), SCRIPT).unwrap();
        let process = Process {
            root: root.path().to_path_buf(),
            program: PathBuf::from("/bin/sh"),
            limit: std::time::Duration::from_secs(60),
            sys: PathBuf::new(),
            card: None,
            scratch: root.path().to_path_buf(),
        };
        let mut binary = Binary::new(&process);
        let record = measure(&mut binary, root.path(), &profile, &comparison).unwrap();
        assert_eq!((record.kl_micronats, record.replay_kl_micronats), (2000, 0));
        assert_eq!(lacks(&profile, &comparison, Some(&record)), None);
        let rows = binary.rows.clone();
        assert!(rows.is_file());
        drop(binary);
        assert!(!rows.exists());
        std::fs::write(root.path().join("eval"), "echo no >&2; exit 1").unwrap();
        let error = measure(
            &mut Binary::new(&process),
            root.path(),
            &profile,
            &comparison,
        );
        assert_eq!(error.unwrap_err(), "no");
    }
}
