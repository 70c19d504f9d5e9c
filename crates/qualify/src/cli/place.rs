//! What a report speaks for: the checkout that this program was built in, or a pack.

use std::path::{Path, PathBuf};

use qualify::pack::{self, Packed};
use qualify::report::Build;
use qualify::{hash, machine};

use super::{Stop, line, refuse};

/// A checkout, or a pack.
pub(crate) struct Place {
    /// Paths of profiles are relative to it.
    pub(crate) root: PathBuf,
    packed: Option<Packed>,
}

/// The checkout.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

impl Place {
    /// The pack in a folder if one is named, otherwise the checkout.
    ///
    /// # Errors
    /// The pack is not whole, or this program is not its own.
    pub(crate) fn of(packed: Option<&str>) -> Result<Self, Stop> {
        let Some(folder) = packed else {
            return Ok(Self {
                root: root(),
                packed: None,
            });
        };
        let folder = Path::new(folder);
        let packed = pack::read(folder).map_err(refuse)?;
        let own = std::env::current_exe().ok().and_then(|p| hash::file(&p));
        let listed = packed.files.iter().find(|f| f.path == "qualify");
        if listed.map(|f| &f.blake3) != own.as_ref() {
            let folder = folder.display();
            return Err(refuse(format!(
                "this program is not the one packed in {folder}: run {folder}/qualify"
            )));
        }
        let root = folder.canonicalize();
        Ok(Self {
            root: root.map_err(|e| refuse(format!("{}: {e}", folder.display())))?,
            packed: Some(packed),
        })
    }

    /// The tree, for a report about an executable.
    pub(crate) fn build(&self, exe_blake3: String) -> Build {
        match &self.packed {
            Some(packed) => packed.build(exe_blake3),
            None => machine::build(&self.root, exe_blake3),
        }
    }
}

/// `pack FOLDER`: this program, the one beside it, and the models.
pub(crate) fn write(args: &[String]) -> Result<u8, Stop> {
    let [folder] = args else {
        return Err(refuse("pack FOLDER"));
    };
    if folder.starts_with('-') {
        return Err(refuse(format!(
            "pack FOLDER: {folder} is an option, and there is none"
        )));
    }
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let programs = exe.parent().unwrap_or(&exe);
    let build = machine::build(&root(), String::new());
    let packed = pack::write(Path::new(folder), &root(), programs, &build)?;
    let tree = if packed.dirty {
        "with changes"
    } else {
        "clean"
    };
    line!(
        "{folder}: {} files of commit {}, {tree}",
        packed.files.len(),
        packed.commit
    )?;
    Ok(0)
}
