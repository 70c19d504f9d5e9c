//! A request's body: its encoding, its size, and that it is JSON.

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, StatusCode, header};
use serde_json::Value;

use super::ApiError;

/// The body as it was sent.
pub(super) fn read_body(
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
    limit: usize,
) -> Result<Bytes, ApiError> {
    let encoding = headers.get(header::CONTENT_ENCODING);
    if let Some(encoding) = encoding.filter(|e| !e.as_bytes().eq_ignore_ascii_case(b"identity")) {
        let message = format!("content encoding {encoding:?} is not supported, send it plain");
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return Err(ApiError::new(status, "unsupported_encoding", message));
    }
    body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            let message = format!("the request is larger than {limit} bytes");
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
        }
        _ => ApiError::new(StatusCode::BAD_REQUEST, "unreadable", rejection.body_text()),
    })
}

/// The body as JSON.
pub(super) fn parse(body: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(body).map_err(|error| {
        let message = format!("the request is not JSON: {error}");
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", message)
    })
}
