//! A backbone that copies its rows in and its answer out and computes nothing, or is busy as long as it is told to.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use engine_core::seams::{Ask, Backbone, DraftRows};
use engine_core::{Fault, Pos, SeqId, Ticket};
use ipc_transport::handshake::{Configure, Dims};
use ipc_transport::worker::{Layers, Loaded};

/// Copies what it is given, and answers with the block twice.
pub(crate) struct Copies {
    dims: Dims,
    ring: Vec<f32>,
    block: Vec<f32>,
    work: Duration,
}

/// What is named in place of a draft file, for a worker that is busy as long in each draft.
pub(crate) fn file(work: Duration) -> PathBuf {
    work.as_micros().to_string().into()
}

fn work(file: &Path) -> Result<Duration, String> {
    let micros = file.to_str().and_then(|name| name.parse().ok());
    let micros = micros.ok_or_else(|| format!("expected microseconds, got {}", file.display()))?;
    Ok(Duration::from_micros(micros))
}

impl Copies {
    pub(crate) fn new(dims: Dims, work: Duration) -> Self {
        Self {
            work,
            dims,
            ring: vec![0.0; dims.ring as usize * dims.feature_width()],
            block: Vec::new(),
        }
    }
}

/// What a worker loads in place of a draft file.
pub(crate) fn load(configure: &Configure) -> Result<Loaded, String> {
    Ok(Loaded {
        backbone: Layers::Here(Box::new(Copies::new(
            configure.dims,
            work(&configure.file)?,
        ))),
        dims: configure.dims,
        device: "copies".to_owned(),
    })
}

/// A copy in pieces, as `copy.rs` of the crate makes its own: see there.
pub(crate) fn copy<T: Copy>(from: &[T], to: &mut [T]) {
    let piece = 2048 / size_of::<T>();
    for (to, from) in to.chunks_mut(piece).zip(from.chunks(piece)) {
        to.copy_from_slice(from);
    }
}

fn copied(from: &[f32]) -> Vec<f32> {
    let mut to = Vec::with_capacity(from.len());
    from.chunks(512).for_each(|part| to.extend_from_slice(part));
    to
}

impl Backbone for Copies {
    fn observe(&mut self, _: SeqId, pos: Pos, features: &[f32]) -> Result<(), Fault> {
        let width = self.dims.feature_width();
        for (at, row) in (pos as usize..).zip(features.chunks_exact(width)) {
            let slot = at % self.dims.ring as usize * width;
            copy(row, &mut self.ring[slot..slot + width]);
        }
        Ok(())
    }

    fn submit(&mut self, _: &[Ask], block: &[f32]) -> Result<Ticket, Fault> {
        self.block.resize(block.len(), 0.0);
        copy(block, &mut self.block);
        if !self.work.is_zero() {
            let end = Instant::now() + self.work;
            while Instant::now() < end {
                std::hint::spin_loop();
            }
        }
        Ok(Ticket(0))
    }

    fn poll(&mut self, _: Ticket, _: Option<Instant>) -> Result<DraftRows, Fault> {
        Ok(DraftRows {
            rows: vec![self.dims.block as usize],
            normed: copied(&self.block),
            pre_norm: copied(&self.block),
        })
    }

    fn truncate(&mut self, _: SeqId, _: Pos) {}

    fn close(&mut self, _: SeqId) {}

    fn save(&self, _: SeqId, _: &mut dyn Write) -> Result<(), Fault> {
        Err(Fault::Unsupported("save"))
    }

    fn load(&mut self, _: SeqId, _: &mut dyn Read) -> Result<(), Fault> {
        Err(Fault::Unsupported("load"))
    }

    fn health(&self) -> Result<(), Fault> {
        Ok(())
    }
}
