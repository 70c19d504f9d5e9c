//! Serving until told to stop, then stopping in order: no new requests, time for those in progress,
//! cancellation of the rest.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::{App, router};

/// Time for connections to end once nothing is computed for them any more.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Serves until `stop` completes and what was in progress has ended.
///
/// # Errors
/// The listener fails.
pub async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    // A token is a small packet, and its reader waits for it.
    let listener = listener.tap_io(|io| {
        if let Err(error) = io.set_nodelay(true) {
            tracing::debug!(%error, "no-delay was refused");
        }
    });
    let (told, stopping) = oneshot::channel();
    let (theirs, drain) = (Arc::clone(&app), app.options.drain);
    let stopped = async move {
        stop.await;
        theirs.draining.store(true, Ordering::Release);
        let _ = told.send(());
    };
    let server = axum::serve(listener, router(Arc::clone(&app))).with_graceful_shutdown(stopped);
    let forced = async {
        if stopping.await.is_err() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(drain).await;
        app.engine.stop();
        tokio::time::sleep(LAST_WORDS).await;
    };
    let result = tokio::select! {
        result = server => result,
        () = forced => Ok(()),
    };
    app.engine.stop();
    result
}
