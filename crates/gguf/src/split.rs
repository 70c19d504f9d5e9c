//! Names and keys of split models: `model-00001-of-00003.gguf`, counted from 1 in names and from
//! 0 in keys (gguf-split's convention). Must not know: file contents.

use std::path::{Path, PathBuf};

use crate::error::ErrorKind;
use crate::metadata::Metadata;

/// Index of a part, from 0 (u16).
pub(crate) const NO_KEY: &str = "split.no";
/// Number of parts (u16).
pub(crate) const COUNT_KEY: &str = "split.count";
/// Tensors of all parts together (i32).
pub(crate) const TENSORS_KEY: &str = "split.tensors.count";

/// What a part says of its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SplitKeys {
    pub(crate) no: u64,
    pub(crate) count: u64,
    pub(crate) tensors: Option<u64>,
}

impl SplitKeys {
    /// The keys of a part; `None` for a whole model. `split.no` without `split.count`, or out of
    /// its range, is refused.
    pub(crate) fn of(metadata: &Metadata, limit: u64) -> Result<Option<Self>, ErrorKind> {
        let number = |key: &str| match metadata.get(key) {
            None => Ok(None),
            Some(v) => v.as_u64().map(Some).ok_or_else(|| ErrorKind::KeyType {
                key: key.to_owned(),
                expected: "u16 (or another integer width, not negative)",
                got: v.describe(),
            }),
        };
        let (no, count) = (number(NO_KEY)?, number(COUNT_KEY)?);
        let missing = |key: &str| ErrorKind::MissingKey {
            key: key.to_owned(),
            expected: "u16",
        };
        let (no, count) = match (no, count) {
            (None, None) => return Ok(None),
            (Some(_), None) => return Err(missing(COUNT_KEY)),
            (None, Some(_)) => return Err(missing(NO_KEY)),
            (Some(no), Some(count)) => (no, count),
        };
        if count > limit {
            return Err(ErrorKind::Limit {
                what: "split.count",
                limit,
                got: count,
            });
        }
        if no >= count {
            return Err(ErrorKind::KeyValue {
                key: NO_KEY.to_owned(),
                expected: format!("less than split.count {count}"),
                got: no.to_string(),
            });
        }
        let tensors = number(TENSORS_KEY)?;
        Ok(Some(Self { no, count, tensors }))
    }
}

/// `-00002-of-00003.gguf` for part 1 (from 0) of 3.
pub(crate) fn suffix(no: u64, count: u64) -> String {
    format!("-{:05}-of-{count:05}.gguf", no + 1)
}

/// Path of part `no` for a model whose first part would be `stem` + suffix.
pub(crate) fn part_path(stem: &Path, no: u64, count: u64) -> PathBuf {
    let mut name = stem.as_os_str().to_os_string();
    name.push(suffix(no, count));
    PathBuf::from(name)
}

/// The path without the suffix that part `no` of `count` must have.
pub(crate) fn stem(path: &Path, no: u64, count: u64) -> Result<PathBuf, ErrorKind> {
    let expected = suffix(no, count);
    let wrong = || ErrorKind::SplitName {
        part: no + 1,
        count,
        expected: expected.clone(),
    };
    let name = path
        .file_name()
        .and_then(|n| n.to_str())
        .ok_or_else(wrong)?;
    let base = name.strip_suffix(&expected).ok_or_else(wrong)?;
    Ok(path.with_file_name(base))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_count_from_one_and_go_back_to_their_stem() {
        let path = part_path(Path::new("/m/flash"), 1, 3);
        assert_eq!(path, Path::new("/m/flash-00002-of-00003.gguf"));
        assert_eq!(stem(&path, 1, 3).unwrap(), Path::new("/m/flash"));
        assert!(stem(&path, 0, 3).is_err());
        assert!(stem(Path::new("/m/flash.gguf"), 0, 3).is_err());
    }
}
