//! Tools on offer: their schemas and the instructions around them (spec/ds4-architecture.md 8.4).
//! The wording is part of the format, byte for byte.

use super::build::Builder;
use crate::json::{Json, JsonError, parse, write_string};

/// A tool's schema as one line of JSON in the format's spelling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolDef {
    name: String,
    line: String,
}

impl ToolDef {
    /// From the JSON text of a function object (`name`, `description`, `parameters`, ..), key order
    /// kept. An object without a `name` gives a tool with an empty one.
    ///
    /// # Errors
    /// [`JsonError`].
    pub fn from_json(text: &str) -> Result<Self, JsonError> {
        let value = parse(text)?;
        let name = match value.get("name") {
            Some(Json::String(name)) => name.clone(),
            _ => String::new(),
        };
        Ok(Self {
            name,
            line: value.to_string(),
        })
    }

    /// From parts, for APIs whose tools look otherwise. `parameters` is the JSON text of a schema.
    ///
    /// # Errors
    /// [`JsonError`] in `parameters`.
    pub fn new(name: &str, description: Option<&str>, parameters: &str) -> Result<Self, JsonError> {
        let mut line = "{\"name\": ".to_owned();
        write_string(name, &mut line);
        if let Some(description) = description {
            line.push_str(", \"description\": ");
            write_string(description, &mut line);
        }
        line.push_str(", \"parameters\": ");
        parse(parameters)?.write(&mut line);
        line.push('}');
        Ok(Self {
            name: name.to_owned(),
            line,
        })
    }

    /// The tool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

const BEFORE: &str = r#"## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"#;

const AFTER: &str = "

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
";

/// Writes the block that offers the tools.
pub(super) fn write_offer(tools: &[ToolDef], out: &mut Builder<'_>) {
    out.format(BEFORE);
    for (index, tool) in tools.iter().enumerate() {
        out.format(if index == 0 { "" } else { "\n" });
        out.text(&tool.line);
    }
    out.format(AFTER);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_make_a_tool_agree() {
        let parameters = r#"{"type":"object","properties":{"a":{"type":"string"}}}"#;
        let json = format!(r#"{{"name":"f\"","description":"d","parameters":{parameters}}}"#);
        let tool = ToolDef::from_json(&json).unwrap();
        assert_eq!(tool, ToolDef::new("f\"", Some("d"), parameters).unwrap());
        assert_eq!(tool.name(), "f\"");
        let bare = ToolDef::new("g", None, "{}").unwrap();
        assert_eq!(bare.line, r#"{"name": "g", "parameters": {}}"#);
        assert_eq!(ToolDef::new("g", None, "{x}").unwrap_err().at, 1);
        assert_eq!(ToolDef::from_json("[]").unwrap().name(), "");
    }
}
