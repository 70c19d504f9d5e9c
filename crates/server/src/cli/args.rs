//! The arguments, as `--help` shows them.

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Parser, Subcommand};

/// Runs DeepSeek V4 Flash models.
#[derive(Debug, Parser)]
#[command(name = "fourspark", version, about, max_term_width = 100)]
pub(crate) struct Args {
    /// What to log to standard error: error, warn, info, debug, trace, or per module.
    #[arg(long, global = true, default_value = "warn", value_name = "FILTER")]
    pub(crate) log: String,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer one prompt, streaming it to standard output.
    Run(RunArgs),
    /// Talk to the model.
    Chat(ChatArgs),
    /// Serve the HTTP APIs.
    Serve(ServeArgs),
    /// Show what is in a model file: roles, formats, exact bytes.
    Inspect(InspectArgs),
    /// Show what a model will take of memory, before it is loaded.
    Plan(PlanArgs),
    /// Make a model file from a safetensors folder.
    Convert(ConvertArgs),
    /// Make a smaller model file from another one.
    Quantize(QuantizeArgs),
    /// Record in a drafter's file which target it was made for.
    Mark(MarkArgs),
    /// Measure a model's quality on a text.
    #[command(subcommand)]
    Eval(EvalCommand),
    /// Show what this machine offers.
    Doctor(DoctorArgs),
    /// Measure what passes of a model take here: prompts, steps, widths, many sequences at once.
    Bench(BenchArgs),
    /// Compare every kernel on a device with its definition, value by value.
    Selftest(SelftestArgs),
    /// Show every switch of the environment, with the value in force.
    Switches(SwitchesArgs),
    /// Serve another fourspark as its draft worker, on standard input. Started by --draft-worker.
    #[command(hide = true)]
    DraftWorker(DraftWorkerArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct DraftWorkerArgs {
    /// What the worker serves.
    #[arg(long, value_name = "MODE", default_value = DRAFT_MODE, value_parser = [DRAFT_MODE])]
    pub(crate) mode: String,
    /// The process it serves.
    pub(crate) parent: u32,
}

/// The one thing a worker can serve.
pub(crate) const DRAFT_MODE: &str = "deepseek4-dspark-draft";

/// Files of vendors.
#[derive(Debug, clap::Args)]
pub(crate) struct LibraryArgs {
    /// File of NVRTC, instead of the system's search.
    #[arg(long, value_name = "FILE")]
    pub(crate) nvrtc: Option<PathBuf>,
    /// File of the HIP runtime, instead of the system's search.
    #[arg(long, value_name = "FILE")]
    pub(crate) hip: Option<PathBuf>,
    /// File of hipRTC, instead of the system's search.
    #[arg(long, value_name = "FILE")]
    pub(crate) hiprtc: Option<PathBuf>,
}

impl LibraryArgs {
    /// As the device layer takes them.
    pub(crate) fn settings(&self) -> device::survey::Settings {
        device::survey::Settings {
            cuda: device::cuda::Settings {
                nvrtc: self.nvrtc.clone(),
            },
            hip: device::hip::Settings {
                hip: self.hip.clone(),
                hiprtc: self.hiprtc.clone(),
            },
        }
    }
}

/// What `doctor` is told.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) libraries: LibraryArgs,
}

/// What `bench` is told.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Prompts of so many tokens.
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "512,2048,8192,32768"
    )]
    pub(crate) prefill: Vec<u32>,
    /// Positions before the steps.
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "0,2048,8192,32768"
    )]
    pub(crate) depth: Vec<u32>,
    /// Rows of a step; 1 is plain decoding.
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1,2,3,4,5,6"
    )]
    pub(crate) width: Vec<u32>,
    /// Sequences in one pass.
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1,8,32"
    )]
    pub(crate) streams: Vec<u32>,
    /// Samples of each step; a prompt is run three times at most.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rounds: u16,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `selftest` is told.
#[derive(Debug, clap::Args)]
pub(crate) struct SelftestArgs {
    /// The device: cuda:N, hip:N, or cpu (builds with the feature host-exec).
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: fourspark::DeviceChoice,
    /// The short case lists: seconds where a device is emulated.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) libraries: LibraryArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SwitchesArgs {
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ModelArgs {
    /// Model file (GGUF), or made-up weights of real shapes, for speed and tests:
    /// synth:flash|pro|tiny[,recipe=GATE_UP-DOWN-REST][,seed=N]. Without it, the model that ships with the program.
    #[arg(long, value_name = "FILE", value_parser = model_name())]
    pub(crate) model: Option<fourspark::ModelName>,
    /// Positions of a sequence, prompt and answer together [default: 4096, or what the model was
    /// trained for].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ctx: Option<u32>,
    /// Threads [default: as many as the machine offers].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Device to run the model on: cpu, cuda:N or hip:N. Several of one kind, as cuda:0,cuda:1, share its layers: equal
    /// shares by bytes, or as named, cuda:0=0-20,cuda:1=21-42. The text is the same, only the speed differs.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(crate) device: fourspark::Devices,
    /// Keep compiled kernels in this folder; without it every start on a device compiles them.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) kernel_cache: Option<PathBuf>,
    /// Most tokens of a prompt in one pass [default: 512]. Changes no byte of any answer.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(8..=65_536))]
    pub(crate) chunk: Option<u32>,
    /// Leave out the model's own roundings of cached rows, to compare with programs without them.
    #[arg(long)]
    pub(crate) no_kv_sim: bool,
    /// Speculate with the DSpark drafter that ships with the program. The text is the same, only
    /// the speed differs.
    #[arg(long, conflicts_with = "draft_model")]
    pub(crate) draft: bool,
    /// Speculate with this drafter (GGUF).
    #[arg(long, value_name = "FILE")]
    pub(crate) draft_model: Option<PathBuf>,
    /// How many candidates a step verifies: fixed:N (N rows, the seed among them), thresholds, ewma,
    /// or reward: by what passes cost here [default: reward].
    #[arg(long, value_name = "POLICY")]
    pub(crate) draft_policy: Option<fourspark::Policy>,
    /// Most candidates of a step [default: as many as drafter and model can].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=15))]
    pub(crate) draft_depth: Option<u8>,
    /// Where candidates come from: backbone (the drafter's model), suffix (copies of the text, needs
    /// no drafter), auto (both) [default: auto with a drafter].
    #[arg(long, value_name = "SOURCE")]
    pub(crate) draft_source: Option<fourspark::DraftSource>,
    /// Where the drafter's layers run: same (as the model), cpu, cuda:N or hip:N [default: same, or the processor
    /// where they find no room].
    #[arg(long, value_name = "DEVICE")]
    pub(crate) draft_device: Option<fourspark::DraftDevice>,
    /// Whether the drafter's layers run in a process of their own: off, auto (or else in this one),
    /// required [default: off].
    #[arg(long, value_name = "MODE")]
    pub(crate) draft_worker: Option<fourspark::WorkerMode>,
    /// The program of that process, which speaks this one's protocol [default: this one].
    #[arg(long, value_name = "FILE", requires = "draft_worker")]
    pub(crate) draft_worker_program: Option<PathBuf>,
    /// How rows travel to that process: shared (memory), stream, auto [default: auto].
    #[arg(long, value_name = "TRANSPORT")]
    pub(crate) draft_transport: Option<fourspark::WorkerTransport>,
    /// Whether that process begins the next draft while the model verifies: on, off [default: off].
    #[arg(long, value_name = "MODE", value_parser = ["on", "off"])]
    pub(crate) draft_overlap: Option<String>,
    #[command(flatten)]
    pub(crate) dialect: DialectArgs,
}

impl ModelArgs {
    /// Whether anything of drafting is asked for.
    pub(crate) const fn drafts(&self) -> bool {
        self.draft
            || self.draft_model.is_some()
            || self.draft_policy.is_some()
            || self.draft_depth.is_some()
            || self.draft_source.is_some()
            || self.draft_device.is_some()
            || self.draft_worker.is_some()
            || self.draft_transport.is_some()
            || self.draft_overlap.is_some()
    }
}

/// What forks of the file format write differently under one number.
#[derive(Debug, clap::Args)]
pub(crate) struct DialectArgs {
    /// What tensor type 107 means where a file does not say: signed, signed_neg, affine or s40.
    #[arg(long, value_name = "NAME", value_parser = fp2)]
    pub(crate) fp2: Option<String>,
    /// What code 32 of tensor type 102 means where a file does not say: zero or neg32.
    #[arg(long, value_name = "NAME", value_parser = fp6)]
    pub(crate) fp6: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SampleArgs {
    /// The most tokens to generate [default: as many as the context holds].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: Option<u32>,
    /// Randomness; 0 always takes the most probable token.
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = temperature)]
    pub(crate) temperature: f32,
    /// Choose among the K most probable tokens; 0 = all.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(crate) top_k: u32,
    /// Choose among the most probable tokens that together reach this probability.
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = probability)]
    pub(crate) top_p: f32,
    /// Choose among tokens with at least this share of the largest probability.
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = probability)]
    pub(crate) min_p: f32,
    /// Same seed, same answer.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Instructions before the conversation.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Let the model think before it answers; its thoughts go to standard error.
    #[arg(long)]
    pub(crate) think: bool,
    /// How hard to think: none, low, medium, high, xhigh or max. Implies --think.
    #[arg(long, value_name = "EFFORT", value_parser = effort)]
    pub(crate) effort: Option<fourspark::Thinking>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// The prompt.
    pub(crate) prompt: String,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sample: SampleArgs,
    /// Continue the prompt as plain text, without any prompt format.
    #[arg(long, conflicts_with_all = ["system", "think", "effort"])]
    pub(crate) raw: bool,
    /// Print one JSON object with the answer, its tokens and its timings instead of streaming.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print what speculation counted and measured to standard error; with --json, in the object.
    #[arg(long)]
    pub(crate) stats: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sample: SampleArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value_t = super::serve::LOOPBACK)]
    pub(crate) host: std::net::IpAddr,
    /// Port to listen on; 0 lets the system choose.
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub(crate) port: u16,
    /// Key that clients must present.
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
    /// Listen beyond this machine although no key is set.
    #[arg(long)]
    pub(crate) allow_no_key: bool,
    /// Requests that run at once; their tokens share passes.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) parallel: u16,
    /// Requests that may wait beyond those.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) queue: u16,
    /// The most bytes of a request.
    #[arg(long, value_name = "BYTES", default_value_t = 32 << 20)]
    pub(crate) body_limit: u32,
    /// Seconds that requests in progress may go on once the server is told to stop.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) drain: u16,
    /// Seconds without a request after which the model is given up, to be loaded for the next one; 0: never.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) park_idle: u32,
    /// Whether to think when a request does not say: none, low, medium, high, xhigh or max
    /// [default: none].
    #[arg(long, value_name = "EFFORT", value_parser = effort)]
    pub(crate) effort: Option<fourspark::Thinking>,
    /// The model's name for clients [default: the file's own].
    #[arg(long, value_name = "NAME")]
    pub(crate) model_name: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// The model file (GGUF).
    pub(crate) file: PathBuf,
    /// List every tensor.
    #[arg(long)]
    pub(crate) tensors: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) dialect: DialectArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PlanArgs {
    /// The model file (GGUF).
    pub(crate) file: PathBuf,
    /// Positions of a sequence [default: 4096, or what the model was trained for].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ctx: Option<u32>,
    /// Sequences that run at once.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) parallel: u16,
    /// Without the model's own roundings: rows are then kept in f32.
    #[arg(long)]
    pub(crate) no_kv_sim: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) dialect: DialectArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ConvertArgs {
    /// Folder of a target (config.json, safetensors); with --drafter: an official folder with its
    /// mtp tensors, or a safetensors file of a drafter.
    pub(crate) source: PathBuf,
    /// The file to write.
    pub(crate) output: PathBuf,
    /// Formats: a name (f32, f16, bf16, q8, fp8, fp6, fp4, fp4-fast, fp2) or rules ROLE=FORMAT,...
    #[arg(long, default_value = "f16")]
    pub(crate) recipe: String,
    /// The model's name [default: the folder's].
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// The model's version, which decides the prompt format: preview or 0731.
    #[arg(long, value_name = "VERSION")]
    pub(crate) model_version: Option<String>,
    /// Name the pre-tokenizer instead of recognising it by its patterns.
    #[arg(long, value_name = "NAME")]
    pub(crate) pre: Option<String>,
    /// Convert the DSpark drafter, not the target.
    #[arg(long)]
    pub(crate) drafter: bool,
    /// A drafter file's own configuration.
    #[arg(long, value_name = "FILE", requires_all = ["drafter", "target_config"])]
    pub(crate) draft_config: Option<PathBuf>,
    /// The config.json of the target a drafter file is for.
    #[arg(long, value_name = "FILE", requires_all = ["drafter", "draft_config"])]
    pub(crate) target_config: Option<PathBuf>,
    /// The target (GGUF) that the drafter is for: it is recorded in the drafter's file.
    #[arg(long, value_name = "FILE", requires = "drafter")]
    pub(crate) target_model: Option<PathBuf>,
    /// Overwrite the output.
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct MarkArgs {
    /// The drafter (GGUF).
    pub(crate) drafter: PathBuf,
    /// The file to write: the same drafter, marked.
    pub(crate) output: PathBuf,
    /// The target (GGUF) it was made for.
    #[arg(long, value_name = "FILE")]
    pub(crate) target_model: PathBuf,
    /// Overwrite the output.
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct QuantizeArgs {
    /// The file to read.
    pub(crate) input: PathBuf,
    /// The file to write.
    pub(crate) output: PathBuf,
    /// Formats: a name (f32, f16, bf16, q8, fp8, fp6, fp4, fp4-fast, fp2) or rules ROLE=FORMAT,...
    #[arg(long)]
    pub(crate) recipe: String,
    /// Importance matrix: which inputs matter more.
    #[arg(long, value_name = "FILE")]
    pub(crate) imatrix: Option<PathBuf>,
    /// Overwrite the output.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) dialect: DialectArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    /// Perplexity: how well the model predicts the text.
    Ppl {
        #[command(flatten)]
        model: ModelArgs,
        #[command(flatten)]
        text: EvalTextArgs,
    },
    /// Write the model's rows of logits over the text into a file, for `eval kl --reference-rows`.
    Rows {
        /// The file to write; it must not be there yet.
        output: PathBuf,
        #[command(flatten)]
        model: ModelArgs,
        #[command(flatten)]
        text: EvalTextArgs,
    },
    /// Divergence: how far the model's predictions are from another's.
    Kl {
        /// The model to compare with (GGUF), usually the unquantised one.
        #[arg(long, value_name = "FILE", required_unless_present = "reference_rows")]
        reference: Option<PathBuf>,
        /// Rows to compare with, from `eval rows` on the same text: a model with other options or
        /// switches.
        #[arg(long, value_name = "FILE", conflicts_with = "reference")]
        reference_rows: Option<PathBuf>,
        #[command(flatten)]
        model: ModelArgs,
        #[command(flatten)]
        text: EvalTextArgs,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct EvalTextArgs {
    /// The text, UTF-8.
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,
    /// Tokens of a window, of which the second half is scored. Stands for --ctx.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) window: u32,
    /// Score the first N windows only.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) windows: Option<u32>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A name of made-up weights, or else a path in whatever bytes. Not left to the derivation, which takes any text for a path.
fn model_name() -> impl TypedValueParser<Value = fourspark::ModelName> {
    OsStringValueParser::new().try_map(|text| match text.to_str() {
        Some(name) => name.parse(),
        None => Ok(fourspark::ModelName::from(text)),
    })
}

fn fp2(name: &str) -> Result<String, String> {
    let known = gguf::types::fp2_from_name(name).is_some();
    known
        .then(|| name.to_owned())
        .ok_or_else(|| "expected signed, signed_neg, affine or s40".to_owned())
}

fn fp6(name: &str) -> Result<String, String> {
    let known = gguf::types::fp6_from_name(name).is_some();
    known
        .then(|| name.to_owned())
        .ok_or_else(|| "expected zero or neg32".to_owned())
}

fn effort(name: &str) -> Result<fourspark::Thinking, String> {
    fourspark::Thinking::from_effort_name(name)
        .ok_or_else(|| "expected none, low, medium, high, xhigh or max".to_owned())
}

fn number(text: &str, high: f32) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if (0.0..=high).contains(&value) => Ok(value),
        _ => Err(format!("expected a number from 0 to {high}")),
    }
}

fn temperature(text: &str) -> Result<f32, String> {
    number(text, 100.0)
}

fn probability(text: &str) -> Result<f32, String> {
    number(text, 1.0)
}

#[cfg(test)]
mod tests;
