//! Where the checkout lies and which crates it has.
//!
//! Found from this crate's own folder, so that `cargo xtask` works from any directory and without
//! asking the environment.

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::manifest::{self, Manifest};

/// A checkout of the repository.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) crates: Vec<Member>,
}

/// A crate of the workspace.
#[derive(Debug)]
pub(crate) struct Member {
    /// Folder relative to the root, `/` between parts.
    pub(crate) folder: String,
    pub(crate) manifest: Manifest,
}

impl Workspace {
    /// Opens the checkout this tool was built from.
    ///
    /// # Errors
    /// A folder or manifest cannot be read.
    pub(crate) fn open() -> Result<Self, Failure> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .ok_or_else(|| Failure::new("xtask has no parent folder"))?
            .to_owned();
        let mut folders = vec!["kernels".to_owned(), "xtask".to_owned()];
        for name in entries(&root.join("crates"))? {
            folders.push(format!("crates/{name}"));
        }
        folders.sort();
        let mut crates = Vec::new();
        for folder in folders {
            let path = root.join(&folder).join("Cargo.toml");
            if path.exists() {
                let text = fs::read_to_string(&path).map_err(|e| Failure::io(&path, &e))?;
                crates.push(Member {
                    folder,
                    manifest: manifest::parse(&text),
                });
            }
        }
        Ok(Self { root, crates })
    }

    /// Names of the crates that have this feature.
    pub(crate) fn with_feature(&self, feature: &str) -> Vec<&str> {
        let having = self
            .crates
            .iter()
            .filter(|c| c.manifest.has_feature(feature));
        having.map(|c| c.manifest.name.as_str()).collect()
    }

    /// A path under `target/` for this tool's own files.
    pub(crate) fn target(&self, name: &str) -> PathBuf {
        self.root.join("target").join(name)
    }
}

/// Names in a folder, sorted.
pub(crate) fn entries(folder: &Path) -> Result<Vec<String>, Failure> {
    let io = |e: std::io::Error| Failure::io(folder, &e);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        names.push(
            entry
                .map_err(io)?
                .file_name()
                .to_string_lossy()
                .into_owned(),
        );
    }
    names.sort();
    Ok(names)
}
