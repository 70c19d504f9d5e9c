//! Binding a file's tensors to roles: every tensor expected, found under any dialect's name, and
//! nothing silently left over.

use std::collections::{HashMap, HashSet};
use std::fmt;

use super::derive;
use super::roles::{Dialect, Presence, Role, place, tensor_name};
use crate::error::{Error, ErrorKind};
use crate::extents::TensorInfo;
use crate::file::Gguf;

/// What decides which tensors a file must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Structure {
    /// Compressor ratio of each layer; its length is the number of layers.
    pub ratios: Vec<u32>,
    /// Layers, from the front, routed by table.
    pub hash_layers: u32,
}

impl Structure {
    /// From the keys of a file, or from its tensors where a key is absent.
    ///
    /// # Errors
    /// `MissingKey` for `deepseek4.block_count`; `KeyType`, `KeyValue`.
    pub fn of(file: &Gguf) -> Result<Self, Error> {
        let layers = derive::layers(file)?.value;
        Ok(Self {
            ratios: derive::compress_ratios(file, layers)?.value,
            hash_layers: derive::hash_layer_count(file, layers)?.value,
        })
    }

    /// Whether a layer has tensors of this presence. `None` stands outside the layers.
    #[must_use]
    pub fn has(&self, presence: Presence, layer: Option<u32>) -> bool {
        let ratio = layer.and_then(|l| self.ratios.get(l as usize).copied());
        match (presence, layer, ratio) {
            (Presence::Global, None, _) => true,
            (Presence::Layer, Some(_), Some(_)) => true,
            (Presence::Compressed, Some(_), Some(r)) => r != 0,
            (Presence::Indexed, Some(_), Some(r)) => r == 4,
            (Presence::Hashed, Some(l), Some(_)) => l < self.hash_layers,
            (Presence::Scored, Some(l), Some(_)) => l >= self.hash_layers,
            _ => false,
        }
    }

    /// Every tensor a file of this structure has: globals, then layer after layer.
    pub fn expected(&self) -> impl Iterator<Item = (Role, Option<u32>)> {
        // More than u32::MAX layers cannot be asked for: `layers` comes from a u32.
        #[allow(clippy::cast_possible_truncation)]
        let layers = (0..self.ratios.len() as u32).map(Some);
        std::iter::once(None).chain(layers).flat_map(move |layer| {
            let has = move |role: &Role| self.has(role.presence(), layer);
            Role::all().filter(has).map(move |role| (role, layer))
        })
    }
}

/// Which tensor of a file plays which role.
#[derive(Clone, Debug)]
pub struct Binding {
    map: HashMap<(Role, Option<u32>), usize>,
    /// Tensors a file of this structure has.
    pub expected: usize,
    /// Canonical names of those not found.
    pub missing: Vec<String>,
    /// Tensors of the file that have no role and are not of an MTP block.
    pub unknown: Vec<String>,
    /// Tensors of an MTP block, which this engine does not use.
    pub skipped: Vec<String>,
    /// Whose names the file has.
    pub dialect: Dialect,
}

impl Binding {
    /// Tensors found.
    #[must_use]
    pub fn bound(&self) -> usize {
        self.map.len()
    }

    /// The tensor of a role, by its index in [`Gguf::tensors`].
    #[must_use]
    pub fn index(&self, role: Role, layer: Option<u32>) -> Option<usize> {
        self.map.get(&(role, layer)).copied()
    }

    /// The tensor of a role.
    ///
    /// # Errors
    /// `NoSuchTensor`, with the canonical name.
    pub fn tensor<'a>(
        &self,
        file: &'a Gguf,
        role: Role,
        layer: Option<u32>,
    ) -> Result<&'a TensorInfo, Error> {
        let found = self.index(role, layer).and_then(|i| file.tensors().get(i));
        found.ok_or_else(|| {
            let tensor = tensor_name(Dialect::Antirez, role, layer);
            ErrorKind::NoSuchTensor { tensor }.in_file(file.path())
        })
    }

    /// Refuses a file that lacks a tensor or has one nobody asked for: a tensor dropped in
    /// silence costs quality without a message.
    ///
    /// # Errors
    /// `Unbound`.
    pub fn complete(&self, file: &Gguf) -> Result<(), Error> {
        if self.missing.is_empty() && self.unknown.is_empty() {
            return Ok(());
        }
        Err(ErrorKind::Unbound {
            bound: self.bound(),
            expected: self.expected,
            missing: self.missing.clone(),
            unknown: self.unknown.clone(),
        }
        .in_file(file.path()))
    }
}

/// `1328 of 1328 tensors bound`, and what is left over.
impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} tensors bound", self.bound(), self.expected)?;
        if !self.skipped.is_empty() {
            write!(f, ", {} of an MTP block skipped", self.skipped.len())?;
        }
        if !self.unknown.is_empty() {
            write!(f, ", {} unknown", self.unknown.len())?;
        }
        Ok(())
    }
}

/// Binds every tensor of `file` that a model of `structure` has.
///
/// # Errors
/// `Ambiguous` if one role is there under two names. A missing or unknown tensor is reported in
/// the binding; [`Binding::complete`] refuses it.
pub fn resolve(file: &Gguf, structure: &Structure) -> Result<Binding, Error> {
    let names: HashMap<&str, usize> = file
        .tensors()
        .iter()
        .enumerate()
        .map(|(i, t)| (t.name.as_str(), i))
        .collect();
    let mut binding = Binding {
        map: HashMap::new(),
        expected: 0,
        missing: Vec::new(),
        unknown: Vec::new(),
        skipped: Vec::new(),
        dialect: plain_dialect(file),
    };
    for (role, layer) in structure.expected() {
        binding.expected += 1;
        match find_once(&names, role, layer).map_err(|e| e.in_file(file.path()))? {
            Some((index, early)) => {
                binding.map.insert((role, layer), index);
                if early {
                    binding.dialect = Dialect::EarlyPort;
                }
            }
            None => binding
                .missing
                .push(tensor_name(Dialect::Antirez, role, layer)),
        }
    }
    let used: HashSet<usize> = binding.map.values().copied().collect();
    let layers = structure.ratios.len() as u64;
    let left = file
        .tensors()
        .iter()
        .enumerate()
        .filter(|(i, _)| !used.contains(i));
    for (_, t) in left {
        let list = match is_mtp(&t.name, layers) {
            true => &mut binding.skipped,
            false => &mut binding.unknown,
        };
        list.push(t.name.clone());
    }
    Ok(binding)
}

/// Trunk names do not tell these two apart; the vocabulary key does.
fn plain_dialect(file: &Gguf) -> Dialect {
    match super::keys::VOCAB_SIZE.find(file.metadata()) {
        Some(_) => Dialect::Antirez,
        None => Dialect::LlamaCpp,
    }
}

/// The one tensor that plays a role, and whether it has the early port's name.
fn find_once(
    names: &HashMap<&str, usize>,
    role: Role,
    layer: Option<u32>,
) -> Result<Option<(usize, bool)>, ErrorKind> {
    let row = role.row();
    let mut found: Option<(String, usize, bool)> = None;
    for (base, early) in [(Some(row.name), false), (row.early, true)] {
        let Some(base) = base else { continue };
        for suffix in [row.suffix, ""] {
            let name = place(row, base, suffix, layer);
            let Some(&index) = names.get(name.as_str()) else {
                continue;
            };
            if let Some((first, _, _)) = found {
                return Err(ErrorKind::Ambiguous {
                    first,
                    second: name,
                });
            }
            found = Some((name, index, early || suffix != row.suffix));
        }
    }
    Ok(found.map(|(_, index, early)| (index, early)))
}

/// `mtp.*`, or a block after the last layer.
fn is_mtp(name: &str, layers: u64) -> bool {
    name.starts_with("mtp.") || block_of(name).is_some_and(|n| n >= layers)
}

/// N of `blk.N.`.
pub(super) fn block_of(name: &str) -> Option<u64> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// The tensor of a role, under any dialect's name.
#[must_use]
pub fn find(file: &Gguf, role: Role, layer: Option<u32>) -> Option<&TensorInfo> {
    let row = role.row();
    [Some(row.name), row.early]
        .into_iter()
        .flatten()
        .find_map(|base| {
            let with = |suffix| file.find(&place(row, base, suffix, layer));
            with(row.suffix).or_else(|| with(""))
        })
}

/// Role and layer of a canonical name.
#[must_use]
pub fn parse(canonical: &str) -> Option<(Role, Option<u32>)> {
    let layer = match block_of(canonical) {
        Some(n) => Some(u32::try_from(n).ok()?),
        None => None,
    };
    // Spelled back, so that only the one spelling of each is taken.
    let role = Role::all().find(|role| {
        (role.presence() == Presence::Global) == layer.is_none()
            && tensor_name(Dialect::Antirez, *role, layer) == canonical
    })?;
    Some((role, layer))
}
