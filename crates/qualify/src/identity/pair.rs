//! The pair under test, loaded once, and targets and drafters over it.

use std::path::Path;
use std::sync::Arc;

use ds4_target::{CpuTarget, GgufSource, Model, Options};
use dspark_draft::backbone::{self, LocalBackbone};
use dspark_draft::drafter::DsparkDrafter;
use dspark_draft::weights::DraftModel;
use engine_core::{Target, TokenId};
use gguf::{Gguf, OpenOptions};

use super::Error;

/// Sequences a target of the matrix holds: five neighbours, and forks of them.
pub(crate) const SEQUENCES: usize = 8;
/// The widest verify of the matrix.
pub(crate) const WIDEST: usize = 8;
const CONTEXT: usize = 512;

/// A target with its drafter and the prompt they are run on.
#[derive(Clone)]
pub struct Pair {
    model: Arc<Model>,
    draft: Arc<DraftModel>,
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
    pub fn load(target: &Path, draft: &Path, prompt: Vec<TokenId>) -> Result<Self, Error> {
        Ok(Self {
            model: Arc::new(Model::load(&source(target)?)?),
            draft: Arc::new(DraftModel::load(&source(draft)?)?),
            prompt,
        })
    }

    /// A fresh target.
    pub(crate) fn target(&self, threads: usize) -> Result<CpuTarget, Error> {
        let options = Options {
            n_ctx: CONTEXT,
            n_seq_max: SEQUENCES,
            verify_max: WIDEST,
            span_max: CONTEXT,
            kv_sim: true,
            threads,
        };
        Ok(CpuTarget::new(Arc::clone(&self.model), options)?)
    }

    /// A fresh drafter on the target's threads.
    pub(crate) fn drafter(
        &self,
        target: &CpuTarget,
    ) -> Result<DsparkDrafter<LocalBackbone>, Error> {
        let options = backbone::Options {
            n_seq_max: SEQUENCES,
            verify_max: WIDEST,
            ..backbone::Options::default()
        };
        let pool = target.pool();
        let model = Arc::clone(&self.draft);
        let backbone = LocalBackbone::new(Arc::clone(&model), Arc::clone(pool), options)?;
        Ok(DsparkDrafter::new(
            model,
            backbone,
            target.info(),
            Arc::clone(pool),
        )?)
    }
}
