//! From a file, or a name, to the parts of an engine: the target, its tokenizer, and what may be known of both.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ds4_target::{Ds4Meta, GgufSource, Model, Options};
use engine_core::{NumericClass, Target, TokenId};
use gguf::{Dialects, Gguf, OpenOptions};
use scheduler::{Limits, Speculation};
use text::{Generation, PromptFormat, Tokenizer};

use crate::drafting::{self, Draft, DraftInfo, DraftOptions};
use crate::error::Error;
use crate::origin::{ModelName, Origin};
use crate::placement::{self, DeviceInfo, DeviceOptions};
use crate::vocab::Vocab;

/// How to run a model. None of it changes a byte of an answer except `kv_sim`, which is part of the
/// model as released.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Positions of a sequence, prompt and answer together; `None`: 4096, or fewer if the model was
    /// trained for fewer.
    pub ctx: Option<usize>,
    /// Sequences that may run at once.
    pub sequences: usize,
    /// Threads; `None`: as many as the machine offers.
    pub threads: Option<usize>,
    /// Most tokens of a prompt in one pass, at least the widest verify (8); `None`: 512.
    pub chunk: Option<usize>,
    /// The model's own roundings of cached rows, as it was released; off only for comparisons with
    /// programs that lack them.
    pub kv_sim: bool,
    /// Meanings of type ids that forks use differently; needed for files that do not say.
    pub dialects: Dialects,
    /// Where the model runs.
    pub device: DeviceOptions,
    /// Which drafter speculates.
    pub draft: Draft,
    /// How it does.
    pub draft_options: DraftOptions,
    /// Bounds of the scheduler.
    pub limits: Limits,
    /// Without a request for so long the model is given up ([`crate::Engine::park`]); `None`: it stays.
    pub park_idle: Option<Duration>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            ctx: None,
            sequences: 4,
            threads: None,
            chunk: None,
            kv_sim: true,
            dialects: Dialects::default(),
            device: DeviceOptions::default(),
            draft: Draft::Off,
            draft_options: DraftOptions::default(),
            limits: Limits::default(),
            park_idle: None,
        }
    }
}

impl EngineOptions {
    /// Opens a file, its header checked.
    ///
    /// # Errors
    /// `File`.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Gguf, Error> {
        let options = OpenOptions {
            dialects: self.dialects,
            ..OpenOptions::default()
        };
        Ok(Gguf::open(path, &options)?)
    }

    /// What these options mean for the target in a file.
    ///
    /// # Errors
    /// `Model` if the file is no target.
    pub fn for_target(&self, file: &Gguf) -> Result<Options, Error> {
        let meta = Ds4Meta::read(&GgufSource::new(file.clone()))?;
        Ok(self.for_context(meta.n_ctx_train))
    }

    /// Positions that a target was trained for.
    ///
    /// # Errors
    /// `File`; `Model` if the file is no target.
    pub fn trained_for(&self, name: &ModelName) -> Result<usize, Error> {
        let meta = Ds4Meta::read(Origin::open(name, self)?.source())?;
        Ok(usize::try_from(meta.n_ctx_train).unwrap_or(usize::MAX))
    }

    fn for_context(&self, ctx_train: u64) -> Options {
        let defaults = Options::default();
        let usual = usize::try_from(ctx_train).unwrap_or(usize::MAX).min(4096);
        Options {
            n_ctx: self.ctx.unwrap_or(usual),
            n_seq_max: self.sequences,
            kv_sim: self.kv_sim,
            span_max: self.chunk.unwrap_or(defaults.span_max),
            threads: self.threads.unwrap_or(defaults.threads),
            ..defaults
        }
    }
}

/// Which formats the tensors of one role have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleFormat {
    /// The tensors' name without layer number and ending, as `ffn_up_exps`.
    pub role: String,
    /// Format of the rows.
    pub format: String,
    /// Tensors.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// What is loaded.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// The name to show.
    pub name: String,
    /// The file, if the model came from one.
    pub file: Option<PathBuf>,
    /// `synth` for made-up weights, which say nothing and whose figures are no model's; `None` for a file's.
    pub label: Option<&'static str>,
    /// Digest of hyper-parameters, tensor table and samples of every tensor, hexadecimal.
    pub fingerprint: String,
    /// Bytes of all tensors.
    pub tensor_bytes: u64,
    /// Formats by role.
    pub formats: Vec<RoleFormat>,
    /// Positions of a sequence.
    pub ctx: u64,
    /// Positions the model was trained for.
    pub ctx_train: u64,
    /// Sequences that may run at once.
    pub sequences: usize,
    /// Vocabulary size.
    pub n_vocab: usize,
    /// Layers.
    pub n_layer: usize,
    /// Width of a residual stream.
    pub n_embd: usize,
    /// Threads on the processor.
    pub threads: usize,
    /// Whether the model's own roundings are applied.
    pub kv_sim: bool,
    /// The promise about output bits.
    pub class: NumericClass,
    /// The prompt format's generation, as `Preview` or `V0731`; `none` without a tokenizer.
    pub generation: String,
    /// How the generation was chosen, if the file does not say it in a way this build knows.
    pub generation_remark: Option<String>,
    /// The device the model runs on; `None`: the processor.
    pub device: Option<DeviceInfo>,
    /// The drafter in use; `None`: none was asked for.
    pub draft: Option<DraftInfo>,
}

/// What an engine is made of.
pub struct EngineParts {
    /// The model.
    pub target: Box<dyn Target + Send>,
    /// What proposes tokens to it, if anything.
    pub speculation: Option<Speculation>,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its prompt format.
    pub format: PromptFormat,
    /// Tokens that end an answer.
    pub stop_tokens: Arc<[TokenId]>,
    /// Opens a raw prompt.
    pub bos: Option<TokenId>,
    /// What may be known.
    pub info: ModelInfo,
}

impl std::fmt::Debug for EngineParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EngineParts({})", self.info.name)
    }
}

/// A model on its device, without a tokenizer: what can be measured but not asked.
pub struct TargetParts {
    /// The model.
    pub target: Box<dyn Target + Send>,
    /// What proposes tokens to it, if anything.
    pub speculation: Option<Speculation>,
    /// What may be known; without a prompt format.
    pub info: ModelInfo,
}

impl std::fmt::Debug for TargetParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TargetParts({})", self.info.name)
    }
}

impl TargetParts {
    /// Loads a model. A file stays mapped: it must not be changed while the target lives.
    ///
    /// # Errors
    /// As [`EngineParts::load`], without `Text` and `NoTokenizer`.
    pub fn load(name: impl Into<ModelName>, options: &EngineOptions) -> Result<Self, Error> {
        let origin = Origin::open(&name.into(), options)?;
        let model = Arc::new(Model::load(origin.source())?);
        Self::of(&origin, model, options)
    }

    fn of(origin: &Origin, model: Arc<Model>, options: &EngineOptions) -> Result<Self, Error> {
        let ctx_train = model.meta.n_ctx_train;
        let run = options.for_context(ctx_train);
        let (threads, kv_sim) = (run.threads, run.kv_sim);
        let (draft, how) = (&options.draft, &options.draft_options);
        let opened = drafting::open(draft, how)?;
        let heads = opened.as_ref().and_then(drafting::Opened::model);
        let placed = placement::place(&options.device, model, run, heads)?;
        let (device, n) = (&options.device, options.sequences);
        let load = |opened| drafting::load(opened, how, device, &placed, n);
        let drafting = opened.map(load).transpose()?;
        let (speculation, draft) = drafting.unzip();
        let mut info = info_of(&*placed.target);
        origin.describe(&mut info);
        info.ctx_train = ctx_train;
        info.threads = threads;
        info.kv_sim = kv_sim;
        info.device = placed.device;
        info.draft = draft;
        Ok(Self {
            target: placed.target,
            speculation,
            info,
        })
    }
}

impl EngineParts {
    /// Loads a model. A file stays mapped: it must not be changed while the target lives.
    ///
    /// # Errors
    /// `File`, `Model`, `Text`, naming the file and what was expected; `NoTokenizer` for made-up weights of another
    /// vocabulary than the shipped model's; `Draft` for a drafter that does not fit, or options of drafting that cannot work
    /// together.
    pub fn load(name: impl Into<ModelName>, options: &EngineOptions) -> Result<Self, Error> {
        let origin = Origin::open(&name.into(), options)?;
        // The model first: of a file of another architecture its name says most.
        let model = Arc::new(Model::load(origin.source())?);
        let vocab = origin.vocab(options)?;
        Ok(Self::with(TargetParts::of(&origin, model, options)?, vocab))
    }

    /// The parts of an engine over any target.
    ///
    /// # Errors
    /// `Prompt` if the vocabulary lacks a marker of the prompt format.
    pub fn of(
        target: Box<dyn Target + Send>,
        tokenizer: Tokenizer,
        generation: Generation,
        name: &str,
    ) -> Result<Self, Error> {
        let vocab = Vocab::with(tokenizer, generation)?;
        let mut info = info_of(&*target);
        info.name = name.to_owned();
        let parts = TargetParts {
            target,
            speculation: None,
            info,
        };
        Ok(Self::with(parts, vocab))
    }

    fn with(parts: TargetParts, vocab: Vocab) -> Self {
        let mut info = parts.info;
        info.generation = format!("{:?}", vocab.format.generation());
        info.generation_remark = vocab.remark;
        Self {
            target: parts.target,
            speculation: parts.speculation,
            info,
            tokenizer: vocab.tokenizer,
            format: vocab.format,
            stop_tokens: vocab.stop_tokens,
            bos: vocab.bos,
        }
    }
}

fn info_of(target: &dyn Target) -> ModelInfo {
    let info = target.info();
    ModelInfo {
        name: String::new(),
        file: None,
        label: None,
        fingerprint: info
            .fingerprint
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect(),
        tensor_bytes: 0,
        formats: Vec::new(),
        ctx: info.n_ctx,
        ctx_train: info.n_ctx,
        sequences: info.n_seq_max,
        n_vocab: info.n_vocab,
        n_layer: info.n_layer,
        n_embd: info.n_embd,
        threads: 1,
        kv_sim: true,
        class: info.class,
        generation: "none".to_owned(),
        generation_remark: None,
        device: None,
        draft: None,
    }
}
