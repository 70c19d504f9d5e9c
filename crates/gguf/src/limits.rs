//! Bounds on what a header may claim, so that a damaged count is a refusal and not an
//! allocation. Must not know: files.

/// Upper bounds on a header. The defaults hold every known file with room to spare: Flash has
/// 1,328 tensors, 50-odd keys, arrays of 129,280 strings and a header of about 6 MB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Metadata keys.
    pub keys: u64,
    /// Tensors of one file.
    pub tensors: u64,
    /// Bytes of a key.
    pub key_bytes: u64,
    /// Bytes of a tensor name.
    pub name_bytes: u64,
    /// Bytes of a string value.
    pub string_bytes: u64,
    /// Elements of an array.
    pub array_len: u64,
    /// Arrays within arrays: 0 allows none.
    pub nesting: u32,
    /// Bytes of the header (metadata and tensor table).
    pub header_bytes: u64,
    /// `general.alignment`.
    pub alignment: u64,
    /// Parts of a split model.
    pub parts: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            keys: 65_536,
            tensors: 262_144,
            key_bytes: 65_535,
            name_bytes: 255,
            string_bytes: 16 << 20,
            array_len: 64 << 20,
            nesting: 2,
            header_bytes: 512 << 20,
            alignment: 1 << 20,
            parts: 1024,
        }
    }
}
