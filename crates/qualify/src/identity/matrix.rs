//! The arms of the gate. A device, a worker or a new kernel joins as a row.

use fpx_quant::Isa;

use super::arm::{Arm, Batch, Forced, Looped, Plan, Policy, Source, Way};
use super::base::PROMPT;
use super::pair::WIDEST;

fn arm(name: impl Into<String>, way: Way) -> Arm {
    Arm {
        name: name.into(),
        way,
        threads: 1,
        isa: None,
    }
}

fn looped(source: Source, policy: Policy) -> Looped {
    Looped {
        source,
        policy,
        chunk: PROMPT,
        plan: Plan::Greedy,
        batch: Batch::One,
    }
}

fn chunk(n: usize) -> Arm {
    let name = match n {
        0 => "chunk whole".to_owned(),
        n => format!("chunk {n}"),
    };
    arm(name, Way::Forced(Forced::Chunk(n)))
}

/// A forced pattern at a width.
fn scripted(width: usize, name: &str, pattern: Vec<usize>) -> Arm {
    let way = looped(Source::Script(pattern), Policy::Fixed(width));
    arm(format!("width {width} {name}"), Way::Looped(way))
}

const POLICIES: [(&str, Policy); 4] = [
    ("fixed 4", Policy::Fixed(4)),
    ("threshold", Policy::Threshold),
    ("ewma", Policy::Ewma),
    ("reward", Policy::Reward),
];

fn sources() -> [(&'static str, Source); 3] {
    [
        ("backbone", Source::Backbone),
        ("suffix", Source::Suffix),
        ("chooser", Source::Chooser),
    ]
}

fn drafted(name: String, way: Looped) -> Arm {
    arm(name, Way::Looped(way))
}

/// Widths and accept patterns, every width.
fn widths(arms: &mut Vec<Arm>) {
    for width in 1..=WIDEST {
        arms.push(scripted(width, "all right", vec![WIDEST]));
        if width > 1 {
            arms.push(scripted(width, "all wrong", vec![0]));
            let rising: Vec<usize> = (0..width).collect();
            arms.push(scripted(width, "rising", rising));
        }
    }
}

/// Every source under every policy, and the two other ways to draw.
fn drafters(arms: &mut Vec<Arm>) {
    arms.push(drafted(
        "draft off".into(),
        looped(Source::Off, Policy::Fixed(1)),
    ));
    for (source_name, source) in sources() {
        for (policy_name, policy) in POLICIES {
            let name = format!("draft {source_name} {policy_name}");
            arms.push(drafted(name, looped(source.clone(), policy)));
        }
    }
    for (source_name, source) in sources() {
        let way = Looped {
            plan: Plan::Sampled,
            ..looped(source, Policy::Fixed(5))
        };
        arms.push(drafted(format!("draft {source_name} sampled"), way));
    }
    let way = Looped {
        plan: Plan::InPass,
        ..looped(Source::Backbone, Policy::Fixed(5))
    };
    arms.push(drafted("draft backbone, ids from the pass".into(), way));
}

fn neighbours(arms: &mut Vec<Arm>) {
    for (name, source, policy) in [
        ("off", Source::Off, Policy::Fixed(1)),
        ("backbone", Source::Backbone, Policy::Fixed(4)),
        ("backbone reward", Source::Backbone, Policy::Reward),
    ] {
        let way = Looped {
            batch: Batch::Five,
            chunk: 20,
            ..looped(source, policy)
        };
        arms.push(drafted(format!("neighbours 5 {name}"), way));
    }
    let way = Looped {
        chunk: 20,
        ..looped(Source::Off, Policy::Fixed(1))
    };
    arms.push(drafted("neighbours 1".into(), way));
}

fn machines(arms: &mut Vec<Arm>) {
    for isa in [Isa::Baseline, Isa::Avx2, Isa::Avx512, Isa::Neon] {
        let with = |arm: Arm| Arm {
            name: format!("isa {isa:?} {}", arm.name).to_lowercase(),
            isa: Some(isa),
            ..arm
        };
        arms.push(with(chunk(0)));
        arms.push(with(drafted(
            "draft backbone".into(),
            looped(Source::Backbone, Policy::Fixed(4)),
        )));
    }
    for (name, arm) in [
        ("chunk 128", chunk(128)),
        (
            "draft backbone",
            drafted(String::new(), looped(Source::Backbone, Policy::Fixed(4))),
        ),
    ] {
        arms.push(Arm {
            name: format!("threads 2 {name}"),
            threads: 2,
            ..arm
        });
    }
}

const NO_DEVICE: &str =
    "the gate does not run on devices yet; tests and an example of ds4-target compare them";
const NO_WORKER: &str =
    "the gate does not start a worker yet; the tests of ipc-transport and server compare its text";
const NO_OWNER: &str = "experts have one owner: none on a device yet";

fn absent(arms: &mut Vec<Arm>) {
    for (name, reason) in [
        ("device cuda", NO_DEVICE),
        ("device hip", NO_DEVICE),
        ("owner cuda + hip", NO_OWNER),
        ("worker", NO_WORKER),
    ] {
        arms.push(arm(name, Way::Absent(reason)));
    }
}

/// The whole matrix.
#[must_use]
pub fn full() -> Vec<Arm> {
    let mut arms: Vec<Arm> = [1, 3, 4, 5, 127, 128, 129, 0].map(chunk).into();
    widths(&mut arms);
    drafters(&mut arms);
    neighbours(&mut arms);
    arms.push(arm("save and load", Way::Forced(Forced::SaveLoad)));
    arms.push(arm("fork", Way::Forced(Forced::Fork)));
    machines(&mut arms);
    absent(&mut arms);
    arms
}

/// One arm of each kind: what CI can afford in a test build.
#[must_use]
pub fn small() -> Vec<Arm> {
    let names = [
        "chunk 129",
        "width 5 rising",
        "width 8 all wrong",
        "draft backbone fixed 4",
        "draft suffix reward",
        "neighbours 5 backbone",
        "save and load",
        "fork",
        "isa baseline chunk whole",
        "isa avx2 chunk whole",
        "threads 2 draft backbone",
        "device cuda",
        "worker",
    ];
    let mut all = full();
    all.retain(|arm| names.contains(&arm.name.as_str()));
    all
}
