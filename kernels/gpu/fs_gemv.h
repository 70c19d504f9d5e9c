// Repack, products of a few activation rows, and gate with up, of one format in tile order: the kernels that tiled.cu
// and tiled_k.cu name, for formula, shapes, launch and order see there.
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

// One pass: all warps' segments into sh.part. Warps of 8 take one matrix.
template <class F, int Q, int MATRICES>
FS_DEVICE void tiled_pass(TiledShared<Q, MATRICES>& sh, const FsTiled<F>& w, const FsTiledColumns& my, const i8* q, const fs_a8_meta* meta,
                          i32 pass, i32 blocks, u32 per, i32 log2, u32 table) {
  const i32 warp = (i32)fs_warp() % TILED_SEGMENTS, local = warp & ((1 << log2) - 1), segment = pass + local;
  const i32 tile = (i32)fs_bid_x() * (TILED_SEGMENTS >> log2) + (warp >> log2);
  const i32 safe = tile < w.tiles ? tile : w.tiles - 1;
  FsTiledAhead<F> ahead;
  fs_tiled_stage<Q, MATRICES * 256>(sh.input, my, q, meta, pass * FS_SEGMENT_BLOCKS, blocks, per);
  fs_tiled_begin<F>(ahead, w, safe, segment < w.segments ? segment : w.segments - 1);
  fs_copy_wait<0>();
  fs_barrier();
  if (tile < w.tiles && segment < w.segments) {
    float acc[Q];
    fs_tiled_segment<F, Q>(acc, ahead, w, sh.input, tile, segment, local * FS_SEGMENT_BLOCKS, blocks, my.count, table);
    FS_UNROLL for (int c = 0; c < Q; c++) sh.part[fs_warp() / TILED_SEGMENTS][warp][c][fs_lane()] = acc[c];
  }
  fs_barrier();
}

// Adds a pass's segments of one output to its total.
template <int Q>
FS_DEVICE float tiled_add(float total, const float (&part)[TILED_SEGMENTS][Q][32], i32 slot, i32 c, i32 log2, i32 here) {
  for (i32 i = 0; i < here; i++) total = fs_add(total, part[(slot << log2) + i][c][fs_lane()]);
  return total;
}

template <class F, int Q>
FS_DEVICE void tiled_gemv(TiledShared<Q, 1>& sh, const u8* packed, const i8* q, const fs_a8_meta* meta, const FsTiledColumns& my, float* y,
                          i8* y_q, fs_a8_meta* y_meta, i32 m, i32 blocks, u32 per, u32 table) {
  if (my.count <= 0) return;  // the same for all threads
  const FsTiled<F> w = fs_tiled_of<F>(packed, my.expert, m, blocks);
  const i32 log2 = fs_slots_log2(w.segments), tiles = TILED_SEGMENTS >> log2;
  float total = -0.0f;  // the sum of nothing: -0 + a is a, bit for bit
  for (i32 pass = 0; pass < w.segments; pass += TILED_SEGMENTS) {
    tiled_pass<F, Q, 1>(sh, w, my, q, meta, pass, blocks, per, log2, table);
    const i32 here = w.segments - pass < TILED_SEGMENTS ? w.segments - pass : TILED_SEGMENTS;
    for (i32 o = (i32)fs_warp(); o < tiles * Q; o += 8) {
      const i32 slot = o / Q, c = o % Q, row = ((i32)fs_bid_x() * tiles + slot) * 32 + (i32)fs_lane();
      if (c >= my.count) continue;
      if (tiles > 1) total = -0.0f;
      total = tiled_add<Q>(total, sh.part[0], slot, c, log2, here);
      if (pass + here != w.segments || row >= m) continue;  // with blocks m is a multiple of 32: the same for a warp
      const u64 at = my.slot(c) * (u64)m + (u64)row;
      if (y_q)
        fs_a8_store(total, at, y_q, y_meta, y);
      else
        y[at] = total;
    }
    fs_barrier();
  }
}

template <class F, int Q>
FS_DEVICE void tiled_gate_up(TiledShared<Q, 2>& sh, const u8* gate, const u8* up, const i8* q, const fs_a8_meta* meta, const FsTiledColumns& my,
                             const float* weights, i8* h_q, fs_a8_meta* h_meta, float* h, i32 m, i32 blocks, u32 per, u32 table, float limit) {
  if (my.count <= 0) return;
  const FsTiled<F> w = fs_tiled_of<F>(fs_warp() < TILED_SEGMENTS ? gate : up, my.expert, m, blocks);
  const i32 log2 = fs_slots_log2(w.segments), tiles = TILED_SEGMENTS >> log2;
  float total[2] = {-0.0f, -0.0f};
  for (i32 pass = 0; pass < w.segments; pass += TILED_SEGMENTS) {
    tiled_pass<F, Q, 2>(sh, w, my, q, meta, pass, blocks, per, log2, table);
    const i32 here = w.segments - pass < TILED_SEGMENTS ? w.segments - pass : TILED_SEGMENTS;
    for (i32 o = (i32)fs_warp(); o < tiles * Q; o += 16) {
      const i32 slot = o / Q, c = o % Q, tile = (i32)fs_bid_x() * tiles + slot;
      if (c >= my.count || tile >= w.tiles) continue;  // the same for a warp
      FS_UNROLL for (int i = 0; i < 2; i++) total[i] = tiled_add<Q>(tiles > 1 ? -0.0f : total[i], sh.part[i], slot, c, log2, here);
      if (pass + here != w.segments) continue;
      float v = fs_swiglu(total[0], total[1], limit);
      if (weights) v = fs_mul(v, weights[my.slot(c)]);
      fs_a8_store(v, my.slot(c) * (u64)m + (u64)(tile * 32) + fs_lane(), h_q, h_meta, h);
    }
    fs_barrier();
  }
}

#define TILED_GEMV(name, F, Q, occupancy)                                                                                 \
  FS_KERNEL(tiled_gemv_##name##_##Q, 256, occupancy)(const u8* FS_RESTRICT packed, const i8* FS_RESTRICT q,               \
                                             const fs_a8_meta* FS_RESTRICT meta, const u32x4* FS_RESTRICT units,          \
                                             const u32* FS_RESTRICT order, float* FS_RESTRICT y, i8* FS_RESTRICT y_q,     \
                                             fs_a8_meta* FS_RESTRICT y_meta, i32 m, i32 blocks, i32 cols, u32 per,        \
                                             u32 table) {                                                                 \
    fs_begin();                                                                                                           \
    FS_SHARED(TiledOne<Q>, sh);                                                                                           \
    tiled_gemv<F, Q>(sh, packed, q, meta, fs_tiled_columns<Q>(units, order, cols), y, y_q, y_meta, m, blocks, per, table); \
  }                                                                                                                       \
  FS_EXPORT(tiled_gemv_##name##_##Q, 256)
#define TILED_GATE_UP(name, F, Q)                                                                                         \
  FS_KERNEL(tiled_gate_up_##name##_##Q, 512, 1)(const u8* FS_RESTRICT gate, const u8* FS_RESTRICT up, const i8* FS_RESTRICT q, \
                                                const fs_a8_meta* FS_RESTRICT meta, const u32x4* FS_RESTRICT units,       \
                                                const u32* FS_RESTRICT order, const float* FS_RESTRICT weights,           \
                                                i8* FS_RESTRICT h_q, fs_a8_meta* FS_RESTRICT h_meta, float* FS_RESTRICT h, \
                                                i32 m, i32 blocks, i32 cols, u32 per, u32 table, float limit) {           \
    fs_begin();                                                                                                           \
    FS_SHARED(TiledTwo<Q>, sh);                                                                                           \
    tiled_gate_up<F, Q>(sh, gate, up, q, meta, fs_tiled_columns<Q>(units, order, cols), weights, h_q, h_meta, h, m,       \
                        blocks, per, table, limit);                                                                       \
  }                                                                                                                       \
  FS_EXPORT(tiled_gate_up_##name##_##Q, 512)
#define TILED(name, F, occupancy)                                                                                         \
  FS_KERNEL(tiled_repack_##name, 256, 1)(const u8* FS_RESTRICT raw, u8* FS_RESTRICT packed, i32 m, i32 blocks) {          \
    fs_begin();                                                                                                           \
    tiled_repack<F>(raw, packed, m, blocks);                                                                              \
  }                                                                                                                       \
  FS_EXPORT(tiled_repack_##name, 256)                                                                                     \
  TILED_GEMV(name, F, 1, occupancy) TILED_GEMV(name, F, 4, 2) TILED_GATE_UP(name, F, 1) TILED_GATE_UP(name, F, 4)
