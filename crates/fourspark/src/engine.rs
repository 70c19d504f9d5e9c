//! A loaded model with its engine thread, and what may be known about it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;

use ds4_target::{CpuTarget, GgufSource, Model, Options};
use engine_core::{Drafter, NumericClass, Target};
use gguf::{Gguf, OpenOptions};
use scheduler::{Event as Step, Flow, Handle, Limits, Request, Scheduler, Stats};
use text::{Conversation, PromptFormat, Tokenizer};

use crate::answer::{AnswerStream, Event};
use crate::drafting::{self, Draft};
use crate::error::Error;
use crate::feature::Feature;
use crate::prompt::{ChatRequest, Generate, Prepared, Reading};
use crate::reader::Reader;
use crate::shipped;
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
    /// The model's own roundings of cached rows, as it was released; off only for comparisons with
    /// programs that lack them.
    pub kv_sim: bool,
    /// Which drafter speculates.
    pub draft: Draft,
    /// Bounds of the scheduler.
    pub limits: Limits,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            ctx: None,
            sequences: 4,
            threads: None,
            kv_sim: true,
            draft: Draft::Off,
            limits: Limits::default(),
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
    /// Threads of the CPU target.
    pub threads: usize,
    /// Whether the model's own roundings are applied.
    pub kv_sim: bool,
    /// The promise about output bits.
    pub class: NumericClass,
    /// The prompt format's generation, as `Preview` or `V0731`.
    pub generation: String,
}

/// What an engine is made of, for callers that bring their own target.
pub struct EngineParts {
    /// The model.
    pub target: Box<dyn Target + Send>,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its prompt format.
    pub format: PromptFormat,
    /// Tokens that end an answer.
    pub stop_tokens: Arc<[u32]>,
    /// Opens a raw prompt.
    pub bos: Option<u32>,
    /// The name to show.
    pub name: String,
    /// Bounds of the scheduler.
    pub limits: Limits,
}

impl std::fmt::Debug for EngineParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EngineParts({})", self.name)
    }
}

/// A model ready to answer. Cheap to clone; the last clone to go stops the engine.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    scheduler: Scheduler,
    vocab: Vocab,
    info: ModelInfo,
    features: Vec<Feature>,
}

impl Engine {
    /// Loads a model file. It stays mapped: it must not be changed while the engine lives.
    ///
    /// # Errors
    /// `File`, `Model`, `Text`, `Thread`, naming the file and what was expected.
    pub fn load(path: impl AsRef<Path>, options: &EngineOptions) -> Result<Self, Error> {
        let file = Gguf::open(path, &OpenOptions::default())?;
        let source = GgufSource::new(file);
        // The model first: of a file of another architecture its name says most.
        let model = Arc::new(Model::load(&source)?);
        let vocab = Vocab::of(source.file().metadata())?;
        let ctx_train = model.meta.n_ctx_train;
        let usual = usize::try_from(ctx_train).unwrap_or(usize::MAX).min(4096);
        let defaults = Options::default();
        let options_of_target = Options {
            n_ctx: options.ctx.unwrap_or(usual),
            n_seq_max: options.sequences,
            kv_sim: options.kv_sim,
            threads: options.threads.unwrap_or(defaults.threads),
            ..defaults
        };
        let threads = options_of_target.threads;
        let target = CpuTarget::new(model, options_of_target)?;
        let draft = options.draft.path()?;
        let drafter = match &draft {
            Some(path) => Some(drafting::load(path, &target, options.sequences)?),
            None => None,
        };
        let mut info = info_of(&target, &vocab);
        info.name = display_name(source.file());
        info.file = Some(source.file().path().to_path_buf());
        info.tensor_bytes = source.file().tensor_bytes();
        info.formats = formats(source.file());
        info.ctx_train = ctx_train;
        info.threads = threads;
        info.kv_sim = options.kv_sim;
        let features = features(&info, &vocab, draft.as_deref());
        Self::start(
            Box::new(target),
            drafter,
            vocab,
            info,
            features,
            options.limits,
        )
    }

    /// Loads the model that ships with the program.
    ///
    /// # Errors
    /// `NoShippedModel`, and as [`Self::load`].
    pub fn load_shipped(options: &EngineOptions) -> Result<Self, Error> {
        let path = shipped::shipped_model().ok_or_else(|| Error::NoShippedModel {
            looked: shipped::candidates(),
        })?;
        Self::load(path, options)
    }

    /// An engine over any target.
    ///
    /// # Errors
    /// `Thread`.
    pub fn from_parts(parts: EngineParts) -> Result<Self, Error> {
        let vocab = Vocab {
            tokenizer: parts.tokenizer,
            format: parts.format,
            stop_tokens: parts.stop_tokens,
            bos: parts.bos,
            remark: None,
        };
        let mut info = info_of(&*parts.target, &vocab);
        info.name = parts.name;
        let features = features(&info, &vocab, None);
        Self::start(parts.target, None, vocab, info, features, parts.limits)
    }

    fn start(
        target: Box<dyn Target + Send>,
        drafter: Option<Box<dyn Drafter + Send>>,
        vocab: Vocab,
        info: ModelInfo,
        features: Vec<Feature>,
        limits: Limits,
    ) -> Result<Self, Error> {
        let scheduler = Scheduler::start(target, drafter, limits).map_err(Error::Thread)?;
        Ok(Self {
            inner: Arc::new(Inner {
                scheduler,
                vocab,
                info,
                features,
            }),
        })
    }

    /// What is loaded.
    #[must_use]
    pub fn info(&self) -> &ModelInfo {
        &self.inner.info
    }

    /// What is on, what is off, and why.
    #[must_use]
    pub fn features(&self) -> &[Feature] {
        &self.inner.features
    }

    /// The bounds of the scheduler.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        self.inner.scheduler.limits()
    }

    /// Counters as of now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.scheduler.stats()
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.inner.vocab.tokenizer
    }

    /// The prompt of a conversation.
    ///
    /// # Errors
    /// `Prompt`.
    pub fn prepare(&self, request: &ChatRequest) -> Result<Prepared, Error> {
        let vocab = &self.inner.vocab;
        let prompt = vocab.format.render(&Conversation {
            messages: &request.messages,
            tools: &request.tools,
            thinking: request.thinking,
            ..Conversation::default()
        })?;
        Ok(Prepared {
            tokens: prompt.encode(&vocab.tokenizer),
            reading: Reading::Turn {
                in_reasoning: prompt.ends_in_reasoning(),
                tools: !request.tools.is_empty(),
            },
        })
    }

    /// A prompt of plain text to be continued as text: the opening token, then the text.
    #[must_use]
    pub fn prepare_text(&self, text: &str) -> Prepared {
        let vocab = &self.inner.vocab;
        let mut tokens: Vec<u32> = vocab.bos.into_iter().collect();
        tokens.extend(vocab.tokenizer.encode_text(text));
        Prepared {
            tokens,
            reading: Reading::Plain,
        }
    }

    /// Starts an answer whose events go to `sink`, on the engine's thread: it must not block. Its
    /// reply to the last event of a token is followed.
    ///
    /// # Errors
    /// `Refused`.
    pub fn start_answer(
        &self,
        prompt: Prepared,
        generate: &Generate,
        mut sink: impl FnMut(Event) -> Flow + Send + 'static,
    ) -> Result<Handle, Error> {
        let vocab = &self.inner.vocab;
        let mut reader = Reader::new(
            Arc::clone(&vocab.tokenizer),
            &vocab.format,
            prompt.reading,
            &generate.stop,
            generate.one_call,
        );
        let request = Request {
            prompt: prompt.tokens,
            plan: Arc::clone(&generate.plan),
            max_tokens: generate.max_tokens.unwrap_or(u32::MAX),
            stop_tokens: Arc::clone(&vocab.stop_tokens),
        };
        let steps = move |step| match step {
            Step::Token(token) => {
                let mut events = Vec::new();
                let flow = reader.push(token, &mut events);
                for event in events {
                    if sink(event) == Flow::Cancel {
                        return Flow::Cancel;
                    }
                }
                flow
            }
            Step::Finished(finish) => {
                let (events, outcome) = reader.finish(&finish.reason, finish.usage);
                for event in events {
                    sink(event);
                }
                sink(Event::Finished(Box::new(outcome)))
            }
        };
        Ok(self.inner.scheduler.submit(request, Box::new(steps))?)
    }

    /// Starts an answer as a stream.
    ///
    /// # Errors
    /// `Refused`.
    pub fn answer(&self, prompt: Prepared, generate: &Generate) -> Result<AnswerStream, Error> {
        let (sender, events) = mpsc::channel();
        let handle =
            self.start_answer(prompt, generate, move |event| match sender.send(event) {
                Ok(()) => Flow::Continue,
                Err(_) => Flow::Cancel,
            })?;
        Ok(AnswerStream { events, handle })
    }

    /// Continues a conversation.
    ///
    /// # Errors
    /// `Prompt`, `Refused`.
    pub fn chat(&self, request: &ChatRequest) -> Result<AnswerStream, Error> {
        self.answer(self.prepare(request)?, &request.generate)
    }

    /// Continues plain text.
    ///
    /// # Errors
    /// `Refused`.
    pub fn complete(&self, text: &str, generate: &Generate) -> Result<AnswerStream, Error> {
        self.answer(self.prepare_text(text), generate)
    }

    /// Cancels all requests and refuses new ones.
    pub fn stop(&self) {
        self.inner.scheduler.stop();
    }
}

fn info_of(target: &dyn Target, vocab: &Vocab) -> ModelInfo {
    let info = target.info();
    ModelInfo {
        name: String::new(),
        file: None,
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
        generation: format!("{:?}", vocab.format.generation()),
    }
}

/// `general.name`, or the file's name when that is missing, empty or not fit to be shown.
fn display_name(file: &Gguf) -> String {
    let fit = |name: &&str| {
        let name = name.trim();
        !name.is_empty() && name.len() <= 128 && !name.chars().any(char::is_control)
    };
    let given = file.metadata().find_str("general.name").ok().flatten();
    match given.filter(fit) {
        Some(name) => name.trim().to_owned(),
        None => file
            .path()
            .file_stem()
            .map_or_else(|| "model".to_owned(), |s| s.to_string_lossy().into_owned()),
    }
}

fn formats(file: &Gguf) -> Vec<RoleFormat> {
    let mut sums: BTreeMap<(String, String), (usize, u64)> = BTreeMap::new();
    for tensor in file.tensors() {
        let name = match tensor.name.strip_prefix("blk.") {
            Some(rest) => rest.split_once('.').map_or(rest, |(_, name)| name),
            None => &tensor.name,
        };
        let role = name.strip_suffix(".weight").unwrap_or(name).to_owned();
        let sum = sums.entry((role, tensor.format.to_string())).or_default();
        *sum = (sum.0 + 1, sum.1 + tensor.bytes() as u64);
    }
    sums.into_iter()
        .map(|((role, format), (tensors, bytes))| RoleFormat {
            role,
            format,
            tensors,
            bytes,
        })
        .collect()
}

fn features(info: &ModelInfo, vocab: &Vocab, draft: Option<&Path>) -> Vec<Feature> {
    let thinking = vocab.remark.clone().unwrap_or_else(|| {
        format!(
            "prompt format {}, from general.architecture",
            info.generation
        )
    });
    let kv_sim = if info.kv_sim {
        Feature::on(
            "kv_sim",
            "the model's own roundings of cached rows, rows packed",
        )
    } else {
        Feature::off("kv_sim", "switched off: cached rows are kept in f32")
    };
    vec![
        Feature::on("cpu", format!("{} threads", info.threads)),
        Feature::off("cuda", "this build has no CUDA kernels"),
        Feature::off("hip", "this build has no HIP kernels"),
        kv_sim,
        match draft {
            Some(file) => Feature::on("draft", format!("DSpark, {}, fixed width", file.display())),
            None => Feature::off("draft", "no drafter was asked for"),
        },
        Feature::off(
            "prefix_cache",
            "not built yet: every prompt is computed from its first token",
        ),
        Feature::on(
            "batching",
            format!("up to {} sequences in a pass", info.sequences),
        ),
        Feature::on("thinking", thinking),
        Feature::on("tools", "DSML calls are parsed as they stream"),
        Feature::off("response_format", "this build has no constrained decoding"),
        Feature::off("logprobs", "this build does not report log-probabilities"),
    ]
}
