// a8_quantise: rows of f32 activations to blocks of 32 int8 with one f32 scale (contract rule 1), and
// the exact sums that biased and offset weight formats need (rule 2).
//
// formula  amax = max |x| of a block; q = rne(x * (127 / amax)) clamped to +-127, d = amax / 127;
//          amax < 2^-96: q = 0, d = 0; any NaN: q = 0, d = NaN (0x7fc00000)
// shapes   x [rows][k] f32, q [rows][k] i8, meta [rows][k / 32] of 8 bytes: d f32, then the sums of
//          q of elements 0..15 and 16..31 as two i16; k a multiple of 32
// launch   one lane an element, one warp a block: ceil(rows * k / 256) blocks of 256 threads
// cost     5.25 bytes and about 4 flops an element; bound by memory
// order    maxima and integer sums need none
#include "fourspark.h"
#include "fs_a8.h"

FS_KERNEL(a8_quantise, 256, 1)(const float* FS_RESTRICT x, i8* FS_RESTRICT q, fs_a8_meta* FS_RESTRICT meta, i32 blocks) {
  fs_begin();
  const u64 block = (u64)fs_bid_x() * 8 + fs_warp(), at = block * 32 + fs_lane();
  const bool inside = block < (u64)blocks;
  const fs_a8_value v = fs_a8_block(inside ? x[at] : 0.0f);
  if (inside) {
    q[at] = (i8)v.q;
    if (fs_lane() == 0) meta[block] = v.meta;
  }
}
FS_EXPORT(a8_quantise, 256)
