// What a stream becomes after a sublayer, element by element: contract rules 8 and 12.
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
