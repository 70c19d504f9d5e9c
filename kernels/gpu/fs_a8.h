// One activation block of 32 values, one a lane of a warp: contract rule 1 and the sums of rule 2.
#pragma once
#include "fourspark.h"
#include "fs_fp4.h"
#include "fs_math.h"

struct fs_a8_value {
  i32 q;            // of this lane
  fs_a8_meta meta;  // of the block, the same in all lanes
};

FS_DEVICE fs_a8_value fs_a8_block(float v) {
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
  // Lane 0's view: its own half first.
  const u32 low = fs_lane() < 16 ? (u32)sum : other, high = fs_lane() < 16 ? other : (u32)sum;
  return fs_a8_value{r, fs_a8_meta{scale, (low & 0xffffu) | high << 16}};
}

// Stores a lane's value as its place in activation blocks and, if asked for, as f32.
FS_DEVICE void fs_a8_store(float h, u64 at, i8* h_q, fs_a8_meta* h_meta, float* h_f32) {
  const fs_a8_value v = fs_a8_block(h);
  h_q[at] = (i8)v.q;
  if (fs_lane() == 0) h_meta[at / 32] = v.meta;
  if (h_f32) h_f32[at] = h;
}
