// Mixing weights of a site, and what a stream becomes after a sublayer, element by element: contract rules 8 and 12.
#pragma once
#include "fourspark.h"
#include "fs_math.h"

static constexpr int FS_STREAMS = 4, FS_SITE = 24;

// Slots of an element that are asked for at once: as many as models use, so that a row of them costs one wait.
static constexpr int FS_SLOTS_AHEAD = 8;

// What an element of a sublayer's output is the sum of, as it was read.
struct FsHcParts {
  float block, slot[FS_SLOTS_AHEAD];
};

// What a sublayer gives: the block [n][d], and the rows of slots [n][used][d] that come before it, or null.
struct FsHcBlock {
  const float* block;
  const float* slots;
  i32 d, used;

  FS_DEVICE_MEMBER float slot(u64 token, u64 i, i32 s) const { return slots[(token * (u64)used + (u64)s) * (u64)d + i]; }

  FS_DEVICE_MEMBER void read(FsHcParts& to, u64 token, u64 i) const {
    to.block = block[token * (u64)d + i];
    FS_UNROLL for (i32 s = 0; s < FS_SLOTS_AHEAD; s++) to.slot[s] = slots && s < used ? slot(token, i, s) : 0.0f;
  }

  // a[i] of a token: ((+0 + slot_0) + slot_1 ..) + block where there are slots.
  FS_DEVICE_MEMBER float sum(const FsHcParts& from, u64 token, u64 i) const {
    if (!slots) return from.block;
    float sum = 0.0f;
    FS_UNROLL for (i32 s = 0; s < FS_SLOTS_AHEAD; s++) sum = s < used ? fs_add(sum, from.slot[s]) : sum;
    for (i32 s = FS_SLOTS_AHEAD; s < used; s++) sum = fs_add(sum, slot(token, i, s));
    return fs_add(sum, from.block);
  }

  FS_DEVICE_MEMBER float at(u64 token, u64 i) const {
    FsHcParts parts;
    read(parts, token, i);
    return sum(parts, token, i);
  }
};

// What stream k of an element is mixed with: post_k and C[j][k]. `mix` [24] of the token.
struct FsHcWeights {
  float post, c[FS_STREAMS];

  FS_DEVICE_MEMBER void read(const float* mix, u64 k) {
    post = mix[FS_STREAMS + k];
    FS_UNROLL for (int j = 0; j < FS_STREAMS; j++) c[j] = mix[8 + 4 * (u64)j + k];
  }
};

// Stream k of an element: fma over j of C[j][k] * x_j from post_k * a.
FS_DEVICE float fs_hc_post(const float (&old)[FS_STREAMS], float a, const FsHcWeights& w) {
  float v = fs_mul(w.post, a);
  FS_UNROLL for (int j = 0; j < FS_STREAMS; j++) v = fs_fma(w.c[j], old[j], v);
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
