// Matrix-unit steps on FP4_FAST weights in tile32 order: loading four blocks of 32 rows into a warp,
// decoding one of them, and the contract's block term (rules 2 and 3) for FS_TILE_N columns.
#pragma once
#include "fourspark.h"
#include "fs_fp4.h"
#include "fs_tile.h"

// What a lane holds of four blocks of 32 rows: its words of both 16-row halves, and the scale bytes
// of its result rows.
struct Fp4fGroup {
  u32x4 words[2][FS_TILE_AW];
  u32 scales[2][FS_TILE_CR];
};

FS_DEVICE void fp4f_load(Fp4fGroup& g, const fs_tile32& w, i32 tile, i32 group) {
  const u32 lane = fs_lane();
  FS_UNROLL for (u32 half = 0; half < 2; half++) {
    FS_UNROLL for (int j = 0; j < FS_TILE_AW; j++)
        g.words[half][j] = fs_load_stream(fs_tile32_codes(w, tile, group, fs_tile_word(lane, j)) + half * 16 + fs_tile_line(lane, j));
    FS_UNROLL for (int r = 0; r < FS_TILE_CR; r++)
        g.scales[half][r] = ((const u32*)(fs_tile32_scales(w, tile, group / 4) + half * 16 + fs_tile_row(lane, r)))[group % 4];
  }
}

// One block of a group, ready to multiply.
struct Fp4fBlock {
  u32x2 a[2][FS_TILE_AW];
  float scale[2][FS_TILE_CR], shift[2][FS_TILE_CR];
};

FS_DEVICE void fp4f_decode(Fp4fBlock& b, const Fp4fGroup& g, int e) {
  FS_UNROLL for (int half = 0; half < 2; half++) {
    FS_UNROLL for (int j = 0; j < FS_TILE_AW; j++) b.a[half][j] = fs_fp4_levels(fs_word(g.words[half][j], e));
    FS_UNROLL for (int r = 0; r < FS_TILE_CR; r++) {
      b.scale[half][r] = fs_ue4m3((g.scales[half][r] >> (8 * e)) & 255);
      b.shift[half][r] = fs_mul(b.scale[half][r], -FS_MAGIC);
    }
  }
}

// acc = fma(d, s * f32(I), acc) for the outputs of one tile of FS_TILE_N columns.
FS_DEVICE void fp4f_step(float (&acc)[2][FS_TILE_C], const Fp4fBlock& b, const u32x2 (&x)[FS_TILE_BW], const float (&d)[FS_TILE_CC]) {
  i32 zero[FS_TILE_C];
  FS_UNROLL for (int i = 0; i < FS_TILE_C; i++) zero[i] = FS_MAGIC_BITS;
  FS_UNROLL for (int half = 0; half < 2; half++) {
    i32 dot[FS_TILE_C];
    fs_tile_mma(dot, b.a[half], x, zero);
    FS_UNROLL for (int r = 0; r < FS_TILE_CR; r++) {
      FS_UNROLL for (int c = 0; c < FS_TILE_CC; c++) {
        const float t = fs_fma(b.scale[half][r], fs_f32((u32)dot[r * FS_TILE_CC + c]), b.shift[half][r]);
        acc[half][r * FS_TILE_CC + c] = fs_fma(d[c], t, acc[half][r * FS_TILE_CC + c]);
      }
    }
  }
}
