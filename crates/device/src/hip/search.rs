//! Opens a vendor library: at a given path alone, or by its names.

use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::fault::{Absent, words};

/// Opens one file or name. Nothing is resolved for other libraries (RTLD_LOCAL), and everything at
/// once, so that a broken one is noticed here.
fn open(name: &Path) -> Result<Library, String> {
    // SAFETY: runs the library's initialisers; it is the vendor's by name or by the caller's word.
    unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }.map_err(|e| words(&e))
}

/// The library at `path`, or the first of `names` that opens.
pub(super) fn find(
    what: &str,
    path: Option<&Path>,
    names: &[&str],
) -> Result<(Library, String), Absent> {
    let absent = |reason| Absent {
        what: what.into(),
        reason,
    };
    if let Some(path) = path {
        let shown = path.display().to_string();
        let library = open(path).map_err(absent)?;
        return Ok((library, shown));
    }
    let mut reasons = Vec::new();
    for name in names {
        match open(Path::new(name)) {
            Ok(library) => return Ok((library, (*name).to_string())),
            Err(reason) => reasons.push(reason),
        }
    }
    // A library that is there but broken says more than those that are not.
    let missing = |r: &&String| r.contains("No such file");
    let broken: Vec<&str> = reasons
        .iter()
        .filter(|r| !missing(r))
        .map(String::as_str)
        .collect();
    Err(absent(match broken.as_slice() {
        [] => format!("none of {} was found", names.join(", ")),
        broken => broken.join("; "),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let absent = find("X", None, &["libfs_no_such.so.1", "libfs_no_such.so"]).unwrap_err();
        let want = "X: none of libfs_no_such.so.1, libfs_no_such.so was found";
        assert_eq!(absent.to_string(), want);
    }

    #[test]
    fn a_given_path_is_the_only_one_tried() {
        // libc is there; the path is not.
        let path = Path::new("/nowhere/libc.so.6");
        let absent = find("X", Some(path), &["libc.so.6"]).unwrap_err();
        assert!(absent.reason.contains("/nowhere/libc.so.6"), "{absent}");
        let (_, name) = find("X", None, &["libfs_no_such.so", "libc.so.6"]).unwrap();
        assert_eq!(name, "libc.so.6");
    }

    #[test]
    fn a_broken_library_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libbroken.so");
        std::fs::write(&path, "not a library").unwrap();
        let absent = find("X", None, &[path.to_str().unwrap()]).unwrap_err();
        assert!(!absent.reason.starts_with("none of"), "{absent}");
    }
}
