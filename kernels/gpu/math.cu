// math_checksum: one number for each run of consecutive f32 bit patterns put through a function of
// the contract (rule 5), so that all 2^32 patterns can be compared between devices.
//
// formula  sum over i < run of (h ^ h >> 15) * (2 i + 1) mod 2^64, h = bits of f(pattern first + i);
//          NaN results count as 0x7fc00000 (their payload is the device's own)
// shapes   out [runs] u64; run r starts at pattern first + r * run
// launch   ceil(runs / 256) blocks of 256 threads
// function 0 exp, 1 log1p, 2 sigmoid, 3 silu, 4 softplus, 5 sqrt_softplus, 6 rsqrt, 7 ln
#include "fourspark.h"
#include "fs_math.h"

FS_DEVICE float math_function(i32 which, float x) {
  switch (which) {
    case 0: return fs_exp(x);
    case 1: return fs_log1p(x);
    case 2: return fs_sigmoid(x);
    case 3: return fs_silu(x);
    case 4: return fs_softplus(x);
    case 5: return fs_sqrt_softplus(x);
    case 6: return fs_rsqrt(x);
    default: return fs_ln(x);
  }
}

FS_KERNEL(math_checksum, 256, 1)(u64* FS_RESTRICT out, i32 runs, u32 first, u32 run, i32 which) {
  fs_begin();
  const u32 r = fs_bid_x() * 256 + fs_tid();
  if (r >= (u32)runs) return;
  u64 sum = 0;
  for (u32 i = 0; i < run; i++) {
    const float y = math_function(which, fs_f32(first + r * run + i));
    const u32 h = y == y ? fs_bits(y) : FS_NAN;
    sum += (u64)(h ^ (h >> 15)) * (2 * (u64)i + 1);
  }
  out[r] = sum;
}
FS_EXPORT(math_checksum, 256)

// math_widen: the 65536 f16 patterns as f32, out [65536]; 256 blocks of 256 threads. NaN results as
// 0x7fc00000.
FS_KERNEL(math_widen, 256, 1)(float* FS_RESTRICT out) {
  fs_begin();
  const u32 h = fs_bid_x() * 256 + fs_tid();
  const float y = fs_f16((u16)h);
  out[h] = y == y ? y : fs_f32(FS_NAN);
}
FS_EXPORT(math_widen, 256)
