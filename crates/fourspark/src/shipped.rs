//! Where the shipped model lies.
//!
//! Looked for in this order: `models/tiny.gguf` beside the running executable, in the folder above
//! it, then in the repository this crate was built from. The first two serve an installed binary,
//! the last one `cargo run` and tests. The current directory plays no part.

use std::path::{Path, PathBuf};

/// Their places below any of the folders.
const MODEL: &str = "models/tiny.gguf";
const DRAFTER: &str = "models/tiny-draft.gguf";

/// The shipped model, if it can be found.
#[must_use]
pub fn shipped_model() -> Option<PathBuf> {
    candidates().into_iter().find(|path| path.is_file())
}

/// Where it could lie, in the order of search.
#[must_use]
pub fn candidates() -> Vec<PathBuf> {
    below(MODEL)
}

/// The shipped model's drafter, if it can be found.
#[must_use]
pub fn shipped_drafter() -> Option<PathBuf> {
    drafter_candidates().into_iter().find(|path| path.is_file())
}

/// Where that could lie.
#[must_use]
pub fn drafter_candidates() -> Vec<PathBuf> {
    below(DRAFTER)
}

fn below(place: &str) -> Vec<PathBuf> {
    let executable = std::env::current_exe().ok();
    let folder = executable.as_deref().and_then(Path::parent);
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let repository = crate_folder.ancestors().nth(2);
    [folder, folder.and_then(Path::parent), repository]
        .into_iter()
        .flatten()
        .map(|folder| folder.join(place))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::candidates;

    #[test]
    fn the_repository_is_looked_at_last() {
        let all = candidates();
        assert!(all.iter().all(|p| p.ends_with("models/tiny.gguf")));
        let root = all.last().and_then(|p| p.ancestors().nth(2)).unwrap();
        assert!(root.join("crates/fourspark/Cargo.toml").is_file());
        assert!(all.len() >= 2);
    }
}
