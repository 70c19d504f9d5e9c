//! Soak tests for a machine without a toolchain: the binaries, stripped, this tool, and a list.
//!
//! The list has the commit on its first line, then a line for each binary: package, file and the
//! package's folder below the root, between tabs. Must not know: which tests there are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::Failure;
use crate::testbins::TestBin;
use crate::workspace::Workspace;

const LIST: &str = "soak.list";

/// Writes the binaries of the chosen tests into `folder`.
///
/// # Errors
/// A file cannot be written; `strip` is absent or fails.
pub(super) fn write(
    workspace: &Workspace,
    folder: &Path,
    chosen: &[(TestBin, String)],
    commit: &str,
) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|e| Failure::io(folder, &e))?;
    let mut bins: Vec<&TestBin> = chosen.iter().map(|(bin, _)| bin).collect();
    bins.dedup_by_key(|bin| &bin.path);
    let mut list = format!("{commit}\n");
    for bin in bins {
        let name = copy(&bin.path, folder)?;
        let home = bin.folder.strip_prefix(&workspace.root);
        let home = home.unwrap_or(&bin.folder).display();
        list += &format!("{}\t{name}\t{home}\n", bin.package);
    }
    let own = std::env::current_exe().map_err(|e| Failure::io(folder, &e))?;
    copy(&own, folder)?;
    let path = folder.join(LIST);
    fs::write(&path, list).map_err(|e| Failure::io(&path, &e))
}

/// Copies a binary without its debug information; its name.
fn copy(from: &Path, folder: &Path) -> Result<String, Failure> {
    let name = from.file_name().unwrap_or_default().to_string_lossy();
    let to = folder.join(&*name);
    let strip = Command::new("strip").arg("-o").args([&to, from]).status();
    match strip {
        Ok(status) if status.success() => Ok(name.into_owned()),
        _ => Err(Failure::new(format!("strip {}: failed", from.display()))),
    }
}

/// The binaries in `folder`, and the commit they were built from.
///
/// # Errors
/// The list is absent or damaged, or a binary it names is not there.
pub(super) fn read(
    workspace: &Workspace,
    folder: &Path,
) -> Result<(Vec<TestBin>, String), Failure> {
    let path = folder.join(LIST);
    let text = fs::read_to_string(&path).map_err(|e| Failure::io(&path, &e))?;
    let folder = folder.canonicalize().map_err(|e| Failure::io(folder, &e))?;
    let mut lines = text.lines();
    let commit = lines.next().unwrap_or_default().to_owned();
    let mut bins = Vec::new();
    for line in lines {
        let parts: Vec<&str> = line.split('\t').collect();
        let [package, name, home] = parts[..] else {
            let path = path.display();
            return Err(Failure::new(format!("{path}: not a line of three: {line}")));
        };
        let path: PathBuf = folder.join(name);
        if !path.is_file() {
            return Err(Failure::new(format!("{}: not there", path.display())));
        }
        bins.push(TestBin {
            package: package.to_owned(),
            path,
            folder: workspace.root.join(home),
        });
    }
    Ok((bins, commit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sh;

    #[test]
    fn what_was_packed_is_read() {
        let folder = std::env::temp_dir().join(format!("pack-{}", std::process::id()));
        let workspace = Workspace::open().expect("a checkout");
        let own = TestBin {
            package: "xtask".to_owned(),
            path: std::env::current_exe().expect("a path"),
            folder: workspace.root.join("xtask"),
        };
        let chosen = ["a", "b"].map(|test| (own.clone(), test.to_owned()));
        write(&workspace, &folder, &chosen, "abc, with").expect("written");
        let (bins, commit) = read(&workspace, &folder).expect("read");
        assert_eq!((bins.len(), commit.as_str()), (1, "abc, with"));
        assert_eq!(
            (&bins[0].package, &bins[0].folder),
            (&own.package, &own.folder)
        );
        assert!(sh::capture(bins[0].command().arg("--list")).is_some());
        fs::remove_file(&bins[0].path).expect("removed");
        assert!(read(&workspace, &folder).is_err());
        fs::write(folder.join(LIST), "abc\nno tabs\n").expect("written");
        assert!(read(&workspace, &folder).is_err());
        fs::remove_dir_all(&folder).expect("removed");
    }
}
