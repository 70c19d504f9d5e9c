// Weight formats with offsets or with file blocks of 256: ROCmFP2 affine, Q4_K, Q2_K, IQ2_XXS. What a format is and
// tile order: fs_formats.h. The scales of a segment of those of 256, two file blocks:
//   Q4_K      unit u: the 16 bytes before the codes of file block u: f16 d, f16 dmin, packed scales and minima
//   Q2_K      unit u < 2: the 16 bytes of scales and minima of file block u; unit 2: d and dmin of both, f16
//   IQ2_XXS   the scales of the 16 blocks, a nibble each; then d of both file blocks, f16
// and the codes
//   Q4_K      word j: codes of elements 8 j .. 8 j + 7, lowest nibble first
//   Q2_K, affine   as ROCmFP2
//   IQ2_XXS   word 0: four points of the grid; word 1: their signs, 7 bits each, the eighth makes their number even
#pragma once
#include "fourspark.h"
#include "fs_codes.h"
#include "fs_formats.h"
#include "fs_iq2_grid.h"
#include "fs_math.h"

// What is common to formats with file blocks of 256, S units and L words of scales.
template <int S, int L>
struct FsSuper : FsPlain {
  static constexpr int SUPER = 8, SCALES = S, LOADS = L;
  static constexpr bool NARROW = false;
};

FS_DEVICE u32 fs_file_half(const u8* b) { return (u32)b[0] | (u32)b[1] << 8; }

// Levels 0 .. 3 without a sign; one scale and one offset, ue4m3 both.
struct FsFp2Affine : FsAlone<2> {
  static constexpr int WORDS = 2, PARTS = 1, FILE = 10;
  static constexpr bool TWO = false, NARROW = true, OFFSET = true;
  FS_DEVICE_STATIC u32 part(u32 j, u32) { return j / 2; }
  FS_DEVICE_STATIC u32x2 eight(const u32 (&p)[PARTS], u32 j, u32) { return FsFp2::eight(p, j, 0x03020100u); }
  FS_DEVICE_STATIC f32x2 scale(u32 raw) { return f32x2{fs_ue4m3(raw & 255), 0.0f}; }
  FS_DEVICE_STATIC f32x2 offset(u32 raw) { return f32x2{fs_ue4m3(raw >> 8), 0.0f}; }
  FS_DEVICE_STATIC u32 file_word(const u8* b, i32 j) { return FsFp2::file_word(b, j); }
  FS_DEVICE_STATIC u32 file_scale(const u8* b) { return fs_file_half(b + 8); }
  // Weight e of a file block, exactly.
  FS_DEVICE_STATIC float file_value(const u8* b, u32 e, u32) {
    return fs_sub(fs_mul((float)FsFp2::file_code(b, e), fs_ue4m3(b[8])), fs_ue4m3(b[9]));
  }
};

// d * scale and dmin * minimum of a byte each (crates/fpx-quant/src/native/kquant.rs).
FS_DEVICE f32x2 fs_k_scale(u32 d, u32 scale, u32 minimum) {
  return f32x2{fs_mul(fs_f16((u16)d), (float)scale), fs_mul(fs_f16((u16)(d >> 16)), (float)minimum)};
}

// Scales and minima of four blocks, a byte each, from the 12 packed bytes: of the first four blocks, or of the last.
FS_DEVICE u32x2 fs_q4k_four(u32 a, u32 b, u32 c, u32 last) {
  const u32 low = c & 0x0f0f0f0fu, high = c >> 4 & 0x0f0f0f0fu;
  if (last) return u32x2{low | (a >> 6 & 0x03030303u) << 4, high | (b >> 6 & 0x03030303u) << 4};
  return u32x2{a & 0x3f3f3f3fu, b & 0x3f3f3f3fu};
}

struct FsQ4K : FsSuper<2, 3> {
  static constexpr int WORDS = 4, PARTS = 1, FILE = 144;
  static constexpr bool TWO = false, OFFSET = true;
  FS_DEVICE_STATIC u32 part(u32 j, u32) { return j; }
  FS_DEVICE_STATIC u32x2 eight(const u32 (&p)[PARTS], u32, u32) {
    const u32 even = p[0] & 0x0f0f0f0fu, odd = p[0] >> 4 & 0x0f0f0f0fu;
    return u32x2{fs_pick(odd, even, 0x05010400u), fs_pick(odd, even, 0x07030602u)};
  }
  FS_DEVICE_STATIC void read_scales(u32 (&out)[LOADS], const u32x4* units, i32 group) {
    const u32x4 unit = units[group / 2 * 32];
    const u32x2 four = fs_q4k_four(unit.y, unit.z, unit.w, (u32)group % 2);
    out[0] = unit.x;
    out[1] = four.x;
    out[2] = four.y;
  }
  FS_DEVICE_STATIC FsScale block_scale(const u32 (&in)[LOADS], int e) {
    const f32x2 s = fs_k_scale(in[0], in[1] >> (8 * e) & 255, in[2] >> (8 * e) & 255);
    return FsScale{f32x2{s.x, 0.0f}, f32x2{s.y, 0.0f}};
  }
  FS_DEVICE_STATIC u32 file_code(const u8* b, i32 sub, u32 e) { return (u32)b[16 + sub / 2 * 32 + (i32)e] >> (sub % 2 * 4) & 15; }
  FS_DEVICE_STATIC u32 file_word(const u8* b, i32 sub, i32 j) {
    u32 out = 0;
    FS_UNROLL for (u32 n = 0; n < 8; n++) out |= file_code(b, sub, 8 * (u32)j + n) << (4 * n);
    return out;
  }
  FS_DEVICE_STATIC u32x4 file_unit(const u8* b, i32 unit, i32 left) {
    if (unit >= left) return u32x4{0, 0, 0, 0};
    const u8* at = b + unit * FILE;
    return u32x4{fs_file_bytes(at), fs_file_bytes(at + 4), fs_file_bytes(at + 8), fs_file_bytes(at + 12)};
  }
  // Weight e of a file block, rounded as the reference's.
  FS_DEVICE_STATIC float file_value(const u8* b, u32 e, u32) {
    const i32 sub = (i32)(e / 32);
    const u32x2 four = fs_q4k_four(fs_file_bytes(b + 4), fs_file_bytes(b + 8), fs_file_bytes(b + 12), (u32)sub / 4);
    const f32x2 s = fs_k_scale(fs_file_bytes(b), four.x >> (sub % 4 * 8) & 255, four.y >> (sub % 4 * 8) & 255);
    return fs_sub(fs_mul((float)file_code(b, sub, e % 32), s.x), s.y);
  }
};

struct FsQ2K : FsSuper<3, 3> {
  static constexpr int WORDS = 2, PARTS = 1, FILE = 84;
  static constexpr bool TWO = true, OFFSET = true;
  FS_DEVICE_STATIC u32 part(u32 j, u32) { return j / 2; }
  FS_DEVICE_STATIC u32x2 eight(const u32 (&p)[PARTS], u32 j, u32) { return FsFp2::eight(p, j, 0x03020100u); }
  FS_DEVICE_STATIC u32 four(const u32 (&p)[PARTS], u32 j, u32 i, u32) { return FsFp2::four(p, j, i, 0x03020100u); }
  FS_DEVICE_STATIC void read_scales(u32 (&out)[LOADS], const u32x4* units, i32 group) {
    const u32* bytes = (const u32*)(units + group / 2 * 32) + group % 2 * 2;
    out[0] = bytes[0];
    out[1] = bytes[1];
    out[2] = ((const u32*)(units + 64))[group / 2];
  }
  FS_DEVICE_STATIC FsScale block_scale(const u32 (&in)[LOADS], int e) {
    const u32 bytes = in[e / 2] >> (e % 2 * 16);
    const f32x2 first = fs_k_scale(in[2], bytes & 15, bytes >> 4 & 15), second = fs_k_scale(in[2], bytes >> 8 & 15, bytes >> 12 & 15);
    return FsScale{f32x2{first.x, second.x}, f32x2{first.y, second.y}};
  }
  FS_DEVICE_STATIC u32 file_code(const u8* b, i32 sub, u32 e) { return (u32)b[16 + sub / 4 * 32 + (i32)e] >> (sub % 4 * 2) & 3; }
  FS_DEVICE_STATIC u32 file_word(const u8* b, i32 sub, i32 j) {
    u32 out = 0;
    FS_UNROLL for (u32 n = 0; n < 8; n++)
        out |= (file_code(b, sub, 16 * (u32)j + n) | file_code(b, sub, 16 * (u32)j + 8 + n) << 2) << (4 * n);
    return out;
  }
  FS_DEVICE_STATIC u32x4 file_unit(const u8* b, i32 unit, i32 left) {
    if (unit == 2) return u32x4{left > 0 ? fs_file_bytes(b + 80) : 0, left > 1 ? fs_file_bytes(b + FILE + 80) : 0, 0, 0};
    if (unit >= left) return u32x4{0, 0, 0, 0};
    const u8* at = b + unit * FILE;
    return u32x4{fs_file_bytes(at), fs_file_bytes(at + 4), fs_file_bytes(at + 8), fs_file_bytes(at + 12)};
  }
  // Weight e of a file block, rounded as the reference's.
  FS_DEVICE_STATIC float file_value(const u8* b, u32 e, u32) {
    const u32 byte = b[e / 16];
    const f32x2 s = fs_k_scale(fs_file_bytes(b + 80), byte & 15, byte >> 4);
    return fs_sub(fs_mul((float)file_code(b, (i32)(e / 32), e % 32), s.x), s.y);
  }
};

// A byte of ones for each bit of four.
FS_DEVICE u32 fs_byte_masks(u32 bits) {
  const u32 ones = (bits & 15) * 0x00204081u & 0x01010101u;
  return (ones << 8) - ones;  // the last byte's borrow leaves through the top
}

struct FsIq2Xxs : FsSuper<1, 2> {
  static constexpr int WORDS = 2, PARTS = 2, FILE = 66;
  static constexpr bool TWO = false, OFFSET = false;
  FS_DEVICE_STATIC u32 part(u32, u32 i) { return i; }
  // Magnitudes are no 0, so that a byte's complement and one more do not carry.
  FS_DEVICE_STATIC u32 four(u32 magnitudes, u32 bits) {
    const u32 mask = fs_byte_masks(bits);
    return (magnitudes ^ mask) + (mask & 0x01010101u);
  }
  FS_DEVICE_STATIC u32x2 eight(const u32 (&p)[PARTS], u32 j, u32) {
    const u32x2 v = fs_pick_nibbles(0, 0x002b1908u, FS_IQ2_GRID[p[0] >> (8 * j) & 255]);
    const u32 seven = p[1] >> (7 * j) & 127, half = seven ^ seven >> 4;
    const u32 signs = seven | (0x6996u >> (half & 15) & 1) << 7;  // the parity of four bits
    return u32x2{four(v.x, signs), four(v.y, signs >> 4)};
  }
  FS_DEVICE_STATIC void read_scales(u32 (&out)[LOADS], const u32x4* units, i32 group) {
    const u32* at = (const u32*)units;
    out[0] = at[group / 2] >> (group % 2 * 16);
    out[1] = at[2] >> (group / 2 * 16);
  }
  // Exact: 11 bits times at most 5.
  FS_DEVICE_STATIC float scale_of(u32 d, u32 nibble) { return fs_mul(fs_mul(fs_f16((u16)d), fs_add(0.5f, (float)nibble)), 0.25f); }
  FS_DEVICE_STATIC FsScale block_scale(const u32 (&in)[LOADS], int e) {
    return FsScale{f32x2{scale_of(in[1], in[0] >> (4 * e) & 15), 0.0f}, f32x2{0.0f, 0.0f}};
  }
  FS_DEVICE_STATIC u32 file_word(const u8* b, i32 sub, i32 j) { return fs_file_bytes(b + 2 + 8 * sub + 4 * j); }
  FS_DEVICE_STATIC u32 file_nibbles(const u8* b) {
    u32 out = 0;
    FS_UNROLL for (i32 sub = 0; sub < 8; sub++) out |= (file_word(b, sub, 1) >> 28) << (4 * sub);
    return out;
  }
  FS_DEVICE_STATIC u32x4 file_unit(const u8* b, i32, i32 left) {
    const bool second = left > 1;
    return u32x4{left > 0 ? file_nibbles(b) : 0, second ? file_nibbles(b + FILE) : 0,
                 (left > 0 ? fs_file_half(b) : 0) | (second ? fs_file_half(b + FILE) << 16 : 0), 0};
  }
  // Weight e of a file block, exactly.
  FS_DEVICE_STATIC float file_value(const u8* b, u32 e, u32) {
    const i32 sub = (i32)(e / 32);
    const u32 words[PARTS] = {file_word(b, sub, 0), file_word(b, sub, 1)};
    const u32x2 v = eight(words, e % 32 / 8, 0);
    const i32 level = (i32)(i8)(fs_either(v, e % 8 / 4) >> (8 * (e % 4)));
    return fs_mul((float)level, scale_of(fs_file_half(b), words[1] >> 28));
  }
};
