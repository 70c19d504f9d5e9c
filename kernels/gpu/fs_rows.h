// Rows of keys on their way to a store: norm, rotation, the model's roundings, packed bytes
// (docs/adr/0001-arithmetic.md rules 6, 10, 13; layouts as in kernels/src/cpu/round.rs).
//
// A row of up to 512 elements lies in shared memory; a block of THREADS threads works on it. Every
// function is called by all threads, and starts and ends with the row complete (a barrier).
#pragma once
#include "fourspark.h"
#include "fs_math.h"

static constexpr int FS_ROW_MAX = 512;

struct FsRow {
  float v[FS_ROW_MAX];
  float factor;
};

// ---- single values

// The exponent n of 2^n >= q with n smallest, read off the bits.
FS_DEVICE i32 fs_ceil_log2(float q) {
  const u32 bits = fs_bits(q);
  return (i32)(bits >> 23) - 127 + ((bits & 0x007fffffu) != 0 ? 1 : 0);
}
FS_DEVICE i32 fs_fp8_exponent(float amax) { return fs_ceil_log2(fs_div(fs_max(amax, 1e-4f), 448.0f)); }
FS_DEVICE i32 fs_fp4_exponent(float amax) { return fs_ceil_log2(fs_div(fs_max(amax, 7.052966104933725e-38f), 6.0f)); }

// e4m3fn, nearest even, saturating at 448.
FS_DEVICE u32 fs_e4m3_encode(float x) {
  if (x != x) return 0x7f;
  const u32 sign = fs_bits(x) >> 24 & 0x80;
  const float magnitude = fs_f32(fs_bits(x) & 0x7fffffffu), a = magnitude < 448.0f ? magnitude : 448.0f;
  // Subnormal: adding 2^14 leaves steps of 2^-9 in the mantissa.
  if (a < 0.015625f) return sign | (fs_bits(fs_add(a, 16384.0f)) - fs_bits(16384.0f));
  const u32 bits = fs_bits(a);
  return sign | (((bits + 0x0007ffffu + (bits >> 20 & 1)) >> 20) - (120u << 3));
}

// Its fields moved to where f32 keeps them give 2^-120 times the value, denormals included.
FS_DEVICE float fs_e4m3_decode(u32 code) {
  const float v = fs_mul(fs_f32((code & 0x7f) << 20 | (code & 0x80) << 24), 1.329227995784916e36f);
  return (code & 0x7f) == 0x7f ? fs_f32(FS_NAN) : v;
}

FS_DEVICE u32 fs_bf16_round(float x) {
  const u32 bits = fs_bits(x);
  return x != x ? 0x7fc0u : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// Nearest e2m1 code, ties to the even code, saturating at 6.
FS_DEVICE u32 fs_e2m1_encode(float x) {
  const float a = fs_f32(fs_bits(x) & 0x7fffffffu);
  const u32 code = a <= 0.25f ? 0 : a < 0.75f ? 1 : a <= 1.25f ? 2 : a < 1.75f ? 3 : a <= 2.5f ? 4 : a < 3.5f ? 5 : a <= 5.0f ? 6 : 7;
  return code | fs_bits(x) >> 31 << 3;
}

// Twice the value of an e2m1 code: 0 1 2 3 4 6 8 12 and their negatives.
FS_DEVICE i32 fs_e2m1_twice(u32 code) {
  const i32 magnitude = (i32)(0xc8643210u >> (4 * (code & 7)) & 15);
  return code & 8 ? -magnitude : magnitude;
}

// f32(1 / sqrt(n)) for n a power of two: a power of two, times f32(1 / sqrt(2)) if n is an odd one.
FS_DEVICE float fs_hadamard_factor(i32 n) {
  i32 log2 = 0;
  while (n >> log2 > 1) log2++;
  return fs_mul(log2 & 1 ? 0.70710678f : 1.0f, fs_pow2(-(log2 / 2)));
}

// max |v| of a warp; NaN loses against every number.
FS_DEVICE float fs_warp_amax(float a) {
  FS_UNROLL for (u32 mask = 16; mask > 0; mask >>= 1) a = fs_max(a, fs_shfl_xor(a, mask));
  return a;
}

// ---- rows

// v = (v * r) * w: rule 6 on one segment.
template <int THREADS>
FS_DEVICE void fs_row_norm(FsRow& row, const float* w, i32 dim, float eps) {
  if (fs_warp() == 0) {
    float p = 0.0f;
    FS_UNROLL for (i32 i = 0; i < FS_ROW_MAX / 32; i++) {
      const i32 k = i * 32 + (i32)fs_lane();
      if (k < dim) p = fs_fma(row.v[k], row.v[k], p);
    }
    p = fs_fold_lanes(p);
    if (fs_lane() == 0) row.factor = fs_rsqrt(fs_add(fs_div(p, (float)dim), eps));
  }
  fs_barrier();
  for (i32 k = (i32)fs_tid(); k < dim; k += THREADS) row.v[k] = fs_mul(fs_mul(row.v[k], row.factor), w[k]);
  fs_barrier();
}

// Turns the last n_rot elements forward; angles [n_rot / 2] of (cos, sin).
template <int THREADS>
FS_DEVICE void fs_row_rotate(FsRow& row, const f32x2* angles, i32 dim, i32 n_rot) {
  for (i32 i = (i32)fs_tid(); i < n_rot / 2; i += THREADS) {
    float* pair = &row.v[dim - n_rot + 2 * i];
    const f32x2 angle = angles[i];
    const float a = pair[0], b = pair[1];
    pair[0] = fs_fma(a, angle.x, -fs_mul(b, angle.y));
    pair[1] = fs_fma(a, angle.y, fs_mul(b, angle.x));
  }
  fs_barrier();
}

template <int THREADS>
FS_DEVICE void fs_row_hadamard(FsRow& row, i32 dim) {
  for (i32 stride = 1; stride < dim; stride *= 2) {
    for (i32 t = (i32)fs_tid(); t < dim / 2; t += THREADS) {
      const i32 at = t / stride * 2 * stride + t % stride;
      const float a = row.v[at], b = row.v[at + stride];
      row.v[at] = fs_add(a, b);
      row.v[at + stride] = fs_sub(a, b);
    }
    fs_barrier();
  }
  const float factor = fs_hadamard_factor(dim);
  for (i32 k = (i32)fs_tid(); k < dim; k += THREADS) row.v[k] = fs_mul(row.v[k], factor);
  fs_barrier();
}

// Bytes of a packed attention row and of a packed indexer row.
FS_DEVICE i32 fs_kv_tail(i32 dim, i32 n_rot) { return (dim - n_rot + (dim - n_rot + 63) / 64 + 1) / 2 * 2; }
FS_DEVICE i32 fs_kv_bytes(i32 dim, i32 n_rot) { return fs_kv_tail(dim, n_rot) + 2 * n_rot; }
FS_DEVICE i32 fs_index_bytes(i32 dim) { return dim / 2 + dim / 32; }

// Rounds to fp8 by 64 and bf16, and packs: codes, one exponent a block, bf16 tail. The exponent is
// that of the rounded values, as a reader that repacks them finds it.
template <int THREADS>
FS_DEVICE void fs_row_pack_kv(const FsRow& row, u8* out, i32 dim, i32 n_rot) {
  const i32 nope = dim - n_rot, blocks = (nope + 63) / 64, tail = fs_kv_tail(dim, n_rot);
  for (i32 b = (i32)fs_warp(); b < blocks; b += THREADS / 32) {
    const i32 at[2] = {b * 64 + (i32)fs_lane(), b * 64 + 32 + (i32)fs_lane()};
    float v[2];
    FS_UNROLL for (int i = 0; i < 2; i++) v[i] = at[i] < nope ? row.v[at[i]] : 0.0f;
    i32 exponent = 0;
    FS_UNROLL for (int pass = 0; pass < 2; pass++) {
      float amax = fs_max(0.0f, fs_f32(fs_bits(v[0]) & 0x7fffffffu));
      amax = fs_warp_amax(fs_max(amax, fs_f32(fs_bits(v[1]) & 0x7fffffffu)));
      exponent = fs_fp8_exponent(amax);
      const float scale = fs_pow2(exponent);
      FS_UNROLL for (int i = 0; i < 2; i++) {
        const u32 code = fs_e4m3_encode(fs_div(v[i], scale));
        v[i] = fs_mul(fs_e4m3_decode(code), scale);
        if (pass == 1 && at[i] < nope) out[at[i]] = (u8)code;
      }
    }
    if (fs_lane() == 0) out[nope + b] = (u8)(exponent + 127);
  }
  if (fs_tid() == 0 && nope + blocks < tail) out[nope + blocks] = 0;
  for (i32 i = (i32)fs_tid(); i < n_rot; i += THREADS) *(u16*)(out + tail + 2 * i) = (u16)fs_bf16_round(row.v[nope + i]);
}

// Rounds to fp4 by 32 and packs: two codes a byte, then one exponent a block.
template <int THREADS>
FS_DEVICE void fs_row_pack_index(const FsRow& row, u8* out, i32 dim) {
  for (i32 b = (i32)fs_warp(); b < dim / 32; b += THREADS / 32) {
    const float v = row.v[b * 32 + (i32)fs_lane()];
    const i32 exponent = fs_fp4_exponent(fs_warp_amax(fs_max(0.0f, fs_f32(fs_bits(v) & 0x7fffffffu))));
    const u32 code = fs_e2m1_encode(fs_div(v, fs_pow2(exponent))), next = fs_shfl_xor(code, 1);
    if (fs_lane() % 2 == 0) out[b * 16 + (i32)fs_lane() / 2] = (u8)(code | next << 4);
    if (fs_lane() == 0) out[dim / 2 + b] = (u8)(exponent + 127);
  }
}
