// Keyed noise, operation for operation as docs/adr/0007-keyed-noise.md states it.
#pragma once
#include "fourspark.h"
#include "fs_math.h"

FS_DEVICE u64 fs_noise_mix(u64 z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// 40 random bits of a token in a row of noise.
FS_DEVICE u64 fs_noise_bits(u64 row, u32 token) { return fs_noise_mix(row + 0x9e3779b97f4a7c15ull * ((u64)token + 1)) >> 24; }

FS_DEVICE float fs_gumbel(u64 bits) {
  const float unit = 4.547473508864641e-13f;  // 2^-41
  const u64 odd = 2 * bits + 1;
  const float u = fs_mul((float)odd, unit);
  const float low = fs_log1p(fs_div(u, fs_sub(1.0f, u)));
  const float high = -fs_ln(fs_mul((float)((1ull << 41) - odd), unit));
  return -fs_ln(odd < 1ull << 40 ? low : high);
}
