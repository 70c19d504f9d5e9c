//! `fourspark selftest`: reports of sound devices, and what is said where there is none.
use std::process::{Command, Output, Stdio};

#[cfg(feature = "host-exec")]
use serde_json::Value;

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fourspark"))
        .arg("selftest")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn error(args: &[&str]) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn what_is_not_there_is_named() {
    let wrong = run(&["--device", "gpu:0"]);
    let said = String::from_utf8(wrong.stderr).unwrap();
    assert_eq!(wrong.status.code(), Some(2), "{said}");
    assert!(said.contains("expected cpu, cuda:N or hip:N"), "{said}");
    let said = error(&["--device", "hip:0", "--hip", "/nowhere/libamdhip64.so"]);
    assert!(said.contains("/nowhere/libamdhip64.so"), "{said}");
}

#[cfg(not(feature = "host-exec"))]
#[test]
fn a_build_without_host_kernels_says_so() {
    let said = error(&["--device", "cpu"]);
    assert!(said.contains("feature host-exec"), "{said}");
}

#[cfg(feature = "host-exec")]
#[test]
fn the_cpu_as_a_device_is_sound() {
    let output = run(&["--device", "cpu", "--json"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["sound"], true);
    assert_eq!(report["device"]["device"], "cpu:0");
    let families = report["families"].as_array().unwrap();
    assert_eq!(families.len(), 15);
    for family in families {
        assert!(family["values"].as_u64().unwrap() > 0, "{family}");
        assert_eq!(family["wrong"], serde_json::json!([]), "{family}");
    }
}
