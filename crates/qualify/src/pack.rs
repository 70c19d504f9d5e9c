//! Programs and models in one folder, for a machine without a toolchain and without the tree's history.
//!
//! The list beside them has the commit, whether the tree had changes, and the digest of every file, all
//! taken where it was packed. A folder whose files are not those of its list is refused.
//!
//! Must not know: what runs from it.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::hash;
use crate::profile::{Profile, names};
use crate::report::Build;

/// The list.
pub const LIST: &str = "packed.json";
/// Programs, as they are named in a folder of built programs and in the pack.
pub const PROGRAMS: [&str; 2] = ["qualify", "fourspark"];

/// A file of a pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Where, from the pack's folder.
    pub path: String,
    /// Its blake3.
    pub blake3: String,
}

/// What was packed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packed {
    /// The tree's commit.
    pub commit: String,
    /// Whether it had changes that no commit holds.
    pub dirty: bool,
    /// Version of the programs.
    pub version: String,
    /// Everything beside the list.
    pub files: Vec<Entry>,
}

impl Packed {
    /// What a report says of the tree.
    #[must_use]
    pub fn build(&self, exe_blake3: String) -> Build {
        Build {
            commit: self.commit.clone(),
            dirty: self.dirty,
            exe_blake3,
            version: self.version.clone(),
            packed: true,
        }
    }
}

fn told<T>(path: &Path, result: std::io::Result<T>) -> Result<T, String> {
    result.map_err(|e| format!("{}: {e}", path.display()))
}

/// Packs the programs in `programs`, stripped, and the models of all profiles from `root` into `folder`.
///
/// # Errors
/// A file that cannot be read or written; `strip` is absent or fails.
pub fn write(folder: &Path, root: &Path, programs: &Path, build: &Build) -> Result<Packed, String> {
    told(folder, fs::create_dir_all(folder))?;
    let mut paths: Vec<String> = Vec::new();
    for name in PROGRAMS {
        let from = programs.join(name);
        strip(&from, &folder.join(name))?;
        paths.push(name.to_owned());
    }
    for path in models()? {
        let to = folder.join(&path);
        let parent = to.parent().unwrap_or(folder);
        told(parent, fs::create_dir_all(parent))?;
        told(&to, fs::copy(root.join(&path), &to))?;
        paths.push(path);
    }
    let entry = |path: String| {
        let digest = hash::file(&folder.join(&path));
        let blake3 = digest.ok_or_else(|| format!("{path}: cannot be read"))?;
        Ok::<_, String>(Entry { path, blake3 })
    };
    let packed = Packed {
        commit: build.commit.clone(),
        dirty: build.dirty,
        version: build.version.clone(),
        files: paths.into_iter().map(entry).collect::<Result<_, _>>()?,
    };
    let text = serde_json::to_string_pretty(&packed).map_err(|e| e.to_string())?;
    let list = folder.join(LIST);
    told(&list, fs::write(&list, text + "\n"))?;
    Ok(packed)
}

/// Files that profiles name, each once.
fn models() -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for name in names() {
        let profile = Profile::named(name).map_err(|e| e.to_string())?;
        let paths = profile.artefacts.into_iter().map(|a| a.path);
        // Settings are in the program; what nobody has has no path.
        all.extend(paths.filter(|p| p.starts_with("models/")));
    }
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

fn strip(from: &Path, to: &Path) -> Result<(), String> {
    let done = Command::new("strip").arg("-o").args([to, from]).status();
    match done {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("strip {}: {status}", from.display())),
        Err(e) => Err(format!("strip {}: {e}", from.display())),
    }
}

/// Reads a pack and checks every file of it.
///
/// # Errors
/// The list cannot be read, or a file is not the one it names.
pub fn read(folder: &Path) -> Result<Packed, String> {
    let list = folder.join(LIST);
    let text = told(&list, fs::read_to_string(&list))?;
    let packed: Packed =
        serde_json::from_str(&text).map_err(|e| format!("{}: {e}", list.display()))?;
    for entry in &packed.files {
        let got = hash::file(&folder.join(&entry.path)).unwrap_or_default();
        if got != entry.blake3 {
            let Entry { path, blake3 } = entry;
            let list = list.display();
            return Err(format!("{list}: {path}: {blake3} expected, got {got:?}"));
        }
    }
    let lacks = |name: &&str| !packed.files.iter().any(|f| f.path == *name);
    match PROGRAMS.into_iter().find(lacks) {
        Some(name) => Err(format!("{}: {name} is not in it", list.display())),
        None => Ok(packed),
    }
}
