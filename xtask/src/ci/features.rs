//! Which features of the workspace's crates can be built on this machine.
//!
//! Apart from the stages because all that build must choose the same: another set of features would
//! compile the workspace once more.

use std::path::Path;

use crate::sh;
use crate::workspace::Workspace;

/// The feature of `ggml-sys` that compiles ggml; crates above it call theirs `ggml`.
const GGML_BUILD: &str = "build";

/// Whether a crate has one of the features; else why the stage cannot run.
pub(super) fn some_crate_has(workspace: &Workspace, any: &[&str]) -> Result<(), String> {
    if any.iter().any(|f| !workspace.with_feature(f).is_empty()) {
        return Ok(());
    }
    Err(format!("no crate has the feature {} yet", any.join(" or ")))
}

/// `a/x,b/x`: the features of the crates that have them.
pub(super) fn features(workspace: &Workspace, names: &[&str]) -> String {
    let of = |name| {
        workspace
            .with_feature(name)
            .into_iter()
            .map(move |c| format!("{c}/{name}"))
    };
    names
        .iter()
        .copied()
        .flat_map(of)
        .collect::<Vec<_>>()
        .join(",")
}

/// Whether the kernels can be built as host C++.
pub(super) fn host_exec(workspace: &Workspace) -> Result<(), String> {
    some_crate_has(workspace, &["host-exec"])?;
    if sh::has("c++") {
        return Ok(());
    }
    Err("no C++ compiler (c++)".to_owned())
}

/// Whether ggml can be built.
pub(super) fn ggml(workspace: &Workspace) -> Result<(), String> {
    some_crate_has(workspace, &["ggml", GGML_BUILD])?;
    if libclang() {
        return Ok(());
    }
    Err("no libclang for bindgen".to_owned())
}

/// The features that can be built here. One set for all stages that build: another would compile the
/// workspace once more.
fn buildable(workspace: &Workspace) -> String {
    let mut names = Vec::new();
    if host_exec(workspace).is_ok() {
        names.push("host-exec");
    }
    if ggml(workspace).is_ok() {
        names.extend(["ggml", GGML_BUILD]);
    }
    features(workspace, &names)
}

/// Arguments of cargo with the features that can be built here.
pub(super) fn with_features(workspace: &Workspace, args: &[&str]) -> Vec<String> {
    let list = buildable(workspace);
    let mut args = strings(args);
    if !list.is_empty() {
        args.extend(["--features".to_owned(), list]);
    }
    args
}

/// Owned arguments.
pub(super) fn strings(args: &[&str]) -> Vec<String> {
    args.iter().map(ToString::to_string).collect()
}

/// Whether bindgen will find a libclang where it looks by itself on Debian and Ubuntu.
fn libclang() -> bool {
    let in_folder = |folder: &Path| {
        let names = crate::workspace::entries(folder).unwrap_or_default();
        names
            .iter()
            .any(|n| n.starts_with("libclang") && n.contains(".so") && !n.contains("cpp"))
    };
    let llvm = crate::workspace::entries(Path::new("/usr/lib")).unwrap_or_default();
    let versions = llvm.iter().filter(|n| n.starts_with("llvm-"));
    versions
        .map(|n| Path::new("/usr/lib").join(n).join("lib"))
        .any(|f| in_folder(&f))
        || in_folder(Path::new("/usr/lib/x86_64-linux-gnu"))
        || in_folder(Path::new("/usr/lib/aarch64-linux-gnu"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest;
    use crate::workspace::Member;

    fn workspace() -> Workspace {
        let member = |name: &str, features: &str| Member {
            folder: format!("crates/{name}"),
            manifest: manifest::parse(&format!(
                "[package]\nname = \"{name}\"\n[features]\n{features}\n"
            )),
        };
        let crates = vec![
            member("a", "mutants = []\nggml = []"),
            member("b", "mutants = []"),
        ];
        Workspace {
            root: "/nowhere".into(),
            crates,
        }
    }

    #[test]
    fn features_name_only_crates_that_have_them() {
        let w = workspace();
        assert_eq!(
            features(&w, &["mutants", "ggml"]),
            "a/mutants,b/mutants,a/ggml"
        );
        assert!(some_crate_has(&w, &["ggml"]).is_ok());
        let reason = some_crate_has(&w, &["host-exec"]).unwrap_err();
        assert!(reason.contains("host-exec"), "{reason}");
    }
}
