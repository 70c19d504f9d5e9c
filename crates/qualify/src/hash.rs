//! Digests: blake3, hexadecimal.

use std::path::Path;

/// Of bytes.
#[must_use]
pub fn bytes(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// Of a text.
#[must_use]
pub fn text(text: &str) -> String {
    bytes(text.as_bytes())
}

/// Of token ids, as little-endian u32.
#[must_use]
pub fn ids(ids: &[u32]) -> String {
    let all: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    bytes(&all)
}

/// Of a whole file; `None` if it cannot be read.
#[must_use]
pub fn file(path: &Path) -> Option<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(std::fs::File::open(path).ok()?).ok()?;
    Some(hasher.finalize().to_hex().to_string())
}
