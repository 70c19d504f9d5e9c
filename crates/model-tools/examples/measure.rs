//! Measures models against a reference, one Markdown row each:
//! `cargo run --release -p model-tools --example measure -- KV_SIM TOKENS TEXT QUESTIONS REFERENCE MODEL...`.
//!
//! KV_SIM `on` or `off`; TOKENS of TEXT scored in windows of 512; QUESTIONS: lines of
//! `{"prompt": .., "answer": ..}`, or `-` for none. Everything runs on the CPU target.

use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::{env, fs, io};

use ds4_target::{CpuTarget, GgufSource, Model, Options};
use engine_core::{Out, SamplePlan, Span, Tap, Target, TokenId, Want};
use gguf::{Gguf, OpenOptions};
use model_tools::eval::{self, Divergence};
use text::{TokenKind, Tokenizer, TokenizerParts};

const WINDOW: usize = 512;
const ANSWER: usize = 24;
const EOS: TokenId = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [kv_sim, tokens, text, questions, reference, models @ ..] = &args[..] else {
        return Err("KV_SIM TOKENS TEXT QUESTIONS REFERENCE MODEL...".into());
    };
    let kv_sim = kv_sim == "on";
    let tokenizer = tokenizer(&open(reference)?)?;
    let mut ids = tokenizer.encode_text(&fs::read_to_string(text)?);
    ids.truncate(tokens.parse()?);
    let windows = eval::windows(&ids, WINDOW)?;
    let asked = match questions.as_str() {
        "-" => Vec::new(),
        path => read_questions(path)?,
    };
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "| file | bytes | perplexity | KL to reference | KL p99 | top-1 | answers |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|")?;
    let mut first = target(reference, kv_sim)?;
    for path in models {
        let mut model = target(path, kv_sim)?;
        let d = eval::compare(&mut first, &mut model, &windows, &mut ())?;
        let right = right(&mut model, &tokenizer, &asked)?;
        let bytes = fs::metadata(path)?.len();
        writeln!(
            out,
            "| {path} | {bytes} | {} | {right}/{} |",
            row(&d),
            asked.len()
        )?;
    }
    Ok(())
}

fn row(d: &Divergence) -> String {
    let m = &d.model;
    format!(
        "{:.3} +- {:.3} | {:.5} +- {:.5} | {:.4} | {:.2} %",
        m.value(),
        m.error(),
        d.kl,
        d.kl_error,
        d.kl_p99,
        100.0 * d.top1
    )
}

fn open(path: &str) -> Result<Gguf, gguf::Error> {
    Gguf::open(path, &OpenOptions::default())
}

fn target(path: &str, kv_sim: bool) -> Result<CpuTarget, Box<dyn Error>> {
    let model = Arc::new(Model::load(&GgufSource::new(open(path)?))?);
    let options = Options {
        n_ctx: 2048,
        kv_sim,
        ..Options::default()
    };
    Ok(CpuTarget::new(model, options)?)
}

fn tokenizer(file: &Gguf) -> Result<Tokenizer, Box<dyn Error>> {
    let m = file.metadata();
    let kinds = m.get_i32_array("tokenizer.ggml.token_type")?;
    let kinds: Vec<TokenKind> = kinds.into_iter().map(TokenKind::from_ggml).collect();
    Ok(Tokenizer::new(TokenizerParts {
        tokens: m.get_str_array("tokenizer.ggml.tokens")?,
        kinds: &kinds,
        merges: m.get_str_array("tokenizer.ggml.merges")?,
        pre: m.get_str("tokenizer.ggml.pre")?,
    })?)
}

/// Prompts and answers; an answer may be a list, whose first counts.
fn read_questions(path: &str) -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let mut out = Vec::new();
    for line in fs::read_to_string(path)?.lines() {
        let v: serde_json::Value = serde_json::from_str(line)?;
        let answer = v["answer"].as_str().or(v["answer"][0].as_str());
        let (Some(prompt), Some(answer)) = (v["prompt"].as_str(), answer) else {
            return Err(format!("{path}: {line}").into());
        };
        out.push((prompt.to_owned(), answer.to_owned()));
    }
    Ok(out)
}

/// How many greedy answers contain what is expected.
fn right(
    target: &mut CpuTarget,
    tokenizer: &Tokenizer,
    asked: &[(String, String)],
) -> Result<usize, Box<dyn Error>> {
    let special = |name: &str| tokenizer.special(name).ok_or(format!("no token {name}"));
    let before = [special("<｜begin▁of▁sentence｜>")?, special("<｜User｜>")?];
    let after = [special("<｜Assistant｜>")?, special("</think>")?];
    let mut n = 0;
    for (prompt, answer) in asked {
        let ids = [&before[..], &tokenizer.encode_text(prompt), &after].concat();
        let said = tokenizer.decode(&greedy(target, ids)?)?;
        n += usize::from(String::from_utf8_lossy(&said).contains(answer.as_str()));
    }
    Ok(n)
}

fn greedy(target: &mut CpuTarget, prompt: Vec<TokenId>) -> Result<Vec<TokenId>, Box<dyn Error>> {
    let seq = target.open()?;
    let plan = Arc::new(SamplePlan::greedy());
    let (mut feed, mut pos, mut said) = (prompt, 0u32, Vec::new());
    while said.len() < ANSWER && said.last() != Some(&EOS) {
        let span = Span {
            seq,
            pos,
            range: 0..feed.len(),
            out: Out::Last,
            want: Want::Ids(Arc::clone(&plan)),
            tap: Tap::default(),
        };
        let ticket = target.submit(&feed, &[span])?;
        let next = target.wait(ticket, None)?.ids[0];
        pos += feed.len() as u32;
        target.commit(seq, pos);
        said.push(next);
        feed = vec![next];
    }
    target.close(seq);
    Ok(said)
}
