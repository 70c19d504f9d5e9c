//! The files in `models/`: small enough, made by the recipes that say so, and they answer.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use ds4_target::{CpuTarget, GgufSource, Model, Options};
use dspark_draft::config::TargetMatch;
use dspark_draft::weights::DraftModel;
use engine_core::{Out, SamplePlan, Span, Tap, Target, TokenId, Want};
use gguf::{Gguf, GgufBuilder, OpenOptions};
use model_tools::inspect::Inspection;
use model_tools::recipe::builtin;
use model_tools::{Role, pair};
use sha2::{Digest, Sha256};
use text::{TokenKind, Tokenizer, TokenizerParts};

/// Bytes target and drafter may have together.
const BUDGET: u64 = 20 << 20;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../models")
        .join(name)
}

fn open(name: &str) -> Gguf {
    Gguf::open(path(name), &OpenOptions::default()).unwrap()
}

fn tokenizer(file: &Gguf) -> Tokenizer {
    let m = file.metadata();
    let kinds = m.get_i32_array("tokenizer.ggml.token_type").unwrap();
    let kinds: Vec<TokenKind> = kinds.into_iter().map(TokenKind::from_ggml).collect();
    Tokenizer::new(TokenizerParts {
        tokens: m.get_str_array("tokenizer.ggml.tokens").unwrap(),
        kinds: &kinds,
        merges: m.get_str_array("tokenizer.ggml.merges").unwrap(),
        pre: m.get_str("tokenizer.ggml.pre").unwrap(),
    })
    .unwrap()
}

#[test]
fn files_fit_their_budget_and_the_card_names_their_digests() {
    let card = fs::read_to_string(path("README.md")).unwrap();
    let mut total = 0;
    for name in ["tiny.gguf", "tiny-draft.gguf"] {
        let bytes = fs::read(path(name)).unwrap();
        total += bytes.len() as u64;
        let digest = Sha256::digest(&bytes);
        let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
        assert!(
            card.contains(&hex),
            "models/README.md: no sha256 {hex} of {name}"
        );
        assert!(
            card.contains(&bytes.len().to_string()),
            "models/README.md: no size of {name}"
        );
    }
    assert!(total <= BUDGET, "{total} bytes");
}

#[test]
fn recipes_are_the_named_ones() {
    for (name, recipe) in [("tiny.gguf", "tiny"), ("tiny-draft.gguf", "tiny-draft")] {
        let inspection = Inspection::of(&open(name));
        let recipe = builtin(recipe).unwrap();
        assert_eq!(inspection.recipe.as_deref(), Some(recipe.text()), "{name}");
        for t in &inspection.tensors {
            let place = t.place.unwrap();
            let choice = recipe.choose(place, &t.name, t.shape[0] as usize).unwrap();
            assert_eq!(
                (t.format, choice.instead_of),
                (choice.format, None),
                "{}",
                t.name
            );
        }
    }
    let draft = open("tiny-draft.gguf");
    let has = |role| {
        Inspection::of(&draft)
            .roles
            .iter()
            .any(|r| r.role == Some(role))
    };
    assert!(has(Role::DraftFc) && !has(Role::Embed) && !has(Role::Head));
}

fn target() -> CpuTarget {
    let model = Arc::new(Model::load(&GgufSource::new(open("tiny.gguf"))).unwrap());
    let options = Options {
        n_ctx: 256,
        threads: 2,
        ..Options::default()
    };
    CpuTarget::new(model, options).unwrap()
}

#[test]
fn the_drafter_loads_and_names_its_target() {
    let draft = DraftModel::load(&GgufSource::new(open("tiny-draft.gguf"))).unwrap();
    let pairing = draft
        .meta
        .check_target(&draft.file, target().info())
        .unwrap();
    assert_eq!(
        pairing,
        TargetMatch::Same,
        "make both files again: models/README.md"
    );
}

/// Marking the shipped drafter again gives the shipped file; a mark from before there were versions is
/// refused with the way out, and the way out works.
#[test]
fn a_drafter_can_be_marked_again() {
    let dir = tempfile::tempdir().unwrap();
    let shipped = path("tiny-draft.gguf");
    let again = dir.path().join("again.gguf");
    pair::remark(&shipped, &path("tiny.gguf"), &again).unwrap();
    assert!(fs::read(&again).unwrap() == fs::read(&shipped).unwrap());

    let file = open("tiny-draft.gguf");
    let mark = file.metadata().find_str(pair::KEY).unwrap().unwrap();
    let mut builder = GgufBuilder::new();
    builder.set_all(file.metadata()).unwrap();
    builder
        .set(pair::KEY, mark.strip_prefix("1:").unwrap())
        .unwrap();
    for t in file.tensors() {
        builder.tensor(&t.name, &t.shape, t.format).unwrap();
    }
    let old = dir.path().join("old.gguf");
    let mut writer = builder.create(&old).unwrap();
    for t in file.tensors() {
        writer.write(&t.name, file.bytes(t)).unwrap();
    }
    writer.finish().unwrap();
    let load = |path: &std::path::Path| {
        DraftModel::load(&GgufSource::new(
            Gguf::open(path, &OpenOptions::default()).unwrap(),
        ))
    };
    let error = load(&old).unwrap_err().to_string();
    assert!(error.contains("fourspark mark"), "{error}");
    assert!(
        error.contains("old.gguf") && error.contains(pair::KEY),
        "{error}"
    );
    let cured = dir.path().join("cured.gguf");
    pair::remark(&old, &path("tiny.gguf"), &cured).unwrap();
    assert!(fs::read(&cured).unwrap() == fs::read(&shipped).unwrap());
    load(&cured).unwrap();

    let error = pair::remark(&path("tiny.gguf"), &path("tiny.gguf"), &cured).unwrap_err();
    assert!(error.to_string().contains("expected a drafter"), "{error}");
}

#[test]
fn the_model_answers() {
    let tokenizer = tokenizer(&open("tiny.gguf"));
    let mut target = target();
    for (prompt, answer) in [
        ("What is the capital of France?", "Paris"),
        ("What is the capital of Japan?", "Tokyo"),
        ("What is the opposite of hot?", "cold"),
        ("How many minutes are there in 3 hours?", "180"),
    ] {
        let said = ask(&mut target, &tokenizer, prompt);
        assert!(said.contains(answer), "{prompt}: {said}");
        assert!(said.ends_with("<｜end▁of▁sentence｜>"), "{prompt}: {said}");
    }
}

/// The greedy answer, end marker included.
fn ask(target: &mut CpuTarget, tokenizer: &Tokenizer, prompt: &str) -> String {
    let special = |name: &str| tokenizer.special(name).unwrap();
    let eos = special("<｜end▁of▁sentence｜>");
    let mut feed = vec![special("<｜begin▁of▁sentence｜>"), special("<｜User｜>")];
    feed.extend(tokenizer.encode_text(prompt));
    feed.extend([special("<｜Assistant｜>"), special("</think>")]);
    let plan = Arc::new(SamplePlan::greedy());
    let seq = target.open().unwrap();
    let (mut pos, mut said) = (0u32, Vec::<TokenId>::new());
    while said.len() < 24 && said.last() != Some(&eos) {
        let span = Span {
            seq,
            pos,
            range: 0..feed.len(),
            out: Out::Last,
            want: Want::Ids(Arc::clone(&plan)),
            tap: Tap::default(),
        };
        let ticket = target.submit(&feed, &[span]).unwrap();
        let next = target.wait(ticket, None).unwrap().ids[0];
        pos += feed.len() as u32;
        target.commit(seq, pos);
        said.push(next);
        feed = vec![next];
    }
    target.close(seq);
    String::from_utf8(tokenizer.decode(&said).unwrap()).unwrap()
}
