// What every kernel source includes: one vocabulary over five compilers.
//
//   FS_CUDA   NVRTC and nvcc; clang -x cuda without any CUDA header
//   FS_HIP    hipRTC; clang -x hip without any ROCm header or device library
//   FS_HOST   any C++17 compiler: the kernel runs under the SIMT executor of ../host
//
// A kernel source may use nothing but this vocabulary, so that all five give the same bits
// (docs/adr/0001-arithmetic.md, 0005-one-kernel-source.md). Rules for kernels:
//   * 32 lanes a warp; block sizes are multiples of 32 and compile-time constants;
//   * every lane of a warp reaches a warp operation, every thread of a block a barrier, and none
//     leaves the kernel before the last of them;
//   * shared memory is one struct a kernel (FS_SHARED), so that the executor can place, bound and
//     poison it;
//   * float arithmetic through fs_add, fs_mul, fs_fma, fs_div, fs_sqrt: no contraction, no flush;
//   * the first statement is fs_begin(): before it a kernel touches no memory
//     (docs/adr/0012-early-launch.md).
#pragma once

#if defined(__HIP__) || defined(__HIPCC_RTC__)
#define FS_HIP 1
#elif defined(__CUDACC__) || (defined(__CUDA__) && defined(__clang__))
#define FS_CUDA 1
#else
#define FS_HOST 1
#endif

// Whether this build can start before the kernel ahead of it has ended (fs_begin).
#if FS_CUDA && defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 900
#define FS_EARLY 1
#endif
#endif

#if FS_HIP && !(defined(__GFX10__) || defined(__GFX11__) || defined(__GFX12__)) && defined(__AMDGCN__)
#error "fourspark kernels need 32 lanes a warp: gfx10, gfx11 or gfx12"
#endif

#if defined(__clang__)
#pragma clang fp contract(off)
#endif

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

struct alignas(8) u32x2 {
  u32 x, y;
};
struct alignas(16) u32x4 {
  u32 x, y, z, w;
};
struct alignas(8) f32x2 {
  float x, y;
};

// ---- declarations

#if FS_HOST
#include "../host/exec.h"
#define FS_DEVICE static inline
#define FS_DEVICE_MEMBER inline
#define FS_TABLE static const
#define FS_UNROLL
#define FS_ROLLED
#define FS_RESTRICT __restrict
#define FS_WEIGHTS __restrict
#define FS_SHARED(T, name) T& name = *static_cast<T*>(fs_host_shared(sizeof(T), alignof(T), false))
#define FS_SHARED_DYN(T, name) T& name = *static_cast<T*>(fs_host_shared(sizeof(T), alignof(T), true))
#ifndef FS_HOST_SUFFIX
#define FS_HOST_SUFFIX
#define FS_HOST_SUFFIX_TEXT ""
#endif
#define FS_PASTE_(a, b) a##b
#define FS_PASTE(a, b) FS_PASTE_(a, b)
#define FS_NAME(name) FS_PASTE(name, FS_HOST_SUFFIX)
#define FS_KERNEL(name, threads, blocks) extern "C" void FS_NAME(name)
#define FS_EXPORT(name, threads) \
  static const fs_host_entry FS_PASTE(fs_entry_, FS_NAME(name))(#name FS_HOST_SUFFIX_TEXT, &FS_NAME(name), threads);
#else
#define FS_UNROLL _Pragma("unroll")
#define FS_ROLLED _Pragma("unroll 1")
// An early kernel runs while the one ahead still writes what it will read. `restrict` says that nobody does:
// compilers move such loads across fs_begin and read through a cache that is not kept coherent. FS_WEIGHTS is for
// what only copies write, none while a kernel runs (weights): their loads may go anywhere.
#if FS_EARLY
#define FS_RESTRICT
#else
#define FS_RESTRICT __restrict__
#endif
#define FS_WEIGHTS __restrict__
#define FS_EXPORT(name, threads)
#if defined(__clang__)
#define FS_DEVICE static inline __attribute__((device, always_inline))
#define FS_TABLE static __attribute__((device)) const
#define FS_DEVICE_MEMBER inline __attribute__((device, always_inline))
#define FS_SHARED(T, name) static __attribute__((shared)) T name
#define FS_DYN_ARRAY extern __attribute__((shared)) u32x4 fs_dynamic[]
#if FS_HIP
#define FS_KERNEL(name, threads, blocks) \
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(threads, threads))) void name
#else
#define FS_KERNEL(name, threads, blocks) \
  extern "C" __attribute__((global, launch_bounds(threads, blocks))) void name
#endif
#else
#define FS_DEVICE static __device__ __forceinline__
#define FS_TABLE static __device__ const
#define FS_DEVICE_MEMBER __device__ __forceinline__
#define FS_SHARED(T, name) __shared__ T name
#define FS_DYN_ARRAY extern __shared__ u32x4 fs_dynamic[]
#define FS_KERNEL(name, threads, blocks) \
  extern "C" __global__ void __launch_bounds__(threads, blocks) name
#endif
#define FS_SHARED_DYN(T, name) \
  FS_DYN_ARRAY;                \
  T& name = *reinterpret_cast<T*>(fs_dynamic)
#endif

// A static function of a struct.
#define FS_DEVICE_STATIC static FS_DEVICE_MEMBER

static constexpr u32 FS_WARP = 32;

// ---- thread position, barrier, shuffles, bits

#if FS_HOST
FS_DEVICE u32 fs_tid() { return fs_host_tid(); }
FS_DEVICE u32 fs_bid_x() { return fs_host_bid(0); }
FS_DEVICE u32 fs_bid_y() { return fs_host_bid(1); }
FS_DEVICE u32 fs_bid_z() { return fs_host_bid(2); }
// The hidden arguments name the call site: lanes that meet at different ones are reported.
FS_DEVICE void fs_barrier(int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  fs_host_barrier(file, line);
}
FS_DEVICE u32 fs_shfl(u32 v, u32 lane, int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  return fs_host_shfl(v, lane, file, line);
}
FS_DEVICE float fs_f32(u32 v) {
  float f;
  __builtin_memcpy(&f, &v, 4);
  return f;
}
FS_DEVICE u32 fs_bits(float v) {
  u32 u;
  __builtin_memcpy(&u, &v, 4);
  return u;
}
FS_DEVICE u32 fs_shfl_xor(u32 v, u32 mask, int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  return fs_host_shfl(v, (fs_host_tid() & 31) ^ mask, file, line);
}
FS_DEVICE float fs_shfl_xor(float v, u32 mask, int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  return fs_f32(fs_shfl_xor(fs_bits(v), mask, line, file));
}
#else
#if FS_HIP
FS_DEVICE u32 fs_tid() { return __builtin_amdgcn_workitem_id_x(); }
FS_DEVICE u32 fs_bid_x() { return __builtin_amdgcn_workgroup_id_x(); }
FS_DEVICE u32 fs_bid_y() { return __builtin_amdgcn_workgroup_id_y(); }
FS_DEVICE u32 fs_bid_z() { return __builtin_amdgcn_workgroup_id_z(); }
FS_DEVICE void fs_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
FS_DEVICE u32 fs_shfl(u32 v, u32 lane) {
  return (u32)__builtin_amdgcn_ds_bpermute((int)(lane << 2), (int)v);
}
FS_DEVICE u32 fs_shfl_xor(u32 v, u32 mask) { return fs_shfl(v, (fs_tid() & 31) ^ mask); }
#elif defined(__clang__)
FS_DEVICE u32 fs_tid() { return __nvvm_read_ptx_sreg_tid_x(); }
FS_DEVICE u32 fs_bid_x() { return __nvvm_read_ptx_sreg_ctaid_x(); }
FS_DEVICE u32 fs_bid_y() { return __nvvm_read_ptx_sreg_ctaid_y(); }
FS_DEVICE u32 fs_bid_z() { return __nvvm_read_ptx_sreg_ctaid_z(); }
FS_DEVICE void fs_barrier() { __syncthreads(); }
FS_DEVICE u32 fs_shfl(u32 v, u32 lane) {
  return (u32)__nvvm_shfl_sync_idx_i32(~0u, (int)v, (int)lane, 31);
}
FS_DEVICE u32 fs_shfl_xor(u32 v, u32 mask) {
  return (u32)__nvvm_shfl_sync_bfly_i32(~0u, (int)v, (int)mask, 31);
}
#else
FS_DEVICE u32 fs_tid() { return threadIdx.x; }
FS_DEVICE u32 fs_bid_x() { return blockIdx.x; }
FS_DEVICE u32 fs_bid_y() { return blockIdx.y; }
FS_DEVICE u32 fs_bid_z() { return blockIdx.z; }
FS_DEVICE void fs_barrier() { __syncthreads(); }
FS_DEVICE u32 fs_shfl(u32 v, u32 lane) { return __shfl_sync(~0u, v, (int)lane); }
FS_DEVICE u32 fs_shfl_xor(u32 v, u32 mask) { return __shfl_xor_sync(~0u, v, (int)mask); }
#endif
#if defined(__clang__)
FS_DEVICE float fs_f32(u32 v) { return __builtin_bit_cast(float, v); }
FS_DEVICE u32 fs_bits(float v) { return __builtin_bit_cast(u32, v); }
#else
FS_DEVICE float fs_f32(u32 v) { return __uint_as_float(v); }
FS_DEVICE u32 fs_bits(float v) { return __float_as_uint(v); }
#endif
FS_DEVICE float fs_shfl_xor(float v, u32 mask) { return fs_f32(fs_shfl_xor(fs_bits(v), mask)); }
#endif
#if FS_HOST
FS_DEVICE float fs_shfl(float v, u32 lane, int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  return fs_f32(fs_shfl(fs_bits(v), lane, line, file));
}
#else
FS_DEVICE float fs_shfl(float v, u32 lane) { return fs_f32(fs_shfl(fs_bits(v), lane)); }
#endif

FS_DEVICE u32 fs_lane() { return fs_tid() & 31; }
FS_DEVICE u32 fs_warp() { return fs_tid() >> 5; }

// ---- the beginning of a kernel

// Lets the next kernel of the stream start its blocks, then waits until the kernel ahead has ended and its writes can
// be seen. As that one waited as well, everything before it has ended too. Without an early launch both do nothing.
FS_DEVICE void fs_begin() {
#if FS_HOST
  fs_host_begin();
#elif FS_EARLY
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- IEEE f32, each one rounding, never contracted

#if FS_CUDA && !defined(__clang__)
FS_DEVICE float fs_add(float a, float b) { return __fadd_rn(a, b); }
FS_DEVICE float fs_sub(float a, float b) { return __fsub_rn(a, b); }
FS_DEVICE float fs_mul(float a, float b) { return __fmul_rn(a, b); }
FS_DEVICE float fs_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
FS_DEVICE float fs_div(float a, float b) { return __fdiv_rn(a, b); }
FS_DEVICE float fs_sqrt(float a) { return __fsqrt_rn(a); }
// Nearest integer, ties to even. The argument is finite and in range.
FS_DEVICE i32 fs_rne(float a) { return __float2int_rn(a); }
#else
FS_DEVICE float fs_add(float a, float b) { return a + b; }
FS_DEVICE float fs_sub(float a, float b) { return a - b; }
FS_DEVICE float fs_mul(float a, float b) { return a * b; }
FS_DEVICE float fs_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#if FS_CUDA
FS_DEVICE float fs_div(float a, float b) { return __nvvm_div_rn_f(a, b); }
FS_DEVICE float fs_sqrt(float a) { return __nvvm_sqrt_rn_f(a); }
#else
FS_DEVICE float fs_div(float a, float b) { return a / b; }
FS_DEVICE float fs_sqrt(float a) { return __builtin_sqrtf(a); }
#endif
FS_DEVICE i32 fs_rne(float a) { return (i32)__builtin_rintf(a); }
#endif

// The larger number; the other one if one is NaN.
FS_DEVICE float fs_max(float a, float b) { return a > b || b != b ? a : b; }

// A stored f16, widened exactly.
FS_DEVICE float fs_f16(u16 h) {
#if FS_HIP
  return (float)__builtin_bit_cast(_Float16, h);
#elif FS_CUDA
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
#else
  const u32 sign = (u32)(h & 0x8000u) << 16, rest = (u32)(h & 0x7fffu) << 13;
  if (rest >= 0x0f800000u) return fs_f32(sign | 0x7f800000u | (rest & 0x007fffffu));
  return fs_f32(sign | fs_bits(fs_f32(rest) * 0x1p112f));
#endif
}

// ---- integer dot of four signed bytes, exact

FS_DEVICE i32 fs_dp4a(u32 a, u32 b, i32 c) {
#if FS_HIP && defined(__AMDGCN__)
#if defined(__GFX11__) || defined(__GFX12__)
  return __builtin_amdgcn_sudot4(true, (int)a, true, (int)b, c, false);
#else
  return __builtin_amdgcn_sdot4((int)a, (int)b, c, false);
#endif
#elif FS_CUDA
  i32 r;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
#else
  for (int i = 0; i < 4; i++) c += (i32)(i8)(a >> (8 * i)) * (i32)(i8)(b >> (8 * i));
  return c;
#endif
}

// The same with unsigned bytes in `a`.
FS_DEVICE i32 fs_dp4a_us(u32 a, u32 b, i32 c) {
#if FS_HIP && defined(__AMDGCN__) && (defined(__GFX11__) || defined(__GFX12__))
  return __builtin_amdgcn_sudot4(false, (int)a, true, (int)b, c, false);
#elif FS_CUDA
  i32 r;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
#else
  for (int i = 0; i < 4; i++) c += (i32)(a >> (8 * i) & 255) * (i32)(i8)(b >> (8 * i));
  return c;
#endif
}

// c + n * (signed half i of pair), exact; n is a signed byte.
FS_DEVICE i32 fs_half_sum(u32 pair, i32 i, i32 n, i32 c) {
#if FS_CUDA
  i32 r;
  asm("dp2a.lo.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(pair), "r"(((u32)n & 255) << (8 * i)), "r"(c));
  return r;
#else
  return c + n * ((i32)(i == 0 ? pair << 16 : pair) >> 16);
#endif
}

// c + n * (the two signed halves of pair): the bias correction of a block, exact.
FS_DEVICE i32 fs_pair_sum(u32 pair, i32 n, i32 c) {
#if FS_CUDA
  i32 r;
  const u32 twice = ((u32)n & 255) | ((u32)n & 255) << 8;
  asm("dp2a.lo.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(pair), "r"(twice), "r"(c));
  return r;
#else
  return c + n * ((i32)(pair << 16) / 65536 + ((i32)pair >> 16));
#endif
}

// v, as a value that the compiler cannot see through. `zero` is 0 at run time, from a kernel's
// arguments. Keeps a constant in a register that it would otherwise reload at every use.
FS_DEVICE u32 fs_opaque(u32 v, u32 zero) { return v ^ zero; }

// The same in a register of each lane: some instructions cannot read those that a warp has together, and a copy at
// every use would be what the first function avoids.
FS_DEVICE u32 fs_opaque_lane(u32 v, u32 zero) { return fs_opaque(v, zero & fs_lane()); }

// Nothing moves across, in the compiler's schedule: bounds the registers of a long unrolled loop.
FS_DEVICE void fs_schedule_fence() {
#if FS_HIP && defined(__AMDGCN__)
  __builtin_amdgcn_sched_barrier(0);
#endif
}

// Byte permute: byte n of the result is byte (sel nibble n, bits 0..2) of {b, a} (a is bytes 0..3);
// bit 3 of the nibble replicates that byte's sign bit instead.
FS_DEVICE u32 fs_prmt(u32 a, u32 b, u32 sel) {
#if FS_CUDA
  u32 r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(sel));
  return r;
#else
  const u64 pool = (u64)b << 32 | a;
  u32 r = 0;
  for (int n = 0; n < 4; n++) {
    const u32 s = (sel >> (4 * n)) & 15, byte = (u32)(pool >> (8 * (s & 7))) & 255;
    r |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * n);
  }
  return r;
#endif
}

// ---- counters

// Adds to a counter of global or shared memory that other threads add to as well. Integers only: their
// sum has no order. Other threads see the sum after a barrier (shared) or the launch (global).
FS_DEVICE void fs_count(u32* counter, u32 n) {
#if FS_CUDA
  asm volatile("red.add.u32 [%0], %1;" ::"l"(counter), "r"(n) : "memory");
#elif FS_HIP && defined(__AMDGCN__)
  (void)__hip_atomic_fetch_add(counter, n, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
  *counter += n;
#endif
}
FS_DEVICE void fs_count(u64* counter, u64 n) {
#if FS_CUDA
  asm volatile("red.add.u64 [%0], %1;" ::"l"(counter), "l"(n) : "memory");
#elif FS_HIP && defined(__AMDGCN__)
  (void)__hip_atomic_fetch_add(counter, n, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
  *counter += n;
#endif
}

// ---- memory

// Word i of a 16-byte load; i is a constant after unrolling.
FS_DEVICE u32 fs_word(const u32x4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// 16 bytes that are read once and never written by this launch.
FS_DEVICE u32x4 fs_load_stream(const u32x4* p) {
#if FS_EARLY
  u32x4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
#elif FS_CUDA
  u32x4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
#elif FS_HIP
  typedef u32 vec __attribute__((ext_vector_type(4)));
  const vec v = __builtin_nontemporal_load((const vec*)p);
  return u32x4{v.x, v.y, v.z, v.w};
#else
  return *p;
#endif
}

// Copies 4 or 16 bytes from global to shared memory in the background: visible to the copying
// thread after fs_copy_wait, to the others after the barrier that follows. A wait leaves the
// newest `left` groups of commits in flight.
#if FS_HOST
FS_DEVICE void fs_copy16(void* shared, const void* global) { fs_host_copy(shared, global, 16); }
FS_DEVICE void fs_copy4(void* shared, const void* global) { fs_host_copy(shared, global, 4); }
FS_DEVICE void fs_copy_commit() { fs_host_copy_commit(); }
template <int left>
FS_DEVICE void fs_copy_wait() {
  fs_host_copy_wait(left);
}
#elif FS_CUDA
FS_DEVICE u32 fs_shared_address(const void* p) {
  u32 a;
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(a) : "l"(p));
  return a;
}
FS_DEVICE void fs_copy16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(fs_shared_address(shared)), "l"(global) : "memory");
}
FS_DEVICE void fs_copy4(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(fs_shared_address(shared)), "l"(global) : "memory");
}
FS_DEVICE void fs_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int left>
FS_DEVICE void fs_copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}
#else
FS_DEVICE void fs_copy16(void* shared, const void* global) { *(u32x4*)shared = *(const u32x4*)global; }
FS_DEVICE void fs_copy4(void* shared, const void* global) { *(u32*)shared = *(const u32*)global; }
FS_DEVICE void fs_copy_commit() {}
template <int left>
FS_DEVICE void fs_copy_wait() {}
#endif
