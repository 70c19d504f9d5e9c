//! The rules of a comparison, on a made-up engine: every way to spoil a report is refused with its code,
//! and no edited report verifies. Names carry the rows of the qualification.
#![allow(clippy::unwrap_used, reason = "test code")]

use qualify::campaign::{conclude, run};
use qualify::code::{CODES, Code, Disqualifier};
use qualify::fake::{Fake, good_report, setting};
use qualify::profile::{Profile, names};
use qualify::report::{CellStatus, Headline, Kind, QualityRecord, Report, Scored};
use qualify::selftest::SCENARIOS;
use qualify::verdict::{Evidence, decide, overall};
use qualify::{canonical, diff, html, render, schema, verify};
use serde_json::{Value, json};

fn good() -> Report {
    good_report().unwrap()
}

fn refused(text: &str) -> Vec<Disqualifier> {
    verify::verify(text).map(|_| ()).unwrap_err()
}

fn has(found: &[Disqualifier], code: Code) -> bool {
    found.iter().any(|d| d.code == code)
}

/// C-26 to C-32 and C-41, row by row: the table of `qualify selftest`.
#[test]
fn c_26_to_c_41_every_scenario_is_refused_with_its_code() {
    let failed: Vec<String> = SCENARIOS.iter().filter_map(|s| s.holds().err()).collect();
    assert_eq!(failed, Vec::<String>::new());
}

fn holds(code: Code, name: &str) {
    let scenario = SCENARIOS.iter().find(|s| s.code == code && s.name == name);
    scenario.expect(name).holds().unwrap();
}

#[test]
fn c_26_an_open_defect_behind_a_switch_blocks() {
    holds(Code::OpenDefect, "an open defect behind a switch");
}

#[test]
fn c_27_prompt_and_artefacts_are_compared_by_digest() {
    holds(Code::ArtefactHashMissing, "missing digest of a file");
    holds(Code::ArtefactMismatch, "another file");
    holds(Code::PromptMismatch, "another prompt in one arm");
    holds(Code::ArtefactMismatch, "a file with other tensors");
    holds(Code::ArtefactMismatch, "other tensors in one arm");
}

#[test]
fn c_28_foreign_variables_are_recorded_and_block() {
    holds(Code::EnvNotClean, "a variable of the reference engine");
    holds(
        Code::EnvDiffersBeyondSwitch,
        "arms differ in another option",
    );
}

/// Every field of the machine, the build and a run must be there: a report that leaves one out is none.
#[test]
fn c_28_a_record_is_whole_or_refused() {
    let good = good().value();
    for pointer in ["/machine", "/build", "/cells/0/runs/0", "/artefacts/0"] {
        let fields = good.pointer(pointer).unwrap().as_object().unwrap();
        assert!(fields.len() > 3, "{pointer}");
        for name in fields.keys() {
            let mut less = good.clone();
            let object = less.pointer_mut(pointer).unwrap().as_object_mut();
            object.unwrap().remove(name);
            let found = refused(&canonical::canonical(&less));
            assert!(has(&found, Code::SchemaViolated), "{pointer}/{name}");
        }
    }
}

#[test]
fn c_29_a_silent_fallback_is_a_path_not_taken() {
    holds(Code::PathNotTaken, "silent fallback");
    holds(Code::FallbackTaken, "a lost drafter");
    holds(Code::CounterMissing, "weights not counted in one run");
    holds(Code::CounterMissing, "an engine that counts nothing");
    holds(Code::PathNotTaken, "one run of the base read other weights");
    holds(Code::PathNotTaken, "nothing was launched");
}

#[test]
fn c_30_order_pairs_and_control_are_checked() {
    holds(Code::NotAlternating, "AABB");
    holds(Code::TooFewPairs, "four pairs");
    holds(Code::NoAaControl, "missing control");
}

#[test]
fn c_32_outputs_are_compared_by_class() {
    holds(Code::OutputHashDiffers, "other tokens in arm B");
    holds(Code::OutputHashMissing, "missing digest of an output");
    holds(Code::QualityGateMissing, "class near without a gate");
}

/// Runs of an arm whose widths follow from measured times may count differently, and only those.
#[test]
fn c_29_only_measured_widths_may_vary() {
    let mut report = good();
    let vary = |report: &mut Report| {
        for (at, run) in report.cells[0].runs.iter_mut().enumerate() {
            if run.arm == qualify::order::Side::B {
                run.launches = run.launches.map(|n| n + at as u64);
            }
        }
    };
    vary(&mut report);
    assert_eq!(conclude(report.clone()).status, "qualified");
    report.profile.comparison.as_mut().unwrap().b.varies = None;
    let strict = conclude(report);
    let CellStatus::Unqualified { disqualifiers, .. } = &strict.cells[0].status else {
        panic!("{:?}", strict.cells[0].status)
    };
    assert!(has(disqualifiers, Code::PathNotTaken), "{disqualifiers:?}");
    let named = &disqualifiers[0].found;
    assert!(named.contains("arm B: launches of run 1 is"), "{named}");
}

#[test]
fn thermal_events_disqualify_and_missing_counters_by_their_own_rule() {
    holds(Code::Thermal, "a throttled run");
    holds(Code::Thermal, "a sensor at its limit");
    holds(Code::ThermalUnrecorded, "throttling unknown");
    // Where the profile does not ask for the counter, a machine without one may be qualified.
    let mut report = good();
    for run in report.cells.iter_mut().flat_map(|c| &mut c.runs) {
        run.throttled = None;
    }
    assert_eq!(conclude(report).status, "qualified");
}

#[test]
fn c_41_speculation_that_is_silently_off_blocks() {
    holds(Code::SpecSilentlyOff, "no temperature in the request");
    holds(Code::SpecSilentlyOff, "speculation silently off");
}

#[test]
fn swapped_arms_dirty_tree_and_foreign_baseline_are_refused() {
    holds(Code::ArmsSwapped, "swapped arms");
    holds(Code::DirtyTree, "dirty tree");
    holds(Code::ForeignBaseline, "arm A from another campaign");
}

/// C-01: a report is qualified only if every planned context is there and qualified.
#[test]
fn c_01_one_context_less_is_an_unqualified_report() {
    let report = good();
    assert_eq!(
        (report.status.as_str(), report.cells.len()),
        ("qualified", 3)
    );
    for at in 0..3 {
        let mut less = report.clone();
        less.cells.remove(at);
        assert!(!overall(&less));
        assert_eq!(conclude(less.clone()).status, "unqualified");
        assert!(has(
            &refused(&conclude(less).text()),
            Code::VerdictNotDerived
        ));
    }
    let profile = Profile::named("cpu-smoke").unwrap();
    let mut fake = Fake::new(700_000, 5_000);
    let only = ["short".to_owned()];
    let partial = run(&profile, setting(&profile), &mut fake, &only).unwrap();
    assert_eq!(partial.status, "unqualified");
    let kinds: Vec<bool> = partial
        .cells
        .iter()
        .map(|c| matches!(c.status, CellStatus::Qualified { .. }))
        .collect();
    assert_eq!(kinds, [true, false, false]);
}

/// C-31: the figures of a report follow from its runs.
#[test]
fn c_31_headline_figures_are_recomputed() {
    let report = good();
    let cell = &report.cells[0];
    let claim = decide(Evidence {
        report: &report,
        cell,
    })
    .unwrap();
    let CellStatus::Qualified { headline } = cell.status else {
        panic!("{:?}", cell.status)
    };
    assert_eq!(claim.get(), &headline);
    // B takes 0.7 of A's time.
    let ratio = headline.median_ratio_ppm;
    assert!((1_420_000..1_437_000).contains(&ratio), "{ratio}");
    assert!(headline.ci95_ppm.0 <= ratio && ratio <= headline.ci95_ppm.1);
    assert!(headline.aa_spread_ppm < 10_000);
    assert_eq!(headline.pairs, 7);
    let mut edited = report.clone();
    edited.cells[0].runs.last_mut().unwrap().decode_us += 1000;
    assert!(has(
        &refused(&edited.sealed().text()),
        Code::VerdictNotDerived
    ));
}

/// The cold run and the warm-ups are kept and count for nothing.
#[test]
fn c_30_cold_and_warm_runs_are_kept_and_not_counted() {
    let report = good();
    let mut slow = report.clone();
    for run in slow.cells.iter_mut().flat_map(|c| &mut c.runs) {
        if matches!(run.kind, Kind::Cold | Kind::Warmup) {
            run.decode_us *= 50;
        }
    }
    let slow = conclude(slow);
    assert_eq!(slow.cells[0].runs.len(), 2 + 4 + 10 + 14);
    for (a, b) in report.cells.iter().zip(&slow.cells) {
        assert_eq!(a.status, b.status);
    }
}

/// C-37: any edited byte is an edited report, and a status is never believed.
#[test]
fn c_37_every_edited_byte_is_detected() {
    let text = good().text();
    assert!(verify::verify(&text).is_ok());
    let bytes = text.as_bytes();
    for at in (0..bytes.len()).step_by(997) {
        let mut edited = bytes.to_vec();
        edited[at] = if edited[at] == b'7' { b'8' } else { b'7' };
        let edited = String::from_utf8(edited).unwrap();
        let found = refused(&edited);
        assert!(has(&found, Code::ReportEdited), "byte {at}: {found:?}");
    }
    for edited in [
        format!("{text} "),
        text.replacen("  ", " ", 1),
        text[..text.len() - 1].to_owned(),
    ] {
        assert!(has(&refused(&edited), Code::ReportEdited));
    }
}

#[test]
fn c_37_an_edited_status_is_detected_even_with_a_fresh_id() {
    let mut report = good();
    report.build.dirty = true;
    // As somebody would who wants the headline all the same: status kept, id made anew.
    let found = refused(&report.clone().sealed().text());
    assert!(has(&found, Code::VerdictNotDerived), "{found:?}");
    let mut honest = conclude(report);
    assert!(verify::verify(&honest.text()).is_ok());
    honest.status = "qualified".to_owned();
    assert!(has(
        &refused(&honest.sealed().text()),
        Code::VerdictNotDerived
    ));
}

/// Rules cannot be loosened in a report: its profile must be this tree's.
#[test]
fn c_37_a_loosened_profile_is_detected() {
    let mut report = good();
    let comparison = report.profile.comparison.as_mut().unwrap();
    comparison.rules.aa_spread_max_ppm = 999_999;
    report.profile_blake3 = report.profile.digest();
    assert!(has(
        &refused(&conclude(report).text()),
        Code::VerdictNotDerived
    ));
}

/// C-36: the schema refuses what the types could be talked into.
#[test]
fn c_36_the_schema_refuses_headlines_of_unqualified_cells() {
    let good = good().value();
    schema::check(&good).unwrap();
    let headline = good["cells"][0]["status"]["headline"].clone();
    let unqualified = json!({"kind": "unqualified", "observations": {},
        "disqualifiers": [{"code": "NoGpu", "found": "x"}]});
    let with = |pointer: &str, value: Value| {
        let mut report = good.clone();
        *report.pointer_mut(pointer).unwrap() = value;
        schema::check(&report)
    };
    // Fine as a cell of an unqualified report.
    let mut partial = good.clone();
    partial["status"] = "unqualified".into();
    partial["cells"][0]["status"] = unqualified.clone();
    schema::check(&partial).unwrap();
    let mut both = unqualified.clone();
    both["headline"] = headline;
    partial["cells"][0]["status"] = both;
    assert!(
        schema::check(&partial).is_err(),
        "unqualified with a headline"
    );
    let mut none = unqualified.clone();
    none["disqualifiers"] = json!([]);
    partial["cells"][0]["status"] = none;
    assert!(schema::check(&partial).is_err(), "no reason");
    assert!(
        with("/cells/0/status", unqualified).is_err(),
        "qualified with an unqualified cell"
    );
    assert!(with("/cells", json!([])).is_err(), "no cells");
    assert!(with("/external_claims/0/comparable", json!(true)).is_err());
    assert!(with("/report_id", json!("xyz")).is_err());
    assert!(with("/cells/0/order", json!("ABC")).is_err());
    assert!(with("/cells/0/runs/0/arm", json!("C")).is_err());
}

#[test]
fn c_36_a_keyword_the_validator_does_not_know_is_an_error() {
    let schema: Value = serde_json::from_str(schema::SCHEMA).unwrap();
    assert!(schema.is_object());
    // All keywords of the shipped schema are known: checking a report reaches every branch.
    schema::check(&good().value()).unwrap();
}

/// C-34: claims of others are shown, and each says that it is not comparable.
#[test]
fn c_34_external_claims_are_rendered_as_not_comparable() {
    let report = good();
    let text = render::text(&report);
    let n = text
        .lines()
        .filter(|l| l.starts_with("not comparable: "))
        .count();
    assert_eq!(n, report.external_claims.len());
    assert!(n >= 4);
}

/// C-35 is the two `compile_fail` examples of `qualify::verdict`; here: what is rendered without a claim
/// names its reasons on the line of the figure.
#[test]
fn c_35_unqualified_figures_carry_their_reasons() {
    let mut report = good();
    report.build.dirty = true;
    let report = conclude(report);
    for line in render::text(&report)
        .lines()
        .filter(|l| l.contains("tok/s") && l.contains("B/A"))
    {
        let cell = line.split_whitespace().nth(1).unwrap();
        assert!(cell.starts_with("UNQUALIFIED(DirtyTree"), "{line}");
    }
    assert!(!render::text(&report).contains(" QUALIFIED ["));
    let _: fn(&Report, &qualify::verdict::Qualified<Headline>) -> String = render::headline;
}

/// Labels are on every line that has a figure, and two labels are never put side by side.
#[test]
fn labels_are_never_mixed() {
    let report = good();
    assert!(render::text(&report).contains("[tiny]") && html::page(&report).contains("[tiny]"));
    let mut real = report.clone();
    real.label = qualify::profile::Label::Real;
    assert!(has(&diff::mismatch(&report, &real), Code::ForeignBaseline));
}

/// C-18: effects are not combined.
#[test]
fn c_18_percentages_are_not_combined() {
    let report = good();
    let refused = diff::combine(&[&report, &report]).map(|_| ()).unwrap_err();
    assert_eq!(refused.code, Code::StackingRefused);
}

#[test]
fn reports_of_another_machine_or_file_are_not_put_side_by_side() {
    let report = good();
    assert!(diff::diff(&report, &report).unwrap().contains("short"));
    let mut other = report.clone();
    other.machine.cpu = "another".to_owned();
    assert!(has(
        &diff::diff(&report, &other).unwrap_err(),
        Code::ForeignBaseline
    ));
    let mut other = report.clone();
    other.artefacts[0].bytes += 1;
    assert!(has(
        &diff::diff(&report, &other).unwrap_err(),
        Code::ArtefactMismatch
    ));
    other.artefacts[0].tensor_histogram[0].1 += 1;
    let found = diff::mismatch(&report, &other);
    let named = "ArtefactMismatch: target: 25 tensors of type F16 expected, got 26";
    assert!(found.iter().any(|d| d.to_string() == named), "{found:?}");
}

/// C-40: profiles for hardware that is not here conclude, and say why.
#[test]
fn c_40_a_profile_without_its_gpu_is_unqualified_with_a_code() {
    for name in ["h200", "h200-flash", "gfx1151", "mixed", "spec"] {
        let profile = Profile::named(name).unwrap();
        let mut fake = Fake::new(700_000, 5_000);
        let report = run(&profile, setting(&profile), &mut fake, &[]).unwrap();
        assert_eq!(report.status, "unqualified", "{name}");
        let CellStatus::Unqualified { disqualifiers, .. } = &report.cells[0].status else {
            panic!("{name}")
        };
        let gpu = profile.comparison.as_ref().unwrap().gpu.is_some();
        assert_eq!(has(disqualifiers, Code::NoGpu), gpu, "{name}");
        let absent = ["gfx1151", "mixed"].contains(&name);
        assert_eq!(has(disqualifiers, Code::ArmAbsent), absent, "{name}");
        assert!(
            report.cells.iter().all(|c| c.runs.is_empty()),
            "{name}: nothing ran"
        );
        schema::check(&report.value()).unwrap();
    }
    assert_eq!(names().count(), 8);
}

/// The profile of one H200 runs where there is one, its arms by their options, and nowhere else.
#[test]
fn c_40_the_profile_of_a_gpu_runs_on_that_gpu_alone() {
    let profile = Profile::named("h200").unwrap();
    let on = |arch: &str| {
        let mut setting = setting(&profile);
        setting.machine.gpu_arch = Some(arch.to_owned());
        run(&profile, setting, &mut Fake::new(700_000, 5_000), &[]).unwrap()
    };
    let report = on("sm_90");
    let runs = || report.cells.iter().flat_map(|c| &c.runs);
    assert_eq!(runs().count(), 3 * 30);
    for run in runs() {
        let device = run.argv.windows(2).any(|w| w == ["--device", "cuda:0"]);
        assert_eq!(device, run.arm == qualify::order::Side::B);
    }
    let other = on("sm_80");
    assert!(other.cells.iter().all(|c| c.runs.is_empty()));
    let CellStatus::Unqualified { disqualifiers, .. } = &other.cells[0].status else {
        panic!("on another GPU")
    };
    assert!(has(disqualifiers, Code::ArchMismatch));
}

/// A report of class near whose arms differ in their output, with a record that holds its bounds just so.
fn near() -> (Report, QualityRecord) {
    let mut report = good();
    let comparison = report.profile.comparison.as_mut().unwrap();
    comparison.class = qualify::profile::Class::Near;
    comparison.quality = Some(qualify::profile::QualityBound {
        rows_min: 1024,
        kl_max_micronats: 6000,
        top1_min_ppm: 900_000,
        text: "text".to_owned(),
        text_blake3: qualify::hash::text("prose"),
    });
    let comparison = comparison.clone();
    for run in report.cells.iter_mut().flat_map(|c| &mut c.runs) {
        if run.arm == qualify::order::Side::B {
            run.ids_blake3 = qualify::hash::text("other");
            run.class = "near: f16".to_owned();
        }
    }
    let bound = comparison.quality.as_ref().unwrap();
    let scored = |arm: &qualify::profile::ArmSpec, reference| Scored {
        argv: qualify::quality::argv(&report.profile, arm, bound, reference).unwrap(),
        env: arm.env.clone(),
        fingerprint: qualify::hash::text("model"),
        switches: Vec::new(),
    };
    let record = QualityRecord {
        text_blake3: bound.text_blake3.clone(),
        reference: scored(&comparison.a, true),
        model: scored(&comparison.b, false),
        replay: scored(&comparison.a, false),
        rows: 1024,
        kl_micronats: 6000,
        top1_ppm: 900_000,
        replay_kl_micronats: 0,
    };
    (report, record)
}

/// Why the first cell is refused with this record; `None`: it is not.
fn refusal(report: &Report, quality: Option<QualityRecord>) -> Option<Vec<Code>> {
    let mut report = report.clone();
    report.quality = quality;
    let cell = report.cells[0].clone();
    match decide(Evidence {
        report: &report,
        cell: &cell,
    }) {
        Ok(claim) => {
            assert!(!claim.get().identical_output);
            assert!(render::headline(&report, &claim).contains("quality-gated"));
            None
        }
        Err(reasons) => Some(reasons.all().map(|d| d.code).collect()),
    }
}

/// The quality gate: bounds, rows and the exact replay, of these arms and no others.
#[test]
fn c_32_class_near_needs_its_quality_gate() {
    let (report, fine) = near();
    assert_eq!(refusal(&report, Some(fine.clone())), None);
    let gate = Some(vec![Code::QualityGateMissing]);
    assert_eq!(refusal(&report, None), gate);
    let spoils: [fn(&mut QualityRecord); 6] = [
        |r| r.rows = 1023,
        |r| r.kl_micronats = 6001,
        |r| r.top1_ppm = 899_999,
        |r| r.replay_kl_micronats = 1,
        // Scored on another file, or under another switch, than the runs'.
        |r| r.model.fingerprint = qualify::hash::text("other"),
        |r| r.replay.switches = vec![("cpu.isa".to_owned(), "baseline".to_owned())],
    ];
    for spoil in spoils {
        let mut worse = fine.clone();
        spoil(&mut worse);
        assert_eq!(refusal(&report, Some(worse.clone())), gate, "{worse:?}");
    }
}

#[test]
fn plots_show_every_pair_as_a_point() {
    let page = html::page(&good());
    assert_eq!(page.matches("<circle ").count(), 3 * 7);
    assert_eq!(page.matches("<rect ").count(), 3);
    assert!(page.contains("<svg ") && !page.contains("http://") || page.contains("www.w3.org"));
}

#[test]
fn every_code_can_be_read_back() {
    for code in CODES {
        let text = serde_json::to_string(code).unwrap();
        assert_eq!(serde_json::from_str::<Code>(&text).unwrap(), *code);
        assert_eq!(text, format!("\"{code}\""));
    }
    let shuffled = canonical::canonical(&json!({"b": 1, "a": 2}));
    assert_eq!(shuffled, "{\n  \"a\": 2,\n  \"b\": 1\n}\n");
}
