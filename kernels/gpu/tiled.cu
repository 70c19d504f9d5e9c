// Matrices of ROCmFP4_FAST, ROCmFP2, 3, 4, 6, 8, Q8_0 and MXFP4 in tile order (fs_formats.h), alone or as a
// stack of experts: repack, product with a few activation rows, and the experts' gate, up and activation. Formats with
// offsets or blocks of 256: tiled_k.cu.
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
#include "fs_gemv.h"

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
