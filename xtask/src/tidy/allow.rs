//! Exceptions to the rules, each with its reason. A line here is a decision that a reviewer sees.

/// An exception: path or path prefix, and why.
type Allowed = (&'static str, &'static str);

/// Files longer than the limit.
pub(crate) const LONG_FILES: &[Allowed] = &[];

/// Where unsafe code may stand. Every block there has its `// SAFETY:` argument (clippy sees to it).
pub(crate) const UNSAFE_MODULES: &[Allowed] = &[
    (
        "crates/device/src/driver.rs",
        "the seam: calls on handles, whose promises the types above keep",
    ),
    (
        "crates/device/src/owned.rs",
        "handles with an owner, released once",
    ),
    (
        "crates/device/src/held.rs",
        "calls on a stream that holds what they use",
    ),
    (
        "crates/device/src/stream.rs",
        "calls on memory that the stream holds",
    ),
    (
        "crates/device/src/staging.rs",
        "host bytes of a slot that no copy uses",
    ),
    (
        "crates/device/src/quiesced.rs",
        "host bytes of memory on an idle device",
    ),
    (
        "crates/device/src/registered.rs",
        "host memory of others, held until its registration has ended",
    ),
    (
        "crates/device/src/shared.rs",
        "memory of other processes, by handles that the runtime checks",
    ),
    (
        "crates/device/src/peers.rs",
        "ways between two open devices",
    ),
    (
        "crates/device/src/image.rs",
        "a kernel's signature is its maker's promise",
    ),
    ("crates/device/src/watch.rs", "forwards the seam's calls"),
    ("crates/device/src/host/", "operations on host memory"),
    (
        "crates/device/src/cuda/",
        "calls into the CUDA driver and NVRTC",
    ),
    (
        "crates/device/src/hip/",
        "calls into the HIP runtime and hipRTC",
    ),
    (
        "crates/device/src/conformance/",
        "the suite's own kernels and their signatures",
    ),
    (
        "crates/device/tests/faults.rs",
        "kernels of the tests, and misuse of the seam on purpose",
    ),
    (
        "crates/device/tests/early.rs",
        "kernels of the tests, promised to wait",
    ),
    (
        "crates/fake-hip/",
        "a vendor's C symbols, and tests that open them as a library",
    ),
    (
        "crates/ds4-target/src/pool.rs",
        "threads that borrow the caller's data",
    ),
    (
        "crates/ds4-target/tests/no_alloc.rs",
        "an allocator that counts",
    ),
    (
        "crates/fpx-quant/src/rows/out.rs",
        "disjoint rows of one buffer for several threads",
    ),
    (
        "crates/fpx-quant/src/rows/x86/",
        "x86 vector instructions, chosen at run time",
    ),
    (
        "crates/fpx-quant/src/rows/neon/",
        "NEON vector instructions",
    ),
    (
        "crates/fpx-quant/src/simd/",
        "vector instructions, chosen at run time",
    ),
    (
        "crates/fpx-quant/tests/guard.rs",
        "guard pages behind a buffer",
    ),
    ("crates/ggml-sys/src/", "bindings to a C library"),
    ("crates/gguf/src/map", "mapping a file"),
    (
        "crates/ipc-transport/src/region.rs",
        "mapping shared memory and copying to and from it",
    ),
    (
        "crates/ipc-transport/src/turn.rs",
        "the payload of the model checker's test",
    ),
    (
        "crates/ipc-transport/src/worker/process.rs",
        "closing inherited descriptors that nothing owns",
    ),
    ("crates/model-tools/src/convert/map.rs", "mapping a file"),
    (
        "crates/sampling/src/wide.rs",
        "the one call into code compiled for AVX2",
    ),
    (
        "crates/sampling/tests/no_alloc.rs",
        "an allocator that counts",
    ),
    (
        "kernels/src/cpu/mod.rs",
        "the one call into code compiled for AVX2",
    ),
    (
        "kernels/src/host",
        "calls into kernels compiled as host C++",
    ),
    (
        "kernels/src/run/kernels.rs",
        "signatures of this crate's kernels",
    ),
    (
        "kernels/src/run/module.rs",
        "calls into kernels compiled as host C++",
    ),
];

/// Where the environment may be read.
pub(crate) const ENV_READERS: &[Allowed] = &[
    ("crates/switches/", "the registry of run-time switches"),
    (
        "crates/engine-core/src/mutant.rs",
        "the mutant of a test build; absent from other builds",
    ),
];

/// Words of the wording rule that may stand in a file: path, word, why.
pub(crate) const WORDS: &[(&str, &str, &str)] = &[];
