//! Giving the model up while nobody needs it, and what takes memory before and after.
//!
//! A model is loaded again by what loaded it at first, and must be the one it was: requests were counted and encoded for
//! it. What stays in memory while it is given up is listed with the reason. Must not know: HTTP, who asks, layers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine_core::TokenId;
use engine_core::seams::Resident;
use scheduler::{Load, LoadFailure, Loaded, Phase, Stats};
use text::Tokenizer;

use crate::drafting::worker::State;
use crate::error::Error;
use crate::feature::{Feature, features};
use crate::model::{EngineParts, ModelInfo};

/// Where the model is, and what takes memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Where the model is.
    pub phase: Phase,
    /// What takes memory, as of the last answer; while the model is given up, what stays, and why.
    pub residents: Vec<Resident>,
}

impl Residency {
    /// Bytes of all that is counted.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        bytes(&self.residents)
    }
}

/// Bytes of all that is counted.
#[must_use]
pub fn bytes(residents: &[Resident]) -> u64 {
    residents.iter().filter_map(|r| r.bytes).sum()
}

/// A model that was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parked {
    /// Whether it was before.
    pub already: bool,
    /// What took memory until then.
    pub before: Vec<Resident>,
    /// What stays, and why.
    pub after: Vec<Resident>,
    /// From the end of the last answer until all was freed.
    pub took: Duration,
}

/// A model that is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unparked {
    /// Whether it was before.
    pub already: bool,
    /// What takes memory now.
    pub now: Vec<Resident>,
    /// Of loading it.
    pub took: Duration,
}

/// What may be known of a model, as of the last time it was loaded.
#[derive(Debug)]
pub(crate) struct Known {
    now: Mutex<(Arc<ModelInfo>, Arc<[Feature]>)>,
    parking: Feature,
}

impl Known {
    /// Of a model that can be given up, or not.
    pub(crate) fn new(info: &ModelInfo, parking: Feature) -> Self {
        let now = (Arc::new(info.clone()), Arc::from(Vec::new()));
        let this = Self {
            now: Mutex::new(now),
            parking,
        };
        this.set(info);
        this
    }

    fn set(&self, info: &ModelInfo) {
        let mut all = features(info);
        all.push(self.parking.clone());
        *self.lock() = (Arc::new(info.clone()), all.into());
    }

    fn lock(&self) -> MutexGuard<'_, (Arc<ModelInfo>, Arc<[Feature]>)> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn info(&self) -> Arc<ModelInfo> {
        Arc::clone(&self.lock().0)
    }

    pub(crate) fn features(&self) -> Arc<[Feature]> {
        Arc::clone(&self.lock().1)
    }
}

const NAME: &str = "parking";

/// Whether the model can be given up, and when it is.
pub(crate) fn feature(idle: Option<Duration>) -> Feature {
    Feature::on(
        NAME,
        match idle {
            None => "when asked to, not by itself".to_owned(),
            Some(idle) => format!("when asked to, and after {idle:?} without a request"),
        },
    )
}

/// Why the model of an engine that was made of parts stays.
pub(crate) fn never() -> Feature {
    Feature::off(NAME, "nothing could load the model again")
}

/// What a model has that requests were made for.
struct Was {
    fingerprint: String,
    generation: String,
    tokenizer: Arc<Tokenizer>,
    stop_tokens: Arc<[TokenId]>,
}

impl Was {
    fn of(parts: &EngineParts) -> Self {
        Self {
            fingerprint: parts.info.fingerprint.clone(),
            generation: parts.info.generation.clone(),
            tokenizer: Arc::clone(&parts.tokenizer),
            stop_tokens: Arc::clone(&parts.stop_tokens),
        }
    }

    /// Refuses a file that was put in the place of the first.
    fn same(&self, parts: &EngineParts) -> Result<(), Error> {
        let is = Self::of(parts);
        let texts = |t: &Tokenizer| format!("{} tokens", t.n_vocab());
        let (expected, got) = (texts(&self.tokenizer), texts(&is.tokenizer));
        let other = if self.fingerprint != is.fingerprint {
            ("fingerprint", self.fingerprint.clone(), is.fingerprint)
        } else if self.tokenizer != is.tokenizer {
            ("tokenizer", expected, format!("{got}, others"))
        } else if self.generation != is.generation {
            ("prompt format", self.generation.clone(), is.generation)
        } else if self.stop_tokens != is.stop_tokens {
            let words = |tokens: &[TokenId]| format!("{tokens:?}");
            (
                "stop tokens",
                words(&self.stop_tokens),
                words(&is.stop_tokens),
            )
        } else {
            return Ok(());
        };
        let (field, expected, got) = other;
        let file = parts.info.file.as_ref();
        Err(Error::Changed {
            file: file.map_or_else(|| parts.info.name.clone(), |f| f.display().to_string()),
            field,
            expected,
            got,
        })
    }
}

/// Loads again what `first` was.
pub(crate) fn again(
    mut make: impl FnMut() -> Result<EngineParts, Error> + Send + 'static,
    first: &EngineParts,
    known: Arc<Known>,
) -> Load {
    let was = Was::of(first);
    Box::new(move || {
        let parts = make().map_err(LoadFailure::new)?;
        was.same(&parts).map_err(LoadFailure::new)?;
        known.set(&parts.info);
        Ok(Loaded {
            target: parts.target,
            speculation: parts.speculation,
        })
    })
}

/// What takes memory now.
pub(crate) fn residency(info: &ModelInfo, stats: &Stats) -> Residency {
    let loaded = matches!(stats.phase, Phase::Loaded | Phase::Parking);
    let mut residents = stats.residents.to_vec();
    if loaded {
        residents.extend(files(info));
        residents.extend(worker(info));
    }
    residents.extend(always(info));
    Residency {
        phase: stats.phase,
        residents,
    }
}

/// The answer to an order: `before` was taken when it was given, the engine's own list when it was carried out.
pub(crate) fn parked(info: &ModelInfo, before: &Residency, parked: scheduler::Parked) -> Parked {
    let stays = always(info);
    let after = parked.left.into_iter().chain(stays.clone()).collect();
    let mut list = parked.before;
    if !parked.already {
        list.extend(files(info));
        let worker = |r: &&Resident| r.what == WORKER;
        list.extend(before.residents.iter().filter(worker).cloned());
    }
    list.extend(stays);
    Parked {
        already: parked.already,
        before: list,
        after,
        took: parked.took,
    }
}

/// Files that are mapped: a device's copy does not replace them, embeddings and heads are read there.
fn files(info: &ModelInfo) -> Vec<Resident> {
    const NOTE: &str = "mapped; the system keeps of it in memory what was read";
    let model = info
        .file
        .as_ref()
        .map(|f| ("model file", f, info.tensor_bytes));
    let draft = info.draft.as_ref();
    let draft = draft.and_then(|d| Some(("drafter file", d.file.as_ref()?, d.tensor_bytes)));
    let mapped = model.into_iter().chain(draft);
    let mapped = mapped.map(|(what, file, bytes)| {
        let place = format!("file {}", file.display());
        Resident::new(what, place, bytes).noted(NOTE)
    });
    mapped.chain(made(info)).collect()
}

/// Weights that were made up on the processor; a device makes and counts its own.
fn made(info: &ModelInfo) -> Option<Resident> {
    let here = info.label.is_some() && info.device.is_none();
    here.then(|| Resident::new("made-up weights", "host", info.tensor_bytes))
}

const WORKER: &str = "draft worker";

/// The draft worker's process.
fn worker(info: &ModelInfo) -> Option<Resident> {
    let worker = info.draft.as_ref()?.worker.as_ref()?;
    let report = worker.watch.report();
    let pid = report.pid.filter(|_| report.state == State::Up)?;
    let place = format!("process {pid}");
    let note = format!("{}; its pages in memory, shared ones too", report.device);
    let one = match resident_bytes(pid) {
        Some(bytes) => Resident::new(WORKER, place, bytes),
        None => Resident::uncounted(WORKER, place),
    };
    Some(one.noted(note))
}

/// A process's pages in memory, as the system counts them; `None` where it does not say.
fn resident_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// What is there whether or not the model is, and why.
fn always(info: &ModelInfo) -> Vec<Resident> {
    let mut all = vec![
        Resident::uncounted("tokenizer", "host")
            .noted("requests are read and counted before a model is loaded for them"),
        Resident::new("prefix cache", "host", 0).noted("this build keeps none: nothing is saved"),
    ];
    let draft = info
        .draft
        .as_ref()
        .and_then(|d| d.layers.as_ref()?.device.as_ref());
    let devices = [info.device.as_ref(), draft];
    let vendors = devices.into_iter().flatten().map(|d| d.id.as_str());
    // The processor as a device has no libraries.
    let mut vendors = vendors.into_iter().filter(|id| !id.starts_with("cpu"));
    if let Some(id) = vendors.next() {
        let one = Resident::uncounted("vendor runtime", format!("host, for {id}"));
        all.push(one.noted(
            "devices are closed; libraries of a vendor that cannot be unloaded stay until the program ends",
        ));
    }
    all
}
