//! `fourspark chat`: a conversation on the terminal.

use std::io::BufRead;

use anyhow::Result;
use fourspark::{Assistant, ChatRequest, Finish, Message, ToolCall};

use super::args::ChatArgs;
use super::interrupt::Interrupt;
use super::run::{show, summary};
use super::{model, out};

const HELP: &str =
    "/reset forgets the conversation, /quit or Ctrl-D ends it, Ctrl-C ends an answer";

pub(crate) fn chat(args: &ChatArgs) -> Result<()> {
    let generate = model::generate(&args.sample);
    let engine = model::load(&args.model, model::options(&args.model))?;
    let interrupt = Interrupt::listen()?;
    out::note(&format!("{}: {HELP}", engine.info().name));
    let fresh = || -> Vec<Message> {
        let system = args.sample.system.iter().cloned();
        system.map(Message::System).collect()
    };
    let mut request = ChatRequest {
        messages: fresh(),
        thinking: model::thinking(&args.sample),
        generate,
        ..ChatRequest::default()
    };
    let mut lines = std::io::stdin().lock().lines();
    loop {
        out::note_part("> ");
        let Some(line) = lines.next().transpose()? else {
            out::note("");
            return Ok(());
        };
        interrupt.take();
        match line.trim() {
            "" => continue,
            "/quit" | "/exit" => return Ok(()),
            "/reset" => {
                request.messages = fresh();
                continue;
            }
            command if command.starts_with('/') => {
                out::note(&format!("{command} is not known: {HELP}"));
                continue;
            }
            text => request.messages.push(Message::user(text)),
        }
        // A turn that fails (a full context, above all) is taken back, the conversation goes on.
        let stream = match engine.chat(&request) {
            Ok(stream) => stream,
            Err(error) => {
                out::note(&format!("error: {error}"));
                request.messages.pop();
                continue;
            }
        };
        let answer = show(stream, &interrupt, true)?;
        out::write("\n")?;
        out::note(&summary(&engine, &answer));
        if let Finish::Failed(failure) = &answer.outcome.finish {
            out::note(&format!("error: {failure}"));
            request.messages.pop();
            continue;
        }
        let reasoning = Some(answer.reasoning).filter(|r| !r.is_empty());
        let calls = answer.calls.into_iter().enumerate();
        request.messages.push(Message::Assistant(Assistant {
            reasoning,
            text: answer.text,
            calls: calls
                .filter(|(_, call)| call.complete)
                .map(|(index, call)| ToolCall {
                    id: format!("call_{index}"),
                    name: call.name,
                    arguments: call.arguments,
                })
                .collect(),
            open: false,
            sampled: None,
        }));
    }
}
