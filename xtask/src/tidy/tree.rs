//! The files the rules look at: tracked, or new and not ignored. Read once.
//!
//! Rules get texts, never paths to open, so that their tests need no files.

use std::fs;
use std::process::Command;

use crate::failure::Failure;
use crate::manifest::{self, Manifest};
use crate::sh;
use crate::workspace::Workspace;

/// A file of the repository.
#[derive(Debug)]
pub(crate) struct File {
    /// Relative to the root, `/` between parts.
    pub(crate) path: String,
    pub(crate) bytes: u64,
    /// `None` for what is not UTF-8.
    pub(crate) text: Option<String>,
}

/// Every file, sorted by path.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) files: Vec<File>,
}

impl Tree {
    /// Reads the checkout.
    ///
    /// # Errors
    /// Not a git checkout, or a listed file cannot be read.
    pub(crate) fn read(workspace: &Workspace) -> Result<Self, Failure> {
        let mut git = Command::new("git");
        git.current_dir(&workspace.root);
        git.args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]);
        let list = sh::capture(&mut git)
            .ok_or_else(|| Failure::new("git cannot list the files: tidy needs a git checkout"))?;
        let mut paths: Vec<&str> = list.split('\0').filter(|p| !p.is_empty()).collect();
        paths.sort_unstable();
        paths.dedup();
        let mut files = Vec::new();
        for path in paths {
            let full = workspace.root.join(path);
            // A file removed but not yet staged is still listed.
            if full.is_file() {
                let raw = fs::read(&full).map_err(|e| Failure::io(&full, &e))?;
                let bytes = raw.len() as u64;
                files.push(File {
                    path: path.to_owned(),
                    bytes,
                    text: String::from_utf8(raw).ok(),
                });
            }
        }
        Ok(Self { files })
    }

    /// Text files whose path satisfies `wanted`.
    pub(crate) fn texts(&self, wanted: fn(&str) -> bool) -> impl Iterator<Item = (&str, &str)> {
        let chosen = self.files.iter().filter(move |f| wanted(&f.path));
        chosen.filter_map(|f| Some((f.path.as_str(), f.text.as_deref()?)))
    }

    /// The text of one file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|f| f.path == path)?.text.as_deref()
    }

    /// Manifests of the workspace's crates, with their paths.
    pub(crate) fn manifests(&self) -> impl Iterator<Item = (&str, Manifest)> {
        let wanted = |path: &str| path.ends_with("/Cargo.toml");
        self.texts(wanted)
            .map(|(path, text)| (path, manifest::parse(text)))
    }
}

#[cfg(test)]
impl Tree {
    /// A tree of texts for the rules' tests.
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let file = |&(path, text): &(&str, &str)| File {
            path: path.to_owned(),
            bytes: text.len() as u64,
            text: Some(text.to_owned()),
        };
        Self {
            files: files.iter().map(file).collect(),
        }
    }
}
