//! A pack: what it says of the tree, and that a folder with other files in it is refused.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use qualify::pack::{LIST, Packed, read, write};
use qualify::report::Build;
use testkit::require;

fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap()
}

/// A pack of the program under test, twice: nothing here needs the other one.
fn packed(folder: &Path, dirty: bool) -> Packed {
    let programs = tempfile::tempdir().unwrap();
    for name in ["qualify", "fourspark"] {
        fs::copy(env!("CARGO_BIN_EXE_qualify"), programs.path().join(name)).unwrap();
    }
    let build = Build {
        commit: "0123456789abcdef".to_owned(),
        dirty,
        version: "1".to_owned(),
        ..Build::default()
    };
    write(folder, root(), programs.path(), &build).unwrap()
}

fn run(program: &Path, folder: &Path, out: &Path) -> Output {
    let mut command = Command::new(program);
    command.args(["run", "--profile", "mixed", "--packed"]);
    command
        .arg(folder)
        .arg("--out")
        .arg(out)
        .env_clear()
        .output()
        .unwrap()
}

#[test]
fn c_28_a_report_from_a_pack_speaks_for_the_packed_tree() {
    require!(Command::new("strip").arg("-V").output().is_ok(), "no strip");
    for dirty in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let list = packed(folder.path(), dirty);
        assert_eq!(read(folder.path()).unwrap(), list);
        assert!(list.files.iter().any(|f| f.path == "models/tiny.gguf"));
        let out = tempfile::tempdir().unwrap();
        let output = run(&folder.path().join("qualify"), folder.path(), out.path());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        // There is no second owner: the verdict says why, and nothing needs the other program.
        assert_eq!(output.status.code(), Some(3), "{said}");
        let path = said.lines().last().unwrap();
        let report: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let build = &report["build"];
        assert_eq!(build["commit"], "0123456789abcdef");
        assert_eq!(
            (&build["packed"], &build["dirty"]),
            (&true.into(), &dirty.into())
        );
        assert_eq!(said.contains("DirtyTree"), dirty, "{said}");
        assert!(qualify::verify::verify(&fs::read_to_string(path).unwrap()).is_ok());
    }
}

#[test]
fn an_option_is_not_a_folder_for_a_pack() {
    let at = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_qualify"));
    let out = command
        .args(["pack", "--help"])
        .current_dir(at.path())
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(2));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("--help is an option"), "{said}");
    assert_eq!(fs::read_dir(at.path()).unwrap().count(), 0);
}

#[test]
fn c_28_a_pack_with_another_file_is_refused() {
    require!(Command::new("strip").arg("-V").output().is_ok(), "no strip");
    let folder = tempfile::tempdir().unwrap();
    packed(folder.path(), false);
    let out = tempfile::tempdir().unwrap();
    // A program that is not the pack's own.
    let foreign = run(
        Path::new(env!("CARGO_BIN_EXE_qualify")),
        folder.path(),
        out.path(),
    );
    assert_eq!(foreign.status.code(), Some(2));
    let said = String::from_utf8_lossy(&foreign.stderr).into_owned();
    assert!(said.contains("not the one packed"), "{said}");
    // One changed byte of a model.
    let model = folder.path().join("models/tiny-draft.gguf");
    let mut bytes = fs::read(&model).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&model, bytes).unwrap();
    let error = read(folder.path()).unwrap_err();
    assert!(error.contains("models/tiny-draft.gguf: "), "{error}");
    let refused = run(&folder.path().join("qualify"), folder.path(), out.path());
    assert_eq!(refused.status.code(), Some(2));
    // A list that lacks a program.
    let list = folder.path().join(LIST);
    fs::write(
        &list,
        r#"{"commit":"","dirty":false,"version":"1","files":[]}"#,
    )
    .unwrap();
    assert!(
        read(folder.path())
            .unwrap_err()
            .contains("qualify is not in it")
    );
}
