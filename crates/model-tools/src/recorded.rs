//! Rows of logits of a reference in a file. So two settings can be compared that cannot stand in one
//! process (a switch of the environment is one for the whole process), and a large reference runs once.
//!
//! The file, little-endian: `FSROWS01`; u64 vocabulary, u64 rows; 32 bytes digest of the windows, 32 bytes
//! fingerprint of the model; rows `[rows, vocabulary]` f32; blake3 of everything before. Rows are kept as
//! they are, so that a divergence from the file is the divergence from the model, to the last bit.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use engine_core::Target;
//! use model_tools::ToolError;
//! use model_tools::eval::{Divergence, Window};
//! use model_tools::recorded::{self, Recorded};
//!
//! fn by_file(
//!     reference: &mut dyn Target,
//!     model: &mut dyn Target,
//!     windows: &[Window<'_>],
//! ) -> Result<Divergence, ToolError> {
//!     let file = Path::new("reference.rows");
//!     recorded::record(reference, windows, file, &mut ())?;
//!     recorded::compare(Recorded::open(file)?, model, windows, &mut ())
//! }
//! ```
//!
//! Must not know: tokenizers, how a target is made.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use engine_core::Target;

use crate::error::ToolError;
use crate::eval::{Divergence, Scorer, Window, begin, rows_at_once, stats};
use crate::progress::{self, Progress};

const MAGIC: &[u8; 8] = b"FSROWS01";
const HEAD: u64 = 8 + 8 + 8 + 32 + 32;
const DIGEST: u64 = 32;
/// No vocabulary is larger; keeps a damaged head from asking for all memory.
const VOCAB_MAX: u64 = 1 << 24;

/// What a file of rows is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Vocabulary size.
    pub n_vocab: u64,
    /// Rows, one for each scored prediction.
    pub rows: u64,
    /// Digest of the windows that were scored.
    pub windows: [u8; 32],
    /// Fingerprint of the model.
    pub fingerprint: [u8; 32],
}

impl Head {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.n_vocab.to_le_bytes());
        bytes.extend(self.rows.to_le_bytes());
        bytes.extend(self.windows);
        bytes.extend(self.fingerprint);
        bytes
    }

    /// Length of the whole file; `None` if no file is that long.
    fn file_len(&self) -> Option<u64> {
        let values = self.n_vocab.checked_mul(self.rows)?;
        values.checked_mul(4)?.checked_add(HEAD + DIGEST)
    }
}

/// Digest of windows: tokens, and from where they are scored.
fn digest(windows: &[Window<'_>]) -> [u8; 32] {
    let mut hash = blake3::Hasher::new();
    for window in windows {
        hash.update(&(window.first as u64).to_le_bytes());
        hash.update(&(window.tokens.len() as u64).to_le_bytes());
        for token in window.tokens {
            hash.update(&token.to_le_bytes());
        }
    }
    *hash.finalize().as_bytes()
}

fn scored(windows: &[Window<'_>]) -> u64 {
    windows.iter().map(|w| w.scored() as u64).sum()
}

/// Writes a target's rows over the windows into a new file; of a failure nothing is left.
///
/// # Errors
/// As [`crate::eval::perplexity`]; `Io`, also where the file is there already.
pub fn record(
    target: &mut dyn Target,
    windows: &[Window<'_>],
    path: &Path,
    progress: &mut dyn Progress,
) -> Result<Head, ToolError> {
    let file = File::create_new(path).map_err(ToolError::io(path, "create"))?;
    let done = write(target, windows, path, BufWriter::new(file), progress);
    if done.is_err() {
        // The reason matters more than a file that cannot be removed.
        let _ = std::fs::remove_file(path);
    }
    done
}

fn write(
    target: &mut dyn Target,
    windows: &[Window<'_>],
    path: &Path,
    mut to: BufWriter<File>,
    progress: &mut dyn Progress,
) -> Result<Head, ToolError> {
    let n_vocab = target.info().n_vocab;
    begin(windows, n_vocab, progress)?;
    let head = Head {
        n_vocab: n_vocab as u64,
        rows: scored(windows),
        windows: digest(windows),
        fingerprint: target.info().fingerprint,
    };
    let mut hash = blake3::Hasher::new();
    let mut put = |bytes: &[u8]| {
        hash.update(bytes);
        to.write_all(bytes).map_err(ToolError::io(path, "write"))
    };
    put(&head.bytes())?;
    let rows = rows_at_once(&[&*target]);
    let mut bytes = Vec::with_capacity(4 * n_vocab);
    for (i, window) in windows.iter().enumerate() {
        let mut scorer = Scorer::new(target, window)?;
        while let Some(got) = scorer.advance(rows)? {
            for (logits, _) in got.iter() {
                bytes.clear();
                bytes.extend(logits.iter().flat_map(|v| v.to_le_bytes()));
                put(&bytes)?;
            }
        }
        progress::done(progress, &format!("window {i}"), 0)?;
    }
    let digest = *hash.finalize().as_bytes();
    to.write_all(&digest)
        .and_then(|()| to.flush())
        .map_err(ToolError::io(path, "write"))?;
    Ok(head)
}

/// A file of rows, its head checked against its length. The rows are checked when they have all been
/// read.
#[derive(Debug)]
pub struct Recorded {
    path: PathBuf,
    head: Head,
    file: BufReader<File>,
    hash: blake3::Hasher,
    bytes: Vec<u8>,
    row: Vec<f32>,
}

impl Recorded {
    /// Opens a file of rows.
    ///
    /// # Errors
    /// `Io`; `Key` naming the field of the head that does not hold.
    pub fn open(path: &Path) -> Result<Self, ToolError> {
        let file = File::open(path).map_err(ToolError::io(path, "open"))?;
        let len = file.metadata().map_err(ToolError::io(path, "open"))?.len();
        let mut file = BufReader::new(file);
        let mut head = [0; HEAD as usize];
        file.read_exact(&mut head)
            .map_err(ToolError::io(path, "read the head"))?;
        if &head[..8] != MAGIC {
            return Err(ToolError::key(
                path,
                "magic",
                "FSROWS01",
                format!("{:?}", head[..8].escape_ascii().to_string()),
            ));
        }
        let number = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&head[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let digest = |at: usize| {
            let mut bytes = [0; 32];
            bytes.copy_from_slice(&head[at..at + 32]);
            bytes
        };
        let found = Head {
            n_vocab: number(8),
            rows: number(16),
            windows: digest(24),
            fingerprint: digest(56),
        };
        if !(1..=VOCAB_MAX).contains(&found.n_vocab) {
            let expected = format!("1 to {VOCAB_MAX}");
            return Err(ToolError::key(path, "vocabulary", expected, found.n_vocab));
        }
        if found.file_len() != Some(len) {
            let expected = found
                .file_len()
                .map_or("a possible length".to_owned(), |n| format!("{n} bytes"));
            return Err(ToolError::key(path, "length", expected, len));
        }
        let n_vocab = found.n_vocab as usize;
        let mut hash = blake3::Hasher::new();
        hash.update(&head);
        Ok(Self {
            path: path.to_path_buf(),
            head: found,
            file,
            hash,
            bytes: vec![0; 4 * n_vocab],
            row: vec![0.0; n_vocab],
        })
    }

    /// What it is about.
    #[must_use]
    pub const fn head(&self) -> &Head {
        &self.head
    }

    /// The next row, `[n_vocab]` f32.
    fn next(&mut self) -> Result<&[f32], ToolError> {
        let read = self.file.read_exact(&mut self.bytes);
        read.map_err(ToolError::io(&self.path, "read a row"))?;
        self.hash.update(&self.bytes);
        let (values, _) = self.bytes.as_chunks::<4>();
        for (value, bytes) in self.row.iter_mut().zip(values) {
            *value = f32::from_le_bytes(*bytes);
        }
        Ok(&self.row)
    }

    /// Checks what was read against the digest at the end.
    fn finish(mut self) -> Result<(), ToolError> {
        let mut stored = [0; DIGEST as usize];
        let read = self.file.read_exact(&mut stored);
        read.map_err(ToolError::io(&self.path, "read the digest"))?;
        let found = *self.hash.finalize().as_bytes();
        if stored == found {
            return Ok(());
        }
        let hex = |bytes: [u8; 32]| blake3::Hash::from_bytes(bytes).to_hex().to_string();
        Err(ToolError::key(
            &self.path,
            "digest",
            hex(stored),
            hex(found),
        ))
    }
}

/// Scores a model against recorded rows of the same windows.
///
/// # Errors
/// As [`crate::eval::compare`]; `Key` where the file is about another vocabulary or other windows, or was
/// damaged; `Io`.
pub fn compare(
    mut reference: Recorded,
    model: &mut dyn Target,
    windows: &[Window<'_>],
    progress: &mut dyn Progress,
) -> Result<Divergence, ToolError> {
    let n_vocab = model.info().n_vocab;
    let head = *reference.head();
    let path = reference.path.clone();
    let same = |key: &str, expected: u64, got: u64| match expected == got {
        true => Ok(()),
        false => Err(ToolError::key(&path, key, expected.to_string(), got)),
    };
    same("vocabulary", n_vocab as u64, head.n_vocab)?;
    same("rows", scored(windows), head.rows)?;
    if head.windows != digest(windows) {
        let expected = "the windows of this text";
        return Err(ToolError::key(&path, "windows", expected, "others"));
    }
    begin(windows, n_vocab, progress)?;
    let rows = rows_at_once(&[&*model]);
    let mut sums = stats::Pair::default();
    for (i, window) in windows.iter().enumerate() {
        let mut ours = Scorer::new(model, window)?;
        while let Some(got) = ours.advance(rows)? {
            for (q, next) in got.iter() {
                sums.add(reference.next()?, q, next);
            }
        }
        progress::done(progress, &format!("window {i}"), 0)?;
    }
    reference.finish()?;
    Ok(sums.divergence())
}
