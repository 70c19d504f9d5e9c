//! The arms of the gate. A device, a worker or a new kernel joins as a row.

use fpx_quant::Isa;

use super::arm::{Arm, Batch, Forced, Looped, Place, Plan, Policy, Source, Transport, Way, Worker};
use super::base::PROMPT;
use super::means::{Means, On, Vendor};
use super::pair::WIDEST;

fn arm(name: impl Into<String>, way: Way) -> Arm {
    Arm {
        name: name.into(),
        way,
        place: Place::Cpu,
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

/// The drafter in a worker: both transports, the policies whose widths follow from time and not, company,
/// noise, and a worker that is killed.
fn workers(arms: &mut Vec<Arm>) {
    for (name, transport) in [("shared", Transport::Shared), ("stream", Transport::Stream)] {
        let mut add = |what: &str, killed, change: fn(&mut Looped)| {
            let worker = Source::Worker(Worker {
                transport,
                killed,
                there: false,
            });
            let mut way = looped(worker, Policy::Fixed(4));
            change(&mut way);
            arms.push(drafted(format!("worker {name} {what}"), way));
        };
        add("fixed 4", false, |_| {});
        add("reward", false, |way| way.policy = Policy::Reward);
        add("sampled", false, |way| way.plan = Plan::Sampled);
        add("neighbours 5", false, five);
        add("killed", true, |_| {});
        add("killed, sampled", true, |way| way.plan = Plan::Sampled);
        add("killed, neighbours 5", true, five);
    }
}

fn five(way: &mut Looped) {
    (way.batch, way.chunk) = (Batch::Five, 20);
}

/// Widths and accept patterns of a device: one token, one graph's worth, the widest.
fn device_widths() -> Vec<Arm> {
    let mut arms = vec![chunk(1), scripted(1, "all right", vec![WIDEST])];
    for width in [5, WIDEST] {
        arms.push(scripted(width, "all right", vec![WIDEST]));
        arms.push(scripted(width, "rising", (0..width).collect()));
        arms.push(scripted(width, "all wrong", vec![0]));
    }
    arms
}

/// Drafters, company and draws of a device.
fn device_drafters(means: &Means) -> Vec<Arm> {
    let mut arms = Vec::new();
    let mut add = |name: &str, source, policy, change: fn(&mut Looped)| {
        let mut way = looped(source, policy);
        change(&mut way);
        arms.push(drafted(name.to_owned(), way));
    };
    let backbone = || Source::Backbone;
    let fixed = Policy::Fixed;
    add("draft off", Source::Off, fixed(1), |_| {});
    add("draft backbone fixed 4", backbone(), fixed(4), |_| {});
    add("draft backbone reward", backbone(), Policy::Reward, |_| {});
    add(
        "draft suffix reward",
        Source::Suffix,
        Policy::Reward,
        |_| {},
    );
    add("neighbours 5 off", Source::Off, fixed(1), five);
    add("neighbours 5 backbone", backbone(), fixed(4), five);
    add("draft backbone sampled", backbone(), fixed(5), |way| {
        way.plan = Plan::Sampled;
    });
    let ids = "ids from the pass";
    let name = format!("draft backbone, {ids}");
    add(&name, backbone(), fixed(5), |way| way.plan = Plan::InPass);
    let name = format!("draft backbone sampled, {ids}");
    add(&name, backbone(), fixed(5), |way| {
        way.plan = Plan::SampledInPass;
    });
    if means.worker().is_ok() {
        let worker = |there| {
            Source::Worker(Worker {
                transport: Transport::Shared,
                killed: false,
                there,
            })
        };
        add("worker shared fixed 4", worker(false), fixed(4), |_| {});
        let name = "worker shared fixed 4, layers there";
        add(name, worker(true), fixed(4), |_| {});
    }
    arms.extend(layers_there());
    arms
}

/// The drafter beside the target: its layers and its chains on the device.
fn layers_there() -> Vec<Arm> {
    let fixed = Policy::Fixed;
    let arm = |name: &str, policy, change: fn(&mut Looped)| {
        let mut way = looped(Source::There, policy);
        change(&mut way);
        drafted(format!("drafter there {name}"), way)
    };
    vec![
        arm("fixed 4", fixed(4), |_| {}),
        arm("reward", Policy::Reward, |_| {}),
        arm("sampled", fixed(5), |way| way.plan = Plan::Sampled),
        arm("ids from the pass", fixed(5), |way| {
            way.plan = Plan::SampledInPass;
        }),
        arm("neighbours 5", fixed(4), five),
    ]
}

/// Arms on a device. Those without two short passes of a shape have no graphs to replay and run without.
fn device(means: &Means, vendor: Vendor) -> Vec<Arm> {
    let drafter = layers_there().into_iter().take(1);
    let without = [chunk(1), scripted(5, "all wrong", vec![0])];
    let without = without.into_iter().chain(drafter).map(|arm| Arm {
        name: format!("{}, no graphs", arm.name),
        ..arm
    });
    let long = [chunk(129), chunk(0)].into_iter().chain(without);
    let states = [
        ("save and load", Forced::SaveLoad),
        ("fork", Forced::Fork),
        ("to the processor and back", Forced::Carried),
    ];
    let states = states.map(|(name, forced)| arm(name, Way::Forced(forced)));
    let short = device_widths().into_iter().chain(device_drafters(means));
    let on = |graphs| on("device", vendor, graphs, false);
    let graphs = short.chain(states).map(on(true));
    long.map(on(false)).chain(graphs).collect()
}

/// The same arms somewhere.
fn on(what: &'static str, vendor: Vendor, graphs: bool, split: bool) -> impl Fn(Arm) -> Arm + Copy {
    move |arm: Arm| Arm {
        name: format!("{what} {} {}", vendor.name(), arm.name),
        place: Place::Device(On {
            vendor,
            graphs,
            split,
        }),
        ..arm
    }
}

/// Arms of those of a device that are run on two as well, which share the layers: one of each kind.
const SPLIT: [&str; 15] = [
    "chunk 129",
    "chunk whole",
    "chunk 1",
    "chunk 1, no graphs",
    "width 5 rising",
    "width 8 all wrong",
    "draft backbone fixed 4",
    "draft backbone sampled, ids from the pass",
    "neighbours 5 backbone",
    "drafter there fixed 4",
    "drafter there sampled",
    "drafter there neighbours 5",
    "save and load",
    "fork",
    "to the processor and back",
];

/// Arms on two devices.
fn split(means: &Means, vendor: Vendor) -> Vec<Arm> {
    let prefix = format!("device {} ", vendor.name());
    let mut arms = device(means, vendor);
    arms.retain(|arm| {
        let name = arm.name.strip_prefix(&prefix);
        name.is_some_and(|name| SPLIT.contains(&name))
    });
    let moved = arms.into_iter().map(|arm| {
        let graphs = matches!(arm.place, Place::Device(On { graphs: true, .. }));
        let name = arm.name.replacen(&prefix, "", 1);
        on("split", vendor, graphs, true)(Arm { name, ..arm })
    });
    moved.collect()
}

const NO_OWNER: &str = "experts have one owner: a pass runs on one device";

fn beside(means: &Means, arms: &mut Vec<Arm>) {
    let absent = |name: String, why: &str| arm(name, Way::Absent(why.to_owned()));
    for vendor in Vendor::ALL {
        match means.device(vendor) {
            Ok(_) => arms.extend(device(means, vendor)),
            Err(why) => arms.push(absent(format!("device {}", vendor.name()), why)),
        }
        match means.split(vendor) {
            Ok(_) => arms.extend(split(means, vendor)),
            Err(why) => arms.push(absent(format!("split {}", vendor.name()), why)),
        }
    }
    arms.push(absent("owner cuda + hip".to_owned(), NO_OWNER));
    match means.worker() {
        Ok(_) => workers(arms),
        Err(why) => arms.push(absent("worker".to_owned(), why)),
    }
}

/// The whole matrix, with what there is beside the processor.
#[must_use]
pub fn full(means: &Means) -> Vec<Arm> {
    let mut arms: Vec<Arm> = [1, 3, 4, 5, 127, 128, 129, 0].map(chunk).into();
    widths(&mut arms);
    drafters(&mut arms);
    neighbours(&mut arms);
    arms.push(arm("save and load", Way::Forced(Forced::SaveLoad)));
    arms.push(arm("fork", Way::Forced(Forced::Fork)));
    machines(&mut arms);
    beside(means, &mut arms);
    arms
}

/// Arms of [`small`]; on a device, of its arms those that end so.
const SMALL: [&str; 12] = [
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
    "to the processor and back",
];

/// One arm of each kind: what CI can afford in a test build.
#[must_use]
pub fn small(means: &Means) -> Vec<Arm> {
    let kept = |arm: &Arm| {
        let name = arm.name.as_str();
        let name = Vendor::ALL
            .into_iter()
            .find_map(|v| {
                let device = name.strip_prefix("device ");
                let there = device.or_else(|| name.strip_prefix("split "))?;
                there.strip_prefix(v.name())
            })
            .map_or(name, str::trim_start);
        let worker = ["worker shared fixed 4", "worker stream killed"].contains(&name);
        matches!(arm.way, Way::Absent(_)) || worker || SMALL.contains(&name)
    };
    let mut all = full(means);
    all.retain(kept);
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn names(arms: &[Arm]) -> BTreeSet<&str> {
        let names: BTreeSet<&str> = arms.iter().map(|a| a.name.as_str()).collect();
        assert_eq!(names.len(), arms.len(), "names are unique");
        names
    }

    #[test]
    fn the_matrix_has_every_kind_once() {
        let arms = full(&Means::none());
        let names = names(&arms);
        for n in [1, 3, 4, 5, 127, 128, 129] {
            assert!(names.contains(format!("chunk {n}").as_str()));
        }
        for width in 2..=8 {
            assert!(names.contains(format!("width {width} rising").as_str()));
        }
        for source in ["backbone", "suffix", "chooser"] {
            for policy in ["fixed 4", "threshold", "ewma", "reward"] {
                assert!(names.contains(format!("draft {source} {policy}").as_str()));
            }
        }
        let absent = [
            "device cuda",
            "split cuda",
            "device hip",
            "split hip",
            "owner cuda + hip",
            "worker",
        ];
        assert!(absent.iter().all(|name| names.contains(name)));
        assert_eq!(small(&Means::none()).len(), 11 + absent.len());
    }

    /// What a device's arms must cover, with graphs and without.
    #[test]
    fn a_device_has_every_kind_once() {
        let arms = device(&Means::none(), Vendor::Hip);
        let names = names(&arms);
        for kind in [
            "chunk 1",
            "chunk 1, no graphs",
            "chunk 129",
            "chunk whole",
            "width 1 all right",
            "width 5 rising",
            "width 8 all right",
            "draft backbone reward",
            "neighbours 5 backbone",
            "drafter there fixed 4",
            "drafter there fixed 4, no graphs",
            "drafter there neighbours 5",
            "draft backbone sampled, ids from the pass",
            "save and load",
            "to the processor and back",
        ] {
            assert!(
                names.contains(format!("device hip {kind}").as_str()),
                "{kind}"
            );
        }
        let device = |arms: &[Arm], split: bool| {
            arms.iter().all(|arm| match arm.place {
                Place::Device(on) => (on.vendor, on.split) == (Vendor::Hip, split),
                Place::Cpu => false,
            })
        };
        assert!(device(&arms, false));
        // Two devices run one arm of each kind.
        let both = split(&Means::none(), Vendor::Hip);
        assert_eq!(both.len(), SPLIT.len());
        assert!(device(&both, true));
        assert!(both.iter().all(|arm| arm.name.starts_with("split hip ")));
    }

    #[test]
    fn workers_have_both_transports_and_die_on_both() {
        let mut arms = Vec::new();
        workers(&mut arms);
        let names = names(&arms);
        for transport in ["shared", "stream"] {
            for kind in ["fixed 4", "reward", "sampled", "neighbours 5", "killed"] {
                assert!(names.contains(format!("worker {transport} {kind}").as_str()));
            }
        }
    }
}
