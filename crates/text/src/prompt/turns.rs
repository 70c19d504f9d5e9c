//! From messages to turns: tool messages join the user turn they belong to, results take the order
//! of their calls, and history that the format drops is dropped.

use std::collections::HashMap;

use super::message::{Assistant, Block, Message, Task, ToolResult};

/// A turn as it is written.
#[derive(Debug)]
pub(super) enum Turn<'a> {
    User {
        blocks: Vec<UserBlock<'a>>,
        task: Option<Task>,
    },
    Developer(&'a str),
    Assistant(&'a Assistant),
    Reminder(&'a str),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum UserBlock<'a> {
    Text(&'a str),
    Unsupported(&'a str),
    Result(&'a ToolResult),
}

impl Turn<'_> {
    /// Whether the model answers to it.
    pub(super) const fn is_user_like(&self) -> bool {
        matches!(self, Self::User { .. } | Self::Developer(_))
    }

    pub(super) const fn has_task(&self) -> bool {
        matches!(self, Self::User { task: Some(_), .. })
    }
}

/// The last turn the model answers to.
pub(super) fn last_user(turns: &[Turn<'_>]) -> Option<usize> {
    turns.iter().rposition(Turn::is_user_like)
}

/// All turns, system messages left out.
pub(super) fn turns(messages: &[Message]) -> Vec<Turn<'_>> {
    let mut turns: Vec<Turn<'_>> = Vec::new();
    for message in messages {
        match message {
            Message::System(_) => {}
            Message::Developer(text) => turns.push(Turn::Developer(text)),
            Message::LatestReminder(text) => turns.push(Turn::Reminder(text)),
            Message::Assistant(turn) => turns.push(Turn::Assistant(turn)),
            Message::Tool(result) => match turns.last_mut() {
                Some(Turn::User { blocks, .. }) => blocks.push(UserBlock::Result(result)),
                _ => turns.push(Turn::User {
                    blocks: vec![UserBlock::Result(result)],
                    task: None,
                }),
            },
            Message::User { blocks: new, task } => add_user(&mut turns, new, *task),
        }
    }
    order_results(&mut turns);
    turns
}

fn add_user<'a>(turns: &mut Vec<Turn<'a>>, new: &'a [Block], new_task: Option<Task>) {
    let new = new.iter().map(|block| match block {
        Block::Text(text) => UserBlock::Text(text),
        Block::Unsupported(kind) => UserBlock::Unsupported(kind),
        Block::ToolResult(result) => UserBlock::Result(result),
    });
    match turns.last_mut() {
        Some(Turn::User { blocks, task }) if task.is_none() => {
            blocks.extend(new);
            *task = new_task;
        }
        _ => turns.push(Turn::User {
            blocks: new.collect(),
            task: new_task,
        }),
    }
}

/// Puts the results of a turn into the order of the calls before it. A result of an unknown call
/// goes with the first call, as in the reference; texts between results keep their places.
fn order_results(turns: &mut [Turn<'_>]) {
    let mut order: HashMap<&str, usize> = HashMap::new();
    for turn in turns {
        match turn {
            Turn::Assistant(turn) if !turn.calls.is_empty() => {
                let ids = turn.calls.iter().map(|call| call.id.as_str());
                order = ids.zip(0..).filter(|(id, _)| !id.is_empty()).collect();
            }
            Turn::User { blocks, .. } => {
                let place = |b: &UserBlock<'_>| match b {
                    UserBlock::Result(r) => Some(order.get(r.call_id.as_str()).map_or(0, |p| *p)),
                    _ => None,
                };
                let mut results: Vec<_> = blocks
                    .iter()
                    .copied()
                    .filter(|b| place(b).is_some())
                    .collect();
                results.sort_by_key(place);
                let mut sorted = results.into_iter();
                for block in blocks.iter_mut() {
                    if let UserBlock::Result(_) = block
                        && let Some(next) = sorted.next()
                    {
                        *block = next;
                    }
                }
            }
            _ => {}
        }
    }
}

/// Removes developer turns before the last user turn.
pub(super) fn drop_old_developers(turns: &mut Vec<Turn<'_>>) {
    let Some(last) = last_user(turns) else { return };
    let mut index = 0;
    turns.retain(|turn| {
        let keep = index >= last || !matches!(turn, Turn::Developer(_));
        index += 1;
        keep
    });
}
