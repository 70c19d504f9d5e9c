//! The key, if one is set. `/health` needs none, so that supervisors can look.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::{ApiError, App};

pub(crate) async fn check(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let refused =
        app.options.api_key.as_ref().is_some_and(|key| {
            request.uri().path() != "/health" && !presents(request.headers(), key)
        });
    if refused {
        let message = "a valid key is needed: Authorization: Bearer KEY, or x-api-key: KEY";
        return ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message).into_response();
    }
    next.run(request).await
}

fn presents(headers: &HeaderMap, key: &str) -> bool {
    let text = |name| headers.get(name).and_then(|v| v.to_str().ok());
    let bearer = text(header::AUTHORIZATION).and_then(|v| {
        let (scheme, rest) = v.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(rest.trim())
    });
    let plain = headers.get("x-api-key").and_then(|v| v.to_str().ok());
    [bearer, plain]
        .into_iter()
        .flatten()
        .any(|given| same(given, key))
}

/// Takes the same time wherever two texts of one length differ.
fn same(a: &str, b: &str) -> bool {
    let difference = a.bytes().zip(b.bytes()).fold(0, |d, (x, y)| d | (x ^ y));
    a.len() == b.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::same;

    #[test]
    fn keys_are_equal_only_as_a_whole() {
        assert!(same("", "") && same("key", "key"));
        for (a, b) in [("key", "kex"), ("key", "ke"), ("ke", "key"), ("", "k")] {
            assert!(!same(a, b), "{a} {b}");
        }
    }
}
