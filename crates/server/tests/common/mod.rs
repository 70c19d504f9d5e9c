//! A server in this process over a scripted model, and a client that speaks HTTP by hand.

#![allow(dead_code, reason = "each test file uses some of it")]
#![allow(clippy::unwrap_used, reason = "test code")]

pub(crate) mod client;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use engine_core::TokenId;
use fourspark::{Engine, EngineParts, Generation, Limits};
use server::http::{App, ServeOptions, serve};
use testkit::fake::{FakeTarget, Watch};
use testkit::fixture::vocab;
use text::{TokenKind, Tokenizer, TokenizerParts};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Special tokens of the fixture's vocabulary, and where its bytes begin.
pub(crate) const EOS: TokenId = 1;
pub(crate) const ASSISTANT: TokenId = 4;
pub(crate) const END_THINK: TokenId = 6;
pub(crate) const DSML: TokenId = 7;
const FIRST_BYTE: TokenId = 12;
/// The specials and the bytes: every token is one byte.
const N_VOCAB: usize = 268;

/// Tokens of a text, `{dsml}` and `{/think}` standing for the special tokens.
pub(crate) fn tokens(text: &str) -> Vec<TokenId> {
    let mut ids = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let special = [("{dsml}", DSML), ("{/think}", END_THINK)];
        if let Some((mark, id)) = special.iter().find(|(mark, _)| rest.starts_with(mark)) {
            ids.push(*id);
            rest = &rest[mark.len()..];
        } else {
            let len = rest.chars().next().unwrap().len_utf8();
            ids.extend(rest[..len].bytes().map(|b| FIRST_BYTE + TokenId::from(b)));
            rest = &rest[len..];
        }
    }
    ids
}

/// A target that answers every prompt with `text`, then ends its turn.
pub(crate) fn saying(text: &str, n_ctx: u64, slots: usize) -> FakeTarget {
    let script = tokens(text);
    FakeTarget::new(N_VOCAB, n_ctx, slots).saying(move |all| {
        // The answer begins two tokens after the last opening of the model's turn.
        let opening = all.iter().rposition(|t| *t == ASSISTANT).unwrap_or(0);
        let said = all.len().saturating_sub(opening + 2);
        script.get(said).copied().unwrap_or(EOS)
    })
}

fn tokenizer() -> Tokenizer {
    let vocab = vocab(N_VOCAB);
    let kinds: Vec<TokenKind> = vocab
        .types
        .iter()
        .map(|t| TokenKind::from_ggml(*t))
        .collect();
    Tokenizer::new(TokenizerParts {
        tokens: &vocab.tokens,
        kinds: &kinds,
        merges: &vocab.merges,
        pre: "deepseek-v3",
    })
    .unwrap()
}

pub(crate) fn engine(target: FakeTarget, limits: Limits) -> Engine {
    Engine::from_parts(parts(target), limits).unwrap()
}

pub(crate) fn parts(target: FakeTarget) -> EngineParts {
    let target = Box::new(target);
    EngineParts::of(target, tokenizer(), Generation::V0731, "scripted").unwrap()
}

/// A running server.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Engine,
    pub(crate) watch: Arc<Watch>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(target: FakeTarget) -> Self {
        Self::with(target, Limits::default(), ServeOptions::default())
    }

    pub(crate) fn with(target: FakeTarget, limits: Limits, options: ServeOptions) -> Self {
        let watch = target.watch();
        Self::over(engine(target, limits), watch, options)
    }

    /// A server over any engine.
    pub(crate) fn over(engine: Engine, watch: Arc<Watch>, options: ServeOptions) -> Self {
        let app = App::new(engine.clone(), options);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let until = async {
                let _ = stopped.await;
            };
            runtime.block_on(serve(listener, app, until)).unwrap();
        });
        Self {
            address,
            engine,
            watch,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Asks the server to stop.
    pub(crate) fn stop(&mut self) {
        self.stop.take();
    }

    /// Waits until the server has stopped.
    pub(crate) fn join(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.watch.release();
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A chat request of one user message, with more members if need be: `"stream": true`.
pub(crate) fn ask(more: &str) -> String {
    let comma = if more.is_empty() { "" } else { ", " };
    format!(r#"{{"messages": [{{"role": "user", "content": "Hi"}}]{comma}{more}}}"#)
}
