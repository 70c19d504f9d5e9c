//! Test binaries as files: built once by cargo, then started directly.
//!
//! Mutants and soak runs start the same binaries many times; going through cargo each time would
//! cost more than most tests take.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::failure::Failure;
use crate::sh;
use crate::workspace::Workspace;

const BUILD_LIMIT: Duration = Duration::from_mins(30);

/// A compiled test binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestBin {
    pub(crate) package: String,
    pub(crate) path: PathBuf,
    /// The package's folder: cargo starts tests there.
    pub(crate) folder: PathBuf,
}

impl TestBin {
    /// A command that starts it where cargo would.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder);
        command
    }

    /// Names of its ignored tests.
    ///
    /// # Errors
    /// It does not start, or refuses to list.
    pub(crate) fn ignored(&self) -> Result<Vec<String>, Failure> {
        let args = ["--list", "--ignored", "--format", "terse"];
        let list = sh::capture(self.command().args(args)).ok_or_else(|| {
            Failure::new(format!("{} does not list its tests", self.path.display()))
        })?;
        let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(names.map(str::to_owned).collect())
    }
}

/// Builds the unit and integration tests that `args` select and returns the binaries.
///
/// # Errors
/// The build fails; its output is in the failure.
pub(crate) fn build(workspace: &Workspace, args: &[&str]) -> Result<Vec<TestBin>, Failure> {
    let mut cargo = sh::cargo(&["test", "--no-run", "--lib", "--bins", "--tests"]);
    cargo
        .args(["--color=never", "--message-format=json-render-diagnostics"])
        .args(args);
    let log = workspace.target("ci/testbins.log");
    let ran = sh::run(cargo.current_dir(&workspace.root), BUILD_LIMIT, &log)?;
    if !ran.ok() {
        let said = ran.output.lines().filter(|line| !line.starts_with('{'));
        let said = said.collect::<Vec<_>>().join("\n");
        let end = ran.ending();
        return Err(Failure::new(format!(
            "{}\nbuilding the tests: {end}",
            sh::tail(&said, 80)
        )));
    }
    let mut bins: Vec<_> = ran
        .output
        .lines()
        .filter_map(|line| artifact(line, workspace))
        .collect();
    bins.sort_by(|a, b| (&a.package, &a.path).cmp(&(&b.package, &b.path)));
    Ok(bins)
}

/// The test binary that a line of cargo's JSON reports, if it reports one.
fn artifact(line: &str, workspace: &Workspace) -> Option<TestBin> {
    if field(line, "reason")? != "compiler-artifact" {
        return None;
    }
    let (_, profile) = line.split_once("\"profile\":{")?;
    let (profile, _) = profile.split_once('}')?;
    if !profile.contains("\"test\":true") {
        return None;
    }
    let path = PathBuf::from(field(line, "executable")?);
    let folder = Path::new(&field(line, "manifest_path")?)
        .parent()?
        .to_owned();
    let member = workspace
        .crates
        .iter()
        .find(|c| workspace.root.join(&c.folder) == folder)?;
    Some(TestBin {
        package: member.manifest.name.clone(),
        path,
        folder,
    })
}

/// A string field of a JSON object on one line. Keys that occur once are all that is asked for.
fn field(line: &str, key: &str) -> Option<String> {
    let (_, rest) = line.split_once(&format!("\"{key}\":\""))?;
    let mut value = String::new();
    let mut chars = rest.chars();
    loop {
        match chars.next()? {
            '"' => return Some(value),
            '\\' => value.push(chars.next()?),
            c => value.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest;
    use crate::workspace::Member;

    fn workspace() -> Workspace {
        let manifest = manifest::parse("[package]\nname = \"gguf\"\n");
        let crates = vec![Member {
            folder: "crates/gguf".into(),
            manifest,
        }];
        Workspace {
            root: "/r".into(),
            crates,
        }
    }

    fn line(reason: &str, test: bool, executable: &str) -> String {
        format!(
            "{{\"reason\":\"{reason}\",\"package_id\":\"x\",\"manifest_path\":\
             \"/r/crates/gguf/Cargo.toml\",\"target\":{{\"name\":\"gguf\",\"test\":true}},\
             \"profile\":{{\"opt_level\":\"1\",\"test\":{test}}},\"executable\":{executable}}}"
        )
    }

    #[test]
    fn test_binaries_are_found() {
        let found = artifact(
            &line("compiler-artifact", true, "\"/r/t/a\\\"b\""),
            &workspace(),
        );
        let want = TestBin {
            package: "gguf".into(),
            path: "/r/t/a\"b".into(),
            folder: "/r/crates/gguf".into(),
        };
        assert_eq!(found, Some(want));
    }

    #[test]
    fn other_lines_are_not() {
        let w = workspace();
        assert_eq!(
            artifact(&line("compiler-artifact", false, "\"/r/t/a\""), &w),
            None
        );
        assert_eq!(artifact(&line("compiler-artifact", true, "null"), &w), None);
        assert_eq!(
            artifact(&line("compiler-message", true, "\"/r/t/a\""), &w),
            None
        );
        assert_eq!(artifact("   Compiling x", &w), None);
    }
}
