//! Writes the turns.

use engine_core::mutant::mutant;

use super::build::{Builder, Prompt};
use super::effort::{Generation, Thinking};
use super::markers::{self, Markers};
use super::message::{Assistant, Conversation, Message, Part, Task, ToolResult};
use super::tools::write_offer;
use super::turns::{Turn, UserBlock, drop_old_developers, last_user, turns};
use crate::dsml;
use crate::error::TextError;
use crate::json;
use crate::tokenizer::Tokenizer;

/// Renders conversations for one vocabulary and one generation of the format.
#[derive(Clone, Debug)]
pub struct PromptFormat {
    markers: Markers,
    generation: Generation,
}

/// What decides how the turns of one prompt are written.
struct Mode {
    thinking: bool,
    /// Whether reasoning before the last user turn is left out.
    drops: bool,
    last_user: Option<usize>,
}

impl Mode {
    /// Whether the turn at `index` stands after the last one the model answers to.
    fn is_current(&self, index: usize) -> bool {
        !self.drops || self.last_user.is_none_or(|last| index > last)
    }
}

impl PromptFormat {
    /// Finds the format's special tokens.
    ///
    /// # Errors
    /// `MissingSpecial`.
    pub fn new(tokenizer: &Tokenizer, generation: Generation) -> Result<Self, TextError> {
        Ok(Self {
            markers: Markers::resolve(tokenizer)?,
            generation,
        })
    }

    /// The generation in use.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    pub(crate) const fn markers(&self) -> &Markers {
        &self.markers
    }

    /// Renders a prompt up to and including the opening of the model's next turn.
    ///
    /// # Errors
    /// `BadResponseFormat` if that is not JSON.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<Prompt, TextError> {
        let mut out = Builder::new(&self.markers);
        out.format(markers::BOS);
        if let Thinking::On(effort) = conversation.thinking {
            out.format(self.generation.prefix(effort));
        }
        write_system(conversation, &mut out)?;
        let mut turns = turns(conversation.messages);
        let thinking = conversation.thinking.is_on();
        let drops = !conversation.keep_reasoning && conversation.tools.is_empty();
        if thinking && drops {
            drop_old_developers(&mut turns);
        }
        let mode = Mode {
            thinking,
            drops,
            last_user: last_user(&turns),
        };
        for index in 0..turns.len() {
            write_turn(&turns, index, &mode, &mut out);
        }
        if turns.is_empty() {
            write_opening(thinking, &mut out);
        }
        Ok(out.finish())
    }
}

/// System texts, tools, reply format.
fn write_system(conversation: &Conversation<'_>, out: &mut Builder<'_>) -> Result<(), TextError> {
    let texts = conversation.messages.iter().filter_map(|m| match m {
        Message::System(text) => Some(text),
        _ => None,
    });
    for (index, text) in texts.enumerate() {
        out.format(if index == 0 { "" } else { "\n\n" });
        out.text(text);
    }
    if !conversation.tools.is_empty() {
        out.format("\n\n");
        write_offer(conversation.tools, out);
    }
    if let Some(schema) = conversation.response_format {
        let schema = json::parse(schema).map_err(TextError::BadResponseFormat)?;
        out.format(
            "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n",
        );
        out.text(&schema.to_string());
    }
    Ok(())
}

fn write_turn(turns: &[Turn<'_>], index: usize, mode: &Mode, out: &mut Builder<'_>) {
    match &turns[index] {
        Turn::User { blocks, .. } => {
            out.format(markers::USER);
            for (nth, block) in blocks.iter().enumerate() {
                out.format(if nth == 0 { "" } else { "\n\n" });
                write_block(block, out);
            }
        }
        Turn::Developer(text) => {
            out.format(markers::USER);
            out.text(text);
        }
        Turn::Reminder(text) => {
            out.format(markers::REMINDER);
            out.text(text);
        }
        Turn::Assistant(turn) => {
            let answers_task = index > 0 && turns[index - 1].has_task();
            let reasons = mode.thinking && !answers_task && mode.is_current(index);
            write_assistant(turn, reasons, out);
        }
    }
    let next = turns.get(index + 1);
    if !matches!(next, None | Some(Turn::Assistant(_) | Turn::Reminder(_))) {
        return;
    }
    match turns[index] {
        Turn::User {
            task: Some(task), ..
        } => {
            if task == Task::Action {
                write_opening(mode.thinking, out);
            }
            out.format(task.marker());
        }
        Turn::User { .. } | Turn::Developer(_) => {
            let current = Some(index) >= mode.last_user || !mode.drops;
            write_opening(mode.thinking && current, out);
        }
        _ => {}
    }
}

/// Opens a turn of the model. `</think>` alone means that it does not think.
fn write_opening(thinks: bool, out: &mut Builder<'_>) {
    out.format(markers::ASSISTANT);
    out.format(if thinks {
        markers::THINK
    } else {
        markers::END_THINK
    });
}

fn write_block(block: &UserBlock<'_>, out: &mut Builder<'_>) {
    match block {
        // Trap 44: markers in a user's text become special tokens.
        UserBlock::Text(text) if mutant(44) => out.format(text),
        UserBlock::Text(text) => out.text(text),
        UserBlock::Unsupported(kind) => out.text(&format!("[Unsupported {kind}]")),
        UserBlock::Result(result) => write_result(result, out),
    }
}

fn write_result(result: &ToolResult, out: &mut Builder<'_>) {
    out.format(markers::TOOL_RESULT);
    for (index, part) in result.content.iter().enumerate() {
        out.format(if index == 0 { "" } else { "\n\n" });
        match part {
            Part::Text(text) => out.text(text),
            Part::Unsupported(kind) => out.text(&format!("[Unsupported {kind}]")),
        }
    }
    out.format(markers::END_TOOL_RESULT);
}

fn write_assistant(turn: &Assistant, reasons: bool, out: &mut Builder<'_>) {
    match &turn.sampled {
        Some(tokens) => {
            let marks = out.markers();
            let thought = tokens.iter().position(|id| *id == marks.end_think);
            let start = match thought {
                Some(end) if !reasons => end + 1,
                _ => 0,
            };
            if reasons && thought.is_none() {
                out.format(markers::END_THINK);
            }
            let end = tokens.len() - usize::from(tokens.last() == Some(&marks.eos));
            out.tokens(tokens, start.min(end)..end);
        }
        None => {
            if reasons {
                out.text(turn.reasoning.as_deref().unwrap_or_default());
                out.format(markers::END_THINK);
            }
            out.text(&turn.text);
            dsml::write_calls(&turn.calls, out);
        }
    }
    if !turn.open {
        out.format(markers::EOS);
    }
}
