//! The identity gate on the shipped pair: a small matrix that passes, and planted faults that it names.
//!
//! Tests share a process-wide ceiling of instructions and the planted fault, so they take turns.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

#[cfg(feature = "mutants")]
use qualify::identity::What;
use qualify::identity::{self, Choice, Means, Outcome, Pair, Size, Status, Wish};

fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pair() -> &'static Pair {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    PAIR.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .unwrap();
        let models = root.join("models");
        let prompt = qualify::profile::frozen_prompt("paragraph").unwrap().ids;
        let (target, draft) = (models.join("tiny.gguf"), models.join("tiny-draft.gguf"));
        let wish = Wish {
            devices: Choice::Cpu,
            worker: Some(env!("CARGO_BIN_EXE_qualify").into()),
            ..Wish::default()
        };
        let means = Means::find(&wish).unwrap();
        Pair::load(&target, &draft, prompt, means).unwrap()
    })
}

fn pin() -> String {
    let profile = qualify::profile::Profile::named("one-result").unwrap();
    profile.identity.unwrap().base_small
}

fn go(names: &[&str]) -> Outcome {
    let mut arms = identity::small(&pair().means);
    arms.retain(|a| names.is_empty() || names.contains(&a.name.as_str()));
    assert!(!arms.is_empty());
    identity::run(pair(), &arms, &Size::SMALL, Some(&pin()), &mut |_| {}).unwrap()
}

/// The gate itself, one arm of each kind.
#[test]
fn one_result_small_matrix_is_equal() {
    let _turn = turn();
    let outcome = go(&[]);
    let different: Vec<String> = outcome
        .different()
        .map(|(arm, first)| format!("{arm}: {first}"))
        .collect();
    assert!(outcome.passed(), "{different:#?}");
    assert_eq!(outcome.rows.len(), identity::small(&pair().means).len() + 1);
    let absent = outcome
        .rows
        .iter()
        .filter(|r| matches!(&r.status, Status::Absent { reason } if !reason.is_empty()));
    assert!(
        absent.count() >= 3,
        "devices that were not asked for say so"
    );
}

/// Every arm with a worker: it is a process, lost exactly as often as it is killed, and no token changes.
#[test]
#[cfg(target_os = "linux")]
fn a_05_a_drafter_in_a_worker_gives_one_result() {
    let _turn = turn();
    let mut arms = identity::full(&pair().means);
    arms.retain(|a| a.name.starts_with("worker "));
    assert_eq!(arms.len(), 14);
    let outcome = identity::run(pair(), &arms, &Size::SMALL, Some(&pin()), &mut |_| {}).unwrap();
    let different: Vec<_> = outcome.different().collect();
    assert!(outcome.passed(), "{different:#?}");
    for row in &outcome.rows[1..] {
        let losses = u8::from(row.arm.contains("killed"));
        let said = format!("lost {losses}, started again {losses}");
        assert!(
            row.evidence.contains(&said),
            "{}: {}",
            row.arm,
            row.evidence
        );
        let transport = row.arm.split(' ').nth(1).unwrap();
        let said = format!("worker over {transport} on cpu, ");
        assert!(
            row.evidence.contains(&said),
            "{}: {}",
            row.arm,
            row.evidence
        );
    }
}

/// C-15: the switch `cpu.isa` changes which code runs and no bit.
#[test]
fn c_15_every_instruction_set_gives_one_result() {
    let _turn = turn();
    let mut arms = identity::full(&pair().means);
    arms.retain(|a| a.name.starts_with("isa ") && a.name.ends_with("chunk whole"));
    let outcome = identity::run(pair(), &arms, &Size::SMALL, Some(&pin()), &mut |_| {}).unwrap();
    assert!(
        outcome.passed(),
        "{:?}",
        outcome.different().collect::<Vec<_>>()
    );
    let ran = |name: &str| {
        let row = outcome.rows.iter().find(|r| r.arm.contains(name)).unwrap();
        row.status == Status::Equal
    };
    assert!(ran("baseline"));
    assert_eq!(ran("avx2"), fpx_quant::Isa::Avx2.available());
}

/// Planted faults (docs/traps.md): each is caught, and the first difference says what and where.
#[cfg(feature = "mutants")]
mod planted {
    use super::*;
    use engine_core::mutant::activate;

    fn with(fault: u32, arms: &[&str]) -> Outcome {
        let _turn = turn();
        pair();
        activate(fault);
        let outcome = go(arms);
        activate(0);
        outcome
    }

    fn first<'a>(outcome: &'a Outcome, arm: &str) -> &'a identity::Difference {
        outcome
            .different()
            .find(|(name, _)| *name == arm)
            .unwrap()
            .1
    }

    #[test]
    fn c_32_one_ulp_in_one_kernel_is_caught() {
        let outcome = with(43, &["chunk 129"]);
        let first = first(&outcome, "chunk 129");
        assert!(matches!(first.what, What::Logits | What::State), "{first}");
        assert_eq!(first.position, Some(0), "{first}");
        assert!(
            outcome.different().any(|(arm, _)| arm == "base"),
            "and the base is not the pinned one"
        );
    }

    #[test]
    fn c_32_one_stale_cache_row_is_caught() {
        let outcome = with(320, &["save and load", "chunk 129"]);
        let first = first(&outcome, "save and load");
        assert!(matches!(first.what, What::Logits | What::State), "{first}");
        assert!(outcome.different().all(|(arm, _)| arm != "chunk 129"));
    }

    #[test]
    fn c_29_a_silent_fallback_is_caught() {
        let outcome = with(321, &["draft backbone fixed 4", "chunk 129"]);
        let first = first(&outcome, "draft backbone fixed 4");
        assert_eq!(first.what, What::Path, "{first}");
        assert!(outcome.different().all(|(arm, _)| arm != "chunk 129"));
    }
}
