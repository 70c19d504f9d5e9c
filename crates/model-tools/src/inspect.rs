//! What is in a file: its tensors by role, with exact bytes. Must not know: how models run.

use std::collections::BTreeMap;

use fpx_quant::Format;
use gguf::Gguf;

use crate::role::{Place, Role};

/// A file's tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Inspection {
    /// `general.architecture`.
    pub architecture: Option<String>,
    /// `general.name`.
    pub name: Option<String>,
    /// The recipe it was written with, if this project wrote it.
    pub recipe: Option<String>,
    /// In file order.
    pub tensors: Vec<TensorLine>,
    /// Sums of each role that occurs, in the order of [`Role::ALL`].
    pub roles: Vec<RoleLine>,
    /// Bytes of all tensors, without padding.
    pub bytes: u64,
    /// Elements of all tensors.
    pub elems: u64,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorLine {
    /// Its name.
    pub name: String,
    /// Its place in the model; `None` for a name no model here has.
    pub place: Option<Place>,
    /// Input dimension first.
    pub shape: Vec<u64>,
    /// Format of its rows.
    pub format: Format,
    /// Bytes of its rows.
    pub bytes: u64,
}

/// Tensors of one role.
#[derive(Clone, Debug, PartialEq)]
pub struct RoleLine {
    /// The role; `None` for tensors of unknown names.
    pub role: Option<Role>,
    /// How many tensors.
    pub tensors: usize,
    /// Their elements.
    pub elems: u64,
    /// Bytes of their rows.
    pub bytes: u64,
    /// Their formats, each once, in file order.
    pub formats: Vec<Format>,
}

impl Inspection {
    /// Lists a file. Only its header is read.
    #[must_use]
    pub fn of(file: &Gguf) -> Self {
        let text = |key| {
            file.metadata()
                .find_str(key)
                .ok()
                .flatten()
                .map(str::to_owned)
        };
        let mut roles: BTreeMap<Option<Role>, RoleLine> = BTreeMap::new();
        let (mut tensors, mut bytes, mut elems) = (Vec::new(), 0, 0);
        for info in file.tensors() {
            let place = Role::of(&info.name);
            let role = place.map(|p| p.role);
            let line = roles.entry(role).or_insert_with(|| RoleLine::empty(role));
            let (b, e) = (
                info.bytes() as u64,
                info.rows() as u64 * info.row_elems() as u64,
            );
            (bytes, elems) = (bytes + b, elems + e);
            line.tensors += 1;
            (line.bytes, line.elems) = (line.bytes + b, line.elems + e);
            if !line.formats.contains(&info.format) {
                line.formats.push(info.format);
            }
            tensors.push(TensorLine {
                name: info.name.clone(),
                place,
                shape: info.shape.clone(),
                format: info.format,
                bytes: b,
            });
        }
        Self {
            architecture: text("general.architecture"),
            name: text("general.name"),
            recipe: text("fourspark.recipe"),
            tensors,
            roles: roles.into_values().collect(),
            bytes,
            elems,
        }
    }

    /// Bits a weight, over all tensors.
    #[must_use]
    pub fn bits_per_weight(&self) -> f64 {
        8.0 * self.bytes as f64 / self.elems as f64
    }
}

impl RoleLine {
    fn empty(role: Option<Role>) -> Self {
        Self {
            role,
            tensors: 0,
            elems: 0,
            bytes: 0,
            formats: Vec::new(),
        }
    }
}
