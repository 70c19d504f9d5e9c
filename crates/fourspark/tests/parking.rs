//! An embedder gives the model up and takes it back: files that are not mapped any more, the same answers, and files that
//! have changed meanwhile.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::path::{Path, PathBuf};

use fourspark::{
    Draft, Engine, EngineOptions, Error, Failure, Generate, Phase, UnparkError, shipped_model,
};

fn models() -> PathBuf {
    shipped_model().unwrap().parent().unwrap().to_path_buf()
}

fn options() -> EngineOptions {
    EngineOptions {
        ctx: Some(128),
        sequences: 1,
        threads: Some(1),
        draft: Draft::File(models().join("tiny-draft.gguf")),
        ..EngineOptions::default()
    }
}

fn text(engine: &Engine) -> Result<String, Error> {
    let generate = Generate {
        max_tokens: Some(12),
        ..Generate::default()
    };
    let answer = engine.complete("The capital of France", &generate)?;
    answer.collect_answer().map(|a| a.text)
}

/// Whether this process maps a file of a folder.
#[cfg(target_os = "linux")]
fn maps(folder: &Path) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.contains(folder.to_str().unwrap())
}

/// A model of its own, so that other tests of this process do not map it.
fn copied() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    std::fs::copy(models().join("tiny.gguf"), &model).unwrap();
    (folder, model)
}

#[test]
fn a_44_a_parked_engine_maps_nothing_and_answers_as_before() {
    let (folder, model) = copied();
    let draft = folder.path().join("draft.gguf");
    std::fs::copy(models().join("tiny-draft.gguf"), &draft).unwrap();
    let options = EngineOptions {
        draft: Draft::File(draft.clone()),
        ..options()
    };
    let engine = Engine::load(&model, &options).unwrap();
    let want = text(&engine).unwrap();
    let before = engine.residency();
    let of = |what: &str| {
        before
            .residents
            .iter()
            .find(|r| r.what == what)
            .unwrap()
            .clone()
    };
    let place = |path: &Path| format!("file {}", path.display());
    assert_eq!(of("model file").place, place(&model));
    assert_eq!(of("model file").bytes, Some(engine.info().tensor_bytes));
    assert_eq!(of("drafter file").place, place(&draft));
    assert!(of("target caches").bytes > Some(0) && of("drafter caches").bytes > Some(0));
    #[cfg(target_os = "linux")]
    assert!(maps(folder.path()));
    let parked = engine.park(true).unwrap();
    assert_eq!(parked.before, before.residents);
    let stays: Vec<_> = parked.after.iter().map(|r| (r.what, r.bytes)).collect();
    assert_eq!(stays, [("tokenizer", None), ("prefix cache", Some(0))]);
    assert_eq!(engine.residency().phase, Phase::Parked);
    assert_eq!(engine.residency().bytes(), 0);
    #[cfg(target_os = "linux")]
    assert!(!maps(folder.path()));
    let features = engine.features();
    let parking = features.iter().find(|f| f.name == "parking").unwrap();
    assert_eq!(
        parking.to_string(),
        "parking on: when asked to, not by itself"
    );
    assert_eq!(text(&engine).unwrap(), want);
    assert_eq!(engine.stats().waited_for_load, 1);
}

/// C-20: whatever is wrong with the files, the engine stays, and loads once they are right again.
#[test]
fn c_20_files_that_are_gone_or_changed_are_told_and_tried_again() {
    let (folder, model) = copied();
    let engine = Engine::load(&model, &options()).unwrap();
    let want = text(&engine).unwrap();
    engine.park(true).unwrap();
    let away = folder.path().join("away.gguf");
    std::fs::rename(&model, &away).unwrap();
    let failed = text(&engine);
    let Err(Error::Failed(Failure::Load(why))) = &failed else {
        panic!("{failed:?}");
    };
    assert!(
        matches!(why.reason().downcast_ref(), Some(Error::File(_))),
        "{why}"
    );
    assert!(why.to_string().contains("model.gguf"), "{why}");
    // A sound file that is no target.
    std::fs::copy(models().join("tiny-draft.gguf"), &model).unwrap();
    assert!(matches!(
        engine.unpark(),
        Err(Error::Unpark(UnparkError::Load(_)))
    ));
    // A target of another make: one byte of a weight that the fingerprint covers.
    let mut bytes = std::fs::read(&away).unwrap();
    // Behind the last tensor there may be padding.
    let near_the_end = bytes.len() - 100;
    bytes[near_the_end] ^= 1;
    std::fs::write(&model, bytes).unwrap();
    let why = engine.unpark().unwrap_err().to_string();
    assert!(
        why.contains("model.gguf has changed since it was loaded: fingerprint"),
        "{why}"
    );
    assert_eq!(engine.residency().bytes(), 0);
    std::fs::rename(&away, &model).unwrap();
    assert!(!engine.unpark().unwrap().already);
    assert_eq!(text(&engine).unwrap(), want);
    let stats = engine.stats();
    assert_eq!((stats.failed_loads, stats.unparks), (3, 1));
}

#[test]
fn a_clone_parks_the_same_engine() {
    let engine = Engine::load(models().join("tiny.gguf"), &options()).unwrap();
    let other = engine.clone();
    other.park(false).unwrap();
    assert_eq!(engine.residency().phase, Phase::Parked);
    assert!(engine.park(true).unwrap().already);
    // Dropping it while it is parked ends its thread.
}
