//! A drafter beside the target: loaded, checked against it, and described.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ds4_target::{CpuTarget, GgufSource};
use dspark_draft::backbone::{LocalBackbone, Options};
use dspark_draft::drafter::DsparkDrafter;
use dspark_draft::weights::DraftModel;
use engine_core::{Drafter, Target};
use gguf::{Gguf, OpenOptions};

use crate::error::Error;
use crate::shipped;

/// Which drafter to use. It changes speed, never output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Draft {
    /// None.
    #[default]
    Off,
    /// The one that ships beside the shipped model.
    Shipped,
    /// A GGUF file.
    File(PathBuf),
}

impl Draft {
    /// The file to load, if any.
    pub(crate) fn path(&self) -> Result<Option<PathBuf>, Error> {
        match self {
            Self::Off => Ok(None),
            Self::File(path) => Ok(Some(path.clone())),
            Self::Shipped => {
                shipped::shipped_drafter()
                    .map(Some)
                    .ok_or_else(|| Error::NoShippedModel {
                        looked: shipped::drafter_candidates(),
                    })
            }
        }
    }
}

/// Loads a drafter for `target`, on its threads.
pub(crate) fn load(
    path: &Path,
    target: &CpuTarget,
    sequences: usize,
) -> Result<Box<dyn Drafter + Send>, Error> {
    let file = Gguf::open(path, &OpenOptions::default())?;
    let model = Arc::new(DraftModel::load(&GgufSource::new(file))?);
    let options = Options {
        n_seq_max: sequences,
        verify_max: target.info().verify_max,
        ..Options::default()
    };
    let pool = target.pool();
    let backbone = LocalBackbone::new(Arc::clone(&model), Arc::clone(pool), options)?;
    Ok(Box::new(DsparkDrafter::new(
        model,
        backbone,
        target.info(),
        Arc::clone(pool),
    )?))
}
