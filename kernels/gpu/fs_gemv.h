// Repack, products of a few activation rows, and gate with up, of one format in tile order: the kernels that tiled.cu,
// tiled_more.cu, tiled_k.cu and experts.cu name, for formula, shapes, launch and order see there.
#pragma once
#include "fourspark.h"
#include "fs_a8.h"
#include "fs_formats.h"
#include "fs_swiglu.h"
#include "fs_tiled.h"

template <class F>
FS_DEVICE void tiled_repack(const u8* raw, u8* packed, i32 m, i32 blocks) {
  const u64 codes = fs_tiled_codes(F::WORDS, m, blocks), all = codes + fs_tiled_scales(F::SCALES, m, blocks);
  const u64 id = (u64)fs_bid_x() * 256 + fs_tid(), matrix = fs_bid_y();
  if (id >= all) return;
  const u64 unit = id < codes ? id : id - codes;
  const u64 per_tile = id < codes ? (u64)((blocks + 3) / 4) * F::WORDS : (u64)((blocks + 15) / 16) * F::SCALES;
  const i32 row = (i32)(unit / 32 / per_tile * 32 + unit % 32), at = (i32)(unit / 32 % per_tile);
  u32x4 out = {0, 0, 0, 0};
  const u8* line = raw + (matrix * (u64)m + (u64)row) * (u64)(blocks / F::SUPER) * F::FILE;
  if (row < m && id < codes) {
    u32 word[4];
    FS_UNROLL for (i32 e = 0; e < 4; e++) {
      const i32 b = at / F::WORDS * 4 + e;
      word[e] = b < blocks ? fs_file_word<F>(line, b, at % F::WORDS) : 0;
    }
    out = u32x4{word[0], word[1], word[2], word[3]};
  } else if (row < m) {
    out = fs_file_unit<F>(line, at / F::SCALES, at % F::SCALES, blocks);
  }
  ((u32x4*)packed)[matrix * all + id] = out;
}

template <int Q, int MATRICES>
struct TiledShared {
  FsTiledInput<Q> input;
  float part[MATRICES][TILED_SEGMENTS][Q][32];
};

template <int Q>
using TiledOne = TiledShared<Q, 1>;
template <int Q>
using TiledTwo = TiledShared<Q, 2>;

// Where a warp stands in a pass: its segment of one of the tiles that 8 warps take at once.
struct TiledPlace {
  i32 tile, segment, local;
};

FS_DEVICE TiledPlace tiled_place(i32 pass, i32 log2) {
  const i32 warp = (i32)fs_warp(), local = warp & ((1 << log2) - 1);
  return TiledPlace{(i32)fs_bid_x() * (TILED_SEGMENTS >> log2) + (warp >> log2), pass + local, local};
}

// One pass's segments into `part`; `ahead` holds the first groups of the first matrix.
template <class F, int Q, int MATRICES, bool DEEP>
FS_DEVICE void tiled_pass(TiledShared<Q, MATRICES>& sh, FsTiledAhead<F, Q, DEEP>& ahead, const FsTiled<F> (&w)[MATRICES],
                          const TiledPlace& at, i32 blocks, i32 count, u32 table) {
  if (at.tile >= w[0].tiles || at.segment >= w[0].segments) return;
  const FsTiledSpan span = {at.local * FS_SEGMENT_BLOCKS, blocks - at.segment * FS_SEGMENT_BLOCKS, count};
  const FsTiledJob<F> second = fs_tiled_job<F>(w[MATRICES - 1], at.tile, at.segment);
  FsTiledJob<F> job = fs_tiled_job<F>(w[0], at.tile, at.segment);
  FS_ROLLED for (i32 i = 0; i < MATRICES; i++) {
    float acc[Q];
    fs_tiled_segment<F, Q, DEEP>(acc, ahead, job, second, i + 1 < MATRICES, sh.input, span, table);
    FS_UNROLL for (int c = 0; c < Q; c++) sh.part[i][fs_warp()][c][fs_lane()] = acc[c];
    job = second;
  }
}

// Adds a pass's segments of one output to its total.
template <int Q>
FS_DEVICE float tiled_add(float total, const float (&part)[TILED_SEGMENTS][Q][32], i32 slot, i32 c, i32 log2, i32 here) {
  for (i32 i = 0; i < here; i++) total = fs_add(total, part[(slot << log2) + i][c][fs_lane()]);
  return total;
}

// Adds the segments of a pass to the totals of this warp's outputs; `out` takes those of each matrix by tile and column when no `more` are to come.
template <int Q, int MATRICES, class Out>
FS_DEVICE void tiled_totals(float (&total)[MATRICES], const float (&part)[MATRICES][TILED_SEGMENTS][Q][32], i32 all_tiles, i32 count, i32 log2,
                            i32 here, bool more, const Out& out) {
  const i32 tiles = TILED_SEGMENTS >> log2;
  for (i32 o = (i32)fs_warp(); o < tiles * Q; o += TILED_SEGMENTS) {
    const i32 slot = o / Q, c = o % Q, tile = (i32)fs_bid_x() * tiles + slot;
    if (c >= count || tile >= all_tiles) continue;  // the same for a warp
    FS_UNROLL for (int i = 0; i < MATRICES; i++) total[i] = tiled_add<Q>(tiles > 1 ? -0.0f : total[i], part[i], slot, c, log2, here);
    if (!more) out(tile, c, total);
  }
}

// Products of a block's tiles with the unit's columns: `out` takes the totals of each matrix by tile and column, a
// value a lane. Over several passes a block has one tile, and an output stays with its warp.
template <class F, int Q, int MATRICES, bool DEEP, class Out>
FS_DEVICE void tiled_products(TiledShared<Q, MATRICES>& sh, const FsTiled<F> (&w)[MATRICES], const i8* q, const fs_a8_meta* meta,
                              const FsTiledColumns& my, i32 blocks, u32 per, u32 table, const Out& out) {
  if (my.count <= 0) return;  // the same for all threads
  const i32 segments = w[0].segments, log2 = fs_slots_log2(segments);
  fs_tiled_stage<Q, 256>(sh.input, my, q, meta, 0, blocks, per);
  float total[MATRICES];
  FS_UNROLL for (int i = 0; i < MATRICES; i++) total[i] = -0.0f;  // the sum of nothing: -0 + a is a, bit for bit
  for (i32 pass = 0; pass < segments; pass += TILED_SEGMENTS) {
    const i32 here = segments - pass < TILED_SEGMENTS ? segments - pass : TILED_SEGMENTS;
    const bool more = pass + here < segments;
    const TiledPlace at = tiled_place(pass, log2);
    FsTiledAhead<F, Q, DEEP> ahead;
    fs_tiled_begin<F, Q, DEEP>(ahead, fs_tiled_job<F>(w[0], at.tile, at.segment));
    fs_copy_wait<0>();
    fs_tiled_arrange<F, Q, 256>(sh.input, my, pass * FS_SEGMENT_BLOCKS, blocks);
    fs_barrier();
    tiled_pass<F, Q, MATRICES, DEEP>(sh, ahead, w, at, blocks, my.count, table);
    fs_barrier();
    if (more) fs_tiled_stage<Q, 256>(sh.input, my, q, meta, (pass + TILED_SEGMENTS) * FS_SEGMENT_BLOCKS, blocks, per);
    tiled_totals<Q, MATRICES>(total, sh.part, w[0].tiles, my.count, log2, here, more, out);
  }
}

// A product as f32 or as activation blocks.
struct TiledOut {
  float* y;
  i8* y_q;
  fs_a8_meta* y_meta;
  i32 m;
  FsTiledColumns my;

  FS_DEVICE_MEMBER void operator()(i32 tile, i32 c, const float (&total)[1]) const {
    const i32 row = tile * 32 + (i32)fs_lane();
    if (row >= m) return;  // with blocks m is a multiple of 32: the same for a warp
    const u64 at = my.slot(c) * (u64)m + (u64)row;
    if (y_q)
      fs_a8_store(total[0], at, y_q, y_meta, y);
    else
      y[at] = total[0];
  }
};

// The activation of gate and up as activation blocks.
struct TiledAct {
  const float* weights;
  i8* h_q;
  fs_a8_meta* h_meta;
  float* h;
  i32 m;
  float limit;
  FsTiledColumns my;

  FS_DEVICE_MEMBER void operator()(i32 tile, i32 c, const float (&total)[2]) const {
    float v = fs_swiglu(total[0], total[1], limit);
    if (weights) v = fs_mul(v, weights[my.slot(c)]);
    fs_a8_store(v, my.slot(c) * (u64)m + (u64)(tile * 32) + fs_lane(), h_q, h_meta, h);
  }
};

// Units of one and of two columns take ways of just as many: most experts of a few tokens have one or two.
template <class F, int Q, int MATRICES, bool DEEP, class Out>
FS_DEVICE void tiled_unit(TiledShared<Q, MATRICES>& sh, const FsTiled<F> (&w)[MATRICES], const i8* q, const fs_a8_meta* meta,
                          const FsTiledColumns& my, i32 blocks, u32 per, u32 table, const Out& out) {
  if (Q > 1 && my.count == 1)
    tiled_products<F, 1, MATRICES, DEEP>((TiledShared<1, MATRICES>&)sh, w, q, meta, my, blocks, per, table, out);
  else if (FS_TILED_PAIRS && Q > 2 && my.count == 2)
    tiled_products<F, 2, MATRICES, DEEP>((TiledShared<2, MATRICES>&)sh, w, q, meta, my, blocks, per, table, out);
  else
    tiled_products<F, Q, MATRICES, DEEP>(sh, w, q, meta, my, blocks, per, table, out);
}

// ALL: units take the way of Q columns, whatever they have: where few have fewer, it is the smaller kernel.
template <class F, int Q, bool DEEP, bool ALL = false>
FS_DEVICE void tiled_gemv(TiledShared<Q, 1>& sh, const u8* packed, const i8* q, const fs_a8_meta* meta, const FsTiledColumns& my, float* y,
                          i8* y_q, fs_a8_meta* y_meta, i32 m, i32 blocks, u32 per, u32 table) {
  const FsTiled<F> w[1] = {fs_tiled_of<F>(packed, my.expert, m, blocks)};
  const TiledOut out = {y, y_q, y_meta, m, my};
  if constexpr (ALL)
    tiled_products<F, Q, 1, DEEP>(sh, w, q, meta, my, blocks, per, table, out);
  else
    tiled_unit<F, Q, 1, DEEP>(sh, w, q, meta, my, blocks, per, table, out);
}

template <class F, int Q, bool ALL = false>
FS_DEVICE void tiled_gate_up(TiledShared<Q, 2>& sh, const u8* gate, const u8* up, const i8* q, const fs_a8_meta* meta, const FsTiledColumns& my,
                             const float* weights, i8* h_q, fs_a8_meta* h_meta, float* h, i32 m, i32 blocks, u32 per, u32 table,
                             float limit) {
  const FsTiled<F> w[2] = {fs_tiled_of<F>(gate, my.expert, m, blocks), fs_tiled_of<F>(up, my.expert, m, blocks)};
  const TiledAct out = {weights, h_q, h_meta, h, m, limit, my};
  if constexpr (ALL)
    tiled_products<F, Q, 2, false>(sh, w, q, meta, my, blocks, per, table, out);
  else
    tiled_unit<F, Q, 2, false>(sh, w, q, meta, my, blocks, per, table, out);
}

#define TILED_GEMV(name, F, Q, occupancy, deep)                                                                               \
  FS_KERNEL(tiled_gemv_##name##_##Q, 256, occupancy)(const u8* FS_RESTRICT packed, const i8* FS_RESTRICT q,               \
                                             const fs_a8_meta* FS_RESTRICT meta, const u32x4* FS_RESTRICT units,          \
                                             const u32* FS_RESTRICT order, float* FS_RESTRICT y, i8* FS_RESTRICT y_q,     \
                                             fs_a8_meta* FS_RESTRICT y_meta, i32 m, i32 blocks, i32 cols, u32 per,        \
                                             u32 table) {                                                                 \
    fs_begin();                                                                                                           \
    FS_SHARED(TiledOne<Q>, sh);                                                                                           \
    tiled_gemv<F, Q, deep>(sh, packed, q, meta, fs_tiled_columns<Q>(units, order, cols), y, y_q, y_meta, m, blocks, per, table); \
  }                                                                                                                       \
  FS_EXPORT(tiled_gemv_##name##_##Q, 256)
#define TILED_GATE_UP(name, F, Q, occupancy)                                                                              \
  FS_KERNEL(tiled_gate_up_##name##_##Q, 256, occupancy)(const u8* FS_RESTRICT gate, const u8* FS_RESTRICT up, const i8* FS_RESTRICT q, \
                                                const fs_a8_meta* FS_RESTRICT meta, const u32x4* FS_RESTRICT units,       \
                                                const u32* FS_RESTRICT order, const float* FS_RESTRICT weights,           \
                                                i8* FS_RESTRICT h_q, fs_a8_meta* FS_RESTRICT h_meta, float* FS_RESTRICT h, \
                                                i32 m, i32 blocks, i32 cols, u32 per, u32 table, float limit) {           \
    fs_begin();                                                                                                           \
    FS_SHARED(TiledTwo<Q>, sh);                                                                                           \
    tiled_gate_up<F, Q>(sh, gate, up, q, meta, fs_tiled_columns<Q>(units, order, cols), weights, h_q, h_meta, h, m,       \
                        blocks, per, table, limit);                                                                       \
  }                                                                                                                       \
  FS_EXPORT(tiled_gate_up_##name##_##Q, 256)
#define TILED(name, F, occupancy, deep)                                                                                  \
  FS_KERNEL(tiled_repack_##name, 256, 1)(const u8* FS_RESTRICT raw, u8* FS_RESTRICT packed, i32 m, i32 blocks) {          \
    fs_begin();                                                                                                           \
    tiled_repack<F>(raw, packed, m, blocks);                                                                              \
  }                                                                                                                       \
  FS_EXPORT(tiled_repack_##name, 256)                                                                                     \
  TILED_GEMV(name, F, 1, occupancy, deep) TILED_GEMV(name, F, 4, 2, false) \
  TILED_GATE_UP(name, F, 1, 2) TILED_GATE_UP(name, F, 4, 2)
