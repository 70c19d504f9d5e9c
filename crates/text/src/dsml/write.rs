//! Calls of the history. Values stand raw between their tags: a value that spells a closing tag is
//! told from one by its tokens, since only the format's own `｜DSML｜` is special.

use crate::json::{Json, parse};
use crate::prompt::{Builder, ToolCall};

/// Writes the block of a turn's calls; nothing without calls.
pub(crate) fn write_calls(calls: &[ToolCall], out: &mut Builder<'_>) {
    if calls.is_empty() {
        return;
    }
    out.format("\n\n<｜DSML｜tool_calls>\n");
    for call in calls {
        out.format("<｜DSML｜invoke name=\"");
        out.text(&call.name);
        out.format("\">\n");
        write_arguments(&call.arguments, out);
        out.format("\n</｜DSML｜invoke>\n");
    }
    out.format("</｜DSML｜tool_calls>");
}

/// Arguments that are no object become one parameter of that name: text if they are not even JSON.
fn write_arguments(arguments: &str, out: &mut Builder<'_>) {
    let members = match parse(arguments) {
        Ok(Json::Object(members)) => members,
        Ok(other) => vec![("arguments".to_owned(), other)],
        Err(_) => vec![("arguments".to_owned(), Json::String(arguments.to_owned()))],
    };
    for (index, (key, value)) in members.iter().enumerate() {
        out.format(if index == 0 { "" } else { "\n" });
        out.format("<｜DSML｜parameter name=\"");
        out.text(key);
        match value {
            Json::String(text) => {
                out.format("\" string=\"true\">");
                out.text(text);
            }
            other => {
                out.format("\" string=\"false\">");
                out.text(&other.to_string());
            }
        }
        out.format("</｜DSML｜parameter>");
    }
}
