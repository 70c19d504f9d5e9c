//! The table is complete and its values are strict (rows C-15 and C-16 of the qualification).
#![allow(clippy::unwrap_used, reason = "test code")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use switches::{Alias, Class, Effective, Kind, REFUSED, Source, State, TABLE};

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap().to_path_buf()
}

fn sources(folder: &Path, found: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// C-15: every row has a kill value, an owner and a test that exist, and a date.
#[test]
fn c_15_every_row_can_be_killed_and_is_owned_and_tested() {
    let mut code = String::new();
    sources(&root().join("crates"), &mut code);
    for s in TABLE {
        assert!(
            s.kind.admits(s.default),
            "{}: default {}",
            s.name,
            s.default
        );
        assert!(s.kind.admits(s.kill), "{}: kill {}", s.name, s.kill);
        assert!(
            !s.meaning.is_empty() && !s.eligible.is_empty(),
            "{}",
            s.name
        );
        assert!(s.variable.starts_with("FOURSPARK_"), "{}", s.variable);
        let date: Vec<&str> = s.review.split('-').collect();
        assert_eq!(date.iter().map(|p| p.len()).collect::<Vec<_>>(), [4, 2, 2]);
        assert!(!s.test.is_empty(), "{}: no test named", s.name);
        match s.state {
            State::Live => {
                assert!(root().join(s.owner).is_file(), "{}: {}", s.name, s.owner);
                assert!(
                    code.contains(&format!("fn {}(", s.test)),
                    "{}: {}",
                    s.name,
                    s.test
                );
            }
            State::Planned => assert_eq!(s.default, s.kill, "{}", s.name),
        }
        // The variable follows from the name.
        let made = s.name.to_uppercase().replace('.', "_");
        assert_eq!(s.variable, format!("FOURSPARK_{made}"));
    }
    let weak = TABLE.iter().filter(|s| s.class != Class::Equal);
    assert!(weak.clone().count() > 3);
    for s in weak {
        assert_eq!(
            s.default, s.kill,
            "{}: only class equal is on by default",
            s.name
        );
    }
}

#[test]
fn no_variable_is_named_twice() {
    let mut seen = BTreeSet::new();
    let aliases = TABLE.iter().flat_map(|s| s.aliases).map(|a| a.variable());
    let all = TABLE.iter().map(|s| s.variable).chain(aliases);
    for name in all.chain(REFUSED.iter().map(|r| r.variable)) {
        assert!(seen.insert(name), "{name}");
    }
    for name in seen.iter().filter_map(|n| n.strip_prefix("DFLASH_")) {
        assert!(seen.contains(format!("LUCE_{name}").as_str()), "{name}");
    }
}

#[test]
fn nothing_set_is_the_default_and_says_nothing() {
    let others = [("PATH", "x"), ("GGML_SOMETHING", "1"), ("LANG", "C")];
    let effective = Effective::of(others).unwrap();
    assert_eq!(effective.line(), None);
    assert_eq!(effective.settings().len(), TABLE.len());
    assert!(
        effective
            .settings()
            .iter()
            .all(|s| s.source == Source::Default)
    );
    assert!(effective.is_on("spec.draft"));
}

/// C-16: a value is one of those listed or the start stops with name, value and what is allowed.
#[test]
fn c_16_values_are_strict() {
    for bad in [
        "", " ", "1 ", "01", "true", "on", "yes", "2", "-0", "\u{fffd}",
    ] {
        let refused = Effective::of([("FOURSPARK_SPEC_DRAFT", bad)]).unwrap_err();
        let text = refused[0].to_string();
        assert!(
            text.contains("FOURSPARK_SPEC_DRAFT") && text.contains("0 or 1"),
            "{text}"
        );
        assert!(text.contains(&format!("{bad:?}")), "{text}");
    }
    for good in ["0", "1"] {
        let e = Effective::of([("FOURSPARK_SPEC_DRAFT", good)]).unwrap();
        assert_eq!(e.value("spec.draft"), good);
    }
    let count = Kind::Count(1, 32);
    for (value, fits) in [
        ("1", true),
        ("32", true),
        ("0", false),
        ("33", false),
        ("+1", false),
    ] {
        assert_eq!(count.admits(value), fits, "{value}");
    }
    for bad in [
        "",
        "1.0",
        "0x1",
        "01",
        "99999999999999999999999",
        "\u{0661}",
    ] {
        assert!(!count.admits(bad), "{bad}");
    }
    assert!(!Kind::Word(&["auto"]).admits("AUTO"));
}

/// C-16: any bytes either are a listed value or are refused; nothing panics, nothing is guessed.
#[test]
fn c_16_random_values_never_pass_as_another() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..2_000 {
        let length = next() % 4;
        let value: String = (0..length)
            .map(|_| char::from(b" 0123x-+"[(next() % 8) as usize]))
            .collect();
        for s in TABLE.iter().filter(|s| s.kind == Kind::Flag) {
            let taken = Effective::of([(s.variable, &value)]);
            let listed = value == "0" || (value == "1" && s.state == State::Live);
            assert_eq!(taken.is_ok(), listed, "{}={value:?}", s.variable);
        }
    }
}

#[test]
fn names_of_the_reference_engine_are_mapped_or_refused() {
    for s in TABLE {
        for alias in s.aliases {
            // The value that does nothing is taken under either name.
            let off = match alias {
                Alias::Same(_) => s.kill,
                Alias::Inverted(_) => "1",
            };
            let effective = Effective::of([(alias.variable(), off)]).unwrap();
            assert_eq!(effective.value(s.name), s.kill);
            let nonsense = Effective::of([(alias.variable(), "maybe")]).unwrap_err();
            assert!(nonsense[0].why.contains(s.name), "{}", nonsense[0]);
        }
    }
    let on = Effective::of([("DFLASH_MOE_FUSED_COMBINE", "1")]).unwrap_err();
    assert!(
        on[0]
            .to_string()
            .contains("no build has moe.fused_combine yet"),
        "{}",
        on[0]
    );
    let on = Effective::of([("GGML_CUDA_MLA_NO_SPLIT_KV", "0")]).unwrap_err();
    assert!(on[0].why.contains("decode.split_kv"), "{}", on[0]);
    for refused in REFUSED {
        let said = Effective::of([(refused.variable, "0")]).unwrap_err();
        assert_eq!(said[0].why, refused.instead);
    }
}

#[test]
fn unknown_names_stop_the_start_and_all_are_reported() {
    let set = [
        ("FOURSPARK_FAST", "1"),
        ("DFLASH_CPU_ISA", "avx2"),
        ("LUCE_X", ""),
        ("PFLASH_Y", "1"),
        ("FOURSPARK_CPU_ISA", "baseline"),
    ];
    let refused = Effective::of(set).unwrap_err();
    let names: Vec<&str> = refused.iter().map(|r| r.variable.as_str()).collect();
    assert_eq!(
        names,
        ["DFLASH_CPU_ISA", "FOURSPARK_FAST", "LUCE_X", "PFLASH_Y"]
    );
    assert!(
        refused[0].why.contains("did you mean FOURSPARK_CPU_ISA?"),
        "{}",
        refused[0]
    );
}

#[test]
fn two_names_of_one_switch_must_agree() {
    let pair = |a, b| {
        Effective::of([
            ("GGML_CUDA_MMQ_MOE_PERSISTENT_BLOCKS_PER_CU", a),
            ("FOURSPARK_PREFILL_MOE_PERSISTENT_BLOCKS", b),
        ])
    };
    assert!(pair("32", "32").is_ok());
    assert!(pair("32", "31").is_err());
    let twice = [
        ("FOURSPARK_CPU_ISA", "avx2"),
        ("FOURSPARK_CPU_ISA", "baseline"),
    ];
    assert!(
        Effective::of(twice).unwrap_err()[0]
            .why
            .contains("keep one")
    );
}

#[test]
fn the_line_names_what_differs_and_who_said_so() {
    let set = [("FOURSPARK_CPU_ISA", "avx2"), ("FOURSPARK_SPEC_DRAFT", "0")];
    assert_eq!(
        Effective::of(set).unwrap().line().unwrap(),
        "switches: cpu.isa = avx2 (FOURSPARK_CPU_ISA), spec.draft = 0 (FOURSPARK_SPEC_DRAFT)"
    );
    assert_eq!(
        Effective::of([("FOURSPARK_CPU_ISA", "auto")])
            .unwrap()
            .line(),
        None
    );
}

#[test]
fn the_page_is_the_table() {
    let path = root().join("docs/switches.md");
    let written = std::fs::read_to_string(&path).unwrap();
    let stale = "stale: cargo run -p switches --example page > docs/switches.md";
    assert!(written == switches::page(), "{stale}");
}
