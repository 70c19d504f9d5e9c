//! Typed launches: which kernel, grid and arguments, on buffers of which size. A runtime binds a
//! [`Call`] to memory and starts it; every size is checked here, once, for all runtimes.
//!
//! Must not know: drivers, addresses, streams.

pub mod a8;
pub mod attend;
pub mod bench;
pub mod compress;
pub mod dense;
pub mod experts;
pub mod fp4f;
pub mod grouped;
pub mod hc;
pub mod head;
pub mod index;
pub mod math;
pub mod norm;
pub mod route;
pub mod rows;
pub mod synth;
pub mod tiled;

use crate::KernelError;

/// Most arguments a kernel takes.
pub const MAX_ARGS: usize = 20;

/// One argument of a kernel, in order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg {
    /// The address of the next buffer: bytes read, from its start.
    Read(u64),
    /// The address of the next buffer: bytes written (and possibly read), from its start.
    Write(u64),
    /// A null address.
    Null,
    /// A 32-bit integer.
    I32(i32),
    /// A 32-bit unsigned integer.
    U32(u32),
    /// An f32.
    F32(f32),
}

/// A launch without its buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Name of the kernel in its module.
    pub kernel: &'static str,
    /// File of `kernels/gpu` that holds it.
    pub source: &'static str,
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// Whether the kernel uses matrix units (its host build exists once a fragment shape).
    pub matrix: bool,
    args: [Arg; MAX_ARGS],
    used: usize,
}

impl Call {
    /// A launch of `grid` blocks of `threads`, without arguments yet.
    #[must_use]
    pub fn new(source: &'static str, kernel: &'static str, grid: [u32; 3], threads: u32) -> Self {
        Self {
            kernel,
            source,
            grid,
            threads,
            shared: 0,
            matrix: false,
            args: [Arg::Null; MAX_ARGS],
            used: 0,
        }
    }

    /// Adds an argument.
    ///
    /// # Panics
    /// Beyond [`MAX_ARGS`] arguments: a kernel's signature is fixed in the source.
    #[must_use]
    pub fn arg(mut self, arg: Arg) -> Self {
        self.args[self.used] = arg;
        self.used += 1;
        self
    }

    /// The arguments in order.
    #[must_use]
    pub fn args(&self) -> &[Arg] {
        &self.args[..self.used]
    }

    /// Checks the buffers of a launch, given in the order of its `Read` and `Write` arguments.
    ///
    /// # Errors
    /// `Buffers`, `Bytes`.
    pub fn check(&self, lengths: impl ExactSizeIterator<Item = u64>) -> Result<(), KernelError> {
        let needs = self.args().iter().filter_map(|a| match a {
            Arg::Read(bytes) | Arg::Write(bytes) => Some(*bytes),
            _ => None,
        });
        let expected = needs.clone().count();
        if expected != lengths.len() {
            return Err(KernelError::Buffers {
                kernel: self.kernel,
                expected,
                got: lengths.len(),
            });
        }
        for (index, (expected, got)) in needs.zip(lengths).enumerate() {
            if got < expected {
                return Err(KernelError::Bytes {
                    kernel: self.kernel,
                    index,
                    expected,
                    got,
                });
            }
        }
        Ok(())
    }
}

/// A size as the kernels take it.
pub(crate) fn int(
    kernel: &'static str,
    what: &'static str,
    value: usize,
) -> Result<i32, KernelError> {
    i32::try_from(value).map_err(|_| KernelError::Shape {
        kernel,
        what,
        expected: "at most 2^31 - 1",
        got: value as u64,
    })
}

/// A number of blocks along x.
pub(crate) fn grid_x(kernel: &'static str, blocks: u64) -> Result<u32, KernelError> {
    let fits = u32::try_from(blocks)
        .ok()
        .filter(|b| *b > 0 && i32::try_from(*b).is_ok());
    fits.ok_or(KernelError::Shape {
        kernel,
        what: "blocks of the grid",
        expected: "1 to 2^31 - 1",
        got: blocks,
    })
}

/// A number of blocks along y.
pub(crate) fn grid_y(
    kernel: &'static str,
    what: &'static str,
    blocks: usize,
) -> Result<u32, KernelError> {
    let fits = (1..=65_535).contains(&blocks);
    require(kernel, what, "1 to 65535", blocks, fits)?;
    Ok(blocks as u32)
}

/// A product of sizes in bytes.
pub(crate) fn bytes(kernel: &'static str, sizes: &[usize]) -> Result<u64, KernelError> {
    sizes
        .iter()
        .try_fold(1u64, |product, size| product.checked_mul(*size as u64))
        .ok_or(KernelError::Shape {
            kernel,
            what: "bytes of a buffer",
            expected: "at most 2^64 - 1",
            got: u64::MAX,
        })
}

/// Refuses a size that `holds` does not accept.
pub(crate) fn require(
    kernel: &'static str,
    what: &'static str,
    expected: &'static str,
    got: usize,
    holds: bool,
) -> Result<(), KernelError> {
    if holds {
        return Ok(());
    }
    Err(KernelError::Shape {
        kernel,
        what,
        expected,
        got: got as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> Call {
        Call::new("x.cu", "x", [1, 1, 1], 32)
            .arg(Arg::Read(16))
            .arg(Arg::I32(3))
            .arg(Arg::Write(8))
    }

    #[test]
    fn buffers_are_counted_and_measured() {
        assert_eq!(call().check([16, 8].into_iter()), Ok(()));
        assert_eq!(call().check([17, 100].into_iter()), Ok(()));
        let error = call().check([16, 7].into_iter()).unwrap_err();
        assert_eq!(error.to_string(), "x: buffer 1: expected 8 bytes, got 7");
        let error = call().check([16].into_iter()).unwrap_err();
        assert_eq!(error.to_string(), "x: expected 2 buffers, got 1");
    }

    #[test]
    fn sizes_are_checked_arithmetic() {
        assert!(bytes("x", &[usize::MAX, 4]).is_err());
        assert!(int("x", "rows", 1 << 31).is_err());
        assert!(grid_x("x", 0).is_err() && grid_x("x", 1 << 31).is_err());
    }
}
