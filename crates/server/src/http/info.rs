//! What is there and how it is: `/health`, `/v1/models`, `/props`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use fourspark::{RoleFormat, Stats, Thinking};
use serde_json::{Value, json};

use super::{ApiError, App, parking, unix_seconds};
use crate::{counters, drafting};

pub(crate) async fn root(State(app): State<Arc<App>>) -> String {
    format!(
        "fourspark {} serves {}: POST /v1/chat/completions, /park, /unpark, GET /v1/models, /props, /health\n",
        env!("CARGO_PKG_VERSION"),
        app.model_name()
    )
}

/// 200 while requests are taken, also by a server whose model is parked: a request loads it. 503 otherwise.
pub(crate) async fn health(State(app): State<Arc<App>>) -> (StatusCode, Json<Value>) {
    let stats = app.engine.stats();
    let status = match (stats.dead, app.is_draining()) {
        (_, true) => "stopping",
        (true, _) => "failed",
        _ => {
            let status = parking::word(stats.phase);
            return (StatusCode::OK, Json(json!({ "status": status })));
        }
    };
    let body = Json(json!({ "status": status }));
    (StatusCode::SERVICE_UNAVAILABLE, body)
}

fn model_object(app: &App) -> Value {
    let info = app.engine.info();
    json!({
        "id": app.model_name(),
        "object": "model",
        "created": unix_seconds(app.started),
        "owned_by": "fourspark",
        "context_length": info.ctx,
        "max_model_len": info.ctx,
    })
}

pub(crate) async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [model_object(&app)]}))
}

pub(crate) async fn model(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    if id == app.model_name() {
        return Ok(Json(model_object(&app)));
    }
    let message = format!(
        "there is no model {id:?}; this server has {:?}",
        app.model_name()
    );
    Err(ApiError::new(
        StatusCode::NOT_FOUND,
        "model_not_found",
        message,
    ))
}

/// What is loaded, its limits, and every feature with its reason.
pub(crate) async fn props(State(app): State<Arc<App>>) -> Json<Value> {
    let (engine, options) = (&app.engine, &app.options);
    let (info, limits, stats) = (engine.info(), engine.limits(), engine.stats());
    let formats: Vec<Value> = info.formats.iter().map(role_format).collect();
    let features: Vec<Value> = engine
        .features()
        .iter()
        .map(|f| json!({"name": f.name, "on": f.on, "reason": f.reason}))
        .collect();
    let switches: Vec<Value> = options.switches.settings().iter().map(switch).collect();
    Json(json!({
        "schema": 1,
        "server": {"name": "fourspark", "version": env!("CARGO_PKG_VERSION")},
        "model": {
            "name": app.model_name(),
            "label": info.label,
            "file": info.file,
            "fingerprint": info.fingerprint,
            "tensor_bytes": info.tensor_bytes,
            "n_layer": info.n_layer,
            "n_embd": info.n_embd,
            "n_vocab": info.n_vocab,
            "context_trained": info.ctx_train,
            "prompt_format": info.generation,
            "formats": formats,
        },
        "numeric_class": info.class.to_string(),
        "device": info.device.as_ref().map_or("cpu", |d| d.id.as_str()),
        "threads": info.threads,
        "limits": {
            "context": info.ctx,
            "sequences": info.sequences,
            "queue": limits.queue,
            "pass_tokens": limits.pass_tokens,
            "pass_tokens_beside_decode": limits.pass_tokens_beside_decode,
            "body_bytes": options.body_limit,
        },
        "default_generation_settings": {
            "temperature": 0.0,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "max_tokens": Value::Null,
            "thinking": thinking_name(options.thinking),
        },
        "features": features,
        "residency": parking::props(&app, &stats),
        "drafter": drafting::props(info.draft.as_ref(), &stats),
        "switches": switches,
        "stats": counted(&stats),
    }))
}

/// Everything the engine counted.
fn counted(stats: &Stats) -> Value {
    let mut object = json!({
            "queued": stats.queued,
            "active": stats.active,
            "in_flight": stats.in_flight(),
            "submitted": stats.submitted,
            "stopped": stats.stopped,
            "length": stats.length,
            "cancelled": stats.cancelled,
            "failed": stats.failed,
            "ticks": stats.ticks,
            "passes": stats.passes,
            "tokens_per_pass": stats.tokens_per_pass(),
            "prompt_tokens": stats.prompt_tokens,
            "generated_tokens": stats.generated_tokens,
            "busy_s": stats.busy.as_secs_f64(),
            "speculation": drafting::numbers(stats),
    });
    if let Some(map) = object.as_object_mut() {
        counters::add(map, stats);
    }
    object
}

fn role_format(f: &RoleFormat) -> Value {
    json!({"role": f.role, "format": f.format, "tensors": f.tensors, "bytes": f.bytes})
}

/// A switch with its value in force.
fn switch(setting: &switches::Setting) -> Value {
    let set_by = match &setting.source {
        switches::Source::Default => None,
        switches::Source::Variable(name) => Some(name),
    };
    json!({
        "name": setting.switch.name,
        "value": setting.value,
        "default": setting.switch.default,
        "class": setting.switch.class.to_string(),
        "set_by": set_by,
    })
}

fn thinking_name(thinking: Thinking) -> String {
    match thinking {
        Thinking::Off => "off".to_owned(),
        Thinking::On(effort) => format!("{effort:?}").to_lowercase(),
    }
}
