//! What engine and machine counted, against the rules: that the path an arm names was taken, the same way
//! in every run of it; that every run loaded the same tensors; that nothing throttled.
//!
//! A count that is not there is found by its own code: not counting is not the same as counting nothing.

use std::collections::BTreeMap;

use engine_core::mutant::mutant;

use crate::code::{Code, Disqualifier};
use crate::order::Side;
use crate::profile::{Artefact, Comparison};
use crate::report::{Cell, FoundArtefact, Run};

fn done(cell: &Cell) -> impl Iterator<Item = &Run> {
    cell.runs.iter().filter(|r| r.ok)
}

/// Counts that follow from the passes alone, with their names; `None` for one that was not kept.
fn path_counts(run: &Run) -> [(&'static str, Option<u64>); 4] {
    [
        ("passes", Some(run.passes)),
        ("pass_tokens", Some(run.pass_tokens)),
        ("weight_bytes", run.weight_bytes),
        ("launches", run.launches),
    ]
}

/// That every run counted its path, and runs of one arm took the same one.
#[must_use]
pub fn path(cell: &Cell, rules: &Comparison) -> Vec<Disqualifier> {
    let mut found = Vec::new();
    for side in [Side::A, Side::B] {
        let spec = match side {
            Side::A => &rules.a,
            Side::B => &rules.b,
        };
        let mut runs = done(cell).filter(|r| r.arm == side);
        let Some(first) = runs.next() else { continue };
        found.extend(kept(first));
        for run in runs {
            found.extend(kept(run));
            if spec.varies.is_none() && !mutant(325) {
                found.extend(same(side, first, run));
            }
        }
    }
    found
}

/// Counts that are missing, or say that nothing ran.
fn kept(run: &Run) -> Vec<Disqualifier> {
    let mut found = Vec::new();
    let unknown = run.stalls.is_none().then_some("stalls");
    let counts = path_counts(run);
    let missing = counts.iter().filter(|(_, n)| n.is_none()).map(|(n, _)| *n);
    for name in missing.chain(unknown) {
        let what = format!("run {}: {name} was not counted", run.seq);
        found.push(Disqualifier::new(Code::CounterMissing, what));
    }
    for (name, _) in counts.iter().filter(|(_, n)| *n == Some(0)) {
        let what = format!("run {}: {name} is 0", run.seq);
        found.push(Disqualifier::new(Code::PathNotTaken, what));
    }
    found
}

/// The first count in which two runs of an arm differ.
fn same(side: Side, first: &Run, run: &Run) -> Option<Disqualifier> {
    let pairs = path_counts(first).into_iter().zip(path_counts(run));
    let ((name, one), (_, other)) = pairs.into_iter().find(|((_, a), (_, b))| a != b)?;
    let shown = |n: Option<u64>| n.map_or("not counted".to_owned(), |n| n.to_string());
    let what = format!(
        "arm {side:?}: {name} of run {} is {}, of run {} {}",
        first.seq,
        shown(one),
        run.seq,
        shown(other)
    );
    Some(Disqualifier::new(Code::PathNotTaken, what))
}

/// A histogram's entries that differ from another's: type, the other's count, this one's.
fn differences<'a>(
    expected: &'a [(String, u64)],
    got: &'a [(String, u64)],
) -> Vec<(&'a str, u64, u64)> {
    let map = |list: &'a [(String, u64)]| -> BTreeMap<&'a str, u64> {
        list.iter().map(|(name, n)| (name.as_str(), *n)).collect()
    };
    let (expected, got) = (map(expected), map(got));
    let mut names: Vec<&str> = expected.keys().chain(got.keys()).copied().collect();
    names.sort_unstable();
    names.dedup();
    let count = |map: &BTreeMap<&str, u64>, name| map.get(name).copied().unwrap_or(0);
    names
        .into_iter()
        .map(|name| (name, count(&expected, name), count(&got, name)))
        .filter(|(_, expected, got)| expected != got)
        .collect()
}

/// A line for each type that differs.
fn mismatch(who: &str, expected: &[(String, u64)], got: &[(String, u64)]) -> Vec<Disqualifier> {
    let line = |(name, expected, got): (&str, u64, u64)| {
        let what = format!("{who}: {expected} tensors of type {name} expected, got {got}");
        Disqualifier::new(Code::ArtefactMismatch, what)
    };
    let all = differences(expected, got);
    all.into_iter().map(line).collect()
}

/// That a file has the tensors that the profile pins, type by type.
#[must_use]
pub fn pinned(wanted: &[Artefact], found: &[FoundArtefact]) -> Vec<Disqualifier> {
    let pinned = wanted.iter().filter(|a| !a.tensors.is_empty());
    let of = |artefact: &Artefact| {
        let got = found.iter().find(|f| f.role == artefact.role);
        let got = got.map_or(&[][..], |f| &f.tensor_histogram);
        mismatch(&artefact.role, &artefact.tensors, got)
    };
    pinned.flat_map(of).collect()
}

/// That two reports' files have the same tensors, type by type.
#[must_use]
pub fn files(a: &[FoundArtefact], b: &[FoundArtefact]) -> Vec<Disqualifier> {
    let of = |one: &FoundArtefact| {
        let other = b.iter().find(|f| f.role == one.role);
        let other = other.map_or(&[][..], |f| &f.tensor_histogram);
        mismatch(&one.role, &one.tensor_histogram, other)
    };
    a.iter().flat_map(of).collect()
}

/// That every run loaded the tensors that the target's file has, whichever arm it was.
#[must_use]
pub fn loaded(cell: &Cell, found: &[FoundArtefact]) -> Vec<Disqualifier> {
    let target = found.iter().find(|f| f.role == "target");
    let Some(first) = done(cell).next() else {
        return Vec::new();
    };
    let expected = match target {
        Some(target) if !target.tensor_histogram.is_empty() => &target.tensor_histogram,
        _ => &first.tensors,
    };
    let mut all = Vec::new();
    for run in done(cell).filter(|_| !mutant(326)) {
        let who = format!("run {}, arm {:?}", run.seq, run.arm);
        if run.tensors.is_empty() {
            let what = format!("{who}: the tensors it loaded are not known");
            all.push(Disqualifier::new(Code::ArtefactMismatch, what));
        }
        all.extend(mismatch(&who, expected, &run.tensors));
    }
    all
}

/// That nothing throttled, and that this is known where the profile asks for it.
#[must_use]
pub fn heat(cell: &Cell, rules: &Comparison) -> Vec<Disqualifier> {
    let mut found = Vec::new();
    for run in done(cell) {
        match run.throttled {
            Some(0) => {}
            Some(n) => {
                let what = format!("run {}: {n} throttling events", run.seq);
                found.push(Disqualifier::new(Code::Thermal, what));
            }
            None if rules.rules.thermal => {
                let what = format!("run {}: the machine counts no throttling", run.seq);
                found.push(Disqualifier::new(Code::ThermalUnrecorded, what));
            }
            None => {}
        }
        if run.gpu.is_some_and(|g| g.after.slowed == Some(true)) {
            let what = format!("run {}: the GPU was slowed", run.seq);
            found.push(Disqualifier::new(Code::Thermal, what));
        }
        let margin = run.heat.and_then(|h| h.margin_mc);
        if let Some(margin) = margin.filter(|m| *m <= 0) {
            let over = margin.unsigned_abs();
            let what = format!(
                "run {}: a sensor {over} thousandths of a degree over its limit",
                run.seq
            );
            found.push(Disqualifier::new(Code::Thermal, what));
        }
    }
    found
}

/// What the runs of a cell counted, for people: one value, or the least and the greatest.
#[must_use]
pub fn line(cell: &Cell) -> String {
    let range = |side: Option<Side>, of: fn(&Run) -> Option<u64>| {
        let runs = done(cell).filter(|r| side.is_none_or(|s| s == r.arm));
        let values: Vec<Option<u64>> = runs.map(of).collect();
        let known: Option<Vec<u64>> = values.into_iter().collect();
        let known = known.unwrap_or_default();
        match (known.iter().min(), known.iter().max()) {
            (Some(low), Some(high)) if low == high => low.to_string(),
            (Some(low), Some(high)) => format!("{low}..{high}"),
            _ => "unknown".to_owned(),
        }
    };
    let arm = |side| {
        format!(
            "{side:?}: passes {}, weight bytes {}, launches {}, stalls {}",
            range(Some(side), |r| Some(r.passes)),
            range(Some(side), |r| r.weight_bytes),
            range(Some(side), |r| r.launches),
            range(Some(side), |r| r.stalls),
        )
    };
    format!(
        "counted a run: {}; {}; throttling events {}",
        arm(Side::A),
        arm(Side::B),
        range(None, |r| r.throttled)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(all: &[(&str, u64)]) -> Vec<(String, u64)> {
        all.iter().map(|(n, c)| ((*n).to_owned(), *c)).collect()
    }

    /// C-27: each type that differs is named with both counts, also one that only one side has.
    #[test]
    fn c_27_histograms_are_compared_type_by_type() {
        let expected = list(&[("F32", 10), ("Q4_K", 3), ("ROCMFP4", 7)]);
        assert_eq!(differences(&expected, &expected), []);
        let shuffled = list(&[("ROCMFP4", 7), ("F32", 10), ("Q4_K", 3)]);
        assert_eq!(differences(&expected, &shuffled), []);
        let got = list(&[("F16", 1), ("F32", 10), ("ROCMFP4", 6)]);
        assert_eq!(
            differences(&expected, &got),
            [("F16", 0, 1), ("Q4_K", 3, 0), ("ROCMFP4", 7, 6)]
        );
        let artefact = Artefact {
            role: "target".to_owned(),
            path: String::new(),
            blake3: String::new(),
            tensors: expected.clone(),
        };
        let file = |tensor_histogram| FoundArtefact {
            role: "target".to_owned(),
            blake3: String::new(),
            bytes: 1,
            tensor_histogram,
        };
        assert_eq!(
            pinned(std::slice::from_ref(&artefact), &[file(expected)]),
            []
        );
        let found = pinned(std::slice::from_ref(&artefact), &[file(got)]);
        assert_eq!(found.len(), 3);
        assert_eq!(
            found[2].to_string(),
            "ArtefactMismatch: target: 7 tensors of type ROCMFP4 expected, got 6"
        );
        assert_eq!(
            pinned(&[artefact], &[]).len(),
            3,
            "a file that is not there"
        );
    }

    /// The shipped files have the tensors that the profiles pin; another file is told by its types.
    #[test]
    fn c_27_pinned_tensors_are_those_of_the_shipped_files() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = root.ancestors().nth(2).unwrap();
        for name in ["cpu-smoke", "one-result", "ipc"] {
            let mut profile = crate::profile::Profile::named(name).unwrap();
            let find = |p: &_| crate::campaign::find_artefacts(root, p);
            assert!(profile.artefacts.iter().all(|a| !a.tensors.is_empty()));
            assert_eq!(pinned(&profile.artefacts, &find(&profile)), [], "{name}");
            profile.artefacts[0].path = profile.artefacts[1].path.clone();
            let found = pinned(&profile.artefacts, &find(&profile));
            let text = found[0].to_string();
            assert!(
                text.contains("target: 25 tensors of type F16 expected"),
                "{text}"
            );
        }
    }

    #[test]
    fn c_29_counts_are_shown_for_people() {
        let report = crate::fake::good_report().unwrap();
        let mut cell = report.cells[0].clone();
        let all = line(&cell);
        let a = "A: passes 48, weight bytes 48000000, launches 4800, stalls 0; B: ";
        assert!(
            all.contains(a) && all.ends_with("throttling events 0"),
            "{all}"
        );
        let last = cell.runs.last_mut().unwrap();
        last.stalls = Some(3);
        last.throttled = None;
        let all = line(&cell);
        assert!(all.contains("stalls 0..3"), "{all}");
        assert!(all.ends_with("throttling events unknown"), "{all}");
    }
}
