//! Why a model cannot be loaded. Every variant names the file, the key or tensor, and both values.

/// A refused model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The architecture is not this one.
    #[error("{file}: general.architecture: expected {expected}, got {got}")]
    Architecture {
        /// The file.
        file: String,
        /// What this engine runs.
        expected: &'static str,
        /// What the file holds, with the reason it is known to be refused.
        got: String,
    },
    /// A shape-bearing key is missing: there are no silent defaults.
    #[error("{file}: metadata key {key} is missing (expected {expected})")]
    MissingKey {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// A key holds something else.
    #[error("{file}: metadata key {key}: expected {expected}, got {got}")]
    BadKey {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// What was expected.
        expected: String,
        /// What was found.
        got: String,
    },
    /// A tensor is missing.
    #[error("{file}: tensor {tensor} is missing ({bound} of {wanted} tensors bound)")]
    MissingTensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Tensors found so far.
        bound: usize,
        /// Tensors this model needs.
        wanted: usize,
    },
    /// Tensors nothing asked for.
    #[error("{file}: {count} unknown tensors, first {tensor}")]
    UnknownTensors {
        /// The file.
        file: String,
        /// The first one.
        tensor: String,
        /// How many.
        count: usize,
    },
    /// A tensor's shape does not follow from the metadata.
    #[error("{file}: tensor {tensor}: expected shape {expected:?}, got {got:?} (ne order)")]
    Shape {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Input dimension first, as in the file.
        expected: Vec<u64>,
        /// What the file holds.
        got: Vec<u64>,
    },
    /// A tensor's format is not allowed in its place, or not supported.
    #[error("{file}: tensor {tensor}: expected {expected}, got {got}")]
    Format {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// What may stand there.
        expected: String,
        /// What the file holds.
        got: String,
    },
    /// A tensor's values are not possible.
    #[error("{file}: tensor {tensor}: element {index}: expected {expected}, got {got}")]
    Value {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Which element.
        index: usize,
        /// What was expected.
        expected: String,
        /// What was found.
        got: String,
    },
    /// A tensor's format has no kernel on a device.
    #[error("tensor {tensor}: {got} cannot stand there on a device: {why}")]
    NoKernel {
        /// The tensor.
        tensor: String,
        /// Its format.
        got: String,
        /// What the kernels say.
        why: String,
    },
    /// A tensor's blocks hold what no writer produces.
    #[error("tensor {tensor}: {why}")]
    BadBlocks {
        /// The tensor.
        tensor: String,
        /// Where, and both values.
        why: fpx_quant::FormatError,
    },
    /// A byte on the device is not the one that was sent.
    #[error(
        "{file}: tensor {tensor}: byte {at} on {device}: sent {expected:#04x}, read {got:#04x}"
    )]
    Upload {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The device.
        device: String,
        /// Which byte of the tensor, the first one that differs.
        at: u64,
        /// What was sent.
        expected: u8,
        /// What stands there.
        got: u8,
    },
    /// The plan does not fit the device.
    #[error("{device}: the model needs {needed} bytes ({plan}), {free} of {total} are free")]
    DeviceMemory {
        /// The device.
        device: String,
        /// Bytes of the plan.
        needed: u64,
        /// Its parts.
        plan: String,
        /// Bytes free.
        free: u64,
        /// Bytes in all.
        total: u64,
    },
    /// Made-up weights do not fit the host.
    #[error(
        "{model}: its made-up weights need {needed} bytes of the host's memory, {available} are available"
    )]
    HostMemory {
        /// The model.
        model: String,
        /// Bytes of all tensors that would be made.
        needed: u64,
        /// Bytes that the system or the process's control group still gives.
        available: u64,
    },
    /// A shape no kernel takes, or a device that failed.
    #[error(transparent)]
    Kernel(#[from] ds4_kernels::KernelError),
    /// The layers cannot be shared so.
    #[error(transparent)]
    Split(#[from] crate::on_device::SplitError),
    /// The options ask for something this model cannot do.
    #[error("{option}: expected {expected}, got {got}")]
    Option {
        /// Which option.
        option: &'static str,
        /// What is possible.
        expected: String,
        /// What was asked.
        got: String,
    },
}
