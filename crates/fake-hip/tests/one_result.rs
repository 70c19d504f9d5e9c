//! The identity gate's arms on a HIP device, through the real HIP module: the shipped pair over the kernels' host
//! build, in a hostile order, on a short text. A device that is there must be equal and take the paths it is named for.
#![cfg(feature = "host-exec")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use device::survey::Settings;
use qualify::identity::{self, Choice, Means, Outcome, Pair, Size, Vendor, Wish};

/// The executor takes its time: a few windows of the short ratio are all that is run.
const SIZE: Size = Size {
    prompt: 13,
    budget: 8,
    neighbours: [(0, 1), (2, 2), (4, 3), (1, 4), (3, 5)],
    neighbour_budget: 3,
};

/// The machine is one for the process, and so are planted faults; tests take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pair() -> Pair {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| common::configure(5, 6));
    let wish = Wish {
        devices: Choice::of(&["hip:1"]).unwrap(),
        libraries: Settings {
            hip: common::settings(),
            ..Settings::default()
        },
        ..Wish::default()
    };
    let means = Means::find(&wish).unwrap();
    assert!(means.device(Vendor::Hip).unwrap().starts_with("hip:1, "));
    assert!(means.device(Vendor::Cuda).unwrap_err().contains("--device"));
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let (target, draft) = (models.join("tiny.gguf"), models.join("tiny-draft.gguf"));
    let prompt = qualify::profile::frozen_prompt("paragraph").unwrap().ids;
    Pair::load(&target, &draft, prompt, means).unwrap()
}

/// Runs the device's arms of these names; all of them if none is named.
fn go(pair: &Pair, size: &Size, names: &[&str]) -> Outcome {
    let mut arms = identity::full(&pair.means);
    arms.retain(|arm| {
        let name = arm.name.strip_prefix("device hip ");
        name.is_some_and(|name| names.is_empty() || names.contains(&name))
    });
    assert!(arms.len() >= names.len().max(1), "{names:?}");
    identity::run(pair, &arms, size, None, &mut |_| {}).unwrap()
}

fn holds(outcome: &Outcome) {
    let different: Vec<_> = outcome.different().collect();
    assert!(outcome.passed(), "{different:#?}");
    let there = |row: &&identity::Row| row.evidence.contains("hip:1, Fake Radeon");
    let rows = &outcome.rows[1..];
    assert_eq!(rows.iter().filter(there).count(), rows.len());
}

#[test]
fn one_result_is_fed_on_a_device() {
    let _turn = turn();
    let names = ["chunk whole", "chunk 1", "to the processor and back"];
    holds(&go(&pair(), &SIZE, &names));
}

#[test]
fn one_result_is_generated_on_a_device() {
    let _turn = turn();
    let names = ["width 5 rising", "neighbours 5 backbone", DRAWS, THERE];
    holds(&go(&pair(), &SIZE, &names));
}

/// The arm whose tokens are drawn on the device, with noise.
const DRAWS: &str = "draft backbone sampled, ids from the pass";
/// The arm whose drafter is on the device too.
const THERE: &str = "drafter there sampled";

#[test]
#[ignore = "soak: every arm of a device on the executor takes minutes"]
fn one_result_holds_in_every_arm_of_a_device() {
    let _turn = turn();
    let longer = Size { budget: 24, ..SIZE };
    let outcome = go(&pair(), &longer, &[]);
    holds(&outcome);
    println!("soak: {} arms equal on a device", outcome.rows.len() - 1);
}

/// Planted faults (docs/traps.md): each is caught, and the first difference says what.
#[cfg(feature = "mutants")]
mod planted {
    use super::*;
    use engine_core::mutant::activate;
    use qualify::identity::What;

    fn first(fault: u32, arm: &str) -> identity::Difference {
        let _turn = turn();
        let pair = pair();
        activate(fault);
        let outcome = go(&pair, &SIZE, &[arm]);
        activate(0);
        let mut different = outcome.different();
        let (name, first) = different.next().unwrap();
        assert_eq!(name, format!("device hip {arm}"));
        first.clone()
    }

    #[test]
    fn c_29_graphs_that_are_silently_not_used_are_caught() {
        let first = first(370, "chunk 1");
        assert_eq!(
            (first.what, first.expected.as_str()),
            (What::Path, "graphs")
        );
    }

    #[test]
    fn c_29_draws_that_silently_fall_back_are_caught() {
        let first = first(371, DRAWS);
        assert_eq!(first.what, What::Path, "{first}");
        assert!(
            first.got.contains("0 rows drawn there and 0 on the host"),
            "{first}"
        );
    }

    #[test]
    fn c_29_chains_that_silently_fall_back_are_caught() {
        let first = first(372, THERE);
        assert_eq!(first.what, What::Path, "{first}");
        assert!(first.got.contains("0 candidates there"), "{first}");
    }

    #[test]
    fn c_32_a_state_that_is_not_carried_over_is_caught() {
        let first = first(331, "to the processor and back");
        assert_eq!(first.what, What::State, "{first}");
    }
}
