// Contract rule 14 as integers: a larger rank comes first. NaN ranks below every number, -0 and +0 are
// equal, and of equal values the lower index comes first.
#pragma once
#include "fourspark.h"

// 0 for NaN, 0x007fffff for minus infinity.
FS_DEVICE u32 fs_rank(float v) {
  const u32 bits = fs_bits(v), magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0;
  if (magnitude == 0) return 0x80000000u;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
static constexpr u32 FS_RANK_LOWEST = 0x007fffffu;  // of minus infinity

// Value and index in one word; the largest wins.
FS_DEVICE u64 fs_rank_key(float v, u32 index) { return (u64)fs_rank(v) << 32 | (u64)(u32)~index; }
FS_DEVICE u32 fs_rank_index(u64 key) { return ~(u32)key; }

// The largest key of a warp, in every lane.
FS_DEVICE u64 fs_rank_best(u64 key) {
  FS_UNROLL for (u32 mask = 16; mask > 0; mask >>= 1) {
    const u32 high = fs_shfl_xor((u32)(key >> 32), mask), low = fs_shfl_xor((u32)key, mask);
    const u64 other = (u64)high << 32 | low;
    key = other > key ? other : key;
  }
  return key;
}
