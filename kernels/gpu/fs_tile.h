// One int8 matrix step over a block of 32 weights: D = C + A B with A 16 rows, B FS_TILE_N columns,
// 32 deep, exact in i32.
//
// The 32 elements of a line (a row of A, a column of B) are 4 words of 8; which element meets which
// hardware k slot does not matter as long as both sides agree, so a fragment is simply "words of
// lines" and both packed weights and plain activation rows can be loaded without a permutation:
//   word j of A in this lane: line fs_tile_line(lane, j), word fs_tile_word(lane, j), j < FS_TILE_AW
//   word j of B: the same functions with j < FS_TILE_BW
//   result r * FS_TILE_CC + c: row fs_tile_row(lane, r), column fs_tile_col(lane, c)
// NVIDIA (sm_80 on): one mma.sync m16n8k32. gfx11: two wmma 16x16x16 iu8, both half waves hold the
// same lines. gfx12: two wmma, each half wave holds half of the words. The host emulates all three
// (FS_HOST_TILE_GFX = 11 or 12, else NVIDIA's).
// With FS_TILE_HALVES fs_tile_mma_halves makes the dots of the first and of the second halves of all words apart: for
// formats with a scale for each half, if word t is four elements of each.
#pragma once
#include "fourspark.h"

#if FS_CUDA || (FS_HOST && !FS_HOST_TILE_GFX)
static constexpr int FS_TILE_N = 8, FS_TILE_AW = 2, FS_TILE_BW = 1, FS_TILE_CR = 2, FS_TILE_CC = 2;
FS_DEVICE u32 fs_tile_line(u32 lane, int j) { return (lane >> 2) + 8u * (u32)j; }
FS_DEVICE u32 fs_tile_word(u32 lane, int) { return lane & 3; }
FS_DEVICE u32 fs_tile_row(u32 lane, int r) { return (lane >> 2) + 8u * (u32)r; }
FS_DEVICE u32 fs_tile_col(u32 lane, int c) { return (lane & 3) * 2 + (u32)c; }
#define FS_TILE_HALVES 1
#elif defined(__GFX12__) || FS_HOST_TILE_GFX == 12
static constexpr int FS_TILE_N = 16, FS_TILE_AW = 2, FS_TILE_BW = 2, FS_TILE_CR = 8, FS_TILE_CC = 1;
FS_DEVICE u32 fs_tile_line(u32 lane, int) { return lane & 15; }
FS_DEVICE u32 fs_tile_word(u32 lane, int j) { return (lane >> 4) * 2 + (u32)j; }
FS_DEVICE u32 fs_tile_row(u32 lane, int r) { return (lane >> 4) * 8 + (u32)r; }
FS_DEVICE u32 fs_tile_col(u32 lane, int) { return lane & 15; }
#else
static constexpr int FS_TILE_N = 16, FS_TILE_AW = 4, FS_TILE_BW = 4, FS_TILE_CR = 8, FS_TILE_CC = 1;
FS_DEVICE u32 fs_tile_line(u32 lane, int) { return lane & 15; }
FS_DEVICE u32 fs_tile_word(u32, int j) { return (u32)j; }
FS_DEVICE u32 fs_tile_row(u32 lane, int r) { return (u32)r * 2 + (lane >> 4); }
FS_DEVICE u32 fs_tile_col(u32 lane, int) { return lane & 15; }
#endif
static constexpr int FS_TILE_C = FS_TILE_CR * FS_TILE_CC;
#ifndef FS_TILE_HALVES
#define FS_TILE_HALVES 0
#endif

// The values of this lane's columns; `base` is the tile's first column, 8-byte aligned.
FS_DEVICE void fs_tile_columns(const float* base, u32 lane, float (&out)[FS_TILE_CC]) {
#if FS_CUDA || (FS_HOST && !FS_HOST_TILE_GFX)
  const f32x2 pair = *(const f32x2*)(base + fs_tile_col(lane, 0));
  out[0] = pair.x;
  out[1] = pair.y;
#else
  out[0] = base[fs_tile_col(lane, 0)];
#endif
}

#if FS_HOST
FS_DEVICE void fs_tile_mma(i32 (&d)[FS_TILE_C], const u32x2 (&a)[FS_TILE_AW], const u32x2 (&b)[FS_TILE_BW],
                           const i32 (&c)[FS_TILE_C], int line = __builtin_LINE(),
                           const char* file = __builtin_FILE()) {
  static const fs_host_tile shape = {FS_TILE_N,    FS_TILE_AW,   FS_TILE_BW,  FS_TILE_CR, FS_TILE_CC,
                                     fs_tile_line, fs_tile_word, fs_tile_row, fs_tile_col};
  fs_host_tile_mma(&shape, &d[0], &a[0].x, &b[0].x, &c[0], file, line);
}
#if FS_TILE_HALVES
FS_DEVICE void fs_tile_mma_halves(i32 (&first)[FS_TILE_C], i32 (&second)[FS_TILE_C], const u32x2 (&a)[FS_TILE_AW],
                                  const u32x2 (&b)[FS_TILE_BW], const i32 (&c)[FS_TILE_C]) {
  u32x2 half[2][FS_TILE_AW];
  for (int j = 0; j < FS_TILE_AW; j++) {
    half[0][j] = u32x2{a[j].x, 0};
    half[1][j] = u32x2{0, a[j].y};
  }
  fs_tile_mma(first, half[0], b, c);
  fs_tile_mma(second, half[1], b, c);
}
#endif
#elif FS_CUDA
FS_DEVICE void fs_tile_mma_half(i32 (&d)[4], u32 a0, u32 a1, u32 b, const i32 (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}
FS_DEVICE void fs_tile_mma_halves(i32 (&first)[4], i32 (&second)[4], const u32x2 (&a)[2], const u32x2 (&b)[1], const i32 (&c)[4]) {
  fs_tile_mma_half(first, a[0].x, a[1].x, b[0].x, c);
  fs_tile_mma_half(second, a[0].y, a[1].y, b[0].y, c);
}
FS_DEVICE void fs_tile_mma(i32 (&d)[4], const u32x2 (&a)[2], const u32x2 (&b)[1], const i32 (&c)[4]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0].x), "r"(a[1].x), "r"(a[0].y), "r"(a[1].y), "r"(b[0].x), "r"(b[0].y), "r"(c[0]), "r"(c[1]),
        "r"(c[2]), "r"(c[3]));
}
#elif defined(__AMDGCN__)
typedef int fs_v2i __attribute__((ext_vector_type(2)));
typedef int fs_v4i __attribute__((ext_vector_type(4)));
typedef int fs_v8i __attribute__((ext_vector_type(8)));
FS_DEVICE void fs_tile_mma(i32 (&d)[8], const u32x2 (&a)[FS_TILE_AW], const u32x2 (&b)[FS_TILE_BW],
                           const i32 (&c)[8]) {
  fs_v8i acc = {c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]};
  FS_UNROLL for (int h = 0; h < 2; h++) {
#if defined(__GFX12__)
    const fs_v2i va = {(int)a[h].x, (int)a[h].y}, vb = {(int)b[h].x, (int)b[h].y};
    acc = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, va, true, vb, acc, false);
#elif defined(__GFX11__)
    const fs_v4i va = {(int)a[2 * h].x, (int)a[2 * h].y, (int)a[2 * h + 1].x, (int)a[2 * h + 1].y};
    const fs_v4i vb = {(int)b[2 * h].x, (int)b[2 * h].y, (int)b[2 * h + 1].x, (int)b[2 * h + 1].y};
    acc = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, va, true, vb, acc, false);
#endif
  }
  FS_UNROLL for (int i = 0; i < 8; i++) d[i] = acc[i];
}
#else  // the host half of a clang -x hip compilation
FS_DEVICE void fs_tile_mma(i32 (&)[8], const u32x2 (&)[FS_TILE_AW], const u32x2 (&)[FS_TILE_BW], const i32 (&)[8]) {}
#endif
