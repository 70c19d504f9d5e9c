//! `fourspark run`: one prompt, one answer.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use fourspark::answer::{Collected, Next};
use fourspark::{
    Answer, AnswerStream, ChatRequest, Engine, Event, Finish, Message, RoleFormat, Stats, TokenId,
};
use serde_json::json;

use super::args::RunArgs;
use super::interrupt::Interrupt;
use super::{model, out, switching};
use crate::{counters, drafting};

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let generate = model::generate(&args.sample);
    let engine = model::load(&args.model, model::options(&args.model))?;
    let interrupt = Interrupt::listen()?;
    let prompt = if args.raw {
        engine.prepare_text(&args.prompt)
    } else {
        let system = args.sample.system.iter().cloned().map(Message::System);
        let request = ChatRequest {
            messages: system
                .chain([Message::user(args.prompt.as_str())])
                .collect(),
            thinking: model::thinking(&args.sample),
            ..ChatRequest::default()
        };
        engine.prepare(&request)?
    };
    let prompt_ids = prompt.tokens.clone();
    let stream = engine.answer(prompt, &generate)?;
    let answer = show(stream, &interrupt, !args.json)?;
    if args.json {
        let object = to_json(&engine, &prompt_ids, &answer, args.stats);
        out::write(&format!("{object}\n"))?;
    } else {
        out::write(if answer.text.ends_with('\n') {
            ""
        } else {
            "\n"
        })?;
        out::note(&summary(&engine, &answer));
        if args.stats {
            out::note(&stats(&engine));
        }
    }
    match answer.outcome.finish {
        Finish::Failed(failure) => bail!("the answer was cut off: {failure}"),
        _ => Ok(()),
    }
}

/// How often Ctrl-C is looked for while the model is silent.
const GLANCE: Duration = Duration::from_millis(50);

/// Follows an answer to its end, showing it as it comes if asked to. A closed output cancels it:
/// the stream is dropped on the way out.
pub(crate) fn show(mut stream: AnswerStream, interrupt: &Interrupt, live: bool) -> Result<Answer> {
    let mut collected = Collected::default();
    let mut screen = Screen::default();
    loop {
        let next = stream.next_within(GLANCE);
        if interrupt.is_pressed() {
            stream.cancel();
        }
        let event = match next {
            Next::Event(event) => event,
            Next::Waiting => continue,
            Next::Ended => bail!("the engine stopped unexpectedly"),
        };
        if live {
            screen.show(&event)?;
        }
        if let Some(answer) = collected.take(event) {
            return Ok(answer);
        }
    }
}

/// Text goes to standard output, everything else to standard error.
#[derive(Default)]
struct Screen {
    thinking: bool,
}

impl Screen {
    fn show(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Reasoning(text) => {
                if !std::mem::replace(&mut self.thinking, true) {
                    out::note("[thinking]");
                }
                out::note_part(text);
            }
            Event::Text(text) => {
                if std::mem::take(&mut self.thinking) {
                    out::note("\n[answer]");
                }
                out::write(text)?;
            }
            Event::CallStart { name, .. } => out::note(&format!("[calls {name}]")),
            _ => {}
        }
        Ok(())
    }
}

/// One line about an answer: tokens, rates, class.
pub(crate) fn summary(engine: &Engine, answer: &Answer) -> String {
    let outcome = &answer.outcome;
    let per_second = |rate: Option<f64>| match rate {
        Some(rate) => format!(" at {rate:.1} tokens per second"),
        None => String::new(),
    };
    let end = match &outcome.finish {
        Finish::Stop => "",
        Finish::ToolCalls => "; ended with tool calls",
        Finish::Length => "; cut off: length",
        Finish::Cancelled => "; interrupted",
        Finish::Failed(_) => "; failed",
    };
    let label = engine.info().label;
    let label = label.map_or_else(String::new, |l| format!(", label {l}"));
    format!(
        "[prompt {} tokens{}; answer {} tokens{}; {} threads, numeric class {}{label}{end}]",
        outcome.usage.prompt_tokens,
        per_second(outcome.prefill_rate()),
        outcome.usage.completion_tokens,
        per_second(outcome.decode_rate()),
        engine.info().threads,
        engine.info().class,
    )
}

/// What the engine and the speculative loop counted, a line each.
fn stats(engine: &Engine) -> String {
    let counted = engine.stats();
    let mut lines = vec![match (&engine.info().draft, &counted.drafter_lost) {
        (_, Some(why)) => format!("drafter lost: {why}"),
        (Some(draft), None) => format!("drafter: {draft}"),
        (None, None) => "drafter: none was asked for".to_owned(),
    }];
    lines.extend(
        counted
            .drafter_alarm
            .as_ref()
            .map(|why| format!("drafter alarm: {why}")),
    );
    lines.extend(drafting::warm_up_line(&counted));
    lines.extend(drafting::layer_lines(engine.info().draft.as_ref()));
    lines.extend(drafting::worker_lines(engine.info().draft.as_ref()));
    lines.extend(counters::lines(&counted));
    let numbers = counted.speculation.numbers();
    lines.extend(
        numbers
            .iter()
            .map(|(name, value)| format!("{name} {value}")),
    );
    lines.join("\n")
}

/// The whole answer as one object.
fn to_json(
    engine: &Engine,
    prompt_ids: &[TokenId],
    answer: &Answer,
    stats: bool,
) -> serde_json::Value {
    let (info, outcome) = (engine.info(), &answer.outcome);
    let usage = &outcome.usage;
    let calls: Vec<_> = answer
        .calls
        .iter()
        .map(|c| json!({"name": c.name, "arguments": c.arguments, "complete": c.complete}))
        .collect();
    let counted = engine.stats();
    let mut object = json!({
        "text": answer.text,
        "reasoning": answer.reasoning,
        "tool_calls": calls,
        "prompt_ids": prompt_ids,
        "ids": outcome.ids,
        "finish": finish_name(&outcome.finish),
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "reasoning_tokens": outcome.reasoning_tokens,
            "proposed_tokens": usage.proposed_tokens,
            "accepted_tokens": usage.accepted_tokens,
            "verify_steps": usage.verify_steps,
            "drafting": drafting::usage(info.draft.as_ref(), &counted, usage.drafting),
            "label": info.label,
        },
        "drafter": drafting::props(info.draft.as_ref(), &counted),
        "timings": {
            "queued_s": usage.queued.as_secs_f64(),
            "prefill_s": usage.prefill.as_secs_f64(),
            "decode_s": usage.decode.as_secs_f64(),
            "prefill_tok_per_s": outcome.prefill_rate(),
            "decode_tok_per_s": outcome.decode_rate(),
        },
        "counters": counted_json(&counted),
        "class": info.class.to_string(),
        "switches": switching::changed(switching::effective()),
        "model": {
            "name": info.name,
            "label": info.label,
            "file": info.file,
            "fingerprint": info.fingerprint,
            "threads": info.threads,
            "kv_sim": info.kv_sim,
            "tensors": tensors(&info.formats),
        },
    });
    if stats {
        object["stats"] = drafting::numbers(&counted);
    }
    object
}

/// What the engine counted, so that a record can show which path was taken.
fn counted_json(stats: &Stats) -> serde_json::Value {
    let mut object = json!({
        "passes": stats.passes,
        "pass_tokens": stats.pass_tokens,
        "proposed_tokens": stats.proposed_tokens,
        "accepted_tokens": stats.accepted_tokens,
        "failed": stats.failed,
        "drafter_lost": stats.drafter_lost,
    });
    if let Some(map) = object.as_object_mut() {
        counters::add(map, stats);
    }
    object
}

/// How many tensors of each format were loaded, over all roles.
fn tensors(formats: &[RoleFormat]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for f in formats {
        *counts.entry(f.format.as_str()).or_default() += f.tensors;
    }
    counts
}

fn finish_name(finish: &Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::ToolCalls => "tool_calls",
        Finish::Length => "length",
        Finish::Cancelled => "cancelled",
        Finish::Failed(_) => "failed",
    }
}
