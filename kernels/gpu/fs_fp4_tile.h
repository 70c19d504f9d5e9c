// Matrix-unit steps on FP4_FAST weights in tile32 order: loading four blocks of 32 rows into a warp,
// decoding one of them, and the contract's block term (rules 2 and 3) for FS_TILE_N columns.
#pragma once
#include "fourspark.h"
#include "fs_fp4.h"
#include "fs_tile.h"

// What a lane holds of four blocks of H times 16 rows: its words of each half tile, and the scale
// bytes of its result rows.
template <int H>
struct Fp4fGroup {
  u32x4 words[H][FS_TILE_AW];
  u32 scales[H][FS_TILE_CR];
};

// `row0` (0 or 16) is the first row within the tile.
template <int H>
FS_DEVICE void fp4f_load(Fp4fGroup<H>& g, const fs_tile32& w, i32 tile, u32 row0, i32 group) {
  const u32 lane = fs_lane();
  FS_UNROLL for (u32 h = 0; h < H; h++) {
    FS_UNROLL for (int j = 0; j < FS_TILE_AW; j++)
        g.words[h][j] = fs_load_stream(fs_tile32_codes(w, tile, group, fs_tile_word(lane, j)) + row0 + h * 16 + fs_tile_line(lane, j));
    FS_UNROLL for (int r = 0; r < FS_TILE_CR; r++)
        g.scales[h][r] = ((const u32*)(fs_tile32_scales(w, tile, group / 4) + row0 + h * 16 + fs_tile_row(lane, r)))[group % 4];
  }
}

// How a dot becomes f32. NVIDIA converts at a quarter of its rate, so that dots there start at 1.5 * 2^23 and
// one fma takes the start away; AMD converts at full rate, its unit takes a zero for free, and a register a row
// is saved. Both are exact: a scale has 4 significant bits, a dot 17.
#if FS_CUDA || (FS_HOST && !FS_HOST_TILE_GFX)
static constexpr bool FP4F_MAGIC = true;
#else
static constexpr bool FP4F_MAGIC = false;
#endif

// One block of a group, ready to multiply.
template <int H>
struct Fp4fBlock {
  u32x2 a[H][FS_TILE_AW];
  float scale[H][FS_TILE_CR], shift[H][FS_TILE_CR];
};

template <int H>
FS_DEVICE void fp4f_decode(Fp4fBlock<H>& b, const fs_fp4_tables& tables, const Fp4fGroup<H>& g, int e) {
  FS_UNROLL for (int h = 0; h < H; h++) {
    FS_UNROLL for (int j = 0; j < FS_TILE_AW; j++) b.a[h][j] = fs_fp4_levels(tables, fs_word(g.words[h][j], e));
    FS_UNROLL for (int r = 0; r < FS_TILE_CR; r++) {
      b.scale[h][r] = fs_ue4m3((g.scales[h][r] >> (8 * e)) & 255);
      b.shift[h][r] = FP4F_MAGIC ? fs_mul(b.scale[h][r], -FS_MAGIC) : 0.0f;
    }
  }
}

// The dots of one block with FS_TILE_N columns, as f32 bits of 1.5 * 2^23 + I or as I.
template <int H>
FS_DEVICE void fp4f_dots(i32 (&dot)[H][FS_TILE_C], const Fp4fBlock<H>& b, const u32x2 (&x)[FS_TILE_BW]) {
  i32 start[FS_TILE_C];
  FS_UNROLL for (int i = 0; i < FS_TILE_C; i++) start[i] = FP4F_MAGIC ? FS_MAGIC_BITS : 0;
  FS_UNROLL for (int h = 0; h < H; h++) fs_tile_mma(dot[h], b.a[h], x, start);
}

// acc = fma(d, s * f32(I), acc) for the outputs of FS_TILE_N columns. A block past the end of a row
// has zero scales; with d = 0 it leaves acc as it is.
template <int H>
FS_DEVICE void fp4f_terms(float (&acc)[H][FS_TILE_C], const Fp4fBlock<H>& b, const i32 (&dot)[H][FS_TILE_C], const float (&d)[FS_TILE_CC]) {
  FS_UNROLL for (int h = 0; h < H; h++) {
    FS_UNROLL for (int r = 0; r < FS_TILE_CR; r++) {
      FS_UNROLL for (int c = 0; c < FS_TILE_CC; c++) {
        const i32 i = dot[h][r * FS_TILE_CC + c];
        const float t = FP4F_MAGIC ? fs_fma(b.scale[h][r], fs_f32((u32)i), b.shift[h][r]) : fs_mul(b.scale[h][r], (float)i);
        acc[h][r * FS_TILE_CC + c] = fs_fma(d[c], t, acc[h][r * FS_TILE_CC + c]);
      }
    }
  }
}

template <int H>
FS_DEVICE void fp4f_step(float (&acc)[H][FS_TILE_C], const Fp4fBlock<H>& b, const u32x2 (&x)[FS_TILE_BW], const float (&d)[FS_TILE_CC]) {
  i32 dot[H][FS_TILE_C];
  fp4f_dots<H>(dot, b, x);
  fp4f_terms<H>(acc, b, dot, d);
}
