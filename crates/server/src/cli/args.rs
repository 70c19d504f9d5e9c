//! The arguments, as `--help` shows them.

use std::path::PathBuf;

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
    /// Show what this machine offers.
    Doctor,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ModelArgs {
    /// Model file (GGUF). Without it, the model that ships with the program.
    #[arg(long, value_name = "FILE")]
    pub(crate) model: Option<PathBuf>,
    /// Positions of a sequence, prompt and answer together [default: 4096, or what the model was
    /// trained for].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ctx: Option<u32>,
    /// Threads [default: as many as the machine offers].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Leave out the model's own roundings of cached rows, to compare with programs without them.
    #[arg(long)]
    pub(crate) no_kv_sim: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SampleArgs {
    /// The most tokens to generate [default: as many as the context holds].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: Option<u32>,
    /// Randomness; 0 always takes the most probable token.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub(crate) temperature: f32,
    /// Choose among the K most probable tokens; 0 = all.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(crate) top_k: u32,
    /// Choose among the most probable tokens that together reach this probability.
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub(crate) top_p: f32,
    /// Choose among tokens with at least this share of the largest probability.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
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
}

#[derive(Debug, clap::Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sample: SampleArgs,
}

fn effort(name: &str) -> Result<fourspark::Thinking, String> {
    fourspark::Thinking::from_effort_name(name)
        .ok_or_else(|| "expected none, low, medium, high, xhigh or max".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        super::Args::command().debug_assert();
    }
}
