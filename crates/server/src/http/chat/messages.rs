//! The messages and tools of a request, as a conversation.

use fourspark::{Assistant, Block, Message, Part, ToolCall, ToolDef, ToolResult};
use serde_json::Value;
use text::json::{self, Json, JsonError};

use super::super::ApiError;
use super::super::fields::{Fields, type_name};

type Result<T> = std::result::Result<T, ApiError>;

/// All messages, in order.
pub(super) fn read(fields: &Fields<'_>) -> Result<Vec<Message>> {
    let found = fields.array("messages")?;
    let list = found.ok_or_else(|| fields.missing("messages", "an array"))?;
    if list.is_empty() {
        let message = "messages is empty: there is nothing to answer";
        return Err(ApiError::bad_field("messages", message));
    }
    let last = list.len() - 1;
    let message = |(index, value)| {
        let fields = Fields::of(value, format!("messages[{index}]"))?;
        read_one(&fields, index == last)
    };
    list.iter().enumerate().map(message).collect()
}

fn read_one(fields: &Fields<'_>, is_last: bool) -> Result<Message> {
    match fields.need_string("role")? {
        "system" | "developer" => Ok(Message::System(text(fields)?)),
        "user" => Ok(Message::User {
            blocks: texts(fields)?.into_iter().map(Block::Text).collect(),
            task: None,
        }),
        "tool" => Ok(Message::Tool(ToolResult {
            call_id: fields.need_string("tool_call_id")?.to_owned(),
            content: texts(fields)?.into_iter().map(Part::Text).collect(),
        })),
        "assistant" => assistant(fields, is_last),
        other => {
            let message = format!(
                "{}: expected system, developer, user, assistant or tool, got {other:?}",
                fields.path("role")
            );
            Err(ApiError::bad_field(fields.path("role"), message))
        }
    }
}

fn assistant(fields: &Fields<'_>, is_last: bool) -> Result<Message> {
    let open = fields.boolean("prefix")?.unwrap_or(false);
    let path = fields.path("prefix");
    match (open, is_last) {
        (true, false) => {
            let message = format!("{path}: only the last message can be continued");
            return Err(ApiError::bad_field(path, message));
        }
        (false, true) => {
            let message = "the last message is the assistant's own; with \"prefix\": true in it, it \
                           is continued";
            return Err(ApiError::bad_field(fields.path("role"), message));
        }
        _ => {}
    }
    let content = match fields.get("content") {
        Some(_) => text(fields)?,
        None => String::new(),
    };
    let reasoning = match fields.string("reasoning_content")? {
        Some(text) => Some(text),
        None => fields.string("reasoning")?,
    };
    let mut calls = Vec::new();
    for (index, value) in fields
        .array("tool_calls")?
        .into_iter()
        .flatten()
        .enumerate()
    {
        let call = Fields::of(value, fields.path(&format!("tool_calls[{index}]")))?;
        let Some(function) = call.object("function")? else {
            return Err(call.missing("function", "an object"));
        };
        calls.push(ToolCall {
            id: call.need_string("id")?.to_owned(),
            name: function.need_string("name")?.to_owned(),
            arguments: function.string("arguments")?.unwrap_or("{}").to_owned(),
        });
    }
    Ok(Message::Assistant(Assistant {
        reasoning: reasoning.map(str::to_owned).filter(|r| !r.is_empty()),
        text: content,
        calls,
        open,
        sampled: None,
    }))
}

/// The text of a message; several parts follow one another without anything between.
fn text(fields: &Fields<'_>) -> Result<String> {
    Ok(texts(fields)?.concat())
}

/// The texts of a message, one for each part.
fn texts(fields: &Fields<'_>) -> Result<Vec<String>> {
    let path = fields.path("content");
    match fields.get("content") {
        Some(Value::String(text)) => Ok(vec![text.clone()]),
        Some(Value::Array(parts)) => parts
            .iter()
            .enumerate()
            .map(|(index, part)| {
                let part = Fields::of(part, format!("{path}[{index}]"))?;
                match part.need_string("type")? {
                    "text" => Ok(part.need_string("text")?.to_owned()),
                    kind => {
                        let message =
                            format!("{path}[{index}]: {kind} is not supported: text only");
                        Err(ApiError::unsupported(format!("{path}[{index}]"), message))
                    }
                }
            })
            .collect(),
        Some(other) => {
            let got = type_name(other);
            let message = format!("{path}: expected a string or an array of parts, got {got}");
            Err(ApiError::bad_field(path, message))
        }
        None => Err(fields.missing("content", "a string or an array of parts")),
    }
}

/// The tools on offer; none if the request says that none may be called. `body` is the request as it
/// came: the spelling of a schema, the order of its keys above all, is part of the prompt.
pub(super) fn read_tools(fields: &Fields<'_>, body: &str) -> Result<Vec<ToolDef>> {
    let Some(list) = fields.array("tools")?.filter(|l| !l.is_empty()) else {
        return Ok(Vec::new());
    };
    let invalid = |e: JsonError| ApiError::bad_field("tools", format!("tools: {e}"));
    let ordered = json::parse(body).map_err(invalid)?;
    let Some(Json::Array(spelled)) = ordered.get("tools") else {
        return Err(fields.missing("tools", "an array"));
    };
    let mut tools = Vec::new();
    for (index, (value, spelled)) in list.iter().zip(spelled).enumerate() {
        let tool = Fields::of(value, format!("tools[{index}]"))?;
        check_tool(&tool)?;
        let function = spelled.get("function").unwrap_or(&Json::Null);
        tools.push(ToolDef::from_json(&function.to_string()).map_err(invalid)?);
    }
    let none = fields.get("tool_choice").and_then(Value::as_str) == Some("none");
    Ok(if none { Vec::new() } else { tools })
}

fn check_tool(tool: &Fields<'_>) -> Result<()> {
    let kind = tool.need_string("type")?;
    if kind != "function" {
        let path = tool.path("type");
        let message = format!("{path}: tools of type {kind:?} are not supported");
        return Err(ApiError::unsupported(path, message));
    }
    let Some(function) = tool.object("function")? else {
        return Err(tool.missing("function", "an object"));
    };
    if function.need_string("name")?.is_empty() {
        let path = function.path("name");
        let message = format!("{path} is empty");
        return Err(ApiError::bad_field(path, message));
    }
    if function.boolean("strict")? == Some(true) {
        let path = function.path("strict");
        let message = format!("{path} is not supported: this build has no constrained decoding");
        return Err(ApiError::unsupported(path, message));
    }
    function.object("parameters")?;
    Ok(())
}
