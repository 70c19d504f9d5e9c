//! The kernels' host build as an image of the CPU and of the fake device.

use std::sync::Arc;

use device::{Code, Geometry, HostModule, RawArg};

use crate::host::{self, Value, launch_raw};

/// Every kernel of the host build, under the executor's checks.
#[derive(Debug)]
pub struct Module {
    names: Vec<String>,
    /// Order of blocks, warps and lanes: 0 ascending, 1 descending, else shuffled.
    seed: u64,
}

/// The image, under the schedules of a seed. Matrix units are NVIDIA's.
#[must_use]
pub fn code(seed: u64) -> Code {
    let names = host::kernels();
    Code::Host(Arc::new(Module { names, seed }))
}

impl HostModule for Module {
    fn has(&self, kernel: &str) -> bool {
        self.names
            .binary_search_by(|n| n.as_str().cmp(kernel))
            .is_ok()
    }

    fn argument_sizes(&self, kernel: &str) -> Option<Vec<u32>> {
        host::sizes(kernel)
    }

    unsafe fn launch(
        &self,
        kernel: &str,
        geometry: &Geometry,
        args: &[RawArg],
    ) -> Result<(), String> {
        let [threads, 1, 1] = geometry.threads else {
            return Err(format!(
                "{kernel}: blocks of {:?} threads",
                geometry.threads
            ));
        };
        let mut values = Vec::with_capacity(args.len());
        for arg in args {
            values.push(match arg {
                RawArg::Address(at, _) => {
                    Value::Address(std::ptr::with_exposed_provenance_mut(*at as usize))
                }
                RawArg::Word(word) => Value::Word(*word),
                RawArg::Long(_) => return Err(format!("{kernel}: a 64-bit argument")),
            });
        }
        // SAFETY: the caller's promise: every address is valid for its byte count, nobody else touches it, and
        // the arguments are the kernel's.
        unsafe {
            launch_raw(
                kernel,
                geometry.grid,
                threads,
                geometry.shared,
                &mut values,
                self.seed,
            )
        }
    }
}
