//! The three containers that MIX codebooks travel in, parsed once into checked types.
//!
//! Apart from `mix` because a loader parses and a kernel decodes. The bytes are untrusted: every
//! count is checked against what is left before anything is allocated. Must not know: GGUF keys,
//! file names, tensor data. Source: spec/fpx-formats.md 8.

use std::collections::HashSet;

use super::Codebook;
use super::cursor::Cursor;
use crate::format::{Format, FormatError};

/// Books of a pair, in every container.
const BOOKS: u32 = 2;
/// Row lengths must be a multiple of this: the writers' readers accept nothing else.
const ROW_MULTIPLE: usize = 128;
/// Longest tensor name, bytes.
const MAX_NAME: usize = 1024;

/// Codebooks of dense tensors by name (`DMX2s1`).
#[derive(Clone, Debug, PartialEq)]
pub struct DenseSidecar {
    entries: Vec<(String, Codebook)>,
}

/// A MIX tensor that needs a codebook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseTensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its format.
    pub format: Format,
    /// Elements of a row.
    pub row_elems: usize,
}

impl DenseSidecar {
    /// Parses the whole of `bytes`.
    ///
    /// # Errors
    /// `Sidecar` with the offset of what is wrong, `BadCodebook`.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new("dmix2", bytes);
        let count = cursor.header(b"DMX2s1\0\0")?;
        let mut entries = Vec::new();
        let mut names = HashSet::new();
        for _ in 0..count {
            let (name, book) = dense_entry(&mut cursor)?;
            if !names.insert(name.clone()) {
                return Err(cursor.error("tensor name", "no duplicate", name));
            }
            entries.push((name, book));
        }
        cursor.finish()?;
        Ok(Self { entries })
    }

    /// The codebook of a tensor.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Codebook> {
        let entry = self.entries.iter().find(|(n, _)| n == name);
        entry.map(|(_, book)| book)
    }

    /// Entries in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Codebook)> {
        self.entries
            .iter()
            .map(|(name, book)| (name.as_str(), book))
    }

    /// Checks that entries and the MIX tensors of a file are the same set, with the same formats
    /// and row lengths the format's readers accept.
    ///
    /// # Errors
    /// `BookMismatch` naming the first tensor or entry that does not fit.
    pub fn check_tensors(&self, tensors: &[DenseTensor<'_>]) -> Result<(), FormatError> {
        for tensor in tensors {
            let book = self.get(tensor.name);
            let got = book.map_or_else(|| "no entry".into(), |b| b.format().to_string());
            if book.is_none_or(|b| b.format() != tensor.format) {
                return Err(mismatch(tensor.name, tensor.format.to_string(), got));
            }
            check_row(tensor.name, tensor.row_elems)?;
        }
        let known: HashSet<&str> = tensors.iter().map(|t| t.name).collect();
        match self.iter().find(|(name, _)| !known.contains(name)) {
            Some((name, book)) => {
                let got = book.format().to_string();
                Err(mismatch(name, "no entry: no such MIX tensor".into(), got))
            }
            None => Ok(()),
        }
    }
}

fn mismatch(tensor: &str, expected: String, got: String) -> FormatError {
    FormatError::BookMismatch {
        tensor: tensor.into(),
        expected,
        got,
    }
}

fn check_row(tensor: &str, row_elems: usize) -> Result<(), FormatError> {
    if row_elems.is_multiple_of(ROW_MULTIPLE) {
        return Ok(());
    }
    let expected = format!("rows of a multiple of {ROW_MULTIPLE}");
    Err(mismatch(tensor, expected, row_elems.to_string()))
}

fn dense_entry(cursor: &mut Cursor<'_>) -> Result<(String, Codebook), FormatError> {
    let length = cursor.size("name length")?;
    if !(1..=MAX_NAME).contains(&length) {
        return Err(cursor.error("name length", format!("1..={MAX_NAME}"), length));
    }
    let name = cursor.take("name", length)?;
    let name = std::str::from_utf8(name)
        .map_err(|_| cursor.error("name", "UTF-8", name.escape_ascii()))?
        .to_owned();
    let format = match cursor.u32("type id")? {
        105 => Format::Mix3,
        106 => Format::Mix2,
        id => return Err(cursor.error("type id", "105 or 106", id)),
    };
    cursor.expect("books", BOOKS)?;
    let levels = level_field(cursor, format)?;
    let mode = cursor.u8("mode")?;
    cursor.take("padding", 3)?;
    let words = cursor.words("levels", 2 * levels)?;
    let book = codebook(cursor, format, mode, &words)?;
    Ok((name, book))
}

/// The field K: levels of a book.
fn level_field(cursor: &mut Cursor<'_>, format: Format) -> Result<usize, FormatError> {
    let levels = super::level_count(format)?;
    cursor.expect("levels of a book", levels as u32)?;
    Ok(levels)
}

fn codebook(
    cursor: &Cursor<'_>,
    format: Format,
    mode: u8,
    levels: &[u16],
) -> Result<Codebook, FormatError> {
    match mode {
        0 => Codebook::fixed(format),
        1 => Codebook::adaptive(format, levels),
        _ => Err(cursor.error("mode", "0 or 1", mode)),
    }
}

/// Which matrix of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Surface {
    /// Gate projection.
    Gate,
    /// Up projection.
    Up,
    /// Down projection.
    Down,
}

/// Codebooks of the experts of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertBooks {
    /// Layer index.
    pub layer: u32,
    /// The matrix; none where the container does not say (`P4MIXv1`).
    pub surface: Option<Surface>,
    /// Rows of each expert's matrix.
    pub rows: usize,
    /// Elements of a row.
    pub row_elems: usize,
    /// One codebook each expert.
    pub books: Vec<Codebook>,
}

/// Codebooks of routed experts (`P4MIXv1`, `GUMIXs1`).
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertSidecar {
    entries: Vec<ExpertBooks>,
}

impl ExpertSidecar {
    /// Parses a `P4MIXv1` container: MIX3 experts, one entry each layer.
    ///
    /// # Errors
    /// `Sidecar` with the offset of what is wrong, `BadCodebook`.
    pub fn parse_p4mix(bytes: &[u8]) -> Result<Self, FormatError> {
        let cursor = Cursor::new("p4mix", bytes);
        Self::parse(cursor, b"P4MIXv1\0", Format::Mix3)
    }

    /// Parses a `GUMIXs1` container: MIX2 experts, one entry each layer and matrix.
    ///
    /// # Errors
    /// `Sidecar` with the offset of what is wrong, `BadCodebook`.
    pub fn parse_gumix(bytes: &[u8]) -> Result<Self, FormatError> {
        let cursor = Cursor::new("gumix", bytes);
        Self::parse(cursor, b"GUMIXs1\0", Format::Mix2)
    }

    fn parse(
        mut cursor: Cursor<'_>,
        magic: &'static [u8; 8],
        format: Format,
    ) -> Result<Self, FormatError> {
        let count = cursor.header(magic)?;
        let mut entries = Vec::new();
        let mut seen = HashSet::new();
        for _ in 0..count {
            let entry = expert_entry(&mut cursor, format)?;
            if !seen.insert((entry.layer, entry.surface)) {
                return Err(cursor.error("layer", "no duplicate", entry.layer));
            }
            entries.push(entry);
        }
        cursor.finish()?;
        Ok(Self { entries })
    }

    /// The codebooks of a layer's experts.
    #[must_use]
    pub fn get(&self, layer: u32, surface: Option<Surface>) -> Option<&ExpertBooks> {
        let fits = |e: &&ExpertBooks| e.layer == layer && e.surface == surface;
        self.entries.iter().find(fits)
    }

    /// Entries in file order.
    pub fn iter(&self) -> impl Iterator<Item = &ExpertBooks> {
        self.entries.iter()
    }
}

fn expert_entry(cursor: &mut Cursor<'_>, format: Format) -> Result<ExpertBooks, FormatError> {
    let layer = cursor.u32("layer")?;
    // Only the MIX2 container names the matrix, only the MIX3 one has rotations.
    let surface = match format {
        Format::Mix2 => Some(surface(cursor)?),
        _ => None,
    };
    let experts = cursor.size("experts")?;
    let rows = cursor.size("rows")?;
    let row_elems = cursor.size("row elements")?;
    if row_elems == 0 || !row_elems.is_multiple_of(ROW_MULTIPLE) {
        let expected = format!("a multiple of {ROW_MULTIPLE}");
        return Err(cursor.error("row elements", expected, row_elems));
    }
    cursor.expect("books", BOOKS)?;
    let levels = level_field(cursor, format)?;
    let modes = cursor.take("modes", experts)?;
    if surface.is_none() {
        let rotations = cursor.take("rotations", experts)?;
        if let Some(rotation) = rotations.iter().find(|&&r| r != 0) {
            return Err(cursor.error("rotation", 0, rotation));
        }
    }
    let mut books = Vec::new();
    for &mode in modes {
        let words = cursor.words("levels", 2 * levels)?;
        books.push(codebook(cursor, format, mode, &words)?);
    }
    Ok(ExpertBooks {
        layer,
        surface,
        rows,
        row_elems,
        books,
    })
}

fn surface(cursor: &mut Cursor<'_>) -> Result<Surface, FormatError> {
    match cursor.u32("surface")? {
        0 => Ok(Surface::Gate),
        1 => Ok(Surface::Up),
        2 => Ok(Surface::Down),
        other => Err(cursor.error("surface", "0, 1 or 2", other)),
    }
}
