// Weights as f16 and a step of f16 matrix units that is exact: levels times scales, four significant bits, against int8
// activations, summed in f32. A step's sum is then rule 2's term as it stands, and one fma an output is left.
//
// Why the bits are those of rule 2. Scales are c 2^e with c < 16 and -10 <= e <= 4, levels are at most 4. Every product of
// a block is a multiple of u = 2^e (the smaller e of its halves). Where these e differ by at most 4 (fs_half_apart), the
// sum of the products' sizes is at most 16 * 127 * 4 * 15 u (1 + 2^4) < 2^21 u: every sum of some of them, in any order, is
// an f32. Nothing is rounded, whatever the unit's order is (it sums with f32 precision at least: PTX ISA, mma.m16n8k16);
// rule 2's fma(s.x, I.x, s.y * I.y) rounds that same exact sum to itself. Where e differ by more, a step a half gives s.x *
// I.x and s.y * I.y, exact for the same reason, and one addition rounds their sum as that fma does. Zeros may differ in
// sign: added to an accumulator that began at +0 they do not show.
#pragma once
#include "fourspark.h"
#include "fs_formats.h"
#include "fs_tile.h"

// ---- two f16 in a word, exact: no result here needs rounding

#if FS_HOST
FS_DEVICE u32 fs_host_half(float v) {
  const u32 bits = fs_bits(v), sign = bits >> 16 & 0x8000u;
  const float moved = fs_f32(bits & 0x7fffffffu) * 0x1p-112f;  // f16's exponents, its denormals as f32's
  const u32 half = fs_bits(moved) >> 13;
  if (fs_bits(moved) & 8191 || half >= 0x7c00u || moved * 0x1p112f != fs_f32(bits & 0x7fffffffu)) fs_host_fail("%a is no f16", (double)v);
  return sign | half;
}
#endif
FS_DEVICE u32 fs_half2_add(u32 a, u32 b) {
#if FS_CUDA
  u32 r;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
#elif FS_HOST
  return fs_host_half(fs_f16((u16)a) + fs_f16((u16)b)) | fs_host_half(fs_f16((u16)(a >> 16)) + fs_f16((u16)(b >> 16))) << 16;
#else
  return a + b;  // not called
#endif
}
// a times half i of `pair`.
FS_DEVICE u32 fs_half2_mul(u32 a, u32 pair, u32 i) {
#if FS_CUDA
  u32 r;
  if (i == 0)
    asm("{ .reg .b16 l, h; .reg .b32 t; mov.b32 {l, h}, %2; mov.b32 t, {l, l}; mul.rn.f16x2 %0, %1, t; }" : "=r"(r) : "r"(a), "r"(pair));
  else
    asm("{ .reg .b16 l, h; .reg .b32 t; mov.b32 {l, h}, %2; mov.b32 t, {h, h}; mul.rn.f16x2 %0, %1, t; }" : "=r"(r) : "r"(a), "r"(pair));
  return r;
#elif FS_HOST
  const float b = fs_f16((u16)(pair >> (16 * i)));
  return fs_host_half(fs_f16((u16)a) * b) | fs_host_half(fs_f16((u16)(a >> 16)) * b) << 16;
#else
  return a * (pair >> i);  // not called
#endif
}

// Whether v is not 0 in any lane.
FS_DEVICE bool fs_warp_any(u32 v) {
#if FS_CUDA
  u32 r;
  asm("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; vote.sync.any.pred q, p, 0xffffffff; selp.u32 %0, 1, 0, q; }" : "=r"(r) : "r"(v));
  return r != 0;
#else
  FS_UNROLL for (u32 m = 1; m < 32; m *= 2) v |= fs_shfl_xor(v, m);
  return v != 0;
#endif
}

// ---- the step: 16 elements deep, fragments in words of pairs

#if FS_TILE_HALVES
// a: row line 0's first pair, line 1's, line 0's second pair, line 1's; b: a column's two pairs (fs_tile_line).
FS_DEVICE void fs_half_mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, const float (&c)[4]) {
#if FS_CUDA
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
#else
  const u32 b[2] = {b0, b1};
  fs_host_half_mma(&d[0], &a[0], b, &c[0], __FILE__, __LINE__);
#endif
}
#endif

// ---- activations

// Four int8 as pairs: of bytes 0 and 2, and of 1 and 3. 1024 + q + 128 is an f16 whose low byte is q + 128.
FS_DEVICE u32x2 fs_half_pairs(u32 q) {
  const u32 v = q ^ 0x80808080u, minus = 0xe480e480u;  // -1152 twice
  return u32x2{fs_half2_add((v & 0x00ff00ffu) | 0x64006400u, minus), fs_half2_add(fs_prmt(v, 0x64646464u, 0x4341), minus)};
}

// ---- scales: UE4M3 bytes as f16 are 2^-7 of their value, denormals included; levels make up for it

// Bytes 0 and 2 (i = 0) or 1 and 3 of a word, bit 7 a sign.
FS_DEVICE u32 fs_half_scales(u32 word, u32 i) {
  const u32 at = i == 0 ? word << 8 : word;
  return (at >> 1 & 0x3f803f80u) | (at & 0x80008000u);
}

// Bits 13 to 15 of a half of the result are 0 where the scales of the halves of a block, two blocks a word, are at most
// 32 codes apart, -32 to 31: exponents at most 4.
static constexpr u32 FS_HALF_APART = 0xe000e000u;
FS_DEVICE u32 fs_half_apart(u32 first, u32 second) {
  return ((first | 0x80008000u) - (second & 0x7fff7fffu) + 0x10001000u) ^ 0x80008000u;
}

// ---- levels: high bytes of the f16 of 128 times a level; the low ones are zero, as levels have three significant bits

// The pairs of four of them, as fs_half_pairs.
FS_DEVICE u32x2 fs_half_spread(u32 high) { return u32x2{fs_prmt(high, 0, 0x2404), high & 0xff00ff00u}; }

// Four bytes of levels, of up to three significant bits, as such high bytes.
FS_DEVICE u32 fs_half_table(u32 levels) {
  u32 out = 0;
  FS_UNROLL for (u32 i = 0; i < 4; i++) {
    const float v = (float)((i32)(i8)(levels >> (8 * i)) * 128);
    const u32 bits = fs_bits(v);
    if (v != 0.0f) out |= ((bits >> 24 & 0x80u) | (((bits >> 21) - 448u) & 0x7fu)) << (8 * i);
  }
  return out;
}

// How a format becomes f16. four(p, t, h, table): eight levels of word t of a fragment are those of h 0 and 1, from the
// words that grouped_load brings; table is what table_of made of the kernel's.
template <class F>
struct FsHalves {
  static constexpr bool ON = false;
};

template <>
struct FsHalves<FsFp2> {
  static constexpr bool ON = FS_TILE_HALVES;
  FS_DEVICE_STATIC u32 table_of(u32 table) { return fs_half_table(table); }
  FS_DEVICE_STATIC u32x2 four(const u32 (&p)[2][1], u32 t, u32 h, u32 table) {
    return fs_half_spread(FsFp2::four(p[h], 2 * h + t / 2, t % 2, table));
  }
};

template <>
struct FsHalves<FsFp3> {
  static constexpr bool ON = FS_TILE_HALVES;
  FS_DEVICE_STATIC u32 table_of(u32) { return 0; }
  FS_DEVICE_STATIC u32x2 four(const u32 (&p)[2][2], u32 t, u32 h, u32) {
    // Bit q of nibble n of the third word to bit 2 of nibble n: a turn, left for the first two q.
    const u32 turn = (2 * h + t / 2 + 16 * (t % 2) + 30) % 32;
    const u32 low = p[h][0] >> (t / 2 * 2 + 16 * (t % 2)) & 0x3333u, high = (p[h][1] >> turn | p[h][1] << (32 - turn) % 32) & 0x4444u;
    return fs_half_spread(fs_pick_nibbles(0xe0dcd800u, 0x605c5800u, low | high).x);
  }
};
