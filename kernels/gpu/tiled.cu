// Matrices of ROCmFP4_FAST, ROCmFP2, 3, 4, 6, 8, Q8_0 and MXFP4 in tile order (fs_formats.h), alone or as a
// stack of experts: repack, product with a few activation rows, and the experts' gate, up and activation.
//
// tiled_repack_F
//   formula  a permutation of the file's bytes, zero padded
//   shapes   raw [matrices][m][blocks] file blocks at any address, packed [matrices] codes + scales
//   launch   grid (ceil(16-byte units / 256), matrices) of 256 threads, a thread a unit
//   cost     reads and writes the bytes once at load
// tiled_gemv_F_{1,4}
//   formula  y[slot][row] = sum over blocks of d * t (rules 2, 3) of matrix `expert` of the slot's unit
//   shapes   q [inputs][k] i8, meta [inputs][blocks] of a8_quantise; units [grid y] {expert, first place,
//            slots, 0} and order [slots], or null (order null: place = slot); input row = slot / per;
//            without units: matrix 0, slots 0 .. cols - 1. y [slots][m] f32 or null;
//            y_q [slots][m] i8 and y_meta [slots][m / 32] of a8_quantise of y (rule 1), m a multiple of 32, or null
//   launch   grid (blocks of tiles, units) of 256 threads: a warp one segment of 32 rows; a block holds
//            the 8 segments of its rows or, if there are at most 4, 2, 1, as many times the rows
// tiled_gate_up_F_{1,4}
//   formula  g, u = the products with both matrices; h = silu(min(g, limit)) * clamp(u, +-limit), then
//            * weights[slot] if there are weights; then activation blocks of h (rules 1, 12)
//   shapes   gate, up [experts][m][blocks], m a multiple of 32; h_q [slots][m] i8, h_meta [slots][m / 32],
//            h [slots][m] f32 or null
//   launch   as tiled_gemv with 512 threads: half of the warps for each matrix
//   cost     the bytes of the visited matrices once a unit; 2 k m ops a slot; bound by memory. A block's first weights are
//            on their way while its activations come; two blocks and more share a multiprocessor (at most 64 registers a
//            thread where experts of one token are joined), so that one waits while the other computes
//   order    a lane a segment of a row: fma over its 16 blocks from +0; segments added in order
// tiled_gate_up_with_F, tiled_gemv_with_F: the experts of one token, routed ones of format F and the shared one of
// ROCmFP4_FAST, in one launch
//   formula  as tiled_gate_up_F_1 and tiled_gemv_F_1 with `used` units of one slot whose activation row is the token's
//            (gate and up) or the slot's (down), and without units for the shared expert
//   shapes   as there; the shared matrices have the shape of the routed ones
//   launch   as there with grid y used + 1: the last one is the shared expert
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
  u32 out[4] = {0, 0, 0, 0};
  const u8* line = raw + (matrix * (u64)m + (u64)row) * (u64)blocks * F::FILE;
  if (row < m && id < codes) {
    FS_UNROLL for (i32 e = 0; e < 4; e++) {
      const i32 b = at / F::WORDS * 4 + e;
      if (b < blocks) out[e] = F::file_word(line + b * F::FILE, at % F::WORDS);
    }
  } else if (row < m) {
    FS_UNROLL for (i32 i = 0; i < 16 / F::SCALES; i++) {
      const i32 b = at * (16 / F::SCALES) + i;
      if (b < blocks) out[i * F::SCALES / 4] |= F::file_scale(line + b * F::FILE) << (8 * (i * F::SCALES % 4));
    }
  }
  ((u32x4*)packed)[matrix * all + id] = u32x4{out[0], out[1], out[2], out[3]};
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

TILED(fp4f, FsFp4Fast, 3)
TILED(fp2, FsFp2, 3)
TILED(fp3, FsFp3, 3)
TILED(q8, FsQ8, 2)
TILED(mxfp4, FsMxfp4, 3)
TILED(fp4, FsFp4, 3)
TILED(fp6, FsFp6, 2)
TILED(fp8, FsFp8, 2)

// The last unit along y is the shared expert, alone in its stack.
FS_DEVICE FsTiledColumns tiled_one(const u32x4* units, u32 used) {
  if (fs_bid_y() == used) return FsTiledColumns{0, 0, 1, nullptr};
  const u32x4 unit = units[fs_bid_y()];
  return FsTiledColumns{unit.x, unit.y, (i32)unit.z < 1 ? (i32)unit.z : 1, nullptr};
}

#define TILED_WITH(name, F, occupancy)                                                                                    \
  FS_KERNEL(tiled_gate_up_with_##name, 512, 2)(const u8* FS_RESTRICT gate, const u8* FS_RESTRICT up, const i8* FS_RESTRICT q, \
                                               const fs_a8_meta* FS_RESTRICT meta, const u32x4* FS_RESTRICT units,        \
                                               const float* FS_RESTRICT weights, i8* FS_RESTRICT h_q,                     \
                                               fs_a8_meta* FS_RESTRICT h_meta, const u8* FS_RESTRICT shared_gate,         \
                                               const u8* FS_RESTRICT shared_up, i8* FS_RESTRICT shared_q,                 \
                                               fs_a8_meta* FS_RESTRICT shared_meta, i32 m, i32 blocks, u32 used,          \
                                               u32 table, float limit, float shared_limit) {                              \
    fs_begin();                                                                                                           \
    FS_SHARED(TiledTwo<1>, sh);                                                                                           \
    const FsTiledColumns my = tiled_one(units, used);                                                                     \
    if (fs_bid_y() < used)                                                                                                \
      tiled_gate_up<F, 1>(sh, gate, up, q, meta, my, weights, h_q, h_meta, nullptr, m, blocks, used, table, limit);       \
    else                                                                                                                  \
      tiled_gate_up<FsFp4Fast, 1>(sh, shared_gate, shared_up, q, meta, my, nullptr, shared_q, shared_meta, nullptr, m,    \
                                  blocks, 1, 0, shared_limit);                                                            \
  }                                                                                                                       \
  FS_EXPORT(tiled_gate_up_with_##name, 512)                                                                               \
  FS_KERNEL(tiled_gemv_with_##name, 256, occupancy)(const u8* FS_RESTRICT packed, const i8* FS_RESTRICT q,                \
                                            const fs_a8_meta* FS_RESTRICT meta, const u32x4* FS_RESTRICT units,           \
                                            float* FS_RESTRICT y, const u8* FS_RESTRICT shared,                           \
                                            const i8* FS_RESTRICT shared_q, const fs_a8_meta* FS_RESTRICT shared_meta,    \
                                            float* FS_RESTRICT shared_y, i32 m, i32 blocks, u32 used, u32 table) {        \
    fs_begin();                                                                                                           \
    FS_SHARED(TiledOne<1>, sh);                                                                                           \
    const FsTiledColumns my = tiled_one(units, used);                                                                     \
    if (fs_bid_y() < used)                                                                                                \
      tiled_gemv<F, 1>(sh, packed, q, meta, my, y, nullptr, nullptr, m, blocks, 1, table);                                \
    else                                                                                                                  \
      tiled_gemv<FsFp4Fast, 1>(sh, shared, shared_q, shared_meta, my, shared_y, nullptr, nullptr, m, blocks, 1, 0);       \
  }                                                                                                                       \
  FS_EXPORT(tiled_gemv_with_##name, 256)

TILED_WITH(fp4f, FsFp4Fast, 3)
TILED_WITH(fp2, FsFp2, 4)
TILED_WITH(fp3, FsFp3, 4)
