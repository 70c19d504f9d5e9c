//! A chat request, checked: every field it may have, its type, its range.

use std::sync::Arc;

use fourspark::{ChatRequest, Effort, Generate, Message, Penalties, SamplePlan, Thinking, TokenId};
use serde_json::Value;

use super::super::body::parse;
use super::super::fields::Fields;
use super::super::{ApiError, App};
use super::{messages, refusals};

type Result<T> = std::result::Result<T, ApiError>;

/// Stop strings in a request, and the longest of one.
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 256;

/// What a request asks for.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) request: ChatRequest,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    /// The seed in use, given or made up.
    pub(super) seed: u64,
}

impl Call {
    /// Reads a request's body.
    pub(super) fn read(body: &[u8], app: &App) -> Result<Self> {
        let value = parse(body)?;
        let fields = Fields::of(&value, "")?;
        refusals::check(&fields)?;
        // Any model name is served by the one model; the answer says which that is.
        fields.string("model")?;
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let include_usage = match fields.object("stream_options")? {
            Some(_) if !stream => {
                let message = "stream_options needs stream: true";
                return Err(ApiError::bad_field("stream_options", message));
            }
            Some(options) => options.boolean("include_usage")?.unwrap_or(false),
            None => false,
        };
        let plan = read_plan(&fields, app)?;
        let seed = plan.seed;
        let tools = messages::read_tools(&fields, &String::from_utf8_lossy(body))?;
        let one_call = fields.boolean("parallel_tool_calls")? == Some(false);
        let request = ChatRequest {
            messages: messages::read(&fields)?,
            tools,
            thinking: read_thinking(&fields, app.options.thinking)?,
            generate: Generate {
                plan: Arc::new(plan),
                max_tokens: read_max_tokens(&fields)?,
                stop: read_stop(&fields)?,
                one_call,
            },
        };
        check_continuation(&request)?;
        Ok(Self {
            request,
            stream,
            include_usage,
            seed,
        })
    }
}

/// The format opens a turn of the model after a turn of somebody else's only.
fn check_continuation(request: &ChatRequest) -> Result<()> {
    let open = matches!(request.messages.last(), Some(Message::Assistant(turn)) if turn.open);
    let alone = !request
        .messages
        .iter()
        .any(|m| !matches!(m, Message::Assistant(_) | Message::System(_)));
    if open && alone {
        let message = "prefix: there is no message before the one to be continued";
        return Err(ApiError::bad_field("messages", message));
    }
    Ok(())
}

fn read_plan(fields: &Fields<'_>, app: &App) -> Result<SamplePlan> {
    let any = f64::from(f32::MAX);
    let penalties = Penalties {
        repeat: match fields.number("repeat_penalty", 0.01, 100.0)? {
            Some(penalty) => penalty,
            None => fields
                .number("repetition_penalty", 0.01, 100.0)?
                .unwrap_or(1.0),
        },
        presence: fields.number("presence_penalty", -2.0, 2.0)?.unwrap_or(0.0),
        frequency: fields
            .number("frequency_penalty", -2.0, 2.0)?
            .unwrap_or(0.0),
        // All of the answer so far.
        window: u32::MAX,
    };
    let temperature = fields.number("temperature", 0.0, 2.0)?.unwrap_or(0.0);
    let top_p = fields.number("top_p", 0.0, 1.0)?.unwrap_or(1.0);
    let top_k = fields
        .integer("top_k", -1, i64::from(u32::MAX))?
        .unwrap_or(0);
    let seed = match fields.integer("seed", i64::MIN, i64::MAX)? {
        Some(seed) => seed as u64,
        None => app.fresh_seed(),
    };
    let n_vocab = app.engine.info().n_vocab;
    let mut bias: Vec<(TokenId, f32)> = Vec::new();
    if let Some(given) = fields.object("logit_bias")? {
        for (key, _) in given.iter() {
            let value = given
                .number(key, -any, any)?
                .unwrap_or(0.0)
                .clamp(-1e4, 1e4);
            match key.parse::<TokenId>() {
                Ok(token) if (token as usize) < n_vocab => bias.push((token, value)),
                _ => {
                    let message =
                        format!("logit_bias: expected tokens below {n_vocab}, got {key:?}");
                    return Err(ApiError::bad_field("logit_bias", message));
                }
            }
        }
        bias.sort_by_key(|(token, _)| *token);
    }
    Ok(SamplePlan {
        // Too small to tell from greedy, and too small to divide by.
        temperature: if temperature < 1e-5 { 0.0 } else { temperature },
        top_k: u32::try_from(top_k).unwrap_or(0),
        // 0 is sent to mean the best token alone.
        top_p: top_p.max(f32::MIN_POSITIVE),
        min_p: fields.number("min_p", 0.0, 1.0)?.unwrap_or(0.0),
        seed,
        choice: 0,
        penalties,
        bias: bias.into(),
    })
}

/// What is too large for the context is cut off by the engine, not refused: clients send the limits
/// of other models.
fn read_max_tokens(fields: &Fields<'_>) -> Result<Option<u32>> {
    let named = match fields.integer("max_completion_tokens", 1, i64::MAX)? {
        Some(n) => Some(n),
        None => fields.integer("max_tokens", 1, i64::MAX)?,
    };
    Ok(named.map(|n| u32::try_from(n).unwrap_or(u32::MAX)))
}

fn read_stop(fields: &Fields<'_>) -> Result<Vec<String>> {
    let bad = |message: String| Err(ApiError::bad_field("stop", message));
    let stops: Vec<String> = match fields.get("stop") {
        None => Vec::new(),
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(list)) => {
            let strings: Option<Vec<String>> =
                list.iter().map(|v| v.as_str().map(str::to_owned)).collect();
            match strings {
                Some(strings) => strings,
                None => return bad("stop: expected strings only".to_owned()),
            }
        }
        Some(_) => return bad("stop: expected a string or an array of strings".to_owned()),
    };
    if stops.len() > STOPS_MAX {
        return bad(format!(
            "stop: at most {STOPS_MAX} strings, got {}",
            stops.len()
        ));
    }
    match stops
        .iter()
        .find(|s| s.is_empty() || s.len() > STOP_BYTES_MAX)
    {
        Some(stop) => bad(format!(
            "stop: expected strings of 1 to {STOP_BYTES_MAX} bytes, got {}",
            stop.len()
        )),
        None => Ok(stops),
    }
}

/// Clients say it in five ways. Whoever says no is obeyed; then a degree counts more than a yes.
fn read_thinking(fields: &Fields<'_>, usual: Thinking) -> Result<Thinking> {
    let mut says = vec![fields.boolean("think")?];
    if let Some(thinking) = fields.object("thinking")? {
        says.push(Some(match thinking.need_string("type")? {
            "enabled" | "adaptive" => true,
            "disabled" => false,
            other => {
                let message = format!("thinking.type: expected enabled or disabled, got {other:?}");
                return Err(ApiError::bad_field("thinking.type", message));
            }
        }));
        if thinking.get("budget_tokens").is_some() {
            let message = "thinking.budget_tokens is not supported: use reasoning_effort";
            return Err(ApiError::unsupported("thinking.budget_tokens", message));
        }
    }
    if let Some(kwargs) = fields.object("chat_template_kwargs")? {
        for (name, _) in kwargs.iter() {
            if !matches!(name.as_str(), "enable_thinking" | "thinking") {
                let message = format!("chat_template_kwargs.{name} is not supported");
                return Err(ApiError::unsupported(kwargs.path(name), message));
            }
            says.push(kwargs.boolean(name)?);
        }
    }
    let mut effort = fields.string("reasoning_effort")?;
    if let Some(reasoning) = fields.object("reasoning")? {
        effort = effort.or(reasoning.string("effort")?);
    }
    let degree = match effort {
        None => None,
        Some(name) => match Thinking::from_effort_name(name) {
            Some(degree) => Some(degree),
            None => {
                let message = format!(
                    "reasoning_effort: expected none, minimal, low, medium, high, xhigh or max, got \
                     {name:?}"
                );
                return Err(ApiError::bad_field("reasoning_effort", message));
            }
        },
    };
    let said = |what| says.contains(&Some(what));
    Ok(match degree {
        _ if said(false) => Thinking::Off,
        Some(degree) => degree,
        None if said(true) && !usual.is_on() => Thinking::On(Effort::default()),
        None => usual,
    })
}
