// ROCmFP4_FAST matrices on int8 matrix units: the narrow product for decode and verify, and the
// tiled product for prefill. The same weights (tile32), the same bits as fp4f_gemv_*.
//
// formula  y[c][row] = sum over blocks b of d[c][b] * (s[row][b] * f32(I)), I exact (rules 2, 3)
// shapes   packed [m][blocks] in tile32 order, q [cols][k] i8, d [cols][blocks] f32, y [cols][m] f32
//
// fp4f_mma_n: up to FS_TILE_N columns (8 on NVIDIA, 16 on AMD), one cost for any number
//   launch   as fp4f_gemv: a warp one segment of a tile of 32 rows
//   cost     17 bytes a block; per block and column one fragment step of 32 x N x 32 and 2 flops
// fp4f_gemm_*: any number of columns
//   launch   grid (ceil(m / rows), ceil(cols / columns)) of 256 threads; a warp 32 rows by 64 columns,
//            weights decoded straight into its registers, activations staged four blocks at a time
//   cost     2 m k cols integer ops; 4 flops an output and block: bound by those
//   order    segments of 16 blocks in an accumulator, their sums added in order into a second one
//   variants (the same bits)  a: 128 x 128, totals in registers; b: 128 x 128, totals in shared
//            memory, two blocks a processor; c: 256 x 64, totals in registers
//   free     (other bits, for the price of the order only) one running sum
#include "fourspark.h"
#include "fs_fp4.h"
#include "fs_fp4_tile.h"
#include "fs_math.h"
#include "fs_tile.h"

// ---- up to FS_TILE_N columns

struct Fp4fNarrowShared {
  float part[8][FS_TILE_N][32];
};

// One segment of 32 rows against FS_TILE_N columns; columns beyond the last repeat it.
FS_DEVICE void fp4f_narrow_segment(Fp4fNarrowShared& sh, const fs_tile32& w, i32 tile, i32 segment, i32 blocks, const i8* q,
                                   const float* d, i32 cols) {
  const u32 lane = fs_lane();
  Fp4fGroup group[4];
  FS_UNROLL for (i32 g = 0; g < 4; g++) {
    const i32 at = segment * 4 + g;
    fp4f_load(group[g], w, tile, at < w.groups ? at : w.groups - 1);
  }
  const i8* line[FS_TILE_BW];
  const float* scale[FS_TILE_CC];
  FS_UNROLL for (int j = 0; j < FS_TILE_BW; j++) {
    const i32 c = (i32)fs_tile_line(lane, j) < cols ? (i32)fs_tile_line(lane, j) : cols - 1;
    line[j] = q + (u64)c * (u64)blocks * 32 + fs_tile_word(lane, j) * 8;
  }
  FS_UNROLL for (int j = 0; j < FS_TILE_CC; j++) {
    const i32 c = (i32)fs_tile_col(lane, j) < cols ? (i32)fs_tile_col(lane, j) : cols - 1;
    scale[j] = d + (u64)c * (u64)blocks;
  }
  float acc[2][FS_TILE_C];
  FS_UNROLL for (int i = 0; i < FS_TILE_C; i++) acc[0][i] = acc[1][i] = 0.0f;
  FS_UNROLL for (i32 i = 0; i < FS_SEGMENT_BLOCKS; i++) {
    const i32 at = segment * FS_SEGMENT_BLOCKS + i;
    if (at < blocks) {
      Fp4fBlock b;
      fp4f_decode(b, group[i / 4], i % 4);
      u32x2 x[FS_TILE_BW];
      float dc[FS_TILE_CC];
      FS_UNROLL for (int j = 0; j < FS_TILE_BW; j++) x[j] = *(const u32x2*)(line[j] + (u64)at * 32);
      FS_UNROLL for (int j = 0; j < FS_TILE_CC; j++) dc[j] = scale[j][at];
      fp4f_step(acc, b, x, dc);
    }
  }
  FS_UNROLL for (int half = 0; half < 2; half++)
    FS_UNROLL for (int r = 0; r < FS_TILE_CR; r++)
      FS_UNROLL for (int c = 0; c < FS_TILE_CC; c++)
        sh.part[fs_warp()][fs_tile_col(lane, c)][(u32)half * 16 + fs_tile_row(lane, r)] = acc[half][r * FS_TILE_CC + c];
}

FS_KERNEL(fp4f_mma_n, 256, 2)(const u8* FS_RESTRICT packed, const i8* FS_RESTRICT q, const float* FS_RESTRICT d,
                              float* FS_RESTRICT y, i32 m, i32 blocks, i32 cols) {
  FS_SHARED(Fp4fNarrowShared, sh);
  const fs_tile32 w = fs_tile32_of(packed, m, blocks);
  const i32 warps_of = w.segments < 8 ? w.segments : 8, per_block = 8 / warps_of;
  const i32 warp = (i32)fs_warp(), slot = warp / warps_of, tile = (i32)fs_bid_x() * per_block + slot;
  constexpr i32 OUT = FS_TILE_N * 32, ROUNDS = (OUT + 255) / 256;
  float total[ROUNDS];
  FS_UNROLL for (i32 n = 0; n < ROUNDS; n++) total[n] = 0.0f;
  for (i32 pass = 0; pass < w.segments; pass += 8) {
    const i32 segment = pass + warp % warps_of;
    // The matrix step needs whole warps: the condition is the same for all lanes.
    if (slot < per_block && tile < w.tiles && segment < w.segments) fp4f_narrow_segment(sh, w, tile, segment, blocks, q, d, cols);
    fs_barrier();
    const i32 here = w.segments - pass < 8 ? w.segments - pass : 8;
    for (i32 from = 0; from < per_block; from++) {
      FS_UNROLL for (i32 n = 0; n < ROUNDS; n++) {
        const i32 o = (i32)fs_tid() + n * 256, c = o / 32;
        for (i32 i = 0; i < here; i++) {
          const float p = sh.part[from * warps_of + i][c][o % 32];
          total[n] = pass + i == 0 ? p : fs_add(total[n], p);
        }
        const i32 row = ((i32)fs_bid_x() * per_block + from) * 32 + o % 32;
        if (pass + here == w.segments && row < m && c < cols) y[(u64)c * (u64)m + (u64)row] = total[n];
      }
    }
    fs_barrier();
  }
}
FS_EXPORT(fp4f_mma_n, 256)

// ---- any number of columns

static constexpr int WARP_COLS = 64, WARP_TILES = WARP_COLS / FS_TILE_N;

template <int COLS>
struct Fp4fStage {
  // A block's columns lie 32 bytes apart; the pad moves the next block to other banks.
  u8 q[4][COLS * 32 + 32];
  float d[4][COLS];
};

template <int COLS, int TOTALS>
struct Fp4fGemmShared {
  alignas(16) Fp4fStage<COLS> stage[2];
  float total[TOTALS * 256];
};
template <int COLS>
struct Fp4fGemmShared<COLS, 0> {
  alignas(16) Fp4fStage<COLS> stage[2];
};

// Starts the copy of blocks 4 group .. 4 group + 3 of COLS columns.
template <int COLS>
FS_DEVICE void fp4f_stage(Fp4fStage<COLS>& to, const i8* q, const float* d, i32 group, i32 blocks, i32 first, i32 cols) {
  for (i32 i = (i32)fs_tid(); i < COLS * 8; i += 256) {
    const i32 c = i / 8, e = i % 8 / 2, half = i % 2;
    const i32 col = first + c < cols ? first + c : cols - 1;
    if (group * 4 + e < blocks)
      fs_copy16(&to.q[e][c * 32 + half * 16], q + ((u64)col * (u64)blocks + (u64)(group * 4 + e)) * 32 + half * 16);
  }
  for (i32 i = (i32)fs_tid(); i < COLS * 4; i += 256) {
    const i32 c = i / 4, e = i % 4;
    const i32 col = first + c < cols ? first + c : cols - 1;
    if (group * 4 + e < blocks) fs_copy4(&to.d[e][c], d + (u64)col * (u64)blocks + (u64)(group * 4 + e));
  }
  fs_copy_commit();
}

typedef float Fp4fAcc[WARP_TILES][2][FS_TILE_C];

// One block of 32 rows against the warp's 64 columns.
template <int COLS>
FS_DEVICE void fp4f_wide_block(Fp4fAcc& acc, const Fp4fBlock& b, const Fp4fStage<COLS>& stage, int e, u32 col0) {
  const u32 lane = fs_lane();
  FS_UNROLL for (int n = 0; n < WARP_TILES; n++) {
    const u32 col = col0 + (u32)(n * FS_TILE_N);
    u32x2 x[FS_TILE_BW];
    float d[FS_TILE_CC];
    FS_UNROLL for (int j = 0; j < FS_TILE_BW; j++)
        x[j] = *(const u32x2*)&stage.q[e][(col + fs_tile_line(lane, j)) * 32 + fs_tile_word(lane, j) * 8];
    FS_UNROLL for (int j = 0; j < FS_TILE_CC; j++) d[j] = stage.d[e][col + fs_tile_col(lane, j)];
    fp4f_step(acc[n], b, x, d);
  }
}

// Adds the finished segment to the totals and starts the next one.
template <int TOTALS>
FS_DEVICE void fp4f_flush(Fp4fAcc& acc, Fp4fAcc& total, float* shared_total, bool first) {
  FS_UNROLL for (int n = 0; n < WARP_TILES; n++)
    FS_UNROLL for (int half = 0; half < 2; half++)
      FS_UNROLL for (int i = 0; i < FS_TILE_C; i++) {
        float& a = acc[n][half][i];
        if (TOTALS) {
          float& t = shared_total[((n * 2 + half) * FS_TILE_C + i) * 256 + (i32)fs_tid()];
          t = first ? a : fs_add(t, a);
        } else {
          total[n][half][i] = first ? a : fs_add(total[n][half][i], a);
        }
        a = 0.0f;
      }
}

// WM x WN warps; TOTALS 0: row totals in registers, else in shared memory; FREE: no segments.
template <int WM, int WN, int TOTALS, bool FREE>
FS_DEVICE void fp4f_gemm(Fp4fGemmShared<WN * WARP_COLS, TOTALS>& sh, float* shared_total, const u8* packed, const i8* q, const float* d,
                         float* y, i32 m, i32 blocks, i32 cols) {
  static_assert(WM * WN == 8, "eight warps");
  const fs_tile32 w = fs_tile32_of(packed, m, blocks);
  const i32 warp = (i32)fs_warp(), first_col = (i32)fs_bid_y() * WN * WARP_COLS;
  const i32 tile = (i32)fs_bid_x() * WM + warp % WM, safe = tile < w.tiles ? tile : w.tiles - 1;
  const u32 col0 = (u32)(warp / WM * WARP_COLS), lane = fs_lane();
  Fp4fAcc acc, total;
  FS_UNROLL for (int n = 0; n < WARP_TILES; n++)
    FS_UNROLL for (int half = 0; half < 2; half++)
      FS_UNROLL for (int i = 0; i < FS_TILE_C; i++) acc[n][half][i] = 0.0f;
  Fp4fGroup now;
  fp4f_stage(sh.stage[0], q, d, 0, blocks, first_col, cols);
  fp4f_load(now, w, safe, 0);
  for (i32 group = 0; group < w.groups; group++) {
    fs_copy_wait<0>();
    fs_barrier();  // the stage is filled, and the other one free again
    if (group + 1 < w.groups) fp4f_stage(sh.stage[(group + 1) & 1], q, d, group + 1, blocks, first_col, cols);
    FS_UNROLL for (int e = 0; e < 4; e++) {
      Fp4fBlock b;
      fp4f_decode(b, now, e);
      if (e == 3 && group + 1 < w.groups) fp4f_load(now, w, safe, group + 1);
      if (group * 4 + e < blocks) fp4f_wide_block(acc, b, sh.stage[group & 1], e, col0);
    }
    if (!FREE && (group % 4 == 3 || group + 1 == w.groups)) fp4f_flush<TOTALS>(acc, total, shared_total, group < 4);
  }
  FS_UNROLL for (int n = 0; n < WARP_TILES; n++)
    FS_UNROLL for (int half = 0; half < 2; half++)
      FS_UNROLL for (int r = 0; r < FS_TILE_CR; r++)
        FS_UNROLL for (int c = 0; c < FS_TILE_CC; c++) {
          const int i = r * FS_TILE_CC + c;
          const i32 row = tile * 32 + half * 16 + (i32)fs_tile_row(lane, r);
          const i32 col = first_col + (i32)col0 + n * FS_TILE_N + (i32)fs_tile_col(lane, c);
          const float out = FREE      ? acc[n][half][i]
                            : TOTALS ? shared_total[((n * 2 + half) * FS_TILE_C + i) * 256 + (i32)fs_tid()]
                                     : total[n][half][i];
          if (row < m && col < cols) y[(u64)col * (u64)m + (u64)row] = out;
        }
}

#define FP4F_GEMM_ARGS                                                                                            \
  (const u8* FS_RESTRICT packed, const i8* FS_RESTRICT q, const float* FS_RESTRICT d, float* FS_RESTRICT y, i32 m, \
   i32 blocks, i32 cols)

FS_KERNEL(fp4f_gemm_a, 256, 1) FP4F_GEMM_ARGS {
  typedef Fp4fGemmShared<128, 0> Shared;
  FS_SHARED(Shared, sh);
  fp4f_gemm<4, 2, 0, false>(sh, nullptr, packed, q, d, y, m, blocks, cols);
}
FS_EXPORT(fp4f_gemm_a, 256)

FS_KERNEL(fp4f_gemm_b, 256, 2) FP4F_GEMM_ARGS {
  typedef Fp4fGemmShared<128, 64> Shared;
  FS_SHARED_DYN(Shared, sh);
  fp4f_gemm<4, 2, 64, false>(sh, sh.total, packed, q, d, y, m, blocks, cols);
}
FS_EXPORT(fp4f_gemm_b, 256)

FS_KERNEL(fp4f_gemm_c, 256, 1) FP4F_GEMM_ARGS {
  typedef Fp4fGemmShared<64, 0> Shared;
  FS_SHARED(Shared, sh);
  fp4f_gemm<8, 1, 0, false>(sh, nullptr, packed, q, d, y, m, blocks, cols);
}
FS_EXPORT(fp4f_gemm_c, 256)

FS_KERNEL(fp4f_gemm_free1, 256, 1) FP4F_GEMM_ARGS {
  typedef Fp4fGemmShared<128, 0> Shared;
  FS_SHARED(Shared, sh);
  fp4f_gemm<4, 2, 0, true>(sh, nullptr, packed, q, d, y, m, blocks, cols);
}
FS_EXPORT(fp4f_gemm_free1, 256)

FS_KERNEL(fp4f_gemm_free2, 256, 2) FP4F_GEMM_ARGS {
  typedef Fp4fGemmShared<128, 0> Shared;
  FS_SHARED(Shared, sh);
  fp4f_gemm<4, 2, 0, true>(sh, nullptr, packed, q, d, y, m, blocks, cols);
}
FS_EXPORT(fp4f_gemm_free2, 256)
