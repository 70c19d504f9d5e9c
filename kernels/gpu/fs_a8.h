// One activation block of 32 values, one a lane of a warp or four a lane of eight: contract rule 1 and the sums of rule 2.
#pragma once
#include "fourspark.h"
#include "fs_fp4.h"
#include "fs_math.h"

struct fs_a8_value {
  i32 q;            // of this lane
  fs_a8_meta meta;  // of the block, the same in all lanes
};

// What a block's largest |x| gives: the factor that makes codes of values, and d.
struct fs_a8_scale {
  float inverse, d;
};

// `amax`: the bits of the largest |x|. As an integer |x| orders like |x|, and every NaN above every number. Of NaN and of
// values too small for a block all codes are 0.
FS_DEVICE fs_a8_scale fs_a8_scale_of(u32 amax) {
  const float a = fs_f32(amax);
  if (a >= 1.262177448353619e-29f) return fs_a8_scale{fs_div(127.0f, a), fs_div(a, 127.0f)};  // 2^-96; false for NaN
  return fs_a8_scale{0.0f, amax > 0x7f800000u ? fs_f32(FS_NAN) : 0.0f};
}

FS_DEVICE i32 fs_a8_code(float v, const fs_a8_scale& scale) {
  const float p = fs_mul(v, scale.inverse);
  const i32 r = p == p ? fs_rne(p) : 0;  // inf * (127 / inf) is NaN
  return r > 127 ? 127 : r < -127 ? -127 : r;
}

FS_DEVICE u32 fs_a8_most(u32 a, u32 b) { return a > b ? a : b; }

FS_DEVICE fs_a8_value fs_a8_block(float v) {
  u32 amax = fs_bits(v) & 0x7fffffffu;
  FS_UNROLL for (u32 mask = 16; mask > 0; mask >>= 1) amax = fs_a8_most(amax, fs_shfl_xor(amax, mask));
  const fs_a8_scale scale = fs_a8_scale_of(amax);
  const i32 r = fs_a8_code(v, scale);
  i32 sum = r;
  FS_UNROLL for (u32 mask = 8; mask > 0; mask >>= 1) sum += (i32)fs_shfl_xor((u32)sum, mask);
  const u32 other = fs_shfl_xor((u32)sum, 16);
  // Lane 0's view: its own half first.
  const u32 low = fs_lane() < 16 ? (u32)sum : other, high = fs_lane() < 16 ? other : (u32)sum;
  return fs_a8_value{r, fs_a8_meta{scale.d, (low & 0xffffu) | high << 16}};
}

// Stores four values of a lane, a block in eight lanes: at and on, a multiple of 4. All lanes of a warp call.
FS_DEVICE void fs_a8_store_four(const float (&v)[4], u64 at, i8* q, fs_a8_meta* meta) {
  u32 amax = 0, codes = 0;
  FS_UNROLL for (int i = 0; i < 4; i++) amax = fs_a8_most(amax, fs_bits(v[i]) & 0x7fffffffu);
  FS_UNROLL for (u32 mask = 4; mask > 0; mask >>= 1) amax = fs_a8_most(amax, fs_shfl_xor(amax, mask));
  const fs_a8_scale scale = fs_a8_scale_of(amax);
  i32 sum = 0;
  FS_UNROLL for (int i = 0; i < 4; i++) {
    const i32 r = fs_a8_code(v[i], scale);
    sum += r;
    codes |= ((u32)r & 255) << (8 * i);
  }
  FS_UNROLL for (u32 mask = 2; mask > 0; mask >>= 1) sum += (i32)fs_shfl_xor((u32)sum, mask);
  const u32 other = fs_shfl_xor((u32)sum, 4);
  *(u32*)(q + at) = codes;
  if (fs_lane() % 8 == 0) meta[at / 32] = fs_a8_meta{scale.d, ((u32)sum & 0xffffu) | other << 16};
}

// Stores a lane's value as its place in activation blocks and, if asked for, as f32.
FS_DEVICE void fs_a8_store(float h, u64 at, i8* h_q, fs_a8_meta* h_meta, float* h_f32) {
  const fs_a8_value v = fs_a8_block(h);
  h_q[at] = (i8)v.q;
  if (fs_lane() == 0) h_meta[at / 32] = v.meta;
  if (h_f32) h_f32[at] = h;
}
