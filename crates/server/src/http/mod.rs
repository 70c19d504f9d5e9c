//! The HTTP APIs: routes, limits, shutdown. One engine behind them.
//!
//! Must not know: how answers are computed. Shapes follow the OpenAI API as its clients use it
//! (spec/server.md section 2); what is not supported is refused by name, never ignored.

mod auth;
mod body;
pub mod chat;
mod error;
mod fields;
mod info;
mod parking;
mod shutdown;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use fourspark::{Engine, Thinking};

pub use error::ApiError;
pub use shutdown::serve;

/// How to serve.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// What clients must present, if anything.
    pub api_key: Option<String>,
    /// The most bytes of a request.
    pub body_limit: usize,
    /// The longest silence on a stream: a comment is sent then, whatever the engine does.
    pub keep_alive: Duration,
    /// How long requests in progress may go on once the server is told to stop.
    pub drain: Duration,
    /// Whether to think when a request does not say.
    pub thinking: Thinking,
    /// The model's name for clients; `None`: the file's own.
    pub model_name: Option<String>,
    /// Switches in force, to be shown.
    pub switches: switches::Effective,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            api_key: None,
            body_limit: 32 << 20,
            keep_alive: Duration::from_secs(15),
            drain: Duration::from_secs(10),
            thinking: Thinking::Off,
            model_name: None,
            switches: switches::Effective::default(),
        }
    }
}

/// What all requests share.
#[derive(Debug)]
pub struct App {
    pub(crate) engine: Engine,
    pub(crate) options: ServeOptions,
    pub(crate) started: SystemTime,
    requests: AtomicU64,
    draining: AtomicBool,
}

impl App {
    /// Serves an engine.
    #[must_use]
    pub fn new(engine: Engine, options: ServeOptions) -> Arc<Self> {
        Arc::new(Self {
            engine,
            options,
            started: SystemTime::now(),
            requests: AtomicU64::new(0),
            draining: AtomicBool::new(false),
        })
    }

    /// The model's name for clients.
    pub(crate) fn model_name(&self) -> String {
        let given = self.options.model_name.clone();
        given.unwrap_or_else(|| self.engine.info().name.clone())
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// A name no other request of this server has, nor one of an earlier run.
    pub(crate) fn request_id(&self) -> String {
        let n = self.requests.fetch_add(1, Ordering::Relaxed);
        let since = self.started.duration_since(UNIX_EPOCH);
        let start = since.map_or(0, |d| d.as_micros() as u64);
        format!("{start:013x}{n:06x}")
    }

    /// A seed for a request that names none.
    pub(crate) fn fresh_seed(&self) -> u64 {
        let n = self.requests.load(Ordering::Relaxed);
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        // Within 53 bits, so that clients can send it back as a JSON number.
        let now = since.map_or(0, |d| d.as_nanos() as u64);
        now.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(n) >> 11
    }
}

/// Seconds since 1970.
pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// All routes.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(info::root))
        .route("/health", get(info::health))
        .route("/props", get(info::props))
        .route("/v1/models", get(info::models))
        .route("/v1/models/{id}", get(info::model))
        .route("/v1/chat/completions", post(chat::completions))
        .route("/park", post(parking::park))
        .route("/unpark", post(parking::unpark))
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .layer(from_fn_with_state(Arc::clone(&app), auth::check))
        .layer(DefaultBodyLimit::max(app.options.body_limit))
        .with_state(app)
}

async fn not_found(uri: Uri) -> ApiError {
    let message = format!("there is nothing at {}", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
}

async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    let message = format!("{method} is not possible at {}", uri.path());
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        message,
    )
}
