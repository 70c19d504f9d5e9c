// a8_quantise: rows of f32 activations to blocks of 32 int8 with one f32 scale (contract rule 1), and
// the exact sums that biased and offset weight formats need (rule 2).
//
// formula  amax = max |x| of a block; q = rne(x * (127 / amax)) clamped to +-127, d = amax / 127;
//          amax < 2^-96: q = 0, d = 0; any NaN: q = 0, d = NaN (0x7fc00000)
// shapes   x [rows][k] f32, q [rows][k] i8, meta [rows][k / 32] of 8 bytes: d f32, then the sums of
//          q of elements 0..15 and 16..31 as two i16; k a multiple of 32
// launch   one lane an element, one warp a block: ceil(rows * k / 256) blocks of 256 threads
// cost     5.25 bytes and about 4 flops an element; bound by memory
// order    maxima and integer sums need none
#include "fourspark.h"
#include "fs_fp4.h"
#include "fs_math.h"

FS_KERNEL(a8_quantise, 256, 1)(const float* FS_RESTRICT x, i8* FS_RESTRICT q, fs_a8_meta* FS_RESTRICT meta, i32 blocks) {
  const u32 lane = fs_lane();
  const u64 block = (u64)fs_bid_x() * 8 + fs_warp();
  const bool inside = block < (u64)blocks;
  const u64 at = block * 32 + lane;
  const float v = inside ? x[at] : 0.0f;
  // |x| as an integer orders like |x|, and every NaN above every number.
  u32 amax = fs_bits(v) & 0x7fffffffu;
  FS_UNROLL for (u32 mask = 16; mask > 0; mask >>= 1) {
    const u32 other = fs_shfl_xor(amax, mask);
    amax = other > amax ? other : amax;
  }
  const float a = fs_f32(amax);
  i32 r = 0;
  float scale = amax > 0x7f800000u ? fs_f32(FS_NAN) : 0.0f;
  if (a >= 1.262177448353619e-29f) {  // 2^-96; false for NaN
    const float p = fs_mul(v, fs_div(127.0f, a));
    scale = fs_div(a, 127.0f);
    r = p == p ? fs_rne(p) : 0;  // inf * (127 / inf) is NaN
    r = r > 127 ? 127 : r < -127 ? -127 : r;
  }
  i32 sum = r;
  FS_UNROLL for (u32 mask = 8; mask > 0; mask >>= 1) sum += (i32)fs_shfl_xor((u32)sum, mask);
  const u32 other = fs_shfl_xor((u32)sum, 16);
  if (inside) {
    q[at] = (i8)r;
    if (lane == 0) meta[block] = fs_a8_meta{scale, ((u32)sum & 0xffffu) | other << 16};
  }
}
FS_EXPORT(a8_quantise, 256)
