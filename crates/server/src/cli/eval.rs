//! `eval ppl` and `eval kl`: quality of a model on a text.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use fourspark::{EngineOptions, EngineParts, ModelName};
use model_tools::eval::{Divergence, Window, compare, perplexity, windows};
use model_tools::recorded::{self, Recorded};
use serde_json::{Value, json};

use super::args::{EvalCommand, EvalTextArgs, ModelArgs};
use super::bar::Bar;
use super::interrupt::Interrupt;
use super::{model, out, switching};

pub(crate) fn eval(command: &EvalCommand) -> Result<()> {
    match command {
        EvalCommand::Ppl { model, text } => ppl(model, text),
        EvalCommand::Kl {
            reference,
            reference_rows,
            model,
            text,
        } => match (reference, reference_rows) {
            (_, Some(rows)) => kl_of_rows(rows, model, text),
            (Some(file), None) => kl_of_file(file, model, text),
            (None, None) => bail!("expected --reference or --reference-rows"),
        },
        EvalCommand::Rows {
            output,
            model,
            text,
        } => rows(output, model, text),
    }
}

/// The model by itself: no scheduler stands between.
fn load(args: &ModelArgs, text: &EvalTextArgs) -> Result<EngineParts> {
    if args.drafts() {
        bail!("eval predicts given tokens and drafts none: leave out --draft and its options");
    }
    let options = EngineOptions {
        ctx: Some(text.window as usize),
        sequences: 1,
        ..model::options(args)
    };
    if let Some(ModelName::Synth(synth)) = &args.model {
        bail!("eval measures quality, and {synth} has none: its weights are made up");
    }
    Ok(EngineParts::load(model::name(args)?, &options)?)
}

fn ppl(args: &ModelArgs, text: &EvalTextArgs) -> Result<()> {
    let mut parts = load(args, text)?;
    let tokens = tokens(&parts, &text.text)?;
    let windows = cut(&tokens, text)?;
    let mut bar = Bar::new(Interrupt::listen()?);
    let found = perplexity(&mut *parts.target, &windows, &mut bar)?;
    drop(bar);
    if text.json {
        let mut object = json!({
            "perplexity": found.value(),
            "perplexity_error": found.error(),
            "nll": found.nll,
            "nll_error": found.nll_error,
            "scored": found.scored,
            "window": text.window,
        });
        describe(&mut object, &parts);
        return out::write(&format!("{object}\n"));
    }
    out::write(&format!(
        "perplexity {:.4} +- {:.4} over {} tokens in windows of {}\n",
        found.value(),
        found.error(),
        found.scored,
        text.window
    ))
}

fn rows(output: &Path, args: &ModelArgs, text: &EvalTextArgs) -> Result<()> {
    let mut parts = load(args, text)?;
    let tokens = tokens(&parts, &text.text)?;
    let windows = cut(&tokens, text)?;
    let mut bar = Bar::new(Interrupt::listen()?);
    let head = recorded::record(&mut *parts.target, &windows, output, &mut bar)?;
    drop(bar);
    if text.json {
        let mut object = json!({
            "rows": head.rows,
            "n_vocab": head.n_vocab,
            "window": text.window,
        });
        describe(&mut object, &parts);
        return out::write(&format!("{object}\n"));
    }
    out::write(&format!(
        "{} rows of {} logits in {}\n",
        head.rows,
        head.n_vocab,
        output.display()
    ))
}

/// What was scored, and how it ran.
fn describe(object: &mut Value, parts: &EngineParts) {
    let info = &parts.info;
    object["model"] = json!(info.file);
    object["fingerprint"] = json!(info.fingerprint);
    object["class"] = json!(info.class.to_string());
    object["threads"] = json!(info.threads);
    object["kv_sim"] = json!(info.kv_sim);
    object["switches"] = switching::changed(switching::effective());
}

fn kl_of_rows(reference: &Path, args: &ModelArgs, text: &EvalTextArgs) -> Result<()> {
    let reference = Recorded::open(reference)?;
    let mut ours = load(args, text)?;
    let tokens = tokens(&ours, &text.text)?;
    let windows = cut(&tokens, text)?;
    let theirs = reference.head().fingerprint;
    let mut bar = Bar::new(Interrupt::listen()?);
    let found = recorded::compare(reference, &mut *ours.target, &windows, &mut bar)?;
    drop(bar);
    let theirs: String = theirs.iter().map(|b| format!("{b:02x}")).collect();
    tell(&found, &ours, (None, theirs), text)
}

fn kl_of_file(reference: &Path, args: &ModelArgs, text: &EvalTextArgs) -> Result<()> {
    let mut ours = load(args, text)?;
    let options = EngineOptions {
        ctx: Some(text.window as usize),
        sequences: 1,
        ..model::options(args)
    };
    let mut theirs = EngineParts::load(reference, &options)?;
    let tokens = tokens(&theirs, &text.text)?;
    let windows = cut(&tokens, text)?;
    let mut bar = Bar::new(Interrupt::listen()?);
    let found = compare(&mut *theirs.target, &mut *ours.target, &windows, &mut bar)?;
    drop(bar);
    let theirs = (theirs.info.file, theirs.info.fingerprint);
    tell(&found, &ours, theirs, text)
}

/// Shows a divergence. `reference`: its file, if it is one, and its fingerprint.
fn tell(
    found: &Divergence,
    ours: &EngineParts,
    reference: (Option<PathBuf>, String),
    text: &EvalTextArgs,
) -> Result<()> {
    if text.json {
        let mut object = json!({
            "kl": found.kl,
            "kl_error": found.kl_error,
            "kl_median": found.kl_median,
            "kl_p99": found.kl_p99,
            "kl_max": found.kl_max,
            "top1": found.top1,
            "perplexity": found.model.value(),
            "perplexity_reference": found.reference.value(),
            "scored": found.model.scored,
            "window": text.window,
            "reference": reference.0,
            "reference_fingerprint": reference.1,
        });
        describe(&mut object, ours);
        return out::write(&format!("{object}\n"));
    }
    out::write(&format!(
        "KL {:.6} +- {:.6} (median {:.6}, 99 % {:.6}, largest {:.6}); same first choice {:.2} %; \
         perplexity {:.4}, the reference's {:.4}; {} tokens in windows of {}\n",
        found.kl,
        found.kl_error,
        found.kl_median,
        found.kl_p99,
        found.kl_max,
        100.0 * found.top1,
        found.model.value(),
        found.reference.value(),
        found.model.scored,
        text.window
    ))
}

fn tokens(parts: &EngineParts, path: &Path) -> Result<Vec<fourspark::TokenId>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("{}: cannot read", path.display()))?;
    Ok(parts.tokenizer.encode_text(&text))
}

/// The windows to score: all, or the first few.
fn cut<'a>(tokens: &'a [fourspark::TokenId], text: &EvalTextArgs) -> Result<Vec<Window<'a>>> {
    let mut all = windows(tokens, text.window as usize)?;
    all.truncate(text.windows.map_or(usize::MAX, |n| n as usize));
    Ok(all)
}
