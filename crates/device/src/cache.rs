//! Compiled images on disk, so that the second start compiles nothing.
//!
//! An entry's name is the hash of everything that decides its bytes: source, options, compiler with its
//! version, architecture. An entry holds its own hash; a damaged one is refused, counted, deleted and
//! made again. Entries appear whole (written aside, then renamed). The folder has a size bound; what
//! was used longest ago goes first.
//!
//! Must not know: what the sources are, which runtime compiles.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use crate::driver::{Code, Driver, Kind};
use crate::{Device, Fault};

/// First bytes of an entry; the digit is the layout's version.
const MAGIC: &[u8; 8] = b"FSIMAGE1";
/// Magic, form, hash of the image.
const HEADER: usize = 8 + 1 + 32;
const SUFFIX: &str = "image";

/// Why the cache could not be used. Compiling still works.
#[derive(Debug, thiserror::Error)]
#[error("image cache {path}: {source}")]
pub struct CacheError {
    /// The file or folder.
    pub path: String,
    /// What the system said.
    pub source: io::Error,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Images read from disk.
    pub hits: u64,
    /// Images compiled.
    pub compiled: u64,
    /// Entries refused because they were damaged.
    pub damaged: u64,
    /// Entries removed for want of room.
    pub evicted: u64,
    /// Images that could not be stored.
    pub unstored: u64,
}

#[derive(Debug, Default)]
struct Tally {
    hits: AtomicU64,
    compiled: AtomicU64,
    damaged: AtomicU64,
    evicted: AtomicU64,
    unstored: AtomicU64,
}

/// A folder of compiled images.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    /// Bytes it may hold.
    limit: u64,
    tally: Tally,
}

/// What decides the bytes of an image.
#[derive(Clone, Copy, Debug)]
pub struct Recipe<'a> {
    /// For messages; does not decide anything.
    pub name: &'a str,
    /// The source text.
    pub text: &'a str,
    /// The compiler's options, in order.
    pub options: &'a [&'a str],
}

impl Cache {
    /// Bytes of compiled images that a folder may hold: the images of a few devices and versions.
    pub const MOST: u64 = 1 << 30;

    /// A cache in `folder`, which is made if it is not there, of at most `limit` bytes.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn open(folder: &Path, limit: u64) -> Result<Self, CacheError> {
        fs::create_dir_all(folder).map_err(|e| failed(folder, e))?;
        Ok(Self {
            folder: folder.into(),
            limit,
            tally: Tally::default(),
        })
    }

    /// The same folder for another device: what happens there is counted for itself.
    #[must_use]
    pub fn again(&self) -> Self {
        Self {
            folder: self.folder.clone(),
            limit: self.limit,
            tally: Tally::default(),
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        Counts {
            hits: get(&self.tally.hits),
            compiled: get(&self.tally.compiled),
            damaged: get(&self.tally.damaged),
            evicted: get(&self.tally.evicted),
            unstored: get(&self.tally.unstored),
        }
    }

    /// The image of a recipe for a device: from disk, or compiled and stored.
    ///
    /// A folder that cannot be read or written costs time, not the image; `unstored` counts it.
    ///
    /// # Errors
    /// `Compile`.
    pub fn image<R: Driver>(&self, device: &Device<R>, recipe: &Recipe<'_>) -> Result<Code, Fault> {
        let compiler = device.compiler().map_err(|log| Fault::Compile {
            device: device.id(),
            source_name: recipe.name.into(),
            arch: device.facts().arch.clone(),
            log,
        })?;
        let arch = &device.facts().arch;
        let key = key(device.id().kind, &compiler, arch, recipe);
        if let Some(code) = self.read(&key) {
            count(&self.tally.hits);
            return Ok(code);
        }
        let code = device.compile(recipe.name, recipe.text, recipe.options)?;
        count(&self.tally.compiled);
        if self.write(&key, &code).is_err() {
            count(&self.tally.unstored);
        }
        Ok(code)
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.{SUFFIX}"))
    }

    /// The entry, if it is there and whole. A damaged one is removed.
    fn read(&self, key: &str) -> Option<Code> {
        let path = self.path(key);
        let bytes = fs::read(&path).ok()?;
        let Some(code) = parse(&bytes) else {
            count(&self.tally.damaged);
            let _ = fs::remove_file(&path);
            return None;
        };
        // The time of last use decides who goes first; a read-only folder keeps its order.
        if let Ok(file) = fs::File::options().append(true).open(&path) {
            let _ = file.set_modified(SystemTime::now());
        }
        Some(code)
    }

    /// Stores an entry whole, then makes room.
    fn write(&self, key: &str, code: &Code) -> Result<(), CacheError> {
        let path = self.path(key);
        let Some(bytes) = render(code) else {
            return Ok(());
        };
        if bytes.len() as u64 > self.limit {
            let error = io::Error::other("the image is larger than the whole cache may be");
            return Err(failed(&path, error));
        }
        // Each writer has a name of its own, so that two processes do not mix their bytes.
        let aside = self
            .folder
            .join(format!("{key}.{}.part", std::process::id()));
        let written = fs::File::create(&aside)
            .and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&aside, &path));
        if let Err(error) = written {
            let _ = fs::remove_file(&aside);
            return Err(failed(&path, error));
        }
        self.make_room(&path)
    }

    /// Removes entries, those used longest ago first, until the bound holds. `newest` stays.
    fn make_room(&self, newest: &Path) -> Result<(), CacheError> {
        let listed = fs::read_dir(&self.folder).map_err(|e| failed(&self.folder, e))?;
        let mut entries = Vec::new();
        for entry in listed.flatten() {
            let path = entry.path();
            let ours = path.extension().is_some_and(|e| e == SUFFIX);
            if let (true, Ok(data)) = (ours, entry.metadata()) {
                let used = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                entries.push((used, path, data.len()));
            }
        }
        entries.sort();
        let mut total: u64 = entries.iter().map(|(_, _, len)| len).sum();
        for (_, path, len) in &entries {
            if total <= self.limit {
                break;
            }
            if path != newest && fs::remove_file(path).is_ok() {
                count(&self.tally.evicted);
                total -= len;
            }
        }
        Ok(())
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn failed(path: &Path, source: io::Error) -> CacheError {
    CacheError {
        path: path.display().to_string(),
        source,
    }
}

/// The name of an entry. Every part is preceded by its length: no two recipes run into each other.
fn key(kind: Kind, compiler: &str, arch: &str, recipe: &Recipe<'_>) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut part = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    part(&kind.to_string());
    part(compiler);
    part(arch);
    part(&recipe.options.len().to_string());
    recipe.options.iter().copied().for_each(&mut part);
    part(recipe.text);
    hasher.finalize().to_hex().to_string()
}

/// An entry's bytes: magic, one byte of form, BLAKE3 of form and image, the image.
fn render(code: &Code) -> Option<Vec<u8>> {
    let (form, image) = match code {
        Code::Ptx(image) => (b'p', image),
        Code::Cubin(image) => (b'c', image),
        Code::Hsaco(image) => (b'h', image),
        Code::Host(_) => return None,
    };
    let mut bytes = Vec::with_capacity(HEADER + image.len());
    bytes.extend_from_slice(MAGIC);
    bytes.push(form);
    bytes.extend_from_slice(digest(form, image).as_bytes());
    bytes.extend_from_slice(image);
    Some(bytes)
}

fn digest(form: u8, image: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[form]);
    hasher.update(image);
    hasher.finalize()
}

/// The image of an entry, or nothing if a single byte is not as it was written.
fn parse(bytes: &[u8]) -> Option<Code> {
    let (header, image) = bytes.split_at_checked(HEADER)?;
    let (magic, rest) = header.split_at_checked(MAGIC.len())?;
    let (form, sum) = rest.split_first()?;
    if magic != MAGIC || digest(*form, image).as_bytes() != sum {
        return None;
    }
    let image = image.to_vec();
    match form {
        b'p' => Some(Code::Ptx(image)),
        b'c' => Some(Code::Cubin(image)),
        b'h' => Some(Code::Hsaco(image)),
        _ => None,
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
