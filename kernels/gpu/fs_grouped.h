// Matrices in tile order (fs_formats.h), any format, against up to 64 activation rows on int8 matrix units: a
// warp 16 rows of a matrix by all columns, its weights decoded once into registers, the activations of four
// blocks at a time in shared memory for all warps. Contract rules 2 and 3; a block's columns are those of fs_tiled.h.
// ROCmFP2 and ROCmFP3 take the way of fs_grouped_half.h where there are f16 matrix units of NVIDIA's.
#pragma once
#include "fourspark.h"
#include "fs_a8.h"
#include "fs_formats.h"
#include "fs_fp4_tile.h"
#include "fs_grouped_half.h"
#include "fs_grouped_parts.h"
#include "fs_swiglu.h"
#include "fs_tile.h"
#include "fs_tiled.h"

struct GroupedStage {
  // A block's columns lie 32 bytes apart (words of them in another order: GroupedHalves); the pad moves the next block to other banks.
  alignas(16) u8 q[4][GROUPED_COLS * 32 + 32];
  float d[4][GROUPED_COLS];
};

// With the sums of the halves of activation blocks, for formats with offsets.
struct GroupedSums : GroupedStage {
  u32 sums[4][GROUPED_COLS];
};

template <bool OFFSET>
struct GroupedStageOf {
  typedef GroupedStage Type;
};
template <>
struct GroupedStageOf<true> {
  typedef GroupedSums Type;
};

// One block ready to multiply. Formats of two scales need the dots of both halves apart: halves of fragments, or a
// fragment each, with the other half's words zero.
template <class F>
struct GroupedBlock {
  static constexpr int HALVES = F::TWO && !GroupedHalves<F>::ON ? 2 : 1;
  u32x2 a[HALVES][FS_TILE_AW];
  FsScale scale[FS_TILE_CR];
  float shift[FS_TILE_CR];
};

// Word t of a fragment.
template <class F>
struct GroupedLevels {
  FS_DEVICE_STATIC u32x2 of(const u32 (&p)[1][F::PARTS], u32 t, u32 table) { return F::eight(p[0], t, table); }
  FS_DEVICE_STATIC u32x2 of(const u32 (&p)[2][F::PARTS], u32 t, u32 table) {
    return u32x2{F::four(p[0], t / 2, t % 2, table), F::four(p[1], 2 + t / 2, t % 2, table)};
  }
};

template <class F>
FS_DEVICE void grouped_decode(GroupedBlock<F>& b, const GroupedWords<F>& g, int e, u32 table) {
  const u32 lane = fs_lane();
  FS_UNROLL for (int j = 0; j < FS_TILE_AW; j++) {
    const u32 t = fs_tile_word(lane, j);
    u32 p[GroupedWords<F>::SETS][F::PARTS];
    FS_UNROLL for (int h = 0; h < g.SETS; h++)
      FS_UNROLL for (int i = 0; i < F::PARTS; i++) p[h][i] = fs_word(g.words[j][h][i], e);
    b.a[0][j] = GroupedLevels<F>::of(p, t, table);
    if (b.HALVES == 1) continue;
    const u32x2 v = b.a[0][j];
    const u32 first = t >= 2 ? 0u : 0xffffffffu;
    b.a[0][j] = u32x2{v.x & first, v.y & first};
    b.a[b.HALVES - 1][j] = u32x2{v.x & ~first, v.y & ~first};
  }
  FS_UNROLL for (int r = 0; r < FS_TILE_CR; r++) {
    b.scale[r] = fs_scale_of<F>(g.scales[r], e);
    b.shift[r] = fs_mul(F::TWO ? b.scale[r].scale.y : b.scale[r].scale.x, -FS_MAGIC);
  }
}

// A dot as f32: NVIDIA's start at 1.5 * 2^23 (fs_fp4_tile.h).
FS_DEVICE float grouped_value(i32 dot) { return FP4F_MAGIC ? fs_dot_value(dot) : (float)dot; }

// A scale times a dot. Where that is exact one fma takes the start away too.
template <class F>
FS_DEVICE float grouped_scaled(float scale, float shift, i32 dot) {
  return FP4F_MAGIC && F::NARROW ? fs_fma(scale, fs_f32((u32)dot), shift) : fs_mul(scale, grouped_value(dot));
}

template <class F>
FS_DEVICE void grouped_dots(i32 (&dot)[2][FS_TILE_C], const GroupedBlock<F>& b, const u32x2 (&x)[FS_TILE_BW], const i32 (&start)[FS_TILE_C]) {
#if FS_TILE_HALVES
  if (F::TWO)
    fs_tile_mma_halves(dot[0], dot[1], b.a[0], x, start);
  else
    fs_tile_mma(dot[1], b.a[0], x, start);
#else
  if (F::TWO) fs_tile_mma(dot[0], b.a[0], x, start);
  fs_tile_mma(dot[1], b.a[b.HALVES - 1], x, start);
#endif
}

// The sums of this lane's columns; none for formats without offsets.
FS_DEVICE void grouped_sums(u32 (&sums)[FS_TILE_CC], const GroupedStage&, int, u32, u32) {
  FS_UNROLL for (int c = 0; c < FS_TILE_CC; c++) sums[c] = 0;
}
FS_DEVICE void grouped_sums(u32 (&sums)[FS_TILE_CC], const GroupedSums& stage, int e, u32 col, u32 lane) {
  FS_UNROLL for (int c = 0; c < FS_TILE_CC; c++) sums[c] = stage.sums[e][col + fs_tile_col(lane, c)];
}

// Rule 2 of a row r of the fragment.
template <class F>
FS_DEVICE float grouped_term(const GroupedBlock<F>& b, int r, i32 first, i32 second, u32 sums) {
  const FsScale& s = b.scale[r];
  if constexpr (F::OFFSET) {
    return fs_term<F>(s, F::TWO ? grouped_value(first) : 0.0f, grouped_value(second), sums);
  } else {
    const float last = grouped_scaled<F>(F::TWO ? s.scale.y : s.scale.x, b.shift[r], second);
    return F::TWO ? fs_fma(s.scale.x, grouped_value(first), last) : last;
  }
}

// One block against the FS_TILE_N columns from `col`.
template <class F, class Stage>
FS_DEVICE void grouped_step(float (&acc)[FS_TILE_C], const GroupedBlock<F>& b, const Stage& stage, int e, u32 col) {
  const u32 lane = fs_lane();
  u32x2 x[FS_TILE_BW];
  FS_UNROLL for (int j = 0; j < FS_TILE_BW; j++)
    x[j] = *(const u32x2*)&stage.q[e][(col + fs_tile_line(lane, j)) * 32 + fs_tile_word(lane, j) * 8];
  i32 start[FS_TILE_C], dot[2][FS_TILE_C];  // of the first half, and of the second or the whole
  FS_UNROLL for (int i = 0; i < FS_TILE_C; i++) start[i] = FP4F_MAGIC ? FS_MAGIC_BITS : 0;
  grouped_dots<F>(dot, b, x, start);
  float d[FS_TILE_CC];
  u32 sums[FS_TILE_CC];
  fs_tile_columns(&stage.d[e][col], lane, d);
  grouped_sums(sums, stage, e, col, lane);
  FS_UNROLL for (int r = 0; r < FS_TILE_CR; r++)
    FS_UNROLL for (int c = 0; c < FS_TILE_CC; c++) {
      const int i = r * FS_TILE_CC + c;
      acc[i] = fs_fma(d[c], grouped_term<F>(b, r, dot[0][i], dot[1][i], sums[c]), acc[i]);
    }
}

// What a thread of 256 copies of every group: two pieces of q and one of d. Columns past the last repeat it.
struct GroupedCopies {
  const i8* q[2];
  const fs_a8_meta* d;
};

FS_DEVICE GroupedCopies grouped_copies(const FsTiledColumns& my, const i8* q, const fs_a8_meta* meta, i32 blocks, u32 per) {
  const i32 thread = (i32)fs_tid(), last = my.count - 1;
  GroupedCopies to;
  FS_UNROLL for (int i = 0; i < 2; i++) {
    const i32 col = thread / 8 + i * 32;
    to.q[i] = q + my.slot(col < last ? col : last) / per * (u64)blocks * 32 + thread % 8 * 16;
  }
  const i32 col = thread / 4;
  to.d = meta + my.slot(col < last ? col : last) / per * (u64)blocks + thread % 4;
  return to;
}

// 16 bytes of activations, half `half` of a block of column `col`; of HALVES four bytes of each half together.
template <bool HALVES>
FS_DEVICE void grouped_copy(GroupedStage& to, i32 e, i32 col, i32 half, const i8* from) {
  if (HALVES) {
    FS_UNROLL for (int t = 0; t < 4; t++) fs_copy4(&to.q[e][col * 32 + t * 8 + half * 4], from + 4 * t);
  } else {
    fs_copy16(&to.q[e][col * 32 + half * 16], from);
  }
}

FS_DEVICE void grouped_copy_meta(GroupedStage& to, i32 e, i32 col, const fs_a8_meta* from) { fs_copy4(&to.d[e][col], &from->d); }
FS_DEVICE void grouped_copy_meta(GroupedSums& to, i32 e, i32 col, const fs_a8_meta* from) {
  fs_copy4(&to.d[e][col], &from->d);
  fs_copy4(&to.sums[e][col], &from->sums);
}

// Starts the copy of blocks 4 group .. 4 group + 3 that are inside.
template <bool HALVES, class Stage>
FS_DEVICE void grouped_stage(Stage& to, const GroupedCopies& my, i32 group, i32 blocks) {
  const i32 thread = (i32)fs_tid(), eq = thread % 8 / 2, ed = thread % 4;
  if (group * 4 + eq < blocks) {
    FS_UNROLL for (int i = 0; i < 2; i++)
      grouped_copy<HALVES>(to, eq, thread / 8 + i * 32, thread % 2, my.q[i] + (u64)group * 128);
  }
  if (group * 4 + ed < blocks) grouped_copy_meta(to, ed, thread / 4, &my.d[(u64)group * 4]);
  fs_copy_commit();
}

// What a block holds.
template <bool OFFSET>
struct GroupedShared {
  union {
    typename GroupedStageOf<OFFSET>::Type stage[2];
    float part[2][32][65];  // of gate and up, when the last stage is read: matrix, column, row; odd lines
  };
  float total[GROUPED_SUMS][256];  // a thread its own ones
};
static_assert(sizeof(GroupedShared<false>) == 51456 && sizeof(GroupedShared<true>) == 53504, "the launch gives as much");
template <class F, bool HALF>
struct GroupedSharedBy {
  typedef GroupedShared<F::OFFSET> Type;
};
template <class F>
struct GroupedSharedBy<F, true> {
  typedef GroupedHalfShared Type;
};
template <class F>
using GroupedSharedOf = typename GroupedSharedBy<F, FsHalves<F>::ON>::Type;

// The whole rows row0 .. row0 + 15 of a tile against 16 PAIRS of the block's columns, into the totals. Called by all
// 256 threads. Without a branch for what a unit lacks, addresses and constants stay in registers.
template <class F, int PAIRS>
FS_DEVICE void grouped_pairs(GroupedSharedOf<F>& sh, const FsTiled<F>& w, const FsTiledColumns& my, const i8* q, const fs_a8_meta* meta,
                            i32 tile, u32 row0, i32 blocks, u32 per, u32 table) {
  const GroupedCopies copies = grouped_copies(my, q, meta, blocks, per);
  float acc[PAIRS * GROUPED_STEP][FS_TILE_C];
  FS_UNROLL for (int n = 0; n < PAIRS * GROUPED_STEP; n++)
    FS_UNROLL for (int i = 0; i < FS_TILE_C; i++) acc[n][i] = 0.0f;
  GroupedWords<F> now;
  grouped_stage<GroupedHalves<F>::ON>(sh.stage[0], copies, 0, blocks);
  grouped_load<F>(now, w, tile, row0, 0);
  for (i32 group = 0; group < w.groups; group++) {
    fs_copy_wait<0>();
    fs_barrier();  // the stage is filled, and the other one free again
    if (group + 1 < w.groups) grouped_stage<GroupedHalves<F>::ON>(sh.stage[(group + 1) & 1], copies, group + 1, blocks);
    GroupedBlock<F> b, last;
    FS_UNROLL for (int e = 0; e < 4; e++) {
      if (e < 3)
        grouped_decode<F>(b, now, e, table);
      else
        b = last;
      if (e == 2) {  // the last block's words are decoded early: the next group's are on their way for two blocks
        grouped_decode<F>(last, now, 3, table);
        grouped_load<F>(now, w, tile, row0, group + 1 < w.groups ? group + 1 : group);
      }
      if (group * 4 + e >= blocks) continue;  // the same for all threads, as the next
      FS_UNROLL for (int n = 0; n < PAIRS * GROUPED_STEP; n++) grouped_step<F>(acc[n], b, sh.stage[group & 1], e, (u32)(n * FS_TILE_N));
      fs_schedule_fence();
    }
    if (group % 4 == 3 || group + 1 == w.groups) grouped_total(sh, acc, group < 4);
  }
}

template <class F>
FS_DEVICE void grouped_rows(GroupedSharedOf<F>& sh, const FsTiled<F>& w, const FsTiledColumns& my, const i8* q, const fs_a8_meta* meta,
                            i32 tile, u32 row0, i32 blocks, u32 per, u32 table) {
  if constexpr (FsHalves<F>::ON)
    grouped_half_rows<F>(sh, w, my, q, meta, tile, row0, blocks, per, table);
  else if (my.count > 48)
    grouped_pairs<F, 4>(sh, w, my, q, meta, tile, row0, blocks, per, table);
  else if (my.count > 32)
    grouped_pairs<F, 3>(sh, w, my, q, meta, tile, row0, blocks, per, table);
  else
    grouped_pairs<F, 2>(sh, w, my, q, meta, tile, row0, blocks, per, table);
}

// ---- the product: 128 rows a block

template <class F>
FS_DEVICE void grouped_product(GroupedSharedOf<F>& sh, const u8* packed, const i8* q, const fs_a8_meta* meta, const u32x4* units, const u32* order,
                               float* y, i32 m, i32 blocks, i32 cols, u32 per, u32 table) {
  const FsTiledColumns my = fs_tiled_columns<GROUPED_COLS>(units, order, cols);
  if (my.count <= 0) return;  // the same for all threads
  const FsTiled<F> w = fs_tiled_of<F>(packed, my.expert, m, blocks);
  const i32 tile = (i32)fs_bid_x() * 4 + (i32)fs_warp() / 2, safe = tile < w.tiles ? tile : w.tiles - 1;
  const u32 row0 = fs_warp() % 2 * 16, lane = fs_lane();
  grouped_rows<F>(sh, w, my, q, meta, safe, row0, blocks, per, table);
  FS_UNROLL for (int n = 0; n < GROUPED_TILES; n++)
    FS_UNROLL for (int c = 0; c < FS_TILE_CC; c++) {
      const i32 col = n * FS_TILE_N + (i32)fs_tile_col(lane, c);
      if (col >= my.count) continue;
      float* line = y + my.slot(col) * (u64)m;
      FS_UNROLL for (int r = 0; r < FS_TILE_CR; r++) {
        const i32 row = tile * 32 + (i32)(row0 + fs_tile_row(lane, r));
        if (row < m) line[row] = sh.total[n * FS_TILE_C + r * FS_TILE_CC + c][fs_tid()];
      }
    }
}

// ---- gate, up and activation: 64 rows of both a block

template <class F>
FS_DEVICE void grouped_gate_up(GroupedSharedOf<F>& sh, const u8* gate, const u8* up, const i8* q, const fs_a8_meta* meta, const u32x4* units,
                               const u32* order, const float* weights, i8* h_q, fs_a8_meta* h_meta, float* h, i32 m, i32 blocks, i32 cols,
                               u32 per, u32 table, float limit) {
  constexpr int TILES = GROUPED_TILES / 2;
  const FsTiledColumns my = fs_tiled_columns<GROUPED_COLS>(units, order, cols);
  if (my.count <= 0) return;
  const u32 warp = fs_warp(), lane = fs_lane(), rows = warp % 4 * 16;
  const FsTiled<F> w = fs_tiled_of<F>(warp < 4 ? gate : up, my.expert, m, blocks);
  const i32 tile = (i32)fs_bid_x() * 2 + (i32)(rows / 32), safe = tile < w.tiles ? tile : w.tiles - 1;
  grouped_rows<F>(sh, w, my, q, meta, safe, rows % 32, blocks, per, table);
  fs_barrier();  // the last stage is read by all
  FS_UNROLL for (int half = 0; half < 2; half++) {
    if (half * 32 >= my.count) continue;  // the same for all threads
    FS_UNROLL for (int n = 0; n < TILES; n++)
      FS_UNROLL for (int r = 0; r < FS_TILE_CR; r++)
        FS_UNROLL for (int c = 0; c < FS_TILE_CC; c++)
          sh.part[warp / 4][n * FS_TILE_N + (int)fs_tile_col(lane, c)][rows + fs_tile_row(lane, r)] =
              sh.total[(half * TILES + n) * FS_TILE_C + r * FS_TILE_CC + c][fs_tid()];
    fs_barrier();
    for (i32 o = (i32)warp; o < 64; o += 8) {
      const i32 c = o % 32, col = half * 32 + c, from = (i32)fs_bid_x() * 2 + o / 32;
      if (col >= my.count || from >= w.tiles) continue;  // the same for a warp
      const u32 row = (u32)(o / 32 * 32) + lane;
      float v = fs_swiglu(sh.part[0][c][row], sh.part[1][c][row], limit);
      if (weights) v = fs_mul(v, weights[my.slot(col)]);
      fs_a8_store(v, my.slot(col) * (u64)m + (u64)(from * 32) + lane, h_q, h_meta, h);
    }
    fs_barrier();
  }
}

#define GROUPED(name, F)                                                                                                  \
  FS_KERNEL(grouped_product_##name, 256, 2)(const u8* FS_RESTRICT packed, const i8* FS_RESTRICT q,                        \
                                            const fs_a8_meta* FS_RESTRICT meta, const u32x4* FS_RESTRICT units,           \
                                            const u32* FS_RESTRICT order, float* FS_RESTRICT y, i32 m, i32 blocks,        \
                                            i32 cols, u32 per, u32 table) {                                               \
    fs_begin();                                                                                                           \
    FS_SHARED_DYN(GroupedSharedOf<F>, sh);                                                                                     \
    grouped_product<F>(sh, packed, q, meta, units, order, y, m, blocks, cols, per, table);                                \
  }                                                                                                                       \
  FS_EXPORT(grouped_product_##name, 256)                                                                                  \
  FS_KERNEL(grouped_gate_up_##name, 256, 2)(const u8* FS_RESTRICT gate, const u8* FS_RESTRICT up, const i8* FS_RESTRICT q, \
                                            const fs_a8_meta* FS_RESTRICT meta, const u32x4* FS_RESTRICT units,           \
                                            const u32* FS_RESTRICT order, const float* FS_RESTRICT weights,               \
                                            i8* FS_RESTRICT h_q, fs_a8_meta* FS_RESTRICT h_meta, float* FS_RESTRICT h,    \
                                            i32 m, i32 blocks, i32 cols, u32 per, u32 table, float limit) {               \
    fs_begin();                                                                                                           \
    FS_SHARED_DYN(GroupedSharedOf<F>, sh);                                                                                     \
    grouped_gate_up<F>(sh, gate, up, q, meta, units, order, weights, h_q, h_meta, h, m, blocks, cols, per, table, limit); \
  }                                                                                                                       \
  FS_EXPORT(grouped_gate_up_##name, 256)
