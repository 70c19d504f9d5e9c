//! `POST /v1/chat/completions`.

mod messages;
mod refusals;
mod reply;
mod request;
mod stream;

use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use fourspark::answer::Collected;
use fourspark::{Event, Flow, Handle, Phase};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::body::read_body;
use super::error::stopping;
use super::{ApiError, App, unix_seconds};
use reply::Reply;
use request::Call;

/// A request under way: dropping it cancels the request.
pub(crate) struct Running {
    events: UnboundedReceiver<Event>,
    _handle: Handle,
}

pub(crate) async fn completions(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    if app.is_draining() {
        return Err(stopping());
    }
    if let Some(why) = missing_worker(&app) {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        return Err(ApiError::new(status, "no_draft_worker", why));
    }
    let body = read_body(&headers, body, app.options.body_limit)?;
    let theirs = Arc::clone(&app);
    // Rendering and tokenizing a long conversation takes a while.
    let started = tokio::task::spawn_blocking(move || {
        let call = Call::read(&body, &theirs)?;
        let running = start(&theirs, &call)?;
        Ok::<_, ApiError>((call, running))
    });
    let (call, running) = match started.await {
        Ok(result) => result?,
        Err(error) => {
            tracing::error!(%error, "reading a request failed");
            let message = "reading the request failed";
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            return Err(ApiError::new(status, "internal", message));
        }
    };
    let reply = Reply {
        id: format!("chatcmpl-{}", app.request_id()),
        created: unix_seconds(SystemTime::now()),
        seed: call.seed,
        app: Arc::clone(&app),
    };
    if call.stream {
        return Ok(stream::respond(reply, running, call.include_usage));
    }
    whole(&reply, running).await
}

/// Why no request can be taken. A worker that was given up with the model is started with it again.
fn missing_worker(app: &App) -> Option<String> {
    let loaded = matches!(app.engine.stats().phase, Phase::Loaded | Phase::Parking);
    let info = app.engine.info();
    let draft = info.draft.as_ref().filter(|_| loaded);
    draft.and_then(|d| d.worker.as_ref()?.missing())
}

fn start(app: &App, call: &Call) -> Result<Running, ApiError> {
    let prompt = app.engine.prepare(&call.request)?;
    let (sender, events) = unbounded_channel();
    let handle =
        app.engine
            .start_answer(prompt, &call.request.generate, move |event| {
                match sender.send(event) {
                    Ok(()) => Flow::Continue,
                    Err(_) => Flow::Cancel,
                }
            })?;
    Ok(Running {
        events,
        _handle: handle,
    })
}

/// Waits for the end. If the client leaves, this future is dropped and the request with it.
async fn whole(reply: &Reply, mut running: Running) -> Result<Response, ApiError> {
    let mut collected = Collected::default();
    while let Some(event) = running.events.recv().await {
        if let Some(answer) = collected.take(event) {
            reply.log(&answer.outcome);
            return Ok(Json(reply.completion(answer)?).into_response());
        }
    }
    Err(reply::lost())
}
