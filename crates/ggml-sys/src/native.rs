//! The bindings and everything unsafe.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::ptr::{self, NonNull};

/// What bindgen made of ggml.h and gguf.h.
#[allow(
    dead_code,
    missing_docs,
    missing_debug_implementations,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    clippy::all,
    clippy::pedantic
)]
mod c {
    include!(concat!(env!("OUT_DIR"), "/ggml.rs"));
}

/// Why ggml was not asked, or what it could not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No type of this id, or one that was removed.
    #[error("ggml has no type {id} (ids 0 to {}, some removed)", type_count() - 1)]
    NoSuchType {
        /// The id.
        id: u32,
    },
    /// The type has no conversion of this kind.
    #[error("ggml type {name} has no {what}")]
    Unsupported {
        /// The type.
        name: String,
        /// The conversion.
        what: &'static str,
    },
    /// A length that is not what the others need.
    #[error("ggml type {name}: {what}: expected {expected}, got {got}")]
    Length {
        /// The type.
        name: String,
        /// Which length.
        what: &'static str,
        /// What it should be.
        expected: usize,
        /// What it is.
        got: usize,
    },
    /// A row is not a whole number of blocks.
    #[error("ggml type {name}: {elems} elements are not a multiple of the block of {block}")]
    PartialBlock {
        /// The type.
        name: String,
        /// Elements.
        elems: usize,
        /// Elements of a block.
        block: usize,
    },
    /// A number ggml's search would abort on.
    #[error("ggml type {name}: {what} {index} is not usable: {value}")]
    BadNumber {
        /// The type.
        name: String,
        /// Weight or importance.
        what: &'static str,
        /// Its index.
        index: usize,
        /// Its value, printed.
        value: String,
    },
    /// A file ggml's reader refuses (it prints why to standard error).
    #[error("ggml's GGUF reader refuses {file}")]
    Refused {
        /// The file.
        file: String,
    },
}

/// One more than the largest type id.
#[must_use]
pub fn type_count() -> u32 {
    c::ggml_type_GGML_TYPE_COUNT
}

/// Version of ggml.
#[must_use]
pub fn version() -> String {
    // SAFETY: takes no argument and returns a static string.
    let text = unsafe { c::ggml_version() };
    owned(text)
}

/// A C string that ggml keeps.
fn owned(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null; ggml's names end in a zero and live as long as the process or, of a
    // file, as the context that the callers here hold borrowed.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// Block geometry of a type: elements and bytes.
fn geometry(id: u32) -> Result<(usize, usize), Error> {
    if id >= type_count() {
        return Err(Error::NoSuchType { id });
    }
    // SAFETY: the id is in the range of the table that this indexes.
    let elems = unsafe { c::ggml_blck_size(id) };
    // SAFETY: as above.
    let bytes = unsafe { c::ggml_type_size(id) };
    match usize::try_from(elems) {
        Ok(elems) if elems > 0 && bytes > 0 => Ok((elems, bytes)),
        // Removed types keep a row of zeros.
        _ => Err(Error::NoSuchType { id }),
    }
}

/// Elements of a block.
///
/// # Errors
/// `NoSuchType`.
pub fn block_elems(id: u32) -> Result<usize, Error> {
    geometry(id).map(|g| g.0)
}

/// Bytes of a block.
///
/// # Errors
/// `NoSuchType`.
pub fn block_bytes(id: u32) -> Result<usize, Error> {
    geometry(id).map(|g| g.1)
}

/// ggml's name of a type, in lower case where ggml has it so.
///
/// # Errors
/// `NoSuchType`.
pub fn type_name(id: u32) -> Result<String, Error> {
    geometry(id)?;
    // SAFETY: the id is in the range of the table that this indexes.
    let name = unsafe { c::ggml_type_name(id) };
    Ok(owned(name))
}

/// Whether the encoder of a type needs importance weights.
///
/// # Errors
/// `NoSuchType`.
pub fn needs_weights(id: u32) -> Result<bool, Error> {
    geometry(id)?;
    // SAFETY: compares the id with constants.
    Ok(unsafe { c::ggml_quantize_requires_imatrix(id) })
}

fn check_len(id: u32, what: &'static str, expected: usize, got: usize) -> Result<(), Error> {
    if expected == got {
        return Ok(());
    }
    let name = type_name(id)?;
    Err(Error::Length {
        name,
        what,
        expected,
        got,
    })
}

/// Bytes of `elems` elements.
fn row_bytes(id: u32, elems: usize) -> Result<usize, Error> {
    let (block, bytes) = geometry(id)?;
    if !elems.is_multiple_of(block) {
        let name = type_name(id)?;
        return Err(Error::PartialBlock { name, elems, block });
    }
    // A slice of f32 that long exists, and no block has more than 8 bytes an element.
    Ok((elems / block).saturating_mul(bytes))
}

/// Decodes blocks into `out`, as many as it holds. `bytes` may be any bytes of the right length.
///
/// # Errors
/// `NoSuchType`, `PartialBlock`, `Length`; `Unsupported` for F32 and the integer types, which
/// ggml has no decoder for.
pub fn dequantize_row(id: u32, bytes: &[u8], out: &mut [f32]) -> Result<(), Error> {
    check_len(id, "bytes", row_bytes(id, out.len())?, bytes.len())?;
    // SAFETY: the id is in range (`row_bytes` checked it); the table is static.
    let traits = unsafe { c::ggml_get_type_traits(id) };
    // SAFETY: points into that table.
    let to_float = unsafe { (*traits).to_float };
    let Some(to_float) = to_float else {
        let name = type_name(id)?;
        return Err(Error::Unsupported {
            name,
            what: "decoder",
        });
    };
    // The block structs hold 2-byte and 4-byte fields; a mapped row may start anywhere.
    let aligned = aligned_copy(bytes);
    let n = i64::try_from(out.len()).unwrap_or(i64::MAX);
    // SAFETY: reads `bytes.len()` bytes, aligned to 8, which is what n elements of this type
    // take, and writes n floats to `out`. Decoders index their tables by masked codes, so any
    // bytes are in bounds.
    unsafe { to_float(aligned.as_ptr().cast::<c_void>(), out.as_mut_ptr(), n) };
    Ok(())
}

/// The bytes at an address that is a multiple of 8.
fn aligned_copy(bytes: &[u8]) -> Vec<u64> {
    let word = |chunk: &[u8]| {
        let mut w = [0; 8];
        w[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(w)
    };
    bytes.chunks(8).map(word).collect()
}

/// Encodes rows of `row_elems` weights. `importance` has one number a column.
///
/// # Errors
/// `NoSuchType`, `PartialBlock`, `Length`; `Unsupported` where ggml has no encoder or where
/// importance is required and absent; `BadNumber` for a weight that is not finite or an importance
/// that is negative or not finite.
pub fn quantize_rows(
    id: u32,
    weights: &[f32],
    row_elems: usize,
    importance: Option<&[f32]>,
) -> Result<Vec<u8>, Error> {
    let row = row_bytes(id, row_elems)?;
    let rows = weights.len().checked_div(row_elems).unwrap_or(0);
    check_len(id, "weights", rows * row_elems, weights.len())?;
    check_encoder(id, importance.is_some())?;
    check_numbers(id, "weight", weights, f32::MIN)?;
    if let Some(importance) = importance {
        check_len(id, "importance", row_elems, importance.len())?;
        check_numbers(id, "importance", importance, 0.0)?;
    }
    let mut words = vec![0u64; (rows * row).div_ceil(8)];
    let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    // SAFETY: reads rows * row_elems floats of `weights` and row_elems of `importance`, writes
    // rows * row bytes to `words`, all checked above; the encoder exists and has the importance
    // it needs, so none of ggml's assertions can fail. Its tables are made under its own lock.
    let written = unsafe {
        c::ggml_quantize_chunk(
            id,
            weights.as_ptr(),
            words.as_mut_ptr().cast::<c_void>(),
            0,
            count(rows),
            count(row_elems),
            importance.map_or(ptr::null(), <[f32]>::as_ptr),
        )
    };
    let mut out: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
    out.truncate(written);
    Ok(out)
}

/// `ggml_quantize_chunk` has no case for these and would abort.
fn check_encoder(id: u32, weighted: bool) -> Result<(), Error> {
    const NONE: [u32; 7] = [
        c::ggml_type_GGML_TYPE_Q8_1,
        c::ggml_type_GGML_TYPE_Q8_K,
        c::ggml_type_GGML_TYPE_I8,
        c::ggml_type_GGML_TYPE_I16,
        c::ggml_type_GGML_TYPE_I32,
        c::ggml_type_GGML_TYPE_I64,
        c::ggml_type_GGML_TYPE_F64,
    ];
    if NONE.contains(&id) {
        let name = type_name(id)?;
        return Err(Error::Unsupported {
            name,
            what: "encoder",
        });
    }
    if needs_weights(id)? && !weighted {
        let name = type_name(id)?;
        let what = "encoder without importance weights";
        return Err(Error::Unsupported { name, what });
    }
    Ok(())
}

fn check_numbers(id: u32, what: &'static str, v: &[f32], least: f32) -> Result<(), Error> {
    let bad = |x: &f32| !x.is_finite() || *x < least;
    match v.iter().position(bad) {
        None => Ok(()),
        Some(index) => Err(Error::BadNumber {
            name: type_name(id)?,
            what,
            index,
            value: v[index].to_string(),
        }),
    }
}

/// A GGUF file as ggml's own reader sees it.
#[derive(Debug)]
pub struct File {
    context: NonNull<c::gguf_context>,
}

/// A tensor of such a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Name.
    pub name: String,
    /// ggml type id.
    pub type_id: u32,
    /// Shape, contiguous first, padded with ones to four.
    pub shape: [u64; 4],
    /// Offset in the data section.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

impl File {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// `Refused`.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let refused = || Error::Refused {
            file: path.display().to_string(),
        };
        let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| refused())?;
        let params = c::gguf_init_params {
            no_alloc: true,
            ctx: ptr::null_mut(),
        };
        // SAFETY: the name ends in a zero; a null ctx is documented to make no tensors.
        let context = unsafe { c::gguf_init_from_file(name.as_ptr(), params) };
        NonNull::new(context)
            .map(|context| Self { context })
            .ok_or_else(refused)
    }

    /// GGUF version.
    #[must_use]
    pub fn version(&self) -> u32 {
        // SAFETY: the context is live until drop.
        unsafe { c::gguf_get_version(self.context.as_ptr()) }
    }

    /// Start of the data section.
    #[must_use]
    pub fn data_start(&self) -> u64 {
        // SAFETY: the context is live until drop.
        unsafe { c::gguf_get_data_offset(self.context.as_ptr()) as u64 }
    }

    /// Keys, in file order.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        // SAFETY: the context is live until drop.
        let n = unsafe { c::gguf_get_n_kv(self.context.as_ptr()) };
        let key = |i| {
            // SAFETY: i is below the number of keys.
            owned(unsafe { c::gguf_get_key(self.context.as_ptr(), i) })
        };
        (0..n).map(key).collect()
    }

    /// Tensors, in file order.
    #[must_use]
    pub fn tensors(&self) -> Vec<Tensor> {
        // SAFETY: the context is live until drop.
        let n = unsafe { c::gguf_get_n_tensors(self.context.as_ptr()) };
        (0..n).map(|i| self.tensor(i)).collect()
    }

    /// Tensor `i`, which the caller has checked.
    fn tensor(&self, i: i64) -> Tensor {
        let context = self.context.as_ptr();
        // SAFETY: i is below the number of tensors; here and below.
        let name = unsafe { c::gguf_get_tensor_name(context, i) };
        // SAFETY: as above.
        let type_id = unsafe { c::gguf_get_tensor_type(context, i) };
        // SAFETY: as above.
        let offset = unsafe { c::gguf_get_tensor_offset(context, i) };
        // SAFETY: as above.
        let bytes = unsafe { c::gguf_get_tensor_size(context, i) };
        // SAFETY: as above.
        let ne = unsafe { c::gguf_get_tensor_ne(context, i) };
        // SAFETY: documented to point to GGML_MAX_DIMS (4) numbers of the context.
        let ne = unsafe { ne.cast::<[i64; 4]>().read() };
        Tensor {
            name: owned(name),
            type_id,
            shape: ne.map(i64::cast_unsigned),
            offset: offset as u64,
            bytes: bytes as u64,
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: made by gguf_init_from_file, freed once.
        unsafe { c::gguf_free(self.context.as_ptr()) };
    }
}
