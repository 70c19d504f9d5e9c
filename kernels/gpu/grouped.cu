// Products of many activation rows with ROCmFP2, ROCmFP3 and ROCmFP4_FAST matrices in tile order, alone or as a stack
// of experts, on int8 matrix units: for prefill. The same bits as tiled_gemv_* and tiled_gate_up_*. The other formats'
// are in grouped_more.cu, so that a model compiles what it has.
//
// grouped_product_F
//   formula  y[slot][row] = sum over blocks of d * t (rules 2, 3) of matrix `expert` of the slot's unit
//   shapes   as tiled_gemv_F, units of up to 64 slots: q [inputs][k] i8, meta [inputs][blocks], units [>= grid y]
//            {expert, first place, slots, 0} and order [slots], or null; y [slots][m] f32
//   launch   grid (ceil(m / 128), units) of 256 threads: a warp 16 rows by the unit's columns
// grouped_gate_up_F
//   formula  as tiled_gate_up_F (rules 1, 12): h and its activation blocks
//   shapes   as tiled_gate_up_F, m a multiple of 32
//   launch   grid (ceil(m / 64), units) of 256 threads: half of the warps for each matrix
// Both take dynamic shared memory, 59,648 bytes for ROCmFP2 and ROCmFP3 and 51,456 for ROCmFP4_FAST: two stages of
// activations, and totals
//   cost     a unit reads its rows of the matrix once; 2 m k ops a slot on matrix units, and an output and block 2 flops
//            (ROCmFP4_FAST), 1 (the others, on f16 units) or 4 (the others, elsewhere): bound by the instructions of
//            those and of decoding, which a unit pays once
//   order    segments of 16 blocks in an accumulator by fma from +0, their sums added in order into a total
#include "fourspark.h"
#include "fs_grouped.h"

GROUPED(fp4f, FsFp4Fast)
GROUPED(fp2, FsFp2)
GROUPED(fp3, FsFp3)
