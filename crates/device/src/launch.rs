//! What a launch is made of: geometry in checked arithmetic, and arguments with the bytes they reach.

use crate::buffer::View;
use crate::device::Inner;
use crate::driver::{Driver, Geometry, RawArg};
use crate::fault::Fault;
use crate::image::{ArgKind, Kernel};

impl Geometry {
    /// Blocks of `threads` threads along x.
    #[must_use]
    pub fn line(blocks: u32, threads: u32) -> Self {
        Self {
            grid: [blocks, 1, 1],
            threads: [threads, 1, 1],
            shared: 0,
        }
    }

    /// As many blocks of `threads` threads along x as cover `items`.
    ///
    /// # Errors
    /// `Launch` if there are no items, no threads, or more blocks than 2^32 - 1.
    pub fn cover(kernel: &str, items: u64, threads: u32) -> Result<Self, Fault> {
        let refuse = |what, got| Fault::Launch {
            kernel: kernel.into(),
            what,
            expected: "1 to 2^32 - 1".into(),
            got,
        };
        if threads == 0 {
            return Err(refuse("threads of a block", 0));
        }
        let blocks = items.div_ceil(u64::from(threads));
        let grid = u32::try_from(blocks).ok().filter(|b| *b > 0);
        let grid = grid.ok_or_else(|| refuse("blocks of the grid", blocks))?;
        Ok(Self::line(grid, threads))
    }
}

/// One argument of a launch.
#[derive(Debug)]
pub enum Arg<'a, R: Driver> {
    /// Bytes the kernel reads, from the start of the view.
    Read(&'a View<R>, u64),
    /// Bytes the kernel writes (and possibly reads), from the start of the view.
    Write(&'a View<R>, u64),
    /// A null address.
    Null,
    /// A 32-bit integer.
    I32(i32),
    /// A 32-bit unsigned integer.
    U32(u32),
    /// An f32.
    F32(f32),
    /// A 64-bit unsigned integer.
    U64(u64),
}

impl<R: Driver> Arg<'_, R> {
    pub(crate) fn view(&self) -> Option<&View<R>> {
        match self {
            Self::Read(view, _) | Self::Write(view, _) => Some(view),
            _ => None,
        }
    }

    fn kind(&self) -> ArgKind {
        match self {
            Self::Read(..) | Self::Write(..) | Self::Null => ArgKind::Address,
            Self::I32(_) | Self::U32(_) | Self::F32(_) => ArgKind::Word,
            Self::U64(_) => ArgKind::Long,
        }
    }

    fn raw(&self) -> RawArg {
        match self {
            Self::Read(view, bytes) | Self::Write(view, bytes) => {
                RawArg::Address(view.address(), *bytes)
            }
            Self::Null => RawArg::Address(0, 0),
            Self::I32(v) => RawArg::Word(v.cast_unsigned()),
            Self::U32(v) => RawArg::Word(*v),
            Self::F32(v) => RawArg::Word(v.to_bits()),
            Self::U64(v) => RawArg::Long(*v),
        }
    }
}

impl<R: Driver> Kernel<R> {
    /// The arguments as bits, compared with the signature, the buffers and the device.
    pub(crate) fn arguments(
        &self,
        device: &Inner<R>,
        args: &[Arg<'_, R>],
    ) -> Result<Vec<RawArg>, Fault> {
        let wrong = |index, expected: String, got: String| Fault::Argument {
            kernel: self.name().into(),
            index,
            expected,
            got,
        };
        let signature = self.signature();
        if signature.len() != args.len() {
            let expected = format!("{} arguments", signature.len());
            return Err(wrong(args.len(), expected, format!("{}", args.len())));
        }
        for (index, (kind, arg)) in signature.iter().zip(args).enumerate() {
            if *kind != arg.kind() {
                return Err(wrong(index, kind.to_string(), arg.kind().to_string()));
            }
            if let Arg::Read(view, bytes) | Arg::Write(view, bytes) = arg {
                device.same("a buffer", view.memory.device.id)?;
                if *bytes > view.len() {
                    let got = format!("{} bytes", view.len());
                    return Err(wrong(index, format!("{bytes} bytes"), got));
                }
            }
        }
        Ok(args.iter().map(Arg::raw).collect())
    }
}

/// Compares a geometry with what the device takes.
pub(crate) fn check<R: Driver>(
    device: &Inner<R>,
    kernel: &Kernel<R>,
    geometry: &Geometry,
) -> Result<(), Fault> {
    let limits = &device.facts.limits;
    let within = |what, got: u64, limit: u64| {
        if (1..=limit).contains(&got) {
            return Ok(());
        }
        Err(Fault::Launch {
            kernel: kernel.name().into(),
            what,
            expected: format!("1 to {limit}"),
            got,
        })
    };
    let mut threads = 1u64;
    for axis in 0..3 {
        let (blocks, along) = (
            u64::from(geometry.grid[axis]),
            u64::from(geometry.threads[axis]),
        );
        within("blocks of the grid", blocks, limits.grid[axis].into())?;
        within(
            "threads of a block",
            along,
            limits.threads_axis[axis].into(),
        )?;
        // At most 2^32 each: no overflow.
        within("threads along an axis", blocks * along, limits.items_axis)?;
        threads = threads.saturating_mul(along);
    }
    within("threads of a block", threads, limits.threads.into())?;
    let shared = u64::from(geometry.shared);
    if shared > limits.shared.into() {
        within("shared memory", shared, limits.shared.into())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_are_checked_arithmetic() {
        let grid = |items, threads| Geometry::cover("k", items, threads).map(|g| g.grid[0]);
        assert_eq!(grid(1, 256), Ok(1));
        assert_eq!(grid(256, 256), Ok(1));
        assert_eq!(grid(257, 256), Ok(2));
        assert_eq!(grid(u64::from(u32::MAX), 1), Ok(u32::MAX));
        for (items, threads, got) in [(0, 1, 0), (5, 0, 0), (1 << 32, 1, 1 << 32)] {
            let Err(Fault::Launch { got: said, .. }) = grid(items, threads) else {
                panic!("{items} items in blocks of {threads} were taken");
            };
            assert_eq!(said, got);
        }
        assert_eq!(
            grid(u64::MAX, 2).unwrap_err().to_string(),
            "k: blocks of the grid: expected 1 to 2^32 - 1, got 9223372036854775808"
        );
    }
}
