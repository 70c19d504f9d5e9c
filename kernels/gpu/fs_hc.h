// Mixing weights of a site, and what a stream becomes after a sublayer, element by element: contract rules 8 and 12.
#pragma once
#include "fourspark.h"
#include "fs_math.h"

static constexpr int FS_STREAMS = 4, FS_SITE = 24;

// What a sublayer gives: the block [n][d], and the rows of slots [n][used][d] that come before it, or null.
struct FsHcBlock {
  const float* block;
  const float* slots;
  i32 d, used;

  // a[i] of a token: ((+0 + slot_0) + slot_1 ..) + block where there are slots.
  FS_DEVICE_MEMBER float at(u64 token, u64 i) const {
    const float a = block[token * (u64)d + i];
    if (!slots) return a;
    float sum = 0.0f;
    for (i32 s = 0; s < used; s++) sum = fs_add(sum, slots[(token * (u64)used + (u64)s) * (u64)d + i]);
    return fs_add(sum, a);
  }
};

// Stream k of an element: fma over j of C[j][k] * x_j from post_k * a. `mix` [24] of the token.
FS_DEVICE float fs_hc_post(const float (&old)[FS_STREAMS], float a, const float* mix, u64 k) {
  float v = fs_mul(mix[FS_STREAMS + k], a);
  FS_UNROLL for (int j = 0; j < FS_STREAMS; j++) v = fs_fma(mix[8 + 4 * (u64)j + k], old[j], v);
  return v;
}

// The sum in index order of four lanes that lie `stride` apart, from `first`.
FS_DEVICE float fs_hc_four(float v, u32 first, u32 stride) {
  float part[4];
  FS_UNROLL for (u32 i = 0; i < 4; i++) part[i] = fs_shfl(v, first + i * stride);
  return fs_add(fs_add(fs_add(part[0], part[1]), part[2]), part[3]);
}

// C of one warp: lane 4 j + k holds C[j][k]; lanes 16 to 31 repeat the first ones.
FS_DEVICE float fs_hc_sinkhorn(float z, i32 iterations, float eps) {
  const u32 lane = fs_lane(), row = lane & ~3u, column = (lane & 16) | (lane & 3);
  float peak = fs_f32(0xff800000u);
  FS_UNROLL for (u32 i = 0; i < 4; i++) peak = fs_max(peak, fs_shfl(z, row + i));
  const float e = fs_exp(fs_sub(z, peak));
  float c = fs_add(fs_div(e, fs_hc_four(e, row, 1)), eps);
  c = fs_div(c, fs_add(fs_hc_four(c, column, 4), eps));
  for (i32 i = 1; i < iterations; i++) {
    c = fs_div(c, fs_add(fs_hc_four(c, row, 1), eps));
    c = fs_div(c, fs_add(fs_hc_four(c, column, 4), eps));
  }
  return c;
}

// A site that hc_pre left open: of its tokens' rows `mix` post and C are still what goes into their functions. Nobody needs
// them before the next site, so that a block beside a kernel of the sublayer can finish a token. mix null: there is none.
struct FsHcOpen {
  float* mix;
  i32 iterations;
  float eps;

  // Called by all threads of a block of 64 and more.
  FS_DEVICE_MEMBER void finish(u64 token) const {
    float* row = mix + token * FS_SITE;
    const u32 at = FS_STREAMS + (fs_lane() & 3), from = 2 * FS_STREAMS + (fs_lane() & 15);
    if (fs_warp() == 0) {
      const float c = fs_hc_sinkhorn(row[from], iterations, eps);
      if (fs_lane() < 16) row[from] = c;
    } else if (fs_warp() == 1 && fs_lane() < FS_STREAMS) {
      row[at] = fs_mul(2.0f, fs_sigmoid(row[at]));
    }
  }
};
