//! Images: what the fake hipRTC makes, and which functions of this process it stands for.
//!
//! An image is a magic number, a length, the architecture and the names of its kernels. The engine's
//! sources make names with macros, so their image holds a star: every kernel of the host build.

use std::sync::Arc;

use device::{Code, HostModule, conformance};

use crate::world::code;

const MAGIC: &[u8; 8] = b"FSHIPIMG";
/// Says in a source that it is one of the engine's.
const ENGINE: &str = "FS_KERNEL(";
/// The engine's kernels in an image.
const ALL: &str = "*";

/// A loaded image.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) names: Vec<String>,
}

/// A kernel found in one.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) module: u64,
    /// Sizes of its arguments.
    pub(crate) sizes: Vec<u32>,
}

/// The functions of this process: the conformance suite's and, if built in, the engine's.
#[derive(Debug)]
pub(crate) struct Kernels {
    of: Vec<Arc<dyn HostModule>>,
}

impl Kernels {
    pub(crate) fn all() -> Self {
        let mut of = Vec::new();
        let mut add = |code: Code| {
            if let Code::Host(module) = code {
                of.push(module);
            }
        };
        add(conformance::host_kernels());
        #[cfg(feature = "host-exec")]
        add(ds4_kernels::run::module::code(0));
        Self { of }
    }

    /// The module that has a kernel, and the kernel's name there: the build for this architecture's matrix
    /// units if there is one.
    fn find(&self, kernel: &str) -> Option<(&Arc<dyn HostModule>, String)> {
        let names = [format!("{kernel}@gfx11"), kernel.to_owned()];
        let found = |name: String| Some((self.of.iter().find(|m| m.has(&name))?, name));
        names.into_iter().find_map(found)
    }
}

impl HostModule for Kernels {
    fn has(&self, kernel: &str) -> bool {
        self.find(kernel).is_some()
    }

    fn argument_sizes(&self, kernel: &str) -> Option<Vec<u32>> {
        let (module, name) = self.find(kernel)?;
        module.argument_sizes(&name)
    }

    unsafe fn launch(
        &self,
        kernel: &str,
        geometry: &device::Geometry,
        args: &[device::RawArg],
    ) -> Result<(), String> {
        let found = self.find(kernel);
        let (module, name) = found.ok_or_else(|| format!("no kernel {kernel}"))?;
        // SAFETY: the caller's promise, passed on.
        unsafe { module.launch(&name, geometry, args) }
    }
}

/// Makes an image of a source. `Err`: the compiler's log.
pub(crate) fn compile(name: &str, text: &str, arch: &str) -> Result<Vec<u8>, String> {
    let names = if text.contains(ENGINE) {
        vec![ALL.to_owned()]
    } else {
        plain(name, text)?
    };
    let names = [vec![arch.to_owned()], names].concat();
    let list = names.join("\n");
    let mut image = MAGIC.to_vec();
    image.extend((list.len() as u64).to_le_bytes());
    image.extend(list.as_bytes());
    Ok(image)
}

/// Names of a plain source's kernels, all of which must have a host build.
fn plain(name: &str, text: &str) -> Result<Vec<String>, String> {
    if let Some(line) = text.lines().find(|l| l.starts_with("#error")) {
        return Err(format!("{name}: {line}"));
    }
    let kernels = Kernels::all();
    let mut names = Vec::new();
    for line in text.lines() {
        let Some((_, rest)) = line.split_once("__global__ void ") else {
            continue;
        };
        let kernel = rest.split('(').next().unwrap_or_default().trim();
        if !kernels.has(kernel) {
            return Err(format!("{name}: no host build of this kernel: {line}"));
        }
        names.push(kernel.to_owned());
    }
    Ok(names)
}

/// Length of an image from its first 16 bytes.
pub(crate) fn length(head: &[u8; 16]) -> Result<usize, i32> {
    let (magic, length) = head.split_at(8);
    let length = <[u8; 8]>::try_from(length).map(u64::from_le_bytes);
    match length {
        Ok(length) if magic == MAGIC && length < 1 << 20 => Ok(16 + length as usize),
        _ => Err(code::INVALID_IMAGE),
    }
}

/// Reads an image for a device of an architecture.
pub(crate) fn read(image: &[u8], arch: &str) -> Result<Loaded, i32> {
    let list = std::str::from_utf8(&image[16..]).map_err(|_| code::INVALID_IMAGE)?;
    let mut names = list.lines();
    if names.next() != Some(arch) {
        return Err(code::INVALID_IMAGE);
    }
    let names = names.map(str::to_owned).collect();
    Ok(Loaded { names })
}

impl Loaded {
    /// Whether the image holds a kernel.
    pub(crate) fn has(&self, kernel: &str) -> bool {
        self.names.iter().any(|n| n == kernel || n == ALL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "extern \"C\" __global__ void put(unsigned* y) {}\n";

    #[test]
    fn an_image_names_its_architecture_and_kernels() {
        let image = compile("a", SOURCE, "gfx1151").unwrap_or_default();
        let head = <[u8; 16]>::try_from(&image[..16]).unwrap_or_default();
        assert_eq!(length(&head), Ok(image.len()));
        let loaded = read(&image, "gfx1151").map(|l| (l.has("put"), l.has("add")));
        assert_eq!(loaded, Ok((true, false)));
        assert!(read(&image, "gfx1100").is_err());
        assert_eq!(length(b"\x7fELF............"), Err(code::INVALID_IMAGE));
    }

    #[test]
    fn sources_without_a_host_build_are_refused_with_the_line() {
        let log = compile(
            "f",
            "__global__ void f(int* y) { y[0] = no_such_name; }",
            "gfx1151",
        );
        let log = log.map(|_| ()).unwrap_err();
        assert!(log.contains("no_such_name"), "{log}");
        assert!(compile("f", "#error \"no\"\n", "gfx1151").is_err());
    }
}
