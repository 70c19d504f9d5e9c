//! What a worker of this project serves: the DSpark draft layers of a GGUF file, and of that file only.

use std::ops::Range;
use std::sync::Arc;

use ds4_target::GgufSource;
use ds4_target::pool::Pool;
use dspark_draft::backbone::{self, LocalBackbone, Options};
use dspark_draft::weights::DraftModel;
use engine_core::Pos;
use gguf::{Gguf, OpenOptions};

use super::Loaded;
use crate::handshake::{Configure, Dims};

/// What a backbone over `model` is.
#[must_use]
pub fn dims(model: &DraftModel, options: &Options) -> Dims {
    let word = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Dims {
        n_embd: word(model.meta.stage.n_embd),
        captures: word(model.meta.capture.len()),
        block: word(model.meta.block),
        ring: word(backbone::ring_rows(&model.meta, options)),
        n_seq_max: word(options.n_seq_max),
        fingerprint: model.fingerprint,
    }
}

/// Positions of a saved context; `None` if the bytes are none.
#[must_use]
pub fn saved_range(bytes: &[u8]) -> Option<Range<Pos>> {
    backbone::saved_range(bytes)
}

/// Loads the draft model that was asked for.
///
/// # Errors
/// Why not, for people.
pub fn load(configure: &Configure) -> Result<Loaded, String> {
    let file = Gguf::open(&configure.file, &OpenOptions::default()).map_err(|e| e.to_string())?;
    let model = DraftModel::load(&GgufSource::new(file)).map_err(|e| e.to_string())?;
    let options = Options {
        n_seq_max: configure.dims.n_seq_max as usize,
        verify_max: configure.verify_max as usize,
        kv_round: configure.kv_round,
    };
    let threads = (configure.threads as usize).clamp(1, 1024);
    let (dims, pool) = (dims(&model, &options), Arc::new(Pool::new(threads)));
    let backbone = LocalBackbone::new(Arc::new(model), pool, options).map_err(|e| e.to_string())?;
    Ok(Loaded {
        backbone: Box::new(backbone),
        dims,
        device: format!("cpu, {threads} threads"),
    })
}
