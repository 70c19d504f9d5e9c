// ROCmFP4_FAST on the device: the packed order that every FP4_FAST kernel reads, and the decoder.
//
// A file block is 17 bytes per 32 weights: byte j < 16 holds element j in its low and element j + 16
// in its high nibble, byte 16 is the UE4M3 scale (spec/fpx-formats.md 1, 2). Levels of codes 0..7:
// 0 1 2 3 4 6 8 10, of codes 8..15 their negatives.
//
// Packed order ("tile32"), a permutation plus zero padding, made once at load by fp4f_repack. Rows
// in tiles of 32, blocks in groups of 4 along K:
//   codes  [tile][group of 4 blocks][word 0..3][row 0..31] 16 bytes = word `word` of the 4 blocks,
//          a word being the 8 codes of elements 8 word .. 8 word + 7, lowest nibble first;
//   scales [tile][segment of 16 blocks][row 0..31] 16 bytes, one a block.
// One lane a row (dp4a) reads 512 contiguous bytes a load; one lane an eighth of a row (matrix
// units) reads whole 128-byte lines and needs no shuffle: its word is its k slice of four blocks.
// Rows and blocks beyond the matrix are zero. One copy of the weights serves every kernel.
#pragma once
#include "fourspark.h"

struct fs_tile32 {
  const u32x4* codes;
  const u32x4* scales;
  i32 tiles, groups, segments;
};

FS_DEVICE fs_tile32 fs_tile32_of(const u8* packed, i32 m, i32 blocks) {
  fs_tile32 w;
  w.tiles = (m + 31) / 32;
  w.groups = (blocks + 3) / 4;
  w.segments = (blocks + 15) / 16;
  w.codes = (const u32x4*)packed;
  w.scales = w.codes + (u64)w.tiles * (u64)w.groups * 128;
  return w;
}

// Where the 16 bytes of (tile, group, word, row 0) start.
FS_DEVICE const u32x4* fs_tile32_codes(const fs_tile32& w, i32 tile, i32 group, u32 word) {
  return w.codes + (((u64)tile * (u64)w.groups + (u64)group) * 4 + word) * 32;
}

FS_DEVICE const u32x4* fs_tile32_scales(const fs_tile32& w, i32 tile, i32 segment) {
  return w.scales + ((u64)tile * (u64)w.segments + (u64)segment) * 32;
}

// The f32 of a valid scale byte (0 .. 0x7e): its fields moved to where f32 keeps them give 2^-119
// times the value, denormals included, and the product with 2^119 is exact.
FS_DEVICE float fs_ue4m3(u32 byte) { return fs_mul(fs_f32(byte << 20), 6.646139978924579e35f); }

#if FS_HIP || FS_HOST_TILE_GFX
struct fs_fp4_tables {};
FS_DEVICE fs_fp4_tables fs_fp4_tables_of(u32) { return fs_fp4_tables{}; }

// v_perm_b32 for selectors 0..7: byte n of the result is byte (selector byte n) of {hi, lo}.
FS_DEVICE u32 fs_perm(u32 hi, u32 lo, u32 sel) {
#if FS_HIP && defined(__AMDGCN__)
  return __builtin_amdgcn_perm(hi, lo, sel);
#else
  const u64 pool = (u64)hi << 32 | lo;
  u32 r = 0;
  for (int n = 0; n < 4; n++) r |= ((u32)(pool >> (8 * ((sel >> (8 * n)) & 7))) & 255) << (8 * n);
  return r;
#endif
}

// Four codes, one a byte, as signed levels.
FS_DEVICE u32 fs_fp4_four(u32 codes) {
  const u32 index = codes & 0x07070707u, sign = (codes >> 3) & 0x01010101u;
  const u32 mask = (sign << 8) - sign;  // the last byte's borrow leaves through the top
  const u32 pos = fs_perm(0x0a080604u, 0x03020100u, index);
  const u32 neg = fs_perm(0xf6f8fafcu, 0xfdfeff00u, index);
  return (pos & ~mask) | (neg & mask);
}

// Eight codes as signed levels in element order.
FS_DEVICE u32x2 fs_fp4_levels(const fs_fp4_tables&, u32 word) {
  const u32 even = fs_fp4_four(word & 0x0f0f0f0fu), odd = fs_fp4_four((word >> 4) & 0x0f0f0f0fu);
  return u32x2{fs_perm(odd, even, 0x05010400u), fs_perm(odd, even, 0x07030602u)};
}
FS_DEVICE u32x2 fs_fp4_biased(const fs_fp4_tables& tables, u32 word) { return fs_fp4_levels(tables, word); }
static constexpr i32 FS_FP4_BIAS = 0;
#else
// Levels + 16 of codes 0..3 and of codes 8..11; those of 4..7 and 12..15 are constants in the
// instructions.
struct fs_fp4_tables {
  u32 pos, neg;
};
FS_DEVICE fs_fp4_tables fs_fp4_tables_of(u32 zero) {
  return fs_fp4_tables{fs_opaque(0x13121110u, zero), fs_opaque(0x0d0e0f10u, zero)};
}

// Eight codes as levels + FS_FP4_BIAS in element order. A selector nibble with bit 3 set replicates
// the sign bit of a table byte, so each of the two tables, all below 128, gives 0 for the codes of
// the other, and their sum is the biased level.
FS_DEVICE u32x2 fs_fp4_biased(const fs_fp4_tables& t, u32 word) {
  const u32 flip = word ^ 0x88888888u;
  return u32x2{fs_prmt(t.pos, 0x1a181614u, word) + fs_prmt(t.neg, 0x06080a0cu, flip),
               fs_prmt(t.pos, 0x1a181614u, word >> 16) + fs_prmt(t.neg, 0x06080a0cu, flip >> 16)};
}
static constexpr i32 FS_FP4_BIAS = 16;

// Eight codes as signed levels: + 112 and a flip of bit 7 remove the bias without a carry between
// bytes.
FS_DEVICE u32x2 fs_fp4_levels(const fs_fp4_tables& t, u32 word) {
  const u32x2 v = fs_fp4_biased(t, word);
  return u32x2{(v.x + 0x70707070u) ^ 0x80808080u, (v.y + 0x70707070u) ^ 0x80808080u};
}
#endif

// What a8_quantise keeps of a block of 32 activations beside its int8 values.
struct fs_a8_meta {
  float d;
  u32 sums;  // of the first 16 q in the low half, of the last 16 in the high half
};

// 1.5 * 2^23: an f32 whose bit pattern plus an integer I of |I| < 2^22 is the f32 of itself plus I.
// A dot that starts there needs no conversion: s * f32(I) = fma(s, that, -(s * 1.5 * 2^23)), all
// exact because s has 4 significant bits and |I| <= 32 * 127 * 10.
static constexpr i32 FS_MAGIC_BITS = 0x4b400000;
static constexpr float FS_MAGIC = 12582912.0f;
