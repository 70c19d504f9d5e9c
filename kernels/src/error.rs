//! The crate's error type.

/// Why a launch cannot be made, or did not end well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A shape the kernel does not take.
    #[error("{kernel}: {what}: expected {expected}, got {got}")]
    Shape {
        /// The kernel.
        kernel: &'static str,
        /// Which size.
        what: &'static str,
        /// What the kernel takes.
        expected: &'static str,
        /// What was asked.
        got: u64,
    },
    /// The number of buffers does not match the launch.
    #[error("{kernel}: expected {expected} buffers, got {got}")]
    Buffers {
        /// The kernel.
        kernel: &'static str,
        /// Buffers of the launch.
        expected: usize,
        /// Buffers given.
        got: usize,
    },
    /// A buffer is too small.
    #[error("{kernel}: buffer {index}: expected {expected} bytes, got {got}")]
    Bytes {
        /// The kernel.
        kernel: &'static str,
        /// Which buffer.
        index: usize,
        /// Bytes the launch touches.
        expected: u64,
        /// Bytes it has.
        got: u64,
    },
    /// The runtime refused or failed.
    #[error("{runtime}: {message}")]
    Runtime {
        /// Which runtime.
        runtime: &'static str,
        /// Its words.
        message: String,
    },
    /// A write outside of a buffer.
    #[error("{kernel}: wrote outside of buffer {index}")]
    OutOfBounds {
        /// The kernel.
        kernel: &'static str,
        /// Which buffer.
        index: usize,
    },
    /// A source names a file that is not embedded.
    #[error("source {source_name} includes {include}, which is not embedded")]
    Include {
        /// The including source.
        source_name: String,
        /// The missing file.
        include: String,
    },
    /// A device refused or failed.
    #[error(transparent)]
    Device(#[from] device::Fault),
    /// A matrix that does not fit its format.
    #[error(transparent)]
    Format(#[from] fpx_quant::FormatError),
    /// A compiler refused a source.
    #[error("{program} on {source_name} for {target}: {message}")]
    Compile {
        /// The program.
        program: &'static str,
        /// The source.
        source_name: String,
        /// The target.
        target: String,
        /// Its words.
        message: String,
    },
}
