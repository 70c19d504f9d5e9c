// Weight formats in tile order: their codes as four-bit selectors or bytes, their scales, and the f32 term of
// a block (contract rule 2). A block is 32 weights.
//
// Tile order of a matrix [m][blocks], rows in tiles of 32, blocks in groups of 4 and segments of 16:
//   codes   [tile][group][word 0 .. WORDS - 1][row 0..31] 16 bytes = that word of the group's 4 blocks;
//   scales  [tile][segment][0 .. SCALES - 1][row 0..31] 16 bytes: one byte a block, or two bytes a block
//           and eight blocks each; of formats with blocks of 256 what fs_formats_k.h says.
// Rows and blocks beyond the matrix are zero. For ROCmFP4_FAST this is the order of fs_fp4.h.
//   nibble formats  word j: codes of elements 8 j .. 8 j + 7, lowest nibble first
//   ROCmFP2         word j: nibble n holds the code of element 16 j + n and, two bits up, of 16 j + 8 + n
//   ROCmFP3         words 0, 1: the low two bits of the codes as ROCmFP2; word 2: nibble n, bit q the third
//                   bit of element 8 q + n
//   ROCmFP6         words 0 .. 3: the low four bits as nibbles; words 4, 5: the high two bits as ROCmFP2
//   Q8_0, ROCmFP8   word j: bytes 4 j .. 4 j + 3
#pragma once
#include "fourspark.h"
#include "fs_codes.h"
#include "fs_fp4.h"

// The f32 of two scale bytes whose bit 7 is a sign, the low one first, through halves: their exponents start 2^7 lower,
// denormals included, and the product with 2^7 is exact.
FS_DEVICE f32x2 fs_ue4m3_signed_pair(u32 bytes) {
#if FS_CUDA
  const u32 high = fs_prmt(bytes, 0, 0x1404);
#elif FS_HIP && defined(__AMDGCN__)
  const u32 high = __builtin_amdgcn_perm(0, bytes, 0x010c000cu);
#else
  const u32 high = (bytes & 0xff) << 8 | (bytes & 0xff00) << 16;
#endif
  const u32 halves = (high >> 1 & 0x3f803f80u) | (high & 0x80008000u);
  return f32x2{fs_mul(fs_f16((u16)halves), 128.0f), fs_mul(fs_f16((u16)(halves >> 16)), 128.0f)};
}

// Eight nibbles of a file block that holds element j < 16 in the low and j + 16 in the high nibble of byte j.
FS_DEVICE u32 fs_file_nibbles(const u8* codes, i32 word) {
  const u8* bytes = codes + word % 2 * 8;
  u32 out = 0;
  FS_UNROLL for (u32 n = 0; n < 8; n++) out |= ((u32)bytes[n] >> (word < 2 ? 0 : 4) & 15) << (4 * n);
  return out;
}

// Code of element e of the same.
FS_DEVICE u32 fs_file_nibble(const u8* codes, u32 e) { return (u32)codes[e % 16] >> (e < 16 ? 0 : 4) & 15; }

// Four bytes at any address.
FS_DEVICE u32 fs_file_bytes(const u8* b) { return (u32)b[0] | (u32)b[1] << 8 | (u32)b[2] << 16 | (u32)b[3] << 24; }

// A sign (bit 3) and a magnitude from a table of eight nibbles.
FS_DEVICE i32 fs_signed_level(u32 table, u32 code) {
  const i32 magnitude = (i32)(table >> (4 * (code & 7)) & 15);
  return code & 8 ? -magnitude : magnitude;
}

// A format F: WORDS of codes, SCALES units of scales a segment, FILE bytes a file block of SUPER blocks; TWO: a scale
// for each half; OFFSET: offsets beside the scales; NARROW: scales of 4 significant bits from 2^-10 up, so that a scale
// times an exact dot is exact. eight(p, j): elements 8 j .. 8 j + 7 as signed bytes from PARTS words, word part(j, i) as
// p[i]. Formats with TWO: four(p, j, i), the first or last four of them. read_scales: LOADS words for the four blocks of a
// group, from the units of its segment.

// Formats whose levels are cheaper with BIAS added say so: biased(p, j) are eight(p, j) + BIAS, for dots that take
// it away again. CODES: their levels are codes of two bits - BIAS, and dots take them from their words (fs_code_dot).
// The table of formats without one is 0 at run time, from a kernel's arguments (fs_opaque).
struct FsPlain {
  static constexpr i32 BIAS = 0;
  static constexpr bool CODES = false;
};

// What is common to formats of one file block a block, with S bytes of scales.
template <int S>
struct FsAlone : FsPlain {
  static constexpr int SUPER = 1, SCALES = S, LOADS = S;
  static constexpr bool OFFSET = false;
  FS_DEVICE_STATIC void read_scales(u32 (&out)[S], const u32x4* units, i32 group) {
    const u32* at = (const u32*)(units + (S == 2 ? group / 2 * 32 : 0)) + (S == 2 ? group % 2 * 2 : group);
    FS_UNROLL for (int j = 0; j < S; j++) out[j] = at[j];
  }
  // The bytes of block e of a group.
  FS_DEVICE_STATIC u32 raw(const u32 (&in)[S], int e) {
    return S == 2 ? in[e / 2 % S] >> (e % 2 * 16) & 0xffff : in[0] >> (e * 8) & 255;
  }
};

// Scales and offsets of the halves of a block, or of the whole in x.
struct FsScale {
  f32x2 scale, offset;
};

// 32 signed bytes of a block with the format's bias, in element order; of formats with CODES the two words as they are.
struct FsLevels {
  u32x2 eight[4];
};

template <class F>
FS_DEVICE FsLevels fs_levels(const u32 (&words)[F::WORDS], u32 table) {
  FsLevels v;
  if constexpr (F::CODES) {
    v.eight[0] = u32x2{words[0], words[1]};
    return v;
  }
  FS_UNROLL for (u32 j = 0; j < 4; j++) {
    u32 p[F::PARTS];
    FS_UNROLL for (u32 i = 0; i < F::PARTS; i++) p[i] = words[F::part(j, i)];
    if constexpr (F::BIAS != 0 && !F::CODES)
      v.eight[j] = F::biased(p, j, table);
    else
      v.eight[j] = F::eight(p, j, table);
  }
  return v;
}

// Word i of two; i is known at run time only.
FS_DEVICE u32 fs_either(const u32x2& v, u32 i) { return i == 0 ? v.x : v.y; }

struct FsFp4Fast : FsAlone<1> {
  static constexpr int WORDS = 4, PARTS = 1, FILE = 17;
  static constexpr bool TWO = false, NARROW = true;
  FS_DEVICE_STATIC u32 part(u32 j, u32) { return j; }
  static constexpr i32 BIAS = FS_SIGNS_BIAS;
  FS_DEVICE_STATIC u32x2 eight(const u32 (&p)[PARTS], u32, u32) { return fs_sign_magnitude(p[0], 0x0a080604u, 0x03020100u); }
  FS_DEVICE_STATIC u32x2 biased(const u32 (&p)[PARTS], u32, u32 table) { return fs_signs_biased(p[0], 0x0a080604u, 0x03020100u, table); }
  FS_DEVICE_STATIC f32x2 scale(u32 raw) { return f32x2{fs_ue4m3(raw), 0.0f}; }
  FS_DEVICE_STATIC u32 file_word(const u8* b, i32 j) { return fs_file_nibbles(b, j); }
  FS_DEVICE_STATIC u32 file_scale(const u8* b) { return b[16]; }
  // Weight e of a file block, exactly.
  FS_DEVICE_STATIC float file_value(const u8* b, u32 e, u32) {
    return fs_mul((float)fs_signed_level(0xa8643210u, fs_file_nibble(b, e)), fs_ue4m3(b[16]));
  }
};

// FsFp4Fast with a scale for each half.
struct FsFp4 : FsAlone<2> {
  static constexpr int WORDS = 4, PARTS = 1, FILE = 18;
  static constexpr bool TWO = true, NARROW = true;
  FS_DEVICE_STATIC u32 part(u32 j, u32) { return j; }
  static constexpr i32 BIAS = FS_SIGNS_BIAS;
  FS_DEVICE_STATIC u32x2 eight(const u32 (&p)[PARTS], u32 j, u32 table) { return FsFp4Fast::eight(p, j, table); }
  FS_DEVICE_STATIC u32x2 biased(const u32 (&p)[PARTS], u32 j, u32 table) { return FsFp4Fast::biased(p, j, table); }
  FS_DEVICE_STATIC u32 four(const u32 (&p)[PARTS], u32 j, u32 i, u32 table) { return fs_either(eight(p, j, table), i); }
  FS_DEVICE_STATIC f32x2 scale(u32 raw) { return f32x2{fs_ue4m3(raw & 255), fs_ue4m3(raw >> 8)}; }
  FS_DEVICE_STATIC u32 file_word(const u8* b, i32 j) { return fs_file_nibbles(b, j); }
  FS_DEVICE_STATIC u32 file_scale(const u8* b) { return (u32)b[16] | (u32)b[17] << 8; }
  // Weight e of a file block, exactly.
  FS_DEVICE_STATIC float file_value(const u8* b, u32 e, u32) {
    return fs_mul((float)fs_signed_level(0xa8643210u, fs_file_nibble(b, e)), fs_ue4m3(b[16 + e / 16]));
  }
};

struct FsMxfp4 : FsAlone<1> {
  static constexpr int WORDS = 4, PARTS = 1, FILE = 17;
  static constexpr bool TWO = false, NARROW = false;
  FS_DEVICE_STATIC u32 part(u32 j, u32) { return j; }
  static constexpr i32 BIAS = FS_SIGNS_BIAS;
  FS_DEVICE_STATIC u32x2 eight(const u32 (&p)[PARTS], u32, u32) { return fs_e2m1_twice_eight(p[0]); }
  FS_DEVICE_STATIC u32x2 biased(const u32 (&p)[PARTS], u32, u32 table) { return fs_signs_biased(p[0], 0x0c080604u, 0x03020100u, table); }
  // Half of the e8m0 number, because levels are doubled.
  FS_DEVICE_STATIC f32x2 scale(u32 raw) { return f32x2{fs_f32(raw < 2 ? 0x00200000u << raw : (raw - 1) << 23), 0.0f}; }
  FS_DEVICE_STATIC u32 file_word(const u8* b, i32 j) { return fs_file_nibbles(b + 1, j); }
  FS_DEVICE_STATIC u32 file_scale(const u8* b) { return b[0]; }
  // Weight e of a file block, exactly.
  FS_DEVICE_STATIC float file_value(const u8* b, u32 e, u32) {
    return fs_mul((float)fs_signed_level(0xc8643210u, fs_file_nibble(b + 1, e)), scale(b[0]).x);
  }
};

// The table holds the four levels (dialects Signed and S40); bit 7 of a scale byte negates its half.
struct FsFp2Table : FsAlone<2> {
  static constexpr int WORDS = 2, PARTS = 1, FILE = 10;
  static constexpr bool TWO = true, NARROW = true;
  FS_DEVICE_STATIC u32 part(u32 j, u32) { return j / 2; }
  FS_DEVICE_STATIC u32x2 eight(const u32 (&p)[PARTS], u32 j, u32 table) {
    return fs_pick_nibbles(0, table, p[0] >> (j % 2 * 2) & 0x33333333u);
  }
  FS_DEVICE_STATIC u32 four(const u32 (&p)[PARTS], u32 j, u32 i, u32 table) {
    return fs_pick_nibbles(0, table, p[0] >> (j % 2 * 2 + 16 * i) & 0x3333u).x;
  }
  FS_DEVICE_STATIC f32x2 scale(u32 raw) { return fs_ue4m3_signed_pair(raw); }
  FS_DEVICE_STATIC u32 file_code(const u8* b, u32 e) { return (u32)b[e / 4] >> (e % 4 * 2) & 3; }
  FS_DEVICE_STATIC u32 file_word(const u8* b, i32 j) {
    u32 out = 0;
    FS_UNROLL for (u32 n = 0; n < 8; n++) out |= (file_code(b, 16 * (u32)j + n) | file_code(b, 16 * (u32)j + 8 + n) << 2) << (4 * n);
    return out;
  }
  FS_DEVICE_STATIC u32 file_scale(const u8* b) { return (u32)b[8] | (u32)b[9] << 8; }
  // Weight e of a file block, exactly.
  FS_DEVICE_STATIC float file_value(const u8* b, u32 e, u32 table) {
    const u32 byte = b[8 + e / 16];
    const i32 level = (i32)(i8)(table >> (8 * file_code(b, e)));
    return fs_mul((float)(byte & 0x80 ? -level : level), fs_ue4m3(byte & 0x7f));  // a level 0 stays +0
  }
};

// Dialect Signed, whose levels are -1, 0, 1, 2.
struct FsFp2 : FsFp2Table {
  static constexpr i32 BIAS = 1;
  static constexpr bool CODES = true;
};

struct FsFp3 : FsAlone<2> {
  static constexpr int WORDS = 3, PARTS = 2, FILE = 14;
  static constexpr bool TWO = true, NARROW = true;
  FS_DEVICE_STATIC u32 part(u32 j, u32 i) { return i == 0 ? j / 2 : 2; }
  FS_DEVICE_STATIC u32x2 eight(const u32 (&p)[PARTS], u32 j, u32 table) {
    const u32 low = p[0] >> (j % 2 * 2) & 0x33333333u, high = (j < 2 ? p[1] << (2 - j) : p[1] >> (j - 2)) & 0x44444444u;
    return fs_pick_nibbles(0xfcfeff00u, fs_opaque_lane(0x04020100u, table), low | high);
  }
  FS_DEVICE_STATIC u32 four(const u32 (&p)[PARTS], u32 j, u32 i, u32) {
    const u32 low = p[0] >> (j % 2 * 2 + 16 * i) & 0x3333u, high = p[1] >> (j + 16 * i) & 0x1111u;
    return fs_pick_nibbles(0xfcfeff00u, 0x04020100u, low | high << 2).x;
  }
  FS_DEVICE_STATIC f32x2 scale(u32 raw) { return FsFp2::scale(raw); }
  FS_DEVICE_STATIC u32 file_code(const u8* b, u32 e) {
    const u32 at = 3 * e, byte = at / 8;  // a code may straddle two bytes; the scales follow the last
    return ((u32)b[byte] | (u32)b[byte + 1] << 8) >> (at % 8) & 7;
  }
  FS_DEVICE_STATIC u32 file_word(const u8* b, i32 j) {
    u32 out = 0;
    if (j < 2) {
      FS_UNROLL for (u32 n = 0; n < 8; n++)
          out |= ((file_code(b, 16 * (u32)j + n) & 3) | (file_code(b, 16 * (u32)j + 8 + n) & 3) << 2) << (4 * n);
      return out;
    }
    FS_UNROLL for (u32 e = 0; e < 32; e++) out |= (file_code(b, e) >> 2) << (4 * (e % 8) + e / 8);
    return out;
  }
  FS_DEVICE_STATIC u32 file_scale(const u8* b) { return (u32)b[12] | (u32)b[13] << 8; }
  // Weight e of a file block, exactly.
  FS_DEVICE_STATIC float file_value(const u8* b, u32 e, u32) {
    return fs_mul((float)fs_signed_level(0x4210u, (file_code(b, e) & 3) | (file_code(b, e) & 4) << 1), fs_ue4m3(b[12 + e / 16]));
  }
};

struct FsQ8 : FsAlone<2> {
  static constexpr int WORDS = 8, PARTS = 2, FILE = 34;
  static constexpr bool TWO = false, NARROW = false;
  FS_DEVICE_STATIC u32 part(u32 j, u32 i) { return 2 * j + i; }
  FS_DEVICE_STATIC u32x2 eight(const u32 (&p)[PARTS], u32, u32) { return u32x2{p[0], p[1]}; }
  FS_DEVICE_STATIC f32x2 scale(u32 raw) { return f32x2{fs_f16((u16)raw), 0.0f}; }
  FS_DEVICE_STATIC u32 file_word(const u8* b, i32 j) { return fs_file_bytes(b + 2 + 4 * j); }
  FS_DEVICE_STATIC u32 file_scale(const u8* b) { return (u32)b[0] | (u32)b[1] << 8; }
  // Weight e of a file block, exactly.
  FS_DEVICE_STATIC float file_value(const u8* b, u32 e, u32) {
    return fs_mul((float)(i8)b[2 + e], scale(file_scale(b)).x);
  }
};

// Sign and five bits of magnitude. The table holds the byte of code 32, the negative zero: 0, or -32.
struct FsFp6 : FsAlone<2> {
  static constexpr int WORDS = 6, PARTS = 2, FILE = 26;
  static constexpr bool TWO = true, NARROW = true;
  // Four codes: their low four bits and their high two, a byte each.
  FS_DEVICE_STATIC u32 four(u32 low, u32 high, u32 table) {
    const u32 magnitude = low | (high & 0x01010101u) << 4, sign = high >> 1 & 0x01010101u, mask = (sign << 8) - sign;
    const u32 negative = (0x80808080u - magnitude) ^ 0x80808080u;
    const u32 some = (magnitude + 0x7f7f7f7fu) >> 7 & 0x01010101u;
    return (magnitude & ~mask) | (negative & mask) | (sign & ~some) * table;
  }
  FS_DEVICE_STATIC u32 part(u32 j, u32 i) { return i == 0 ? j : 4 + j / 2; }
  FS_DEVICE_STATIC u32x2 eight(const u32 (&p)[PARTS], u32 j, u32 table) {
    const u32 high = p[1] >> (j % 2 * 2) & 0x33333333u;
    const u32 even = four(p[0] & 0x0f0f0f0fu, high & 0x03030303u, table), odd = four(p[0] >> 4 & 0x0f0f0f0fu, high >> 4 & 0x03030303u, table);
    return u32x2{fs_pick(odd, even, 0x05010400u), fs_pick(odd, even, 0x07030602u)};
  }
  FS_DEVICE_STATIC u32 four(const u32 (&p)[PARTS], u32 j, u32 i, u32 table) { return fs_either(eight(p, j, table), i); }
  FS_DEVICE_STATIC f32x2 scale(u32 raw) { return FsFp4::scale(raw); }
  FS_DEVICE_STATIC u32 file_code(const u8* b, u32 e) {
    const u32 at = 6 * e, byte = at / 8;  // a code may straddle two bytes; the scales follow the last
    return ((u32)b[byte] | (u32)b[byte + 1] << 8) >> (at % 8) & 63;
  }
  FS_DEVICE_STATIC u32 file_word(const u8* b, i32 j) {
    u32 out = 0;
    FS_UNROLL for (u32 n = 0; n < 8; n++) {
      const u32 first = 16 * ((u32)j - 4) + n;
      out |= (j < 4 ? file_code(b, 8 * (u32)j + n) & 15 : file_code(b, first) >> 4 | file_code(b, first + 8) >> 4 << 2) << (4 * n);
    }
    return out;
  }
  FS_DEVICE_STATIC u32 file_scale(const u8* b) { return (u32)b[24] | (u32)b[25] << 8; }
  // Weight e of a file block, exactly.
  FS_DEVICE_STATIC float file_value(const u8* b, u32 e, u32 table) {
    const u32 code = file_code(b, e);
    const i32 magnitude = (i32)(code & 31), level = code == 32 ? (i32)(i8)table : code & 32 ? -magnitude : magnitude;
    return fs_mul((float)level, fs_ue4m3(b[24 + e / 16]));
  }
};

struct FsFp8 : FsAlone<1> {
  static constexpr int WORDS = 8, PARTS = 2, FILE = 33;
  static constexpr bool TWO = false, NARROW = true;
  FS_DEVICE_STATIC u32 part(u32 j, u32 i) { return FsQ8::part(j, i); }
  FS_DEVICE_STATIC u32x2 eight(const u32 (&p)[PARTS], u32 j, u32 table) { return FsQ8::eight(p, j, table); }
  FS_DEVICE_STATIC f32x2 scale(u32 raw) { return f32x2{fs_ue4m3(raw), 0.0f}; }
  FS_DEVICE_STATIC u32 file_word(const u8* b, i32 j) { return fs_file_bytes(b + 4 * j); }
  FS_DEVICE_STATIC u32 file_scale(const u8* b) { return b[32]; }
  // Weight e of a file block, exactly.
  FS_DEVICE_STATIC float file_value(const u8* b, u32 e, u32) { return fs_mul((float)(i8)b[e], fs_ue4m3(b[32])); }
};

// Word j of block b of a row's file blocks.
template <class F>
FS_DEVICE u32 fs_file_word(const u8* line, i32 b, i32 j) {
  if constexpr (F::SUPER == 1)
    return F::file_word(line + b * F::FILE, j);
  else
    return F::file_word(line + b / F::SUPER * F::FILE, b % F::SUPER, j);
}

// Unit `unit` of the scales of a segment of a row of `blocks` blocks.
template <class F>
FS_DEVICE u32x4 fs_file_unit(const u8* line, i32 segment, i32 unit, i32 blocks) {
  if constexpr (F::SUPER == 1) {
    u32 out[4] = {0, 0, 0, 0};
    FS_UNROLL for (i32 i = 0; i < 16 / F::SCALES; i++) {
      const i32 b = (segment * F::SCALES + unit) * (16 / F::SCALES) + i;
      if (b < blocks) out[i * F::SCALES / 4] |= F::file_scale(line + b * F::FILE) << (8 * (i * F::SCALES % 4));
    }
    return u32x4{out[0], out[1], out[2], out[3]};
  } else {
    return F::file_unit(line + segment * (16 / F::SUPER) * F::FILE, unit, blocks / F::SUPER - segment * (16 / F::SUPER));
  }
}

// Weight i of a row of file blocks.
template <class F>
FS_DEVICE float fs_file_value(const u8* line, i32 i, u32 table) {
  return F::file_value(line + i / (32 * F::SUPER) * F::FILE, (u32)(i % (32 * F::SUPER)), table);
}

// Scales of block e of a group.
template <class F>
FS_DEVICE FsScale fs_scale_of(const u32 (&in)[F::LOADS], int e) {
  if constexpr (F::SUPER != 1)
    return F::block_scale(in, e);
  else if constexpr (F::OFFSET)
    return FsScale{F::scale(F::raw(in, e)), F::offset(F::raw(in, e))};
  else
    return FsScale{F::scale(F::raw(in, e)), f32x2{0.0f, 0.0f}};
}

// Sums of the activations of the halves of a block (fs_a8.h), exact.
FS_DEVICE float fs_low_sum(u32 sums) { return (float)((i32)(sums << 16) >> 16); }
FS_DEVICE float fs_high_sum(u32 sums) { return (float)((i32)sums >> 16); }

// Rule 2 from exact dots: of both halves, or of the whole in `second`.
template <class F>
FS_DEVICE float fs_term(const FsScale& s, float first, float second, u32 sums) {
  if constexpr (!F::OFFSET) {
    return F::TWO ? fs_fma(s.scale.x, first, fs_mul(s.scale.y, second)) : fs_mul(s.scale.x, second);
  } else if constexpr (F::TWO) {
    const float offsets = fs_fma(s.offset.x, fs_low_sum(sums), fs_mul(s.offset.y, fs_high_sum(sums)));
    return fs_sub(fs_fma(s.scale.x, first, fs_mul(s.scale.y, second)), offsets);
  } else {
    return fs_fma(s.scale.x, second, -fs_mul(s.offset.x, fs_add(fs_low_sum(sums), fs_high_sum(sums))));
  }
}

// Bytes i, i + 2, i + 4 and i + 6 of {b, a}, i 0 or 1.
FS_DEVICE u32 fs_bytes_of(u32 a, u32 b, i32 i) {
#if FS_CUDA
  return fs_prmt(a, b, i == 0 ? 0x6420 : 0x7531);
#else
  return fs_pick(b, a, i == 0 ? 0x06040200u : 0x07050301u);
#endif
}

// The exact dot of 16 weights and activations as f32: from 1.5 * 2^23 the bits count in ones.
FS_DEVICE i32 fs_half_dot(const u32x2& a, const u32x2& b, const u32x4& x, i32 c) {
  c = fs_dp4a(a.x, x.x, c);
  c = fs_dp4a(a.y, x.y, c);
  c = fs_dp4a(b.x, x.z, c);
  return fs_dp4a(b.y, x.w, c);
}
FS_DEVICE float fs_dot_value(i32 dot) { return fs_sub(fs_f32((u32)dot), FS_MAGIC); }

// Where the dot of the whole block, or of its half i, starts: without what a bias adds to it.
template <class F>
FS_DEVICE i32 fs_dot_start(u32 sums, i32 i) {
  if (F::BIAS == 0) return FS_MAGIC_BITS;
  return F::TWO ? fs_half_sum(sums, i, -F::BIAS, FS_MAGIC_BITS) : fs_pair_sum(sums, -F::BIAS, FS_MAGIC_BITS);
}

// The exact dot of half a block as f32, where levels are codes of two bits - 1. Codes stay where they are in their bytes
// (1, 4, 16 and 64 times a code) and meet activations in the order of fs_split; the sums of each place come together as f32, exact:
// whole numbers below 2^24.
FS_DEVICE float fs_code_dot(u32 word, const u32x4& x, i32 start) {
  const float d0 = fs_f32((u32)fs_dp4a_us(word & 0x03030303u, x.x, start)), d1 = fs_f32((u32)fs_dp4a_us(word & 0x0c0c0c0cu, x.y, FS_MAGIC_BITS));
  const float d2 = fs_f32((u32)fs_dp4a_us(word & 0x30303030u, x.z, FS_MAGIC_BITS));
  const float d3 = fs_f32((u32)fs_dp4a_us(word & 0xc0c0c0c0u, x.w, FS_MAGIC_BITS));
  const float sum = fs_fma(0.015625f, d3, fs_fma(0.0625f, d2, fs_fma(0.25f, d1, d0)));
  return fs_sub(sum, 16711680.0f);  // (1 + 1/4 + 1/16 + 1/64) * FS_MAGIC
}

// 16 activations as fs_code_dot takes them: those of even and of odd nibbles of ROCmFP2's words, low codes first.
FS_DEVICE u32x4 fs_split(const u32x4& x) {
  return u32x4{fs_bytes_of(x.x, x.y, 0), fs_bytes_of(x.z, x.w, 0), fs_bytes_of(x.x, x.y, 1), fs_bytes_of(x.z, x.w, 1)};
}

// Rule 2 of a block and 32 activations (16-byte aligned).
template <class F>
FS_DEVICE float fs_block_term(const FsLevels& v, const FsScale& s, const u8* q, u32 sums) {
  const u32x4 x0 = ((const u32x4*)q)[0], x1 = ((const u32x4*)q)[1];
  if constexpr (F::CODES) {
    const float first = fs_code_dot(v.eight[0].x, x0, fs_dot_start<F>(sums, 0));
    return fs_term<F>(s, first, fs_code_dot(v.eight[0].y, x1, fs_dot_start<F>(sums, 1)), sums);
  }
  const i32 first = fs_half_dot(v.eight[0], v.eight[1], x0, fs_dot_start<F>(sums, 0));
  if (!F::TWO) return fs_term<F>(s, 0.0f, fs_dot_value(fs_half_dot(v.eight[2], v.eight[3], x1, first)), sums);
  const i32 second = fs_half_dot(v.eight[2], v.eight[3], x1, fs_dot_start<F>(sums, 1));
  return fs_term<F>(s, fs_dot_value(first), fs_dot_value(second), sums);
}
