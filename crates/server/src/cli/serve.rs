//! `fourspark serve`: the HTTP APIs.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fourspark::{EngineOptions, Limits, ModelName};
use tokio::net::TcpListener;

use super::args::ServeArgs;
use super::{model, out, switching};
use crate::http::{App, ServeOptions, serve as serve_http};

pub(crate) fn serve(args: &ServeArgs) -> Result<()> {
    check_exposure(args)?;
    if let (Some(ModelName::Synth(synth)), Some(name)) = (&args.model.model, &args.model_name) {
        bail!("--model-name {name}: made-up weights go by their own name, {synth}");
    }
    let defaults = Limits::default();
    let engine = model::load(
        &args.model,
        EngineOptions {
            sequences: usize::from(args.parallel),
            limits: Limits {
                queue: usize::from(args.queue),
                ..defaults
            },
            park_idle: (args.park_idle > 0).then(|| Duration::from_secs(u64::from(args.park_idle))),
            ..model::options(&args.model)
        },
    )?;
    let options = ServeOptions {
        api_key: args.api_key.clone(),
        body_limit: args.body_limit as usize,
        drain: Duration::from_secs(u64::from(args.drain)),
        thinking: args.effort.unwrap_or_default(),
        model_name: args.model_name.clone(),
        switches: switching::effective().clone(),
        ..ServeOptions::default()
    };
    for feature in &*engine.features() {
        out::note(&feature.to_string());
    }
    let app = App::new(engine, options);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the server")?;
    runtime.block_on(async {
        let address = (args.host, args.port);
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {}:{}", args.host, args.port))?;
        let bound = listener.local_addr().context("cannot listen")?;
        out::note(&format!("listening on http://{bound}"));
        out::note(&example(&bound.to_string(), app.options.api_key.is_some()));
        serve_http(listener, app, signal()).await?;
        out::note("stopped");
        Ok(())
    })
}

/// Anybody who can reach the port can use the model.
fn check_exposure(args: &ServeArgs) -> Result<()> {
    let open = !args.host.is_loopback() && args.api_key.is_none() && !args.allow_no_key;
    if open {
        bail!(
            "--host {} can be reached from elsewhere: set --api-key, or say --allow-no-key",
            args.host
        );
    }
    match &args.api_key {
        Some(key) if key.is_empty() || key.chars().any(|c| !c.is_ascii_graphic()) => {
            bail!("--api-key: expected visible ASCII characters without spaces")
        }
        _ => Ok(()),
    }
}

/// A command to try it with.
fn example(address: &str, key: bool) -> String {
    let key = if key {
        " -H 'Authorization: Bearer KEY'"
    } else {
        ""
    };
    format!(
        "curl -N http://{address}/v1/chat/completions{key} -d '{{\"stream\": true, \"messages\": \
         [{{\"role\": \"user\", \"content\": \"What is the capital of France?\"}}]}}'"
    )
}

/// Ctrl-C or SIGTERM. A second Ctrl-C ends the process at once.
async fn signal() {
    #[cfg(unix)]
    let terminated = async {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => {
                signal.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending();
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
    }
    out::note("stopping: requests in progress may go on for a while, Ctrl-C stops at once");
    tokio::spawn(async {
        if tokio::signal::ctrl_c().await.is_ok() {
            std::process::exit(130);
        }
    });
}

/// The default address.
pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
