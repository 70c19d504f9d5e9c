//! The objects that answer a chat request: whole completions, chunks, usage.

use std::sync::Arc;

use axum::http::StatusCode;
use fourspark::{Answer, Failure, Finish, Outcome};
use serde_json::{Value, json};

use super::super::parking::LOAD_FAILED;
use super::super::{ApiError, App};
use crate::drafting;

/// What all objects of one answer have in common.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) seed: u64,
    pub(super) app: Arc<App>,
}

impl Reply {
    /// The whole answer.
    pub(super) fn completion(&self, answer: Answer) -> Result<Value, ApiError> {
        let reason = finish_reason(&answer.outcome.finish)?;
        let mut message = json!({
            "role": "assistant",
            "content": answer.text,
            "refusal": Value::Null,
        });
        if !answer.reasoning.is_empty() {
            message["reasoning_content"] = json!(answer.reasoning);
        }
        let calls: Vec<Value> = (0..)
            .zip(&answer.calls)
            .filter(|(_, call)| call.complete)
            .map(|(index, call)| {
                json!({
                    "id": self.call_id(index),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                })
            })
            .collect();
        if !calls.is_empty() {
            message["tool_calls"] = json!(calls);
            if answer.text.is_empty() {
                message["content"] = Value::Null;
            }
        }
        Ok(json!({
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.app.model_name(),
            "system_fingerprint": self.system_fingerprint(),
            "choices": [{
                "index": 0,
                "message": message,
                "logprobs": Value::Null,
                "finish_reason": reason,
            }],
            "usage": self.usage(&answer.outcome),
        }))
    }

    /// A piece of a streamed answer. `usage` is null in all but the last one, and there only if it
    /// was asked for.
    pub(super) fn chunk(&self, choices: &Value, usage: Option<Value>) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.app.model_name(),
            "system_fingerprint": self.system_fingerprint(),
            "choices": choices,
        });
        if let Some(usage) = usage {
            chunk["usage"] = usage;
        }
        chunk
    }

    /// The id of a tool call.
    pub(super) fn call_id(&self, index: usize) -> String {
        let own = self.id.strip_prefix("chatcmpl-").unwrap_or(&self.id);
        format!("call_{own}{index:02}")
    }

    /// Model and numeric class: equal fingerprints and seeds give equal answers.
    fn system_fingerprint(&self) -> String {
        let info = self.app.engine.info();
        let short = info.fingerprint.get(..16).unwrap_or(&info.fingerprint);
        format!("fs-{short}-{}", info.class)
    }

    /// One line in the log for an answer that has ended.
    pub(super) fn log(&self, outcome: &Outcome) {
        let usage = &outcome.usage;
        tracing::info!(
            id = self.id,
            finish = ?outcome.finish,
            prompt_tokens = usage.prompt_tokens,
            completion_tokens = usage.completion_tokens,
            queued = ?usage.queued,
            prefill = ?usage.prefill,
            decode = ?usage.decode,
            "answered"
        );
    }

    pub(super) fn usage(&self, outcome: &Outcome) -> Value {
        let usage = &outcome.usage;
        json!({
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
            "completion_tokens_details": {
                "reasoning_tokens": outcome.reasoning_tokens,
                "accepted_prediction_tokens": usage.accepted_tokens,
                "rejected_prediction_tokens": usage.proposed_tokens - usage.accepted_tokens,
            },
            "fourspark": {
                "numeric_class": self.app.engine.info().class.to_string(),
                "label": self.app.engine.info().label,
                "seed": self.seed,
                "stop_string": outcome.stop_string,
                "malformed_tool_calls": outcome.malformed_calls,
                "drafting": drafting::usage(
                    self.app.engine.info().draft.as_ref(),
                    &self.app.engine.stats(),
                    usage.drafting,
                ),
                "verify_steps": usage.verify_steps,
                "queued_ms": usage.queued.as_secs_f64() * 1e3,
                "loading_ms": usage.loading.as_secs_f64() * 1e3,
                "prefill_ms": usage.prefill.as_secs_f64() * 1e3,
                "decode_ms": usage.decode.as_secs_f64() * 1e3,
                "prefill_tok_per_s": outcome.prefill_rate(),
                "decode_tok_per_s": outcome.decode_rate(),
            },
        })
    }
}

/// The API's word for an end; an error for one that is no answer.
pub(super) fn finish_reason(finish: &Finish) -> Result<&'static str, ApiError> {
    match finish {
        Finish::Stop => Ok("stop"),
        Finish::ToolCalls => Ok("tool_calls"),
        Finish::Length => Ok("length"),
        Finish::Cancelled => {
            let message = "the server is stopping: the answer was cut off";
            let status = StatusCode::SERVICE_UNAVAILABLE;
            Err(ApiError::new(status, "stopping", message))
        }
        Finish::Failed(failure @ Failure::Load(_)) => {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            Err(ApiError::new(status, LOAD_FAILED, failure.to_string()))
        }
        Finish::Failed(failure) => {
            let message = format!("the answer was cut off: {failure}");
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            Err(ApiError::new(status, "engine_failed", message))
        }
    }
}

/// An answer without an end: the engine is gone.
pub(super) fn lost() -> ApiError {
    let message = "the engine stopped unexpectedly";
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "engine_failed", message)
}
