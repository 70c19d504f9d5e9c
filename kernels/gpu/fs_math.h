// The functions of the arithmetic contract, operation for operation as `engine_core::math` writes
// them (crates/engine-core/src/math/{exp,log}.rs hold the derivations and the error bounds).
#pragma once
#include "fourspark.h"

static constexpr u32 FS_NAN = 0x7fc00000u;

// 2^n for -126 <= n <= 127.
FS_DEVICE float fs_pow2(i32 n) { return fs_f32((u32)(n + 127) << 23); }

FS_DEVICE float fs_exp(float x) {
  const float round = 12582912.0f;
  float c = x > -104.0f ? x : -104.0f;
  c = c < 88.8f ? c : 88.8f;
  const float n = fs_sub(fs_fma(c, 1.44269504f, round), round);
  float r = fs_fma(n, -0.693145752f, c);
  r = fs_fma(n, -1.42860677e-6f, r);
  float p = 1.98412698e-4f;
  p = fs_fma(p, r, 1.3888889e-3f);
  p = fs_fma(p, r, 8.3333333e-3f);
  p = fs_fma(p, r, 4.1666667e-2f);
  p = fs_fma(p, r, 1.6666667e-1f);
  p = fs_fma(p, r, 0.5f);
  const float r2 = fs_mul(r, r);
  const float t = fs_add(1.0f, r);
  const float e = fs_sub(r, fs_sub(t, 1.0f));
  const float v = fs_add(t, fs_fma(r2, p, e));
  const i32 ni = (i32)n;
  const i32 n1 = ni >> 1, n2 = ni - n1;
  float y = fs_mul(fs_mul(v, fs_pow2(n1)), fs_pow2(n2));
  y = x > -104.0f ? y : 0.0f;
  y = x > 88.8f ? fs_f32(0x7f800000u) : y;
  return x != x ? fs_f32(FS_NAN) : y;
}

FS_DEVICE float fs_sigmoid(float x) { return fs_div(1.0f, fs_add(1.0f, fs_exp(-x))); }

FS_DEVICE float fs_silu(float x) { return fs_div(x, fs_add(1.0f, fs_exp(-x))); }

FS_DEVICE float fs_rsqrt(float x) { return fs_div(1.0f, fs_sqrt(x)); }

// ln(u) + c for a normal u > 0 and a small c, k0 added to the exponent of u.
FS_DEVICE float fs_ln_parts(float u, float k0, float c) {
  const u32 bits = fs_bits(u) + (0x3f800000u - 0x3f3504f3u);
  const i32 k = (i32)(bits >> 23) - 127;
  const float m = fs_f32((bits & 0x007fffffu) + 0x3f3504f3u);
  const float f = fs_sub(m, 1.0f);
  const float s = fs_div(f, fs_add(2.0f, f));
  const float z = fs_mul(s, s);
  float r = fs_fma(z, 0.18181818f, 0.22222222f);
  r = fs_fma(z, r, 0.28571429f);
  r = fs_fma(z, r, 0.4f);
  r = fs_fma(z, r, 0.66666667f);
  r = fs_mul(z, r);
  const float h = fs_mul(fs_mul(0.5f, f), f);
  const float kf = fs_add((float)k, k0);
  const float tail = fs_fma(kf, 1.42860677e-6f, c);
  const float low = fs_fma(s, fs_add(h, r), tail);
  return fs_fma(kf, 0.693145752f, fs_sub(f, fs_sub(h, low)));
}

FS_DEVICE float fs_ln(float x) {
  const bool small = x < fs_f32(0x00800000u);
  const float u = small ? fs_mul(x, 8388608.0f) : x;
  float v = fs_ln_parts(u, small ? -23.0f : 0.0f, 0.0f);
  v = x == 0.0f ? fs_f32(0xff800000u) : v;
  v = x == fs_f32(0x7f800000u) ? x : v;
  return x >= 0.0f ? v : fs_f32(FS_NAN);
}

FS_DEVICE float fs_log1p(float y) {
  const float u = fs_add(1.0f, y);
  float c = y >= 1.0f ? fs_sub(1.0f, fs_sub(u, y)) : fs_sub(y, fs_sub(u, 1.0f));
  c = y < 1.6e7f ? fs_div(c, u) : 0.0f;
  float v = fs_ln_parts(u, 0.0f, c);
  v = y < 5.96e-8f ? y : v;
  v = y == fs_f32(0x7f800000u) ? y : v;
  return y >= 0.0f ? v : fs_f32(FS_NAN);
}

FS_DEVICE float fs_softplus(float x) {
  const float v = fs_log1p(fs_exp(x));
  return x > 20.0f ? x : v;
}

FS_DEVICE float fs_sqrt_softplus(float x) { return fs_sqrt(fs_softplus(x)); }

// Rule 4: the 32 partial sums of a segment, one a lane, combined by xor 16, 8, 4, 2, 1.
FS_DEVICE float fs_fold_lanes(float p) {
  FS_UNROLL for (u32 mask = 16; mask > 0; mask >>= 1) p = fs_add(p, fs_shfl_xor(p, mask));
  return p;
}

// The same for eight values a lane at the cost of nine shuffles: lane l returns the sum of value l / 4.
// At each step the lanes keep one half of the values and send the other, so that each sum adds
// the same pairs as fs_fold_lanes.
FS_DEVICE float fs_fold_eight(const float (&p)[8]) {
  const u32 lane = fs_lane();
  float a[4], b[2];
  FS_UNROLL for (int i = 0; i < 4; i++) {
    const float keep = lane & 16 ? p[i + 4] : p[i], send = lane & 16 ? p[i] : p[i + 4];
    a[i] = fs_add(keep, fs_shfl_xor(send, 16));
  }
  FS_UNROLL for (int i = 0; i < 2; i++) {
    const float keep = lane & 8 ? a[i + 2] : a[i], send = lane & 8 ? a[i] : a[i + 2];
    b[i] = fs_add(keep, fs_shfl_xor(send, 8));
  }
  const float keep = lane & 4 ? b[1] : b[0], send = lane & 4 ? b[0] : b[1];
  float sum = fs_add(keep, fs_shfl_xor(send, 4));
  sum = fs_add(sum, fs_shfl_xor(sum, 2));
  return fs_add(sum, fs_shfl_xor(sum, 1));
}

static constexpr int FS_SEGMENT = 512;       // elements of a segment (rules 3 and 4)
static constexpr int FS_SEGMENT_BLOCKS = 16;  // blocks of 32 in a segment (rule 3)

// log2 of the smallest power of two that is at least n, at most 3: how many slots a row's segments
// take in a block, so that dividing by it is a shift.
FS_DEVICE i32 fs_slots_log2(i32 n) { return n <= 1 ? 0 : n <= 2 ? 1 : n <= 4 ? 2 : 3; }
