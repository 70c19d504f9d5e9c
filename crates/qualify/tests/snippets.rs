//! Figures in documents come from reports that verify (row C-38).
#![allow(clippy::unwrap_used, reason = "test code")]

use std::fs;
use std::path::Path;

use qualify::snippets::{REPORTS, check, redrawn};

fn tree(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let report = qualify::fake::good_report().unwrap();
    let reports = folder.path().join(REPORTS);
    fs::create_dir_all(&reports).unwrap();
    fs::create_dir_all(folder.path().join("docs")).unwrap();
    fs::write(
        reports.join(format!("{}.json", report.report_id)),
        report.text(),
    )
    .unwrap();
    let id = report.report_id[..12].to_owned();
    fs::write(folder.path().join("README.md"), text.replace("ID", &id)).unwrap();
    (folder, id)
}

const DOCUMENT: &str = "# A\n\n<!-- qualify: ID short -->\nanything\n<!-- /qualify -->\n\nrest\n";

#[test]
fn c_38_figures_between_markers_are_made_from_reports() {
    let (folder, id) = tree(DOCUMENT);
    assert_eq!(check(folder.path(), false).len(), 1, "stale");
    assert_eq!(check(folder.path(), true), Vec::<String>::new());
    assert_eq!(check(folder.path(), false), Vec::<String>::new());
    let text = fs::read_to_string(folder.path().join("README.md")).unwrap();
    assert!(
        text.contains("cpu-smoke: 1.4") && text.contains("QUALIFIED [tiny"),
        "{text}"
    );
    assert!(text.ends_with("<!-- /qualify -->\n\nrest\n") && text.contains(&id));
    // A changed figure is noticed.
    fs::write(folder.path().join("README.md"), text.replace("1.4", "2.4")).unwrap();
    assert_eq!(check(folder.path(), false).len(), 1);
}

#[test]
fn c_38_a_snippet_needs_a_report_that_verifies() {
    let (folder, id) = tree(DOCUMENT);
    let root = folder.path();
    for (text, why) in [
        (
            "\n<!-- qualify: 0123456789ab short -->\nx\n<!-- /qualify -->",
            "no report",
        ),
        (
            "\n<!-- qualify: ID 1m -->\nx\n<!-- /qualify -->",
            "no context",
        ),
        ("\n<!-- qualify: ID short -->\nx\n", "not closed"),
        ("\n<!-- qualify: ID -->\nx\n<!-- /qualify -->", "names"),
    ] {
        let error = redrawn(root, &text.replace("ID", &id)).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    let file = fs::read_dir(root.join(REPORTS))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(
        &file,
        text.replacen("\"dirty\": false", "\"dirty\": true", 1),
    )
    .unwrap();
    let error = redrawn(root, &DOCUMENT.replace("ID", &id)).unwrap_err();
    assert!(error.contains("ReportEdited"), "{error}");
}

#[test]
fn c_38_this_tree_is_in_order() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap();
    assert_eq!(check(root, false), Vec::<String>::new());
}
