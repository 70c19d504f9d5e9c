//! `POST /park` and `POST /unpark`, and what takes memory in `/props`.
//!
//! Must not know: what a model is made of, how it is freed.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, StatusCode};
use fourspark::{Error, ParkError, Phase, Resident, Stats, UnparkError, parking};
use serde_json::{Value, json};

use super::body::{parse, read_body};
use super::fields::Fields;
use super::{ApiError, App};

type Result<T> = std::result::Result<T, ApiError>;

/// Gives the model up. `{"wait": false}`: only if no request is in progress.
pub(crate) async fn park(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: std::result::Result<Bytes, BytesRejection>,
) -> Result<Json<Value>> {
    let body = order(&app, &headers, body)?;
    let wait = Fields::of(&body, "")?.boolean("wait")?.unwrap_or(true);
    let theirs = Arc::clone(&app);
    let parked = waited(move || theirs.engine.park(wait)).await?;
    Ok(Json(json!({
        "status": "parked",
        "already": parked.already,
        "took_ms": ms(parked.took),
        "before": list(&parked.before),
        "after": list(&parked.after),
    })))
}

/// Loads the model.
pub(crate) async fn unpark(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: std::result::Result<Bytes, BytesRejection>,
) -> Result<Json<Value>> {
    let body = order(&app, &headers, body)?;
    Fields::of(&body, "")?;
    let theirs = Arc::clone(&app);
    let unparked = waited(move || theirs.engine.unpark()).await?;
    Ok(Json(json!({
        "status": "loaded",
        "already": unparked.already,
        "took_ms": ms(unparked.took),
        "now": list(&unparked.now),
    })))
}

/// The body of an order, `{}` if there is none.
fn order(
    app: &App,
    headers: &HeaderMap,
    body: std::result::Result<Bytes, BytesRejection>,
) -> Result<Value> {
    if app.is_draining() {
        return Err(super::error::stopping());
    }
    let body = read_body(headers, body, app.options.body_limit)?;
    if body.is_empty() {
        return Ok(json!({}));
    }
    parse(&body)
}

/// An order is carried out whether or not the client waits for it.
async fn waited<T: Send + 'static>(
    order: impl FnOnce() -> std::result::Result<T, Error> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(order).await {
        Ok(done) => Ok(done?),
        Err(error) => {
            tracing::error!(%error, "an order failed");
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            Err(ApiError::new(status, "internal", "the order failed"))
        }
    }
}

/// Why the model stays loaded, as an answer.
pub(super) fn stays(why: &ParkError, message: String) -> ApiError {
    match why {
        ParkError::Busy { in_progress } => {
            ApiError::new(StatusCode::CONFLICT, "requests_in_progress", message)
                .with("in_progress", json!(in_progress))
        }
        ParkError::Unable => ApiError::new(StatusCode::CONFLICT, "cannot_park", message),
        _ => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "stopped", message),
    }
}

/// Why the model is not loaded, as an answer.
pub(super) fn not_loaded(why: &UnparkError, message: String) -> ApiError {
    let code = match why {
        UnparkError::Load(_) => LOAD_FAILED,
        _ => "stopped",
    };
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
}

/// A model that could not be loaded again.
pub(super) const LOAD_FAILED: &str = "load_failed";

/// What takes memory, for `/props`.
pub(super) fn props(app: &App, stats: &Stats) -> Value {
    let residency = app.engine.residency();
    json!({
        "state": residency.phase.name(),
        "bytes": residency.bytes(),
        "list": list(&residency.residents),
        "parks": stats.parks,
        "idle_parks": stats.idle_parks,
        "unparks": stats.unparks,
        "failed_loads": stats.failed_loads,
        "waited_for_load": stats.waited_for_load,
        "reason": stats.load_error,
    })
}

/// The word of `/health` for a model that is not loaded; requests are taken all the same.
pub(super) fn word(phase: Phase) -> &'static str {
    match phase {
        // It answers what it has.
        Phase::Loaded | Phase::Parking => "ok",
        phase => phase.name(),
    }
}

fn list(residents: &[Resident]) -> Value {
    let one =
        |r: &Resident| json!({"what": r.what, "place": r.place, "bytes": r.bytes, "note": r.note});
    json!({
        "bytes": parking::bytes(residents),
        "items": residents.iter().map(one).collect::<Vec<_>>(),
    })
}

fn ms(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
