// Indexer scores of compressed rows for many query positions (prefill) on int8 matrix units: contract rule 10, the bits of
// index_scores.
//
// index_scores_many
//   formula  a_h = fma over blocks of 32: f32(I) * ((sq * sk) * 0.25) from +0, I exact on doubled codes;
//            score = fma over heads: (w_h * factor) * max(a_h, 0) from +0
//   shapes   twice [n][heads][128] i8 and scale [n][heads][4] f32 of index_queries; w [n][heads] f32;
//            rows [any][68] packed, scores [n][stride] f32; visible [n] u32 rows of each position, the
//            first of them row firsts[n] u32 of the store; heads up to 64
//   launch   grid (ceil(most visible / 128), ceil(n / 8)) of 128 threads: 128 rows by eight positions, a warp 32 rows,
//            whose codes stay in registers for all of them. A position with at most `skip` rows takes them all and needs
//            no scores: nothing is written
//   cost     68 bytes a row once for eight positions, 8,448 bytes a position once for 128 rows; a matrix step of 16 rows and
//            8 or 16 heads a block, then 16 flops a row and head: bound by those
//   order    a by fma in block order, the score by fma in head order, both from +0
#include "fourspark.h"
#include "fs_codes.h"
#include "fs_dots.h"
#include "fs_fp4.h"
#include "fs_fp4_tile.h"
#include "fs_math.h"
#include "fs_tile.h"

static constexpr int MANY_DIM = 128, MANY_BLOCKS = MANY_DIM / 32, MANY_ROW = MANY_DIM / 2 + MANY_BLOCKS, MANY_HEADS = 64;
static constexpr int MANY_ROWS = 128, MANY_POSITIONS = 8, MANY_WARPS = 4, MANY_TILES = 2;  // tiles of 16 rows a warp
static constexpr int MANY_LINE = MANY_DIM + 32, MANY_SUMS = MANY_HEADS + 4;                // apart, for the banks

struct IndexManyShared {
  alignas(16) u8 twice[MANY_HEADS][MANY_LINE];
  fs_four scale[MANY_HEADS];  // of the blocks
  fs_four w[MANY_HEADS / 4];
  fs_four a[MANY_WARPS][32][MANY_SUMS / 4];  // max(a_h, 0) of a row, all heads
};

// Codes and scales of a warp's rows.
struct IndexManyRows {
  u32x2 code[MANY_TILES][MANY_BLOCKS][FS_TILE_AW];
  float scale[MANY_TILES][FS_TILE_CR][MANY_BLOCKS];
};

// Rows `first` and on of the store at `rows`; those past the last of `seen` repeat it.
FS_DEVICE void index_many_rows(IndexManyRows& to, const u8* rows, i32 first, i32 seen) {
  const u32 lane = fs_lane();
  FS_UNROLL for (int t = 0; t < MANY_TILES; t++) {
    FS_UNROLL for (int j = 0; j < FS_TILE_AW; j++) {
      const i32 row = first + 16 * t + (i32)fs_tile_line(lane, j), safe = row < seen ? row : seen - 1;
      const u32* words = (const u32*)(rows + (u64)safe * MANY_ROW) + fs_tile_word(lane, j);
      FS_UNROLL for (int b = 0; b < MANY_BLOCKS; b++) to.code[t][b][j] = fs_e2m1_twice_eight(words[4 * b]);
    }
    FS_UNROLL for (int r = 0; r < FS_TILE_CR; r++) {
      const i32 row = first + 16 * t + (i32)fs_tile_row(lane, r), safe = row < seen ? row : seen - 1;
      const u32 bytes = *(const u32*)(rows + (u64)safe * MANY_ROW + MANY_DIM / 2);
      FS_UNROLL for (int b = 0; b < MANY_BLOCKS; b++) to.scale[t][r][b] = fs_f32((bytes >> (8 * b) & 255) << 23);
    }
  }
}

// The most rows that a position of this block sees, of those whose first row is `from`.
FS_DEVICE i32 index_many_seen(const u32* visible, const u32* firsts, i32 pos0, i32 n, u32 from) {
  i32 most = 0;
  for (i32 pos = pos0; pos < pos0 + MANY_POSITIONS && pos < n; pos++)
    if (firsts[pos] == from && (i32)visible[pos] > most) most = (i32)visible[pos];
  return most;
}

// The queries of a position; heads past the last are anything.
FS_DEVICE void index_many_stage(IndexManyShared& sh, const u8* twice, const float* scales, const float* w, u64 pos, i32 heads, float factor) {
  const i32 thread = (i32)fs_tid();
  const u64 query = pos * (u64)heads;
  for (i32 i = thread; i < heads * MANY_DIM / 16; i += MANY_WARPS * 32)
    *(u32x4*)&sh.twice[i / (MANY_DIM / 16)][i % (MANY_DIM / 16) * 16] = ((const u32x4*)(twice + query * MANY_DIM))[i];
  for (i32 i = thread; i < heads; i += MANY_WARPS * 32) {
    sh.scale[i] = ((const fs_four*)scales)[query + (u64)i];
    sh.w[i / 4].v[i % 4] = fs_mul(w[query + (u64)i], factor);
  }
}

// Heads `head` and on of a tile of rows.
FS_DEVICE void index_many_tile(IndexManyShared& sh, const IndexManyRows& rows, int t, i32 head, const u32x2 (&x)[MANY_BLOCKS][FS_TILE_BW],
                               const fs_four (&scale)[FS_TILE_CC]) {
  const u32 lane = fs_lane();
  i32 dot[MANY_BLOCKS][FS_TILE_C], start[FS_TILE_C];
  FS_UNROLL for (int i = 0; i < FS_TILE_C; i++) start[i] = FP4F_MAGIC ? FS_MAGIC_BITS : 0;
  FS_UNROLL for (int b = 0; b < MANY_BLOCKS; b++) fs_tile_mma(dot[b], rows.code[t][b], x[b], start);
  FS_UNROLL for (int r = 0; r < FS_TILE_CR; r++) {
    float* line = &sh.a[fs_warp()][16 * t + (i32)fs_tile_row(lane, r)][0].v[0];
    FS_UNROLL for (int c = 0; c < FS_TILE_CC; c++) {
      float a = 0.0f;
      FS_UNROLL for (int b = 0; b < MANY_BLOCKS; b++) {
        const i32 sum = dot[b][r * FS_TILE_CC + c];
        const float v = FP4F_MAGIC ? fs_sub(fs_f32((u32)sum), FS_MAGIC) : (float)sum;
        a = fs_fma(v, fs_mul(fs_mul(scale[c].v[b], rows.scale[t][r][b]), 0.25f), a);
      }
      line[head + (i32)fs_tile_col(lane, c)] = a > 0.0f ? a : 0.0f;
    }
  }
}

FS_DEVICE void index_many_heads(IndexManyShared& sh, const IndexManyRows& rows, i32 heads) {
  const u32 lane = fs_lane();
  FS_ROLLED for (i32 head = 0; head < heads; head += FS_TILE_N) {
    u32x2 x[MANY_BLOCKS][FS_TILE_BW];
    FS_UNROLL for (int j = 0; j < FS_TILE_BW; j++)
      FS_UNROLL for (int b = 0; b < MANY_BLOCKS; b++)
        x[b][j] = *(const u32x2*)&sh.twice[head + (i32)fs_tile_line(lane, j)][b * 32 + (i32)fs_tile_word(lane, j) * 8];
    fs_four scale[FS_TILE_CC];
    FS_UNROLL for (int c = 0; c < FS_TILE_CC; c++) scale[c] = sh.scale[head + (i32)fs_tile_col(lane, c)];
    FS_UNROLL for (int t = 0; t < MANY_TILES; t++) {
      index_many_tile(sh, rows, t, head, x, scale);
      fs_schedule_fence();
    }
  }
}

// The score of this lane's row.
FS_DEVICE float index_many_score(const IndexManyShared& sh, i32 heads) {
  const fs_four(&line)[MANY_SUMS / 4] = sh.a[fs_warp()][fs_lane()];
  float score = 0.0f;
  FS_ROLLED for (i32 h = 0; h < heads; h += 4) {
    const fs_four a = line[h / 4], w = sh.w[h / 4];
    FS_UNROLL for (int i = 0; i < 4; i++)
      if (h + i < heads) score = fs_fma(w.v[i], a.v[i], score);
  }
  return score;
}

FS_KERNEL(index_scores_many, 128, 4)(const u8* FS_RESTRICT twice, const float* FS_RESTRICT scales, const float* FS_RESTRICT w,
                                     const u8* FS_RESTRICT rows, const u32* FS_RESTRICT visible, const u32* FS_RESTRICT firsts,
                                     float* FS_RESTRICT scores, i32 n, i32 heads, i32 stride, i32 skip, float factor) {
  fs_begin();
  FS_SHARED(IndexManyShared, sh);
  const i32 first = (i32)fs_bid_x() * MANY_ROWS, pos0 = (i32)fs_bid_y() * MANY_POSITIONS, mine = (i32)fs_warp() * 32;
  IndexManyRows held;
  u32 from = ~0u;  // the first row of the store that `held` was made from; never one of a store
  FS_ROLLED for (i32 pos = pos0; pos < pos0 + MANY_POSITIONS && pos < n; pos++) {
    const i32 seen = (i32)visible[pos];
    if (seen <= first || seen <= skip) continue;  // the same for all threads, as the next
    if (firsts[pos] != from) {
      from = firsts[pos];
      index_many_rows(held, rows + (u64)from * MANY_ROW, first + mine, index_many_seen(visible, firsts, pos0, n, from));
    }
    index_many_stage(sh, twice, scales, w, (u64)pos, heads, factor);
    fs_barrier();
    index_many_heads(sh, held, heads);
    fs_barrier();
    const float score = index_many_score(sh, heads);
    const i32 row = first + mine + (i32)fs_lane();
    if (row < seen) scores[(u64)pos * (u64)stride + (u64)row] = score;
    fs_barrier();  // the stage is read by all
  }
}
FS_EXPORT(index_scores_many, 128)
