// Matrices of ROCmFP4_FAST, ROCmFP2 (Signed) and ROCmFP3 in tile order (fs_formats.h), alone or as a stack of experts:
// repack, product with a few activation rows, and the experts' gate, up and activation. Other formats of blocks of 32:
// tiled_more.cu; with offsets or blocks of 256: tiled_k.cu; experts of few tokens with the shared one: experts.cu.
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
//   launch   as tiled_gemv: a warp its segment of both matrices, one after the other
//   cost     the bytes of the visited matrices once a unit; 2 k m ops a slot; bound by memory. A block's first weights are on
//            their way while its activations come, and those of its next segment while it computes; two blocks and more
//            share a multiprocessor, so that one waits while the other computes
//   order    a lane a segment of a row: fma over its 16 blocks from +0; segments added in order
#include "fourspark.h"
#include "fs_gemv.h"

TILED(fp4f, FsFp4Fast, 2, true)
TILED(fp2, FsFp2, 3, false)
TILED(fp3, FsFp3, 3, false)
