//! An answer as server-sent events: chunks as they come, comments into long silences, an error
//! event where an answer is cut off, `[DONE]` after one that is whole.
//!
//! A task of its own carries events to the client. It ends, and the request with it, as soon as the
//! client is gone, also when the model has nothing to say at that moment.

use std::convert::Infallible;

use axum::response::sse::{Event as Sse, KeepAlive, Sse as SseResponse};
use axum::response::{IntoResponse, Response};
use fourspark::{Event, Outcome};
use serde_json::{Value, json};
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;

use super::Running;
use super::reply::{Reply, finish_reason, lost};

/// Events on their way to one client.
const AHEAD: usize = 64;

/// The response; what is in it comes later.
pub(super) fn respond(reply: Reply, running: Running, include_usage: bool) -> Response {
    let keep_alive = reply.app.options.keep_alive;
    let (sender, receiver) = channel(AHEAD);
    let out = Out {
        sender,
        reply,
        include_usage,
    };
    tokio::spawn(carry(out, running));
    SseResponse::new(ReceiverStream::new(receiver))
        .keep_alive(KeepAlive::new().interval(keep_alive).text("keep-alive"))
        .into_response()
}

async fn carry(out: Out, mut running: Running) {
    let opening = json!({"role": "assistant", "content": ""});
    let mut open = out.delta(&opening).await;
    while open {
        let event = tokio::select! {
            event = running.events.recv() => event,
            () = out.sender.closed() => return,
        };
        open = match event {
            Some(Event::Finished(outcome)) => return out.end(&outcome).await,
            Some(event) => out.delta(&delta_of(&out.reply, event)).await,
            None => {
                out.data(&lost().to_json()).await;
                return;
            }
        };
    }
}

/// What an event adds to the message.
fn delta_of(reply: &Reply, event: Event) -> Value {
    match event {
        Event::Text(text) => json!({"content": text}),
        Event::Reasoning(text) => json!({"reasoning_content": text}),
        Event::CallStart { index, name } => json!({"tool_calls": [{
            "index": index,
            "id": reply.call_id(index),
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }]}),
        Event::CallArguments { index, fragment } => json!({"tool_calls": [{
            "index": index,
            "function": {"arguments": fragment},
        }]}),
        Event::CallEnd { .. } | Event::Finished(_) => json!({}),
    }
}

/// The way to the client.
struct Out {
    sender: Sender<Result<Sse, Infallible>>,
    reply: Reply,
    include_usage: bool,
}

impl Out {
    /// Sends an object; whether the client is still there.
    async fn data(&self, object: &Value) -> bool {
        let event = Sse::default().data(object.to_string());
        self.sender.send(Ok(event)).await.is_ok()
    }

    async fn choice(&self, delta: &Value, reason: Option<&str>) -> bool {
        let choices = json!([{
            "index": 0,
            "delta": delta,
            "logprobs": Value::Null,
            "finish_reason": reason,
        }]);
        let usage = self.include_usage.then_some(Value::Null);
        self.data(&self.reply.chunk(&choices, usage)).await
    }

    async fn delta(&self, delta: &Value) -> bool {
        if delta.as_object().is_some_and(serde_json::Map::is_empty) {
            return !self.sender.is_closed();
        }
        self.choice(delta, None).await
    }

    async fn end(&self, outcome: &Outcome) {
        self.reply.log(outcome);
        let reason = match finish_reason(&outcome.finish) {
            Ok(reason) => reason,
            Err(error) => {
                self.data(&error.to_json()).await;
                return;
            }
        };
        self.choice(&json!({}), Some(reason)).await;
        if self.include_usage {
            let usage = Some(self.reply.usage(outcome));
            self.data(&self.reply.chunk(&json!([]), usage)).await;
        }
        let done = Sse::default().data("[DONE]");
        let _ = self.sender.send(Ok(done)).await;
    }
}
