//! Makes the shipped files from the small model's checkpoint:
//! `cargo run -p model-tools --example small_model -- CHECKPOINT_FOLDER OUTPUT_FOLDER`.
//!
//! Also F16 forms of both, as references for measuring, when a third folder is given.

use std::env;
use std::path::{Path, PathBuf};

use gguf::Value;
use model_tools::convert::{self, DraftSource, Options};
use model_tools::recipe::builtin;
use model_tools::{Report, ToolError, pair};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let (from, to) = match &args[..] {
        [from, to] | [from, to, _] => (from, to),
        _ => return Err("CHECKPOINT_FOLDER OUTPUT_FOLDER [F16_FOLDER]".into()),
    };
    make(from, to, "", "tiny", "tiny-draft")?;
    if let Some(f16) = args.get(2) {
        make(from, f16, "-f16", "f16", "f16")?;
    }
    Ok(())
}

/// Writes target and drafter.
fn make(
    from: &Path,
    to: &Path,
    mark: &str,
    target: &str,
    draft: &str,
) -> Result<Report, ToolError> {
    let about = "A DeepSeek V4 of 20 million weights, to run every part of the engine anywhere";
    let options = self::options("Fourspark tiny", about, target)?;
    let output = to.join(format!("tiny{mark}.gguf"));
    convert::target(from, &output, &options, &mut ())?;
    let pairing = pair::mark(&output)?;
    let source = DraftSource::File {
        weights: from.join("draft.safetensors"),
        config: from.join("draft_config.json"),
        target: from.join("config.json"),
    };
    let about = "The DSpark drafter of Fourspark tiny";
    let mut options = self::options("Fourspark tiny drafter", about, draft)?;
    options.extra.push(pairing);
    let output = to.join(format!("tiny-draft{mark}.gguf"));
    convert::drafter(&source, &output, &options, &mut ())
}

fn options(name: &str, description: &str, recipe: &str) -> Result<Options, ToolError> {
    let mut options = Options::new(builtin(recipe)?);
    options.name = Some(name.to_owned());
    options.version = Some("preview".to_owned());
    let key = |k: &str, v: &str| (format!("general.{k}"), Value::from(v));
    options.extra = vec![
        key("license", "apache-2.0"),
        key("description", description),
    ];
    Ok(options)
}
