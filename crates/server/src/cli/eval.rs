//! `eval ppl` and `eval kl`: quality of a model on a text.

use std::path::Path;

use anyhow::{Context, Result, bail};
use fourspark::{EngineOptions, EngineParts};
use model_tools::eval::{Window, compare, perplexity, windows};
use serde_json::json;

use super::args::{EvalCommand, EvalTextArgs, ModelArgs};
use super::bar::Bar;
use super::interrupt::Interrupt;
use super::{model, out, switching};

pub(crate) fn eval(command: &EvalCommand) -> Result<()> {
    match command {
        EvalCommand::Ppl { model, text } => ppl(model, text),
        EvalCommand::Kl {
            reference,
            model,
            text,
        } => kl(reference, model, text),
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
    Ok(EngineParts::load(model::path(args)?, &options)?)
}

fn ppl(args: &ModelArgs, text: &EvalTextArgs) -> Result<()> {
    let mut parts = load(args, text)?;
    let tokens = tokens(&parts, &text.text)?;
    let windows = cut(&tokens, text)?;
    let mut bar = Bar::new(Interrupt::listen()?);
    let found = perplexity(&mut *parts.target, &windows, &mut bar)?;
    drop(bar);
    if text.json {
        let object = json!({
            "perplexity": found.value(),
            "perplexity_error": found.error(),
            "nll": found.nll,
            "nll_error": found.nll_error,
            "scored": found.scored,
            "window": text.window,
            "model": parts.info.file,
            "fingerprint": parts.info.fingerprint,
            "class": parts.info.class.to_string(),
            "switches": switching::changed(switching::effective()),
        });
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

fn kl(reference: &Path, args: &ModelArgs, text: &EvalTextArgs) -> Result<()> {
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
    if text.json {
        let object = json!({
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
            "model": ours.info.file,
            "reference": theirs.info.file,
            "switches": switching::changed(switching::effective()),
        });
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
