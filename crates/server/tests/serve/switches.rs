//! Switches as the program takes them: refused loudly, shown, and with the effect they name.
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn run(variables: &[(&str, &str)], args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fourspark"));
    command.args(args).stdin(Stdio::null());
    command.envs(variables.iter().copied()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

const ASK: [&str; 7] = [
    "run",
    "What is the capital of France?",
    "--json",
    "--max-tokens",
    "12",
    "--threads",
    "1",
];

/// C-16: a variable that cannot be taken stops the start with its name, its value and what is allowed.
#[test]
fn c_16_a_refused_variable_stops_the_start() {
    let set = [
        ("FOURSPARK_CPU_ISA", "fast"),
        ("DFLASH_MOE_FUSED_COMBINE", "1"),
        ("LUCE_DS4_DRAFT_BACKEND", "ipc"),
        ("FOURSPARK_NOTHING", "1"),
    ];
    let output = run(&set, &["doctor"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let said = said(&output);
    for (name, value) in set {
        let line = said.lines().find(|l| l.contains(name)).expect(name);
        assert!(line.contains(&format!("{value:?}")), "{line}");
    }
    assert!(said.contains("auto, baseline, avx2, avx512"), "{said}");
    assert!(said.contains("--draft-model"), "{said}");
    assert_eq!(said.lines().count(), 4);
}

#[test]
fn the_effective_set_is_printed_and_recorded() {
    let silent = run(&[], &ASK);
    assert!(!said(&silent).contains("switches:"), "{}", said(&silent));
    assert_eq!(json(&silent)["switches"], serde_json::json!([]));
    let output = run(&[("FOURSPARK_CPU_ISA", "baseline")], &ASK);
    let line = "switches: cpu.isa = baseline (FOURSPARK_CPU_ISA); all: fourspark switches";
    assert!(
        said(&output).lines().any(|l| l == line),
        "{}",
        said(&output)
    );
    let switch = &json(&output)["switches"][0];
    assert_eq!(switch["name"], "cpu.isa");
    assert_eq!(switch["value"], "baseline");
    assert_eq!(switch["set_by"], "FOURSPARK_CPU_ISA");
    assert_eq!(json(&output)["ids"], json(&silent)["ids"]);
}

#[test]
fn all_switches_are_listed_even_when_one_is_refused() {
    let listed = json(&run(
        &[("FOURSPARK_SPEC_DRAFT", "0")],
        &["switches", "--json"],
    ));
    let all = listed["switches"].as_array().unwrap();
    assert_eq!(all.len(), switches::TABLE.len());
    let draft = all.iter().find(|s| s["name"] == "spec.draft").unwrap();
    assert_eq!(
        (&draft["value"], &draft["default"]),
        (&"0".into(), &"1".into())
    );
    let wrong = run(&[("FOURSPARK_SPEC_DRAFT", "no")], &["switches"]);
    assert_eq!(wrong.status.code(), Some(2));
    let text = String::from_utf8(wrong.stdout.clone()).unwrap();
    assert!(text.contains("cpu.isa = auto"), "{text}");
    assert!(said(&wrong).contains("FOURSPARK_SPEC_DRAFT"));
}

/// C-15: the kill value takes the drafter out, says so, and changes no token.
#[test]
fn c_15_the_draft_switch_takes_the_drafter_out() {
    // A fixed width: what the default proposes depends on what passes cost here.
    let with = [&ASK[..], &["--draft", "--draft-policy", "fixed:3"]].concat();
    let on = run(&[], &with);
    let off = run(&[("FOURSPARK_SPEC_DRAFT", "0")], &with);
    assert!(
        said(&off).contains("not loaded: the switch spec.draft is 0"),
        "{}",
        said(&off)
    );
    assert_eq!(json(&off)["ids"], json(&on)["ids"]);
    let proposed = |o: &Output| json(o)["usage"]["proposed_tokens"].as_u64().unwrap();
    assert!(proposed(&on) > 0, "{}", json(&on));
    assert_eq!(proposed(&off), 0);
}

/// Where the drafter's layers run: the switch has nothing to act on without a drafter, the option is refused then; an
/// option wins.
#[test]
fn the_draft_device_is_shown_and_the_option_wins() {
    let with = [&ASK[..], &["--draft"]].concat();
    let set = [("FOURSPARK_DRAFT_DEVICE", "same")];
    let shown = |o: &Output| json(o)["drafter"]["layers"].clone();
    let plain = run(&[], &with);
    let same = run(&set, &with);
    assert_eq!(json(&same)["ids"], json(&plain)["ids"]);
    assert_eq!(shown(&plain)["asked"], serde_json::Value::Null);
    assert_eq!(shown(&same)["asked"], "same");
    for one in [&plain, &same] {
        let said = shown(one);
        assert_eq!(
            (&said["device"], &said["chains"]),
            (&"cpu".into(), &"cpu".into())
        );
        assert_eq!(said["fallbacks"], 0, "{said}");
    }
    let option = run(&set, &[&with[..], &["--draft-device", "cpu"]].concat());
    assert_eq!(shown(&option)["asked"], "cpu");
    let none = run(&set, &ASK);
    assert!(none.status.success(), "nothing to act on");
    assert_eq!(json(&none)["drafter"]["on"], false);
    let refused = run(&[], &[&ASK[..], &["--draft-device", "same"]].concat());
    assert!(!refused.status.success());
    let why = said(&refused);
    assert!(
        why.contains("draft device: expected none without a drafter's model, got same"),
        "{why}"
    );
}

/// C-15: the switches of the draft worker, and the reference engine's name of one of them; an option wins.
#[test]
fn c_15_the_worker_switches_start_a_worker() {
    let with = [&ASK[..], &["--draft"]].concat();
    let set = [
        ("FOURSPARK_DRAFT_WORKER", "required"),
        ("LUCE_DRAFT_IPC_TRANSPORT", "stream"),
    ];
    let plain = json(&run(&[], &with));
    assert_eq!(
        plain["drafter"]["worker"],
        serde_json::json!({"mode": "off"})
    );
    let worker = json(&run(&set, &with));
    assert_eq!(worker["ids"], plain["ids"]);
    let shown = &worker["drafter"]["worker"];
    assert_eq!(shown["mode"], "required");
    assert_eq!(shown["transport"], "stream");
    let off = json(&run(
        &set,
        &[&with[..], &["--draft-worker", "off"]].concat(),
    ));
    assert_eq!(off["drafter"]["worker"]["mode"], "off");
    let none = run(&set, &ASK);
    assert!(
        none.status.success(),
        "without a drafter there is nothing to switch"
    );
}

/// C-15: begun while the target verifies or after it, drafts change no answer; without a worker the option
/// is refused and the switch has nothing to act on.
#[test]
fn c_15_the_overlap_switch_changes_no_answer() {
    let with = [&ASK[..], &["--draft", "--draft-policy", "fixed:3"]].concat();
    let worker = [&with[..], &["--draft-worker", "required"]].concat();
    let set = [("FOURSPARK_DRAFT_OVERLAP", "on")];
    let serial = json(&run(&[], &worker));
    let overlap = &serial["drafter"]["worker"]["overlap"];
    assert_eq!(
        *overlap,
        serde_json::json!({"on": false, "reason": "not asked for"})
    );
    let ahead = json(&run(&set, &worker));
    assert_eq!(ahead["ids"], serial["ids"]);
    let overlap = &ahead["drafter"]["worker"]["overlap"];
    assert_eq!(*overlap, serde_json::json!({"on": true, "reason": null}));
    let off = [&worker[..], &["--draft-overlap", "off"]].concat();
    let off = json(&run(&set, &off));
    assert_eq!(off["drafter"]["worker"]["overlap"]["on"], false);
    let none = run(&set, &with);
    assert!(none.status.success(), "a switch without a worker");
    let refused = run(&[], &[&with[..], &["--draft-overlap", "on"]].concat());
    assert!(!refused.status.success());
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(
        why.contains("draft overlap: expected off without a draft worker, got on"),
        "{why}"
    );
}

/// C-15: measured before or learned on the way, prices of drafts change no answer; without a drafter there is
/// nothing to switch.
#[test]
fn c_15_the_warm_up_switch_changes_no_answer() {
    let with = [&ASK[..], &["--draft"]].concat();
    let warm = json(&run(&[], &with));
    let told = &warm["drafter"]["warm_up"];
    assert_eq!(told["on"], true);
    assert!(
        told["passes"].as_u64() > Some(0) && told["ms"].as_f64() > Some(0.0),
        "{told}"
    );
    let set = [("FOURSPARK_DRAFT_WARM_UP", "0")];
    let cold = json(&run(&set, &with));
    assert_eq!(cold["ids"], warm["ids"]);
    let off = |why: &str| serde_json::json!({"on": false, "reason": why});
    let given = "switched off: it is given no time";
    assert_eq!(cold["drafter"]["warm_up"], off(given));
    assert!(run(&set, &ASK).status.success());
    let fixed = [&with[..], &["--draft-policy", "fixed:3"]].concat();
    let needs = "the policy fixed:3 needs no measured costs";
    assert_eq!(json(&run(&[], &fixed))["drafter"]["warm_up"], off(needs));
}

/// C-32: what differs by a setting alone is compared by `eval rows` and `eval kl --reference-rows`, each in a
/// process of its own. Settings of class equal give exactly 0; leaving out the model's roundings does not.
#[test]
fn c_32_settings_of_one_model_are_compared_by_recorded_rows() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, prose) = (dir.path().join("rows"), dir.path().join("prose"));
    let words = "The keeper wrote of the wind, of the ships, and of the light that he kept. ";
    std::fs::write(&prose, words.repeat(16)).unwrap();
    let (rows, prose) = (rows.to_str().unwrap(), prose.to_str().unwrap());
    let text = [
        "--text",
        prose,
        "--window",
        "64",
        "--windows",
        "2",
        "--json",
    ];
    let made = run(
        &[],
        &[&["eval", "rows", rows, "--threads", "1"], &text[..]].concat(),
    );
    assert!(made.status.success(), "{}", said(&made));
    assert_eq!(json(&made)["rows"], 62);
    let kl = |variables: &[(&str, &str)], options: &[&str]| {
        let reference = ["eval", "kl", "--reference-rows", rows];
        let output = run(variables, &[&reference, options, &text[..]].concat());
        assert!(output.status.success(), "{}", said(&output));
        json(&output)
    };
    let baseline = [("FOURSPARK_CPU_ISA", "baseline")];
    for (variables, options) in [
        (&[][..], &["--threads", "1"][..]),
        (&[], &["--threads", "3", "--chunk", "9"]),
        (&baseline, &["--threads", "2"]),
    ] {
        let same = kl(variables, options);
        let exact = (&same["kl"], &same["kl_max"], &same["top1"]);
        assert_eq!(
            exact,
            (&0.0.into(), &0.0.into(), &1.0.into()),
            "{options:?}"
        );
        assert_eq!(same["fingerprint"], same["reference_fingerprint"]);
        assert_eq!(same["fingerprint"], json(&made)["fingerprint"]);
    }
    let plain = kl(&[], &["--threads", "1", "--no-kv-sim"]);
    assert!(plain["kl"].as_f64().unwrap() > 0.0, "{plain}");
    assert_eq!(
        (&plain["kv_sim"], &plain["scored"]),
        (&false.into(), &62.into())
    );
    // Nothing is written over, and one reference is enough.
    let again = run(&[], &[&["eval", "rows", rows], &text[..]].concat());
    assert_eq!(again.status.code(), Some(1));
    let two = ["eval", "kl", "--reference-rows", rows, "--reference", rows];
    assert_eq!(run(&[], &[&two, &text[..]].concat()).status.code(), Some(2));
    assert_eq!(
        run(&[], &[&two[..2], &text[..]].concat()).status.code(),
        Some(2)
    );
}
