//! `xtask vectors`: golden data cannot drift unseen.
//!
//! A folder of fixtures holds a file `SHA256SUMS` in the format of `sha256sum` (`HEX  PATH`, path
//! relative to the folder), so that `sha256sum -c` agrees with this tool. `check` wants every listed
//! file with its sum and every fixture listed; `bless FOLDER` writes the list anew, and the
//! difference is reviewed like code.

use std::collections::BTreeMap;
use std::fs;

use crate::failure::Failure;
use crate::sha256;
use crate::tidy::{Finding, Tree};
use crate::workspace::Workspace;

const LIST: &str = "SHA256SUMS";

/// Entry of the verb.
///
/// # Errors
/// An option is unknown, or a file cannot be read or written.
pub(crate) fn run(args: &[String]) -> Result<bool, Failure> {
    let workspace = Workspace::open()?;
    match args {
        [verb] if verb == "check" => {
            let (findings, note) = examine(&workspace)?;
            findings.iter().for_each(|f| println!("{f}"));
            println!("vectors: {note}");
            Ok(findings.is_empty())
        }
        [verb, folder] if verb == "bless" => bless(&workspace, folder),
        _ => Err(Failure::new("usage: vectors check | vectors bless FOLDER")),
    }
}

/// Findings ready to print, and a line of summary.
///
/// # Errors
/// The files cannot be listed or read.
pub(crate) fn examine(workspace: &Workspace) -> Result<(Vec<String>, String), Failure> {
    let tree = Tree::read(workspace)?;
    let sums = sums(workspace, &tree)?;
    let findings = check(&tree, &sums);
    let lists = tree.files.iter().filter(|f| is_list(&f.path)).count();
    let note = format!(
        "{} files in {lists} lists, {} findings",
        sums.len(),
        findings.len()
    );
    let shown = findings
        .into_iter()
        .map(|f| format!("{}:{}: {}", f.path, f.line, f.what));
    Ok((shown.collect(), note))
}

/// Digest by path of every file that a list names or that is a fixture.
fn sums(workspace: &Workspace, tree: &Tree) -> Result<BTreeMap<String, String>, Failure> {
    let mut sums = BTreeMap::new();
    for file in tree
        .files
        .iter()
        .filter(|f| is_fixture(&f.path) || folder_of_list(tree, &f.path).is_some())
    {
        if !is_list(&file.path) {
            let full = workspace.root.join(&file.path);
            let data = fs::read(&full).map_err(|e| Failure::io(&full, &e))?;
            sums.insert(file.path.clone(), sha256::hex(&data));
        }
    }
    Ok(sums)
}

fn check(tree: &Tree, sums: &BTreeMap<String, String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut listed = BTreeMap::new();
    for (path, text) in tree.texts(is_list) {
        for (number, line) in text.lines().enumerate() {
            let Some((sum, name)) = line.split_once("  ") else {
                findings.push(Finding::new(path, number + 1, "not `HEX  PATH`"));
                continue;
            };
            let file = format!("{}{name}", folder(path));
            match sums.get(&file) {
                None => findings.push(Finding::new(path, number + 1, format!("no file {name}"))),
                Some(real) if real != sum => {
                    findings.push(Finding::new(
                        path,
                        number + 1,
                        format!("{name} has changed"),
                    ));
                }
                Some(_) => {}
            }
            listed.insert(file, ());
        }
    }
    for file in sums
        .keys()
        .filter(|file| is_fixture(file) && !listed.contains_key(*file))
    {
        let what = format!("is in no {LIST}: `cargo xtask vectors bless` its folder");
        findings.push(Finding::new(file, 0, what));
    }
    findings
}

fn bless(workspace: &Workspace, folder: &str) -> Result<bool, Failure> {
    let tree = Tree::read(workspace)?;
    let prefix = format!("{}/", folder.trim_end_matches('/'));
    let mut text = String::new();
    for file in tree
        .files
        .iter()
        .filter(|f| f.path.starts_with(&prefix) && is_data(&f.path))
    {
        let full = workspace.root.join(&file.path);
        let data = fs::read(&full).map_err(|e| Failure::io(&full, &e))?;
        text += &format!("{}  {}\n", sha256::hex(&data), &file.path[prefix.len()..]);
    }
    if text.is_empty() {
        return Err(Failure::new(format!("no data in {folder}")));
    }
    let list = workspace.root.join(format!("{prefix}{LIST}"));
    fs::write(&list, &text).map_err(|e| Failure::io(&list, &e))?;
    println!("{}{LIST}: {} files", prefix, text.lines().count());
    Ok(true)
}

fn folder_of_list<'a>(tree: &'a Tree, path: &str) -> Option<&'a str> {
    let lists = tree.files.iter().filter(|f| is_list(&f.path));
    lists
        .map(|f| folder(&f.path))
        .find(|folder| path.starts_with(folder))
}

fn is_list(path: &str) -> bool {
    path == LIST || path.ends_with(&format!("/{LIST}"))
}

/// Data that a list must name: everything in a crate's or the top `data` folder of tests, and models.
fn is_fixture(path: &str) -> bool {
    let under = |part: &str| path.contains(&format!("/{part}")) || path.starts_with(part);
    (under("tests/data/") || under("testkit/data/") || path.starts_with("models/")) && is_data(path)
}

/// Prose and scripts beside the data explain and make it; they may change freely.
fn is_data(path: &str) -> bool {
    ![".md", ".py", ".rs", ".sh"]
        .iter()
        .any(|end| path.ends_with(end))
        && !is_list(path)
}

fn folder(path: &str) -> &str {
    path.rfind('/').map_or("", |at| &path[..=at])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let tree = Tree::of(files);
        let digest = |&(path, text): &(&str, &str)| (path.to_owned(), sha256::hex(text.as_bytes()));
        let sums = files
            .iter()
            .filter(|(path, _)| !is_list(path))
            .map(digest)
            .collect();
        check(&tree, &sums).into_iter().map(|f| f.what).collect()
    }

    const DATA: &str = "crates/a/tests/data/x/golden.json";

    #[test]
    fn listed_data_is_fine() {
        let list = format!("{}  x/golden.json\n", sha256::hex(b"1 2 3"));
        let files = [
            (DATA, "1 2 3"),
            ("crates/a/tests/data/SHA256SUMS", list.as_str()),
            ("crates/a/tests/data/README.md", "where it comes from"),
        ];
        assert_eq!(findings(&files), Vec::<String>::new());
    }

    #[test]
    fn changed_missing_unlisted_and_unreadable_are_found() {
        let list = format!("{}  x/golden.json\n", sha256::hex(b"1 2 3"));
        let with = |data: &'static str, list: &str| {
            findings(&[(DATA, data), ("crates/a/tests/data/SHA256SUMS", list)])
        };
        assert!(with("1 2 4", &list)[0].contains("changed"));
        assert!(with("1 2 3", &format!("{list}{}  gone\n", sha256::hex(b"")))[0].contains("gone"));
        assert!(with("1 2 3", "")[0].contains("in no SHA256SUMS"));
        assert!(with("1 2 3", &format!("{list}rubbish\n"))[0].contains("HEX"));
        assert_eq!(findings(&[(DATA, "1")]).len(), 1, "no list at all");
    }

    #[test]
    fn what_counts_as_a_fixture() {
        for path in [
            "tests/data/a.bin",
            DATA,
            "models/m.gguf",
            "crates/testkit/data/a.json",
        ] {
            assert!(is_fixture(path), "{path}");
        }
        for path in [
            "crates/a/src/data.rs",
            "models/README.md",
            "crates/a/tests/data/make.py",
        ] {
            assert!(!is_fixture(path), "{path}");
        }
    }
}
