//! Refusals and failures in the shape of the OpenAI API:
//! `{"error": {"message", "type", "param", "code"}}`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use fourspark::{Error, SubmitError};
use serde_json::{Map, Value, json};

use super::parking::{not_loaded, stays};

/// An error of a request.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
    extra: Map<String, Value>,
}

impl ApiError {
    /// An error with a code of ours.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code: Some(code),
            param: None,
            message: message.into(),
            extra: Map::new(),
        }
    }

    /// A field of the request is not what it should be.
    pub(crate) fn bad_field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            ..Self::new(StatusCode::BAD_REQUEST, "invalid_value", message)
        }
    }

    /// A field asks for something this server does not do.
    pub(crate) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            ..Self::new(StatusCode::BAD_REQUEST, "unsupported_parameter", message)
        }
    }

    /// With one more member.
    pub(crate) fn with(mut self, name: &str, value: Value) -> Self {
        self.extra.insert(name.to_owned(), value);
        self
    }

    /// The HTTP status.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            s if s.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The body.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut error = json!({
            "message": self.message,
            "type": self.kind(),
            "param": self.param,
            "code": self.code,
        });
        if let Some(object) = error.as_object_mut() {
            object.extend(self.extra.clone());
        }
        json!({ "error": error })
    }

    fn overflow(prompt: u64, limit: u64) -> Self {
        // The wording that clients look for in order to shorten a conversation.
        let message = format!(
            "This model's maximum context length is {limit} tokens. However, your messages resulted \
             in {prompt} tokens, which leaves no room for an answer. Please reduce the length of the \
             messages."
        );
        let mut this = Self::new(StatusCode::BAD_REQUEST, "context_length_exceeded", message);
        this.param = Some("messages".to_owned());
        this.with("n_prompt_tokens", json!(prompt))
            .with("n_ctx", json!(limit))
    }
}

/// The server takes nothing any more.
pub(super) fn stopping() -> ApiError {
    let message = "the server is stopping";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", message)
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Refused(SubmitError::ContextOverflow { prompt, limit }) => {
                Self::overflow(prompt, limit)
            }
            Error::Refused(SubmitError::QueueFull { .. }) => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message)
            }
            Error::Refused(SubmitError::Stopped) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "stopped", message)
            }
            Error::Park(why) => stays(&why, message),
            Error::Unpark(why) => not_loaded(&why, message),
            Error::Refused(_) | Error::Prompt(_) => {
                Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
            }
            _ => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "engine_failed", message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.to_json())).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}
