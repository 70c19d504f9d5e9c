//! The calls that the compiler cannot check: probing, memory and launches of the CUDA driver.

use std::sync::Arc;

use cudarc::driver::{
    CudaFunction, CudaSlice, CudaStream, DevicePtr, DriverError, LaunchConfig, PushKernelArg,
    result, sys,
};

use super::Buffer;
use crate::launch::{Arg, Call};

pub(super) fn has_driver() -> bool {
    // SAFETY: looks for the library, calls nothing in it.
    unsafe { sys::is_culib_present() }
}

pub(super) fn has_nvrtc() -> bool {
    // SAFETY: looks for the library, calls nothing in it.
    unsafe { cudarc::nvrtc::sys::is_culib_present() }
}

pub(super) fn alloc(
    stream: &Arc<CudaStream>,
    len: usize,
) -> Result<(CudaSlice<u8>, u64), DriverError> {
    // SAFETY: bytes have no invalid contents, and every reader fills the buffer first.
    let slice = unsafe { stream.alloc::<u8>(len.max(1)) }?;
    let (address, guard) = slice.device_ptr(stream);
    drop(guard);
    Ok((slice, address))
}

pub(super) fn upload(stream: &CudaStream, data: &[u8], to: Buffer) -> Result<(), DriverError> {
    stream.context().bind_to_thread()?;
    // SAFETY: `to` lies in an allocation of this stream's context that lives until `reset`,
    // and is as long as `data`; the copy has ended before the function returns.
    unsafe { result::memcpy_htod_async(to.address, data, stream.cu_stream()) }?;
    stream.synchronize()
}

pub(super) fn download(stream: &CudaStream, from: Buffer) -> Result<Vec<u8>, DriverError> {
    stream.context().bind_to_thread()?;
    let mut data = vec![0u8; from.len];
    // SAFETY: as in `upload`; the destination has the length of `from`.
    unsafe { result::memcpy_dtoh_async(&mut data, from.address, stream.cu_stream()) }?;
    stream.synchronize()?;
    Ok(data)
}

pub(super) fn copy(stream: &CudaStream, from: Buffer, to: Buffer) -> Result<(), DriverError> {
    stream.context().bind_to_thread()?;
    let len = from.len.min(to.len);
    // SAFETY: both lie in live allocations of at least `len` bytes.
    unsafe { result::memcpy_dtod_async(to.address, from.address, len, stream.cu_stream()) }
}

/// A kernel argument with an address of its own.
enum Value {
    Address(u64),
    Word(u32),
}

pub(super) fn launch(
    stream: &CudaStream,
    f: &CudaFunction,
    call: &Call,
    buffers: &[Buffer],
) -> Result<(), DriverError> {
    let mut next = buffers.iter();
    let values: Vec<Value> = call
        .args()
        .iter()
        .map(|arg| match arg {
            Arg::Read(_) | Arg::Write(_) => Value::Address(next.next().map_or(0, |b| b.address)),
            Arg::Null => Value::Address(0),
            Arg::I32(v) => Value::Word(v.cast_unsigned()),
            Arg::U32(v) => Value::Word(*v),
            Arg::F32(v) => Value::Word(v.to_bits()),
        })
        .collect();
    let mut builder = stream.launch_builder(f);
    for value in &values {
        match value {
            Value::Address(a) => builder.arg(a),
            Value::Word(w) => builder.arg(w),
        };
    }
    let config = LaunchConfig {
        grid_dim: call.grid.into(),
        block_dim: (call.threads, 1, 1),
        shared_mem_bytes: call.shared,
    };
    // SAFETY: number, order and sizes of the arguments are those of the kernel's signature (the
    // host executor checks every `Call` constructor against it), the buffers were compared with
    // the bytes the launch touches, and they are freed in stream order, by `reset`.
    unsafe { builder.launch(config) }.map(drop)
}
