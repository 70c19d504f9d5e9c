//! `fourspark bench` on the shipped model: every row of the plan is there, measured or with its reason.
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fourspark"))
        .arg("bench")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

const SMALL: [&str; 11] = [
    "--prefill",
    "16",
    "--depth",
    "0,8",
    "--width",
    "1,2,9",
    "--streams",
    "1,3",
    "--rounds",
    "2",
    "--json",
];

fn report(args: &[&str]) -> Value {
    let output = bench(args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_row_is_measured_or_says_why_not() {
    let report = report(&SMALL);
    assert_eq!(report["schema"], "fourspark-bench-1");
    assert_eq!(report["device"], "cpu");
    assert_eq!(
        report["model"]["ctx"], 65,
        "as many positions as the plan needs"
    );
    assert!(report["read_bytes_per_second"].as_f64().unwrap() > 1e8);
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 1 + 2 * 3 + 2);
    let (left_out, measured): (Vec<_>, Vec<_>) =
        cells.iter().partition(|c| c.get("left_out").is_some());
    assert_eq!(left_out.len(), 2);
    for cell in left_out {
        assert_eq!(cell["left_out"], "9 rows: a step has 1 to 8");
    }
    for cell in &measured {
        let seconds = cell["seconds"].as_f64().unwrap();
        let [low, high] = [0, 1].map(|i| cell["quartiles"][i].as_f64().unwrap());
        assert!(0.0 < low && low <= seconds && seconds <= high, "{cell}");
        assert_eq!(cell["samples"], 2);
        assert!(cell["launches"].as_u64().unwrap() > 0);
    }
    // A pass reads every weight it needs once: one row less than two, and the same again where the rows are the same.
    let bytes = |kind: &str, key: &str, n: u64| {
        let found = |c: &&&Value| c["kind"] == kind && c[key] == n;
        let of = measured.iter().find(found).unwrap();
        of["weight_bytes"].as_u64().unwrap()
    };
    assert!(bytes("step", "width", 1) < bytes("step", "width", 2));
    let all = report["model"]["tensor_bytes"].as_u64().unwrap();
    assert!(
        bytes("streams", "sequences", 3) < all,
        "experts nobody chose are not read"
    );
}

#[test]
fn what_cannot_be_is_refused_or_left_out_by_name() {
    let output = bench(&["--draft"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("leave out --draft"), "{said}");
    assert!(output.stdout.is_empty());
    let short = report(&[&SMALL[..], &["--ctx", "12"]].concat());
    let why: Vec<&str> = short["cells"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|c| c["left_out"].as_str())
        .collect();
    assert_eq!(why.len(), 1 + 2 + 2, "{why:?}");
    assert_eq!(why[0], "needs 16 positions, the context has 12");
    assert_eq!(bench(&["--width", "x"]).status.code(), Some(2));
}

#[test]
fn text_has_a_line_for_each_row() {
    let args: Vec<&str> = SMALL[..10].to_vec();
    let output = bench(&args);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 5 + 9, "{text}");
    assert!(
        text.contains("step at 8, 9 rows      left out: 9 rows: a step has 1 to 8"),
        "{text}"
    );
}
