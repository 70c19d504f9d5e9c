//! The safetensors files of a model, opened together: every tensor by name.
//!
//! Headers are checked by the `safetensors` crate: extents tile each file. Must not know: which
//! tensors a model has.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::map::Mapped;
use crate::error::ToolError;

/// Name of the file that lists the shards.
const INDEX: &str = "model.safetensors.index.json";
/// Name of an unsharded model.
const SINGLE: &str = "model.safetensors";

/// Open shards.
#[derive(Debug)]
pub(crate) struct Shards {
    /// What to call them together in messages.
    path: PathBuf,
    files: Vec<(PathBuf, Mapped)>,
    /// By name without a leading `model.`.
    tensors: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    /// As in the file.
    name: String,
    file: usize,
    dtype: Dtype,
    shape: Vec<u64>,
    start: usize,
    len: usize,
}

/// A tensor as stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raw<'a> {
    pub(crate) path: &'a Path,
    /// As in the file.
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    /// Slowest dimension first.
    pub(crate) shape: &'a [u64],
    pub(crate) bytes: &'a [u8],
}

impl Shards {
    /// Opens a model folder: the shards its index names, or its one file.
    pub(crate) fn open_folder(folder: &Path) -> Result<Self, ToolError> {
        let index = folder.join(INDEX);
        if !index.is_file() {
            return Self::open_files(folder, vec![folder.join(SINGLE)]);
        }
        let listed = read_index(&index)?;
        let mut names: Vec<&String> = listed.values().collect();
        names.sort();
        names.dedup();
        if let Some(odd) = names
            .iter()
            .find(|n| Path::new(n).components().count() != 1)
        {
            let expected = "file names without folders";
            return Err(ToolError::key(&index, "weight_map", expected, odd));
        }
        let files = names.iter().map(|n| folder.join(n)).collect();
        let shards = Self::open_files(folder, files)?;
        shards.check_index(&index, &listed)?;
        Ok(shards)
    }

    /// Opens these files.
    pub(crate) fn open_files(path: &Path, files: Vec<PathBuf>) -> Result<Self, ToolError> {
        let mut shards = Self {
            path: path.to_path_buf(),
            files: Vec::new(),
            tensors: BTreeMap::new(),
        };
        for file in files {
            shards.add(file)?;
        }
        Ok(shards)
    }

    fn add(&mut self, path: PathBuf) -> Result<(), ToolError> {
        let map = Mapped::open(&path).map_err(ToolError::io(&path, "open"))?;
        let parsed = SafeTensors::read_metadata(map.bytes());
        let (header, metadata) = parsed.map_err(|source| ToolError::Shard {
            path: path.clone(),
            source,
        })?;
        // The data begins after the length word and the header.
        let data = header + 8;
        for (name, info) in metadata.tensors() {
            let (start, end) = info.data_offsets;
            let entry = Entry {
                file: self.files.len(),
                dtype: info.dtype,
                shape: info.shape.iter().map(|d| *d as u64).collect(),
                start: data + start,
                len: end - start,
                name: name.clone(),
            };
            if map
                .bytes()
                .get(entry.start..entry.start + entry.len)
                .is_none()
            {
                let (expected, got) = (format!("{end} bytes of data"), map.bytes().len());
                return Err(storage(&path, &name, expected, got));
            }
            let key = name.strip_prefix("model.").unwrap_or(&name).to_owned();
            if let Some(twin) = self.tensors.insert(key, entry) {
                let expected = "one tensor of a name in all files".to_owned();
                return Err(storage(
                    &path,
                    &name,
                    expected,
                    format!("also {}", twin.name),
                ));
            }
        }
        self.files.push((path, map));
        Ok(())
    }

    /// Index and headers must list the same tensors in the same files.
    fn check_index(
        &self,
        index: &Path,
        listed: &BTreeMap<String, String>,
    ) -> Result<(), ToolError> {
        for entry in self.tensors.values() {
            let file = self.files[entry.file].0.file_name().unwrap_or_default();
            let got = listed.get(&entry.name).map_or("nothing", String::as_str);
            if *file != *got {
                let key = format!("weight_map.{}", entry.name);
                return Err(ToolError::key(index, key, file.to_string_lossy(), got));
            }
        }
        if listed.len() == self.tensors.len() {
            return Ok(());
        }
        let names: Vec<&String> = self.tensors.values().map(|e| &e.name).collect();
        match listed.iter().find(|(name, _)| !names.contains(name)) {
            Some((name, file)) => {
                let key = format!("weight_map.{name}");
                Err(ToolError::key(
                    index,
                    key,
                    "a tensor of that file",
                    format!("none in {file}"),
                ))
            }
            None => Ok(()),
        }
    }

    /// What to call the files together.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes of all files, in order.
    pub(crate) fn contents(&self) -> impl Iterator<Item = (&Path, &[u8])> {
        self.files.iter().map(|(p, m)| (p.as_path(), m.bytes()))
    }

    /// Names, without a leading `model.`.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// A tensor by its name without a leading `model.`.
    pub(crate) fn get(&self, name: &str) -> Option<Raw<'_>> {
        let entry = self.tensors.get(name)?;
        let (path, map) = &self.files[entry.file];
        Some(Raw {
            path,
            name: &entry.name,
            dtype: entry.dtype,
            shape: &entry.shape,
            bytes: &map.bytes()[entry.start..entry.start + entry.len],
        })
    }
}

fn storage(path: &Path, tensor: &str, expected: String, got: impl ToString) -> ToolError {
    ToolError::Storage {
        path: path.to_path_buf(),
        tensor: tensor.to_owned(),
        expected,
        got: got.to_string(),
    }
}

fn read_index(path: &Path) -> Result<BTreeMap<String, String>, ToolError> {
    let json = super::json::read(path)?;
    let Some(Value::Object(map)) = json.get("weight_map") else {
        return Err(ToolError::key(
            path,
            "weight_map",
            "an object",
            "something else",
        ));
    };
    map.iter()
        .map(|(name, file)| match file.as_str() {
            Some(file) => Ok((name.clone(), file.to_owned())),
            None => {
                let key = format!("weight_map.{name}");
                Err(ToolError::key(path, key, "a file name", file))
            }
        })
        .collect()
}
