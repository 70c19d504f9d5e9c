//! One file being written: a temporary file beside its target, hashed as it grows, renamed at the
//! end. Whatever happens before the rename, the target is as it was.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A temporary file and what was written to it.
#[derive(Debug)]
pub(super) struct PartFile {
    target: PathBuf,
    file: BufWriter<NamedTempFile>,
    hash: Box<blake3::Hasher>,
    bytes: u64,
}

/// A complete temporary file, synced.
#[derive(Debug)]
pub(super) struct Complete {
    pub(super) target: PathBuf,
    pub(super) bytes: u64,
    pub(super) blake3: String,
    file: NamedTempFile,
}

impl PartFile {
    /// Opens the temporary file in the target's folder.
    pub(super) fn create(target: &Path) -> io::Result<Self> {
        let name = target
            .file_name()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
        let mut prefix = name.to_os_string();
        prefix.push(".");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".tmp");
        // The default of temporary files is 0600; a model is an ordinary file, subject to umask.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        Ok(Self {
            target: target.to_path_buf(),
            file: BufWriter::with_capacity(1 << 20, builder.tempfile_in(folder(target))?),
            hash: Box::default(),
            bytes: 0,
        })
    }

    /// Appends zeros up to `len`.
    pub(super) fn pad_to(&mut self, len: u64) -> io::Result<()> {
        const ZEROS: [u8; 4096] = [0; 4096];
        while self.bytes < len {
            let n = ZEROS
                .len()
                .min(usize::try_from(len - self.bytes).unwrap_or(ZEROS.len()));
            self.write_all(&ZEROS[..n])?;
        }
        Ok(())
    }

    /// Flushes and syncs.
    pub(super) fn complete(self) -> io::Result<Complete> {
        let file = self
            .file
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        file.as_file().sync_all()?;
        Ok(Complete {
            target: self.target,
            bytes: self.bytes,
            blake3: self.hash.finalize().to_hex().to_string(),
            file,
        })
    }

    /// Makes the file `len` bytes long without writing them.
    #[cfg(any(test, feature = "fixtures"))]
    pub(super) fn extend(&mut self, len: u64) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().as_file().set_len(len)
    }
}

impl Write for PartFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.file.write(bytes)?;
        self.hash.update(&bytes[..n]);
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Renames every file to its target, the first part last: a reader that finds it finds all. If a
/// rename fails, parts renamed before it are removed.
pub(super) fn commit(parts: Vec<Complete>) -> io::Result<()> {
    let mut done: Vec<PathBuf> = Vec::new();
    for part in parts.into_iter().rev() {
        if let Err(e) = part.file.persist(&part.target) {
            for path in done {
                // The rename error is the one to report.
                let _ = fs::remove_file(path);
            }
            return Err(e.error);
        }
        done.push(part.target);
    }
    done.first()
        .map_or(Ok(()), |path| sync_folder(folder(path)))
}

/// Makes the renames last. Elsewhere than on Unix a folder cannot be opened for that.
fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(path)?.sync_all()?;
    }
    Ok(())
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}
