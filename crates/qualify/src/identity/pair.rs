//! The pair under test, loaded once, and targets and drafters over it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ds4_target::pool::Pool;
use ds4_target::{CpuTarget, GgufSource, Model, Options};
use dspark_draft::backbone::{self, LocalBackbone};
use dspark_draft::drafter::DsparkDrafter;
use dspark_draft::weights::DraftModel;
use engine_core::seams::Backbone;
use engine_core::{Drafter, TokenId};
use gguf::{Gguf, OpenOptions};

use super::Error;
use super::arm::{Arm, Place, Source, Way, Worker};
use super::means::{Means, On};
use super::subject::Seat;
use super::there::{NewLayers, NewTarget};

/// Sequences a target of the matrix holds: five neighbours, and forks of them.
pub(crate) const SEQUENCES: usize = 8;
/// The widest verify of the matrix.
pub(crate) const WIDEST: usize = 8;
const CONTEXT: usize = 512;

/// A target with its drafter, the prompt they are run on, and what they may run on.
pub struct Pair {
    model: Arc<Model>,
    draft: Arc<DraftModel>,
    draft_file: PathBuf,
    /// What there is beside the processor.
    pub means: Means,
    /// The prompt, long enough to wrap the model's windows.
    pub prompt: Vec<TokenId>,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pair({} prompt tokens)", self.prompt.len())
    }
}

fn source(path: &Path) -> Result<GgufSource, Error> {
    Ok(GgufSource::new(Gguf::open(path, &OpenOptions::default())?))
}

impl Pair {
    /// Loads both files.
    ///
    /// # Errors
    /// `File`, `Model`, `Draft`.
    pub fn load(
        target: &Path,
        draft: &Path,
        prompt: Vec<TokenId>,
        means: Means,
    ) -> Result<Self, Error> {
        Ok(Self {
            model: Arc::new(Model::load(&source(target)?)?),
            draft: Arc::new(DraftModel::load(&source(draft)?)?),
            draft_file: draft.to_path_buf(),
            means,
            prompt,
        })
    }

    fn options(threads: usize) -> Options {
        Options {
            n_ctx: CONTEXT,
            n_seq_max: SEQUENCES,
            verify_max: WIDEST,
            span_max: CONTEXT,
            kv_sim: true,
            threads,
        }
    }

    /// A fresh target on the processor.
    pub(crate) fn on_cpu(&self, threads: usize) -> Result<Seat, Error> {
        let target = CpuTarget::new(Arc::clone(&self.model), Self::options(threads))?;
        let pool = Arc::clone(target.pool());
        let target = Box::new(target);
        let place = Place::Cpu;
        Ok(Seat {
            target,
            pool,
            place,
        })
    }

    /// A fresh target where an arm wants it.
    pub(crate) fn seat(&self, arm: &Arm) -> Result<Seat, Error> {
        match arm.place {
            Place::Cpu => self.on_cpu(arm.threads),
            Place::Device(on) => {
                let there = matches!(&arm.way, Way::Looped(way) if way.source == Source::There);
                let new = NewTarget {
                    model: Arc::clone(&self.model),
                    options: Self::options(arm.threads),
                    chains: there.then_some(&*self.draft),
                };
                let target = self.means.put(on, new)?;
                let pool = Arc::new(Pool::new(arm.threads));
                let place = arm.place;
                Ok(Seat {
                    target,
                    pool,
                    place,
                })
            }
        }
    }

    fn draft_options() -> backbone::Options {
        backbone::Options {
            n_seq_max: SEQUENCES,
            verify_max: WIDEST,
            ..backbone::Options::default()
        }
    }

    fn over<B: Backbone>(&self, backbone: B, seat: &Seat) -> Result<DsparkDrafter<B>, Error> {
        let (model, pool) = (Arc::clone(&self.draft), Arc::clone(&seat.pool));
        let info = seat.target.info();
        Ok(DsparkDrafter::new(model, backbone, info, pool)?)
    }

    /// A fresh drafter on the host's threads.
    pub(crate) fn drafter(&self, seat: &Seat) -> Result<DsparkDrafter<LocalBackbone>, Error> {
        let (model, pool) = (Arc::clone(&self.draft), Arc::clone(&seat.pool));
        let backbone = LocalBackbone::new(model, pool, Self::draft_options())?;
        self.over(backbone, seat)
    }

    /// A fresh drafter with its layers where the target is.
    pub(crate) fn there(&self, seat: &Seat) -> Result<DsparkDrafter<Box<dyn Backbone>>, Error> {
        let Place::Device(on) = seat.place else {
            return Err(Error::Device {
                device: "layers",
                why: "the target runs on the processor".to_owned(),
            });
        };
        let layers = NewLayers {
            model: Arc::clone(&self.draft),
            options: Self::draft_options(),
        };
        self.over(self.means.put(on, layers)?, seat)
    }

    /// A fresh drafter whose layers run in a worker, and the worker's report.
    #[cfg(target_os = "linux")]
    pub(crate) fn remote(&self, seat: &Seat, how: Worker) -> Result<Remote, Error> {
        let program = self.means.worker();
        let program = program.map_err(|why| Error::Worker {
            why: why.to_owned(),
        })?;
        let options = Self::draft_options();
        let (file, model) = (&self.draft_file, &self.draft);
        let place = self.worker_place(seat, how);
        let (backbone, watch) = super::mortal::start(program, file, model, &options, how, place)?;
        Ok((Box::new(self.over(backbone, seat)?), watch))
    }

    /// Where a worker's layers run: as the target's would, or on the processor.
    #[cfg(target_os = "linux")]
    fn worker_place(&self, seat: &Seat, how: Worker) -> ipc_transport::handshake::Place {
        let Place::Device(On { vendor, graphs, .. }) = seat.place else {
            return ipc_transport::handshake::Place::default();
        };
        let (device, images) = self.means.place(vendor);
        let here = ipc_transport::handshake::Place {
            device,
            images: images.map(Path::to_path_buf).unwrap_or_default(),
            graphs,
            early_launch: true,
        };
        if how.there { here } else { Default::default() }
    }

    /// As on Linux, where workers are.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn remote(&self, _: &Seat, _: Worker) -> Result<Remote, Error> {
        let why = self.means.worker().err().unwrap_or_default().to_owned();
        Err(Error::Worker { why })
    }
}

type Remote = (Box<dyn Drafter>, ipc_transport::report::Watch);
