//! `convert`, `quantize` and `mark`: making model files.

use std::path::Path;

use anyhow::{Context, Result, bail};
use fourspark::EngineOptions;
use model_tools::convert::{self, DraftSource, Vocabulary};
use model_tools::recipe::builtin;
use model_tools::{Importance, Report, pair, quantize as quant};

use super::args::{ConvertArgs, MarkArgs, QuantizeArgs};
use super::bar::Bar;
use super::files::human;
use super::interrupt::Interrupt;
use super::{model, out};

pub(crate) fn convert(args: &ConvertArgs) -> Result<()> {
    refuse_overwriting(&args.output, args.force)?;
    let recipe = builtin(&args.recipe).context("--recipe")?;
    let options = convert::Options {
        name: args.name.clone(),
        version: args.model_version.clone(),
        vocabulary: match &args.pre {
            Some(name) => Vocabulary::FolderAs(name.clone()),
            None => Vocabulary::Folder,
        },
        extra: match &args.target_model {
            Some(target) => vec![pair::mark(target).context("--target-model")?],
            None => Vec::new(),
        },
        ..convert::Options::new(recipe)
    };
    if args.drafter && args.target_model.is_none() {
        out::note("no --target-model: the drafter will not say which target it is for");
    }
    let mut bar = Bar::new(Interrupt::listen()?);
    let report = match (args.drafter, &args.draft_config, &args.target_config) {
        (false, _, _) => convert::target(&args.source, &args.output, &options, &mut bar)?,
        (true, Some(config), Some(target)) => {
            let source = DraftSource::File {
                weights: args.source.clone(),
                config: config.clone(),
                target: target.clone(),
            };
            convert::drafter(&source, &args.output, &options, &mut bar)?
        }
        (true, None, None) => {
            let source = DraftSource::Official(args.source.clone());
            convert::drafter(&source, &args.output, &options, &mut bar)?
        }
        // clap sees to it that both or neither are given.
        (true, ..) => bail!("--draft-config and --target-config belong together"),
    };
    drop(bar);
    show(&report)
}

pub(crate) fn mark(args: &MarkArgs) -> Result<()> {
    refuse_overwriting(&args.output, args.force)?;
    let written = pair::remark(&args.drafter, &args.target_model, &args.output)?;
    show_parts(&written)
}

pub(crate) fn quantize(args: &QuantizeArgs) -> Result<()> {
    refuse_overwriting(&args.output, args.force)?;
    let recipe = builtin(&args.recipe).context("--recipe")?;
    let options = EngineOptions {
        dialects: model::dialects(&args.dialect),
        ..EngineOptions::default()
    };
    let source = options.open(&args.input)?;
    let options = quant::Options {
        importance: args.imatrix.as_deref().map(Importance::read).transpose()?,
        ..quant::Options::new(recipe)
    };
    let mut bar = Bar::new(Interrupt::listen()?);
    let report = quant::quantize(&source, &args.output, &options, &mut bar)?;
    drop(bar);
    show(&report)
}

fn refuse_overwriting(output: &Path, force: bool) -> Result<()> {
    if !force && output.exists() {
        bail!("{} exists already: --force overwrites it", output.display());
    }
    Ok(())
}

/// What was written, and what in it is not as the recipe wanted.
fn show(report: &Report) -> Result<()> {
    for t in report.fallbacks() {
        let wanted = t.instead_of.map_or("", |f| f.name());
        out::note(&format!(
            "{}: {} instead of {wanted}",
            t.name,
            t.format.name()
        ));
    }
    for name in &report.ignored {
        out::note(&format!("{name}: left out"));
    }
    let bytes: u64 = report.tensors.iter().map(|t| t.bytes).sum();
    let worst = report
        .tensors
        .iter()
        .max_by(|a, b| a.nmse.total_cmp(&b.nmse));
    let worst = worst.map_or_else(String::new, |t| {
        format!(
            "; largest encoding error {:.2e} (nmse) in {}",
            t.nmse, t.name
        )
    });
    let tensors = report.tensors.len();
    out::note(&format!(
        "{tensors} tensors, {bytes} bytes ({}){worst}",
        human(bytes)
    ));
    show_parts(&report.written)
}

fn show_parts(written: &gguf::Written) -> Result<()> {
    for part in &written.parts {
        let line = format!("blake3 {}  {}\n", part.blake3, part.path.display());
        out::write(&line)?;
    }
    Ok(())
}
