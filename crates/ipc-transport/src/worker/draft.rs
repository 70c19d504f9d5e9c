//! What a worker of this project serves: the DSpark draft layers of a GGUF file, and of that file only.

use std::ops::Range;
use std::sync::Arc;

use device::cache::Cache;
use device::driver::{Driver, Kind};
use device::{Runtime, cpu, cuda, hip};
use ds4_target::GgufSource;
use ds4_target::on_device::Settings;
use ds4_target::pool::Pool;
use dspark_draft::backbone::{self, LocalBackbone, Options};
use dspark_draft::on_device::{DeviceBackbone, GRAPH_ROWS};
use dspark_draft::weights::DraftModel;
use engine_core::Pos;
use gguf::{Gguf, OpenOptions};

use super::{Layers, Loaded};
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
    let (dims, model) = (dims(&model, &options), Arc::new(model));
    let (backbone, device) = match place(configure, &model, &options)? {
        Some(there) => there,
        None => {
            let pool = Arc::new(Pool::new(threads));
            let here = LocalBackbone::new(model, pool, options).map_err(|e| e.to_string())?;
            (
                Layers::Here(Box::new(here)),
                format!("cpu, {threads} threads"),
            )
        }
    };
    Ok(Loaded {
        backbone,
        dims,
        device,
    })
}

/// A backbone, and what it runs on.
type Placed = (Layers, String);

/// Memory of the host as a device.
const HOST: u64 = 64 << 30;

/// The layers on the device that was asked for; `None` for the processor.
fn place(
    configure: &Configure,
    model: &Arc<DraftModel>,
    options: &Options,
) -> Result<Option<Placed>, String> {
    let name = configure.place.device.as_str();
    let on = |placed: Result<Placed, String>| placed.map(Some);
    match (name, Kind::of_name(name)) {
        (_, Some((Kind::Cuda, n))) => {
            let runtime = cuda::runtime(&cuda::Settings::default()).map_err(|e| e.to_string())?;
            on(on_device(&runtime, n, configure, model, options))
        }
        (_, Some((Kind::Hip, n))) => {
            let runtime = hip::runtime(&hip::Settings::default()).map_err(|e| e.to_string())?;
            on(on_device(&runtime, n, configure, model, options))
        }
        ("host", _) => on(on_device(&cpu::runtime(HOST), 0, configure, model, options)),
        ("" | "cpu", _) => Ok(None),
        _ => Err(format!(
            "expected the device cpu, cuda:N, hip:N or host, got {name:?}"
        )),
    }
}

fn on_device<R: Driver>(
    runtime: &Runtime<R>,
    ordinal: u32,
    configure: &Configure,
    model: &Arc<DraftModel>,
    options: &Options,
) -> Result<Placed, String> {
    let place = &configure.place;
    let device = runtime.open(ordinal).map_err(|e| e.to_string())?;
    if !place.early_launch {
        device.turn_early_launch_off();
    }
    let folder = Some(&place.images).filter(|folder| !folder.as_os_str().is_empty());
    let cache = folder
        .map(|folder| Cache::open(folder, Cache::MOST))
        .transpose();
    let settings = Settings {
        cache: cache.map_err(|e| e.to_string())?,
        progress: &mut |_, _| {},
        graph_tokens: if place.graphs { GRAPH_ROWS } else { 0 },
        check: false,
    };
    let layers = DeviceBackbone::new(Arc::clone(model), options.clone(), &device, settings);
    let layers = layers.map_err(|e| e.to_string())?;
    let (id, facts) = (device.id(), device.facts());
    Ok((
        Layers::Device(Box::new(layers)),
        format!("{id}, {}, {}", facts.name, facts.arch),
    ))
}
