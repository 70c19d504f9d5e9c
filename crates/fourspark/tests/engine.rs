//! The library by itself: loading, streaming, stopping, what it says of itself.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use engine_core::TokenId;
use fourspark::{
    Answer, ChatRequest, Effort, Engine, EngineOptions, EngineParts, Error, Event, Finish, Flow,
    Generate, Generation, Limits, Message, SubmitError, Thinking,
};
use fpx_quant::Format;
use testkit::fake::FakeTarget;
use testkit::fixture::{Fixture, Kind, Meta, vocab, write_gguf};
use text::{TokenKind, Tokenizer, TokenizerParts};

const ASSISTANT: TokenId = 4;
const END_THINK: TokenId = 6;

fn tokenizer() -> Tokenizer {
    let vocab = vocab(268);
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

/// Bytes as tokens, `^` ending the reasoning.
fn tokens(text: &str) -> Vec<TokenId> {
    let token = |b| {
        if b == b'^' {
            END_THINK
        } else {
            12 + TokenId::from(b)
        }
    };
    text.bytes().map(token).collect()
}

/// An engine that answers every prompt with `text`.
fn saying(text: &str) -> Engine {
    let script = tokens(text);
    let target = FakeTarget::new(268, 512, 2).saying(move |all| {
        let opening = all.iter().rposition(|t| *t == ASSISTANT);
        let said = opening.map_or(all.len(), |at| all.len() - at - 2);
        script.get(said).copied().unwrap_or(1)
    });
    engine(target)
}

fn engine(target: FakeTarget) -> Engine {
    let parts =
        EngineParts::of(Box::new(target), tokenizer(), Generation::V0731, "scripted").unwrap();
    Engine::from_parts(parts, Limits::default()).unwrap()
}

fn ask(engine: &Engine, thinking: Thinking, generate: Generate) -> Answer {
    let request = ChatRequest {
        messages: vec![Message::user("Hi")],
        thinking,
        generate,
        ..ChatRequest::default()
    };
    engine.chat(&request).unwrap().collect_answer().unwrap()
}

#[test]
fn an_answer_in_parts_and_as_a_whole() {
    let engine = saying("Hm.^Four.");
    let answer = ask(&engine, Thinking::On(Effort::Low), Generate::default());
    assert_eq!(
        (answer.reasoning.as_str(), answer.text.as_str()),
        ("Hm.", "Four.")
    );
    assert!(matches!(answer.outcome.finish, Finish::Stop));
    assert_eq!(answer.outcome.ids, tokens("Hm.^Four."));
    // The token that ends the reasoning belongs to it; the end of the turn is counted, not shown.
    assert_eq!(answer.outcome.reasoning_tokens, 4);
    assert_eq!(answer.outcome.usage.completion_tokens, 10);
    assert!(answer.outcome.decode_rate().unwrap() > 0.0);
    let stream = engine
        .chat(&ChatRequest {
            messages: vec![Message::user("Hi")],
            ..ChatRequest::default()
        })
        .unwrap();
    // Without thinking the model's marker says nothing; a line break keeps what stood around it apart.
    let events: Vec<Event> = stream.collect();
    let texts: String = events
        .iter()
        .filter_map(|e| match e {
            Event::Text(text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(texts, "Hm.\nFour.");
    assert!(matches!(events.last(), Some(Event::Finished(_))));
}

#[test]
fn a_stop_string_ends_before_the_next_token() {
    let engine = saying("one, two, three");
    let generate = Generate {
        stop: vec![", t".to_owned(), "zzz".to_owned()],
        ..Generate::default()
    };
    let answer = ask(&engine, Thinking::Off, generate);
    assert_eq!(answer.text, "one");
    assert_eq!(answer.outcome.stop_string.as_deref(), Some(", t"));
    assert_eq!(answer.outcome.usage.completion_tokens, 6);
    // The stop string is looked for in the text, not in the reasoning.
    let engine = saying("a STOP b^c STOP d");
    let generate = Generate {
        stop: vec!["STOP".to_owned()],
        ..Generate::default()
    };
    let answer = ask(&engine, Thinking::On(Effort::Low), generate);
    assert_eq!(
        (answer.reasoning.as_str(), answer.text.as_str()),
        ("a STOP b", "c ")
    );
}

#[test]
fn plain_text_is_continued_as_text() {
    // Counts on from the last byte; the opening token and two bytes make the prompt.
    let engine = engine(FakeTarget::new(268, 512, 2));
    let generate = Generate {
        max_tokens: Some(3),
        ..Generate::default()
    };
    let answer = engine
        .complete("ab", &generate)
        .unwrap()
        .collect_answer()
        .unwrap();
    assert_eq!(answer.text, "cde");
    assert_eq!(answer.outcome.usage.prompt_tokens, 3);
    assert!(matches!(answer.outcome.finish, Finish::Length));
    // A cut character is shown as such, in the end and not before.
    let cut = saying("x\u{e9}");
    let generate = Generate {
        max_tokens: Some(2),
        ..Generate::default()
    };
    assert_eq!(ask(&cut, Thinking::Off, generate).text, "x\u{fffd}");
}

#[test]
fn a_dropped_stream_is_cancelled_and_the_engine_goes_on() {
    let target = FakeTarget::new(268, 1 << 20, 1).saying(|_| 100).gated();
    let watch = target.watch();
    let engine = engine(target);
    let stream = engine.complete("x", &Generate::default()).unwrap();
    watch.await_passes(1);
    drop(stream);
    watch.release();
    let generate = Generate {
        max_tokens: Some(1),
        ..Generate::default()
    };
    let answer = engine
        .complete("x", &generate)
        .unwrap()
        .collect_answer()
        .unwrap();
    assert_eq!(answer.outcome.ids, [100]);
    assert_eq!(engine.stats().cancelled, 1);
    let running = engine.complete("x", &Generate::default()).unwrap();
    running.cancel();
    let answer = running.collect_answer().unwrap();
    assert!(matches!(answer.outcome.finish, Finish::Cancelled));
    engine.stop();
    let refused = engine.complete("x", &Generate::default());
    assert!(matches!(refused, Err(Error::Refused(SubmitError::Stopped))));
}

#[test]
fn a_sink_may_cancel() {
    let engine = engine(FakeTarget::new(268, 1 << 20, 1).saying(|_| 100));
    let (told, end) = std::sync::mpsc::channel();
    let prompt = engine.prepare_text("x");
    let handle = engine.start_answer(prompt, &Generate::default(), move |event| {
        if let Event::Finished(outcome) = event {
            told.send(outcome.usage.completion_tokens).unwrap();
        }
        Flow::Cancel
    });
    assert_eq!(end.recv().unwrap(), 1);
    drop(handle);
}

fn write(folder: &Path, change: impl FnOnce(&mut Vec<(String, Meta)>)) -> PathBuf {
    let path = folder.join("file name.gguf");
    static FIXTURE: LazyLock<Fixture> = LazyLock::new(|| Fixture::new(Kind::T0, 1).unwrap());
    let mut fixture = FIXTURE.clone();
    change(&mut fixture.metadata);
    let format = |name: &str| {
        if name.ends_with("tid2eid.weight") {
            Format::I32
        } else {
            Format::F32
        }
    };
    write_gguf(&path, &fixture, format).unwrap();
    path
}

fn set(metadata: &mut Vec<(String, Meta)>, key: &str, value: Option<&str>) {
    metadata.retain(|(k, _)| k != key);
    if let Some(value) = value {
        metadata.push((key.to_owned(), Meta::Str(value.to_owned())));
    }
}

#[test]
fn what_a_model_can_do_does_not_depend_on_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let long = "n".repeat(300);
    for (name, shown) in [
        (None, "file name"),
        (Some(""), "file name"),
        (Some(long.as_str()), "file name"),
        (Some("a/b\\c"), "a/b\\c"),
        (Some("名前 ｜"), "名前 ｜"),
    ] {
        let path = write(folder.path(), |m| set(m, "general.name", name));
        let engine = Engine::load(&path, &EngineOptions::default()).unwrap();
        assert_eq!(engine.info().name, shown);
        let features = engine.features();
        let thinking = features.iter().find(|f| f.name == "thinking").unwrap();
        assert!(
            thinking.on && thinking.reason.contains("Preview"),
            "{thinking}"
        );
    }
    // A version this build does not know is a guess, and said to be one.
    let path = write(folder.path(), |m| {
        set(m, "general.base_model.0.version", Some("9999"))
    });
    let engine = Engine::load(&path, &EngineOptions::default()).unwrap();
    let features = engine.features();
    let thinking = features.iter().find(|f| f.name == "thinking").unwrap();
    assert!(
        thinking.reason.contains("\"9999\" is not known"),
        "{thinking}"
    );
}

#[test]
fn a_file_is_described_and_its_options_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), |_| {});
    let options = EngineOptions {
        ctx: Some(64),
        sequences: 2,
        threads: Some(1),
        kv_sim: false,
        ..EngineOptions::default()
    };
    let engine = Engine::load(&path, &options).unwrap();
    let info = engine.info();
    assert_eq!((info.ctx, info.sequences, info.threads), (64, 2, 1));
    assert_eq!((info.n_layer, info.n_embd, info.n_vocab), (6, 256, 512));
    assert_eq!(info.ctx_train, 1_048_576);
    assert_eq!(info.file.as_deref(), Some(path.as_path()));
    let bytes: u64 = info.formats.iter().map(|f| f.bytes).sum();
    assert_eq!(info.tensor_bytes, bytes);
    let experts = info
        .formats
        .iter()
        .find(|f| f.role == "ffn_up_exps")
        .unwrap();
    assert_eq!((experts.tensors, experts.format.as_str()), (6, "F32"));
    let features = engine.features();
    let kv_sim = features.iter().find(|f| f.name == "kv_sim").unwrap();
    assert!(!kv_sim.on);
    let too_long = EngineOptions {
        ctx: Some(1 << 21),
        ..EngineOptions::default()
    };
    let error = Engine::load(&path, &too_long).unwrap_err().to_string();
    assert!(
        error.contains("n_ctx") && error.contains("1048576"),
        "{error}"
    );
    let path = write(folder.path(), |m| {
        set(m, "tokenizer.ggml.pre", Some("llama-bpe"))
    });
    let error = Engine::load(&path, &options).unwrap_err().to_string();
    assert!(
        error.contains("file name.gguf") && error.contains("llama-bpe"),
        "{error}"
    );
    let missing = Engine::load(folder.path().join("none.gguf"), &options);
    assert!(matches!(missing, Err(Error::File(_))));
}
