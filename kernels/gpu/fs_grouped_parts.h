// What both ways of fs_grouped.h share: a warp's weights of four blocks, and the totals of its outputs.
#pragma once
#include "fourspark.h"
#include "fs_formats.h"
#include "fs_tile.h"
#include "fs_tiled.h"

static constexpr int GROUPED_COLS = 64, GROUPED_TILES = GROUPED_COLS / FS_TILE_N, GROUPED_STEP = 16 / FS_TILE_N;

// Whether a format's blocks are multiplied half by half: word t of a fragment is then four elements of each half, 4 t
// and on, and activations are staged in that order.
template <class F>
struct GroupedHalves {
  static constexpr bool ON = F::TWO && FS_TILE_HALVES;
};

// What a lane holds of four blocks of 16 rows: the words that its levels need (of either half), and the scales of its
// result rows.
template <class F>
struct GroupedWords {
  static constexpr int SETS = GroupedHalves<F>::ON ? 2 : 1;
  u32x4 words[FS_TILE_AW][SETS][F::PARTS];
  u32 scales[FS_TILE_CR][F::LOADS];
};

template <class F>
FS_DEVICE void grouped_load(GroupedWords<F>& g, const FsTiled<F>& w, i32 tile, u32 row0, i32 group) {
  const u32 lane = fs_lane();
  const u32x4* codes = w.codes + ((u64)tile * (u64)w.groups + (u64)group) * F::WORDS * 32 + row0;
  FS_UNROLL for (int j = 0; j < FS_TILE_AW; j++)
    FS_UNROLL for (u32 h = 0; h < g.SETS; h++)
      FS_UNROLL for (u32 i = 0; i < F::PARTS; i++) {
        const u32 t = fs_tile_word(lane, j), word = g.SETS == 1 ? t : 2 * h + t / 2;
        if (h == 1 && F::part(0, i) == F::part(2, i))  // a word of both halves
          g.words[j][h][i] = g.words[j][0][i];
        else
          g.words[j][h][i] = fs_load_stream(codes + F::part(word, i) * 32 + fs_tile_line(lane, j));
      }
  const u32x4* scales = w.scales + ((u64)tile * (u64)w.segments + (u64)(group / 4)) * F::SCALES * 32 + row0;
  FS_UNROLL for (int r = 0; r < FS_TILE_CR; r++) F::read_scales(g.scales[r], scales + fs_tile_row(lane, r), group % 4);
}

// ---- totals: they change once in 16 blocks of weights and leave the registers to the sums of a segment

static constexpr int GROUPED_SUMS = GROUPED_TILES * FS_TILE_C;

// Puts a segment's sums behind the totals of those before it. The sum of nothing is -0: -0 + a is a, bit for bit.
template <int TILES, class Shared>
FS_DEVICE void grouped_total(Shared& sh, float (&acc)[TILES][FS_TILE_C], bool first) {
  FS_UNROLL for (int n = 0; n < TILES; n++)
    FS_UNROLL for (int i = 0; i < FS_TILE_C; i++) {
      float* to = &sh.total[n * FS_TILE_C + i][fs_tid()];
      *to = first ? acc[n][i] : fs_add(*to, acc[n][i]);
      acc[n][i] = 0.0f;
    }
}
