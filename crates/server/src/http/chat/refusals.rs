//! Fields that change what an answer means and that this server does not implement. They are
//! refused by name unless they hold the value that changes nothing; fields this list does not know
//! are ignored, as every server of this API does.

use serde_json::Value;

use super::super::ApiError;
use super::super::fields::Fields;

/// When a field changes nothing.
enum Neutral {
    /// Never: its presence asks for something.
    Nothing,
    /// `false`, 0, or an empty string, array or object.
    Empty,
    /// This number.
    Number(f64),
}

const FIELDS: &[(&str, Neutral, &str)] = &[
    ("n", Neutral::Number(1.0), "one answer per request"),
    ("best_of", Neutral::Number(1.0), "one answer per request"),
    (
        "logprobs",
        Neutral::Empty,
        "log-probabilities are not reported",
    ),
    (
        "top_logprobs",
        Neutral::Empty,
        "log-probabilities are not reported",
    ),
    ("functions", Neutral::Empty, "use tools"),
    ("function_call", Neutral::Nothing, "use tool_choice"),
    ("audio", Neutral::Nothing, "text only"),
    ("web_search_options", Neutral::Nothing, "no web search"),
    ("grammar", Neutral::Empty, CONSTRAINED),
    ("json_schema", Neutral::Nothing, CONSTRAINED),
    ("guided_json", Neutral::Nothing, CONSTRAINED),
    ("guided_regex", Neutral::Empty, CONSTRAINED),
    ("guided_choice", Neutral::Empty, CONSTRAINED),
    ("guided_grammar", Neutral::Empty, CONSTRAINED),
    ("structured_outputs", Neutral::Nothing, CONSTRAINED),
    (
        "min_tokens",
        Neutral::Empty,
        "answers end where the model ends them",
    ),
    (
        "ignore_eos",
        Neutral::Empty,
        "answers end where the model ends them",
    ),
    ("stop_token_ids", Neutral::Empty, "use stop"),
    ("typical_p", Neutral::Number(1.0), SAMPLER),
    ("tfs_z", Neutral::Number(1.0), SAMPLER),
    ("top_n_sigma", Neutral::Number(-1.0), SAMPLER),
    ("mirostat", Neutral::Empty, SAMPLER),
    ("dynatemp_range", Neutral::Empty, SAMPLER),
    ("dry_multiplier", Neutral::Empty, SAMPLER),
    ("xtc_probability", Neutral::Empty, SAMPLER),
];

const CONSTRAINED: &str = "this build has no constrained decoding";
const SAMPLER: &str = "samplers are temperature, top_k, top_p, min_p and the penalties";

/// Refuses the first field that asks for what is not there.
pub(super) fn check(fields: &Fields<'_>) -> Result<(), ApiError> {
    for (name, neutral, why) in FIELDS {
        let Some(value) = fields.get(name) else {
            continue;
        };
        let harmless = match neutral {
            Neutral::Nothing => false,
            Neutral::Empty => is_empty(value),
            Neutral::Number(n) => value.as_f64() == Some(*n),
        };
        if !harmless {
            let message = format!("{name} is not supported: {why}");
            return Err(ApiError::unsupported(fields.path(name), message));
        }
    }
    check_modalities(fields)?;
    check_format(fields)?;
    check_choice(fields)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
    }
}

fn check_modalities(fields: &Fields<'_>) -> Result<(), ApiError> {
    let wanted = fields.array("modalities")?.into_iter().flatten();
    for value in wanted {
        if value.as_str() != Some("text") {
            let message = format!("modalities: {value} is not supported: text only");
            return Err(ApiError::unsupported("modalities", message));
        }
    }
    Ok(())
}

fn check_format(fields: &Fields<'_>) -> Result<(), ApiError> {
    let Some(format) = fields.object("response_format")? else {
        return Ok(());
    };
    match format.need_string("type")? {
        "text" => Ok(()),
        kind @ ("json_object" | "json_schema") => {
            let message = format!("response_format {kind} is not supported: {CONSTRAINED}");
            Err(ApiError::unsupported("response_format", message))
        }
        other => {
            let message = format!("response_format.type: expected text, got {other:?}");
            Err(ApiError::bad_field("response_format.type", message))
        }
    }
}

fn check_choice(fields: &Fields<'_>) -> Result<(), ApiError> {
    match fields.get("tool_choice") {
        None => Ok(()),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" | "none" => Ok(()),
            "required" => {
                let message = format!("tool_choice required is not supported: {CONSTRAINED}");
                Err(ApiError::unsupported("tool_choice", message))
            }
            other => {
                let message = format!("tool_choice: expected auto or none, got {other:?}");
                Err(ApiError::bad_field("tool_choice", message))
            }
        },
        Some(_) => {
            let message = format!("tool_choice of one tool is not supported: {CONSTRAINED}");
            Err(ApiError::unsupported("tool_choice", message))
        }
    }
}
