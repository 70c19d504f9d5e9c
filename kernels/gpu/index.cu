// Indexer scores of compressed rows for query positions: contract rule 10 (many positions: index_many.cu).
//
// index_scores: rows of packed fp4
//   formula  a_h = fma over blocks of 32: f32(I) * ((sq * sk) * 0.25) from +0, I exact on doubled codes;
//            score = fma over heads: (w_h * factor) * max(a_h, 0) from +0
//   shapes   twice [n][heads][128] i8 and scale [n][heads][4] f32 of index_queries; w [n][heads] f32;
//            rows [any][68] packed, scores [n][stride] f32; visible [n] u32 rows of each position, the
//            first of them row firsts[n] u32 of the store; heads up to 64
//   launch   grid (ceil(most visible / 128), n) of 128 threads, a lane a row. A position with at most
//            `skip` rows takes them all and needs no scores: nothing is written
//   cost     68 bytes a row, 32 four-way dots and 6 flops a row and head
// index_scores_f32: rows of f32 (roundings off)
//   formula  a_h = dot(q_h, row) by rule 4, the rest as above
//   shapes   q [n][heads][dim] f32, rows [any][dim] f32; dim a multiple of 32 up to 128
//   launch   grid (ceil(most visible / 8), n) of 256 threads, a warp a row
#include "fourspark.h"
#include "fs_codes.h"
#include "fs_fp4.h"
#include "fs_math.h"

static constexpr int INDEX_DIM = 128, INDEX_BLOCKS = INDEX_DIM / 32, INDEX_ROW = INDEX_DIM / 2 + INDEX_BLOCKS, INDEX_HEADS = 64;
static constexpr int INDEX_ROWS = 128;

struct IndexShared {
  alignas(16) u8 twice[INDEX_HEADS][INDEX_DIM];
  float scale[INDEX_HEADS][INDEX_BLOCKS];
  float w[INDEX_HEADS];
  u32 row[INDEX_ROWS][INDEX_ROW / 4];  // 17 words: lanes meet different banks
};

FS_KERNEL(index_scores, 128, 4)(const u8* FS_RESTRICT twice, const float* FS_RESTRICT scales, const float* FS_RESTRICT w,
                                const u8* FS_RESTRICT rows, const u32* FS_RESTRICT visible, const u32* FS_RESTRICT firsts,
                                float* FS_RESTRICT scores, i32 heads, i32 stride, i32 skip, float factor) {
  fs_begin();
  FS_SHARED(IndexShared, sh);
  const i32 thread = (i32)fs_tid(), first = (i32)fs_bid_x() * INDEX_ROWS;
  const u64 pos = fs_bid_y(), query = pos * (u64)heads;
  const i32 seen = (i32)visible[pos], left = seen - first, count = left < INDEX_ROWS ? left : INDEX_ROWS;
  if (count <= 0 || seen <= skip) return;  // the same for all threads
  for (i32 i = thread; i < heads * INDEX_DIM / 16; i += 128) ((u32x4*)&sh.twice[0][0])[i] = ((const u32x4*)(twice + query * INDEX_DIM))[i];
  for (i32 i = thread; i < heads * INDEX_BLOCKS; i += 128) sh.scale[i / INDEX_BLOCKS][i % INDEX_BLOCKS] = scales[query * INDEX_BLOCKS + (u64)i];
  for (i32 i = thread; i < heads; i += 128) sh.w[i] = fs_mul(w[query + (u64)i], factor);
  const u32* words = (const u32*)(rows + ((u64)firsts[pos] + (u64)first) * INDEX_ROW);
  for (i32 i = thread; i < count * (INDEX_ROW / 4); i += 128) sh.row[i / (INDEX_ROW / 4)][i % (INDEX_ROW / 4)] = words[i];
  fs_barrier();
  if (thread >= count) return;  // no barrier follows
  u32x2 key[INDEX_BLOCKS][4];
  float sk[INDEX_BLOCKS];
  FS_UNROLL for (int b = 0; b < INDEX_BLOCKS; b++) {
    FS_UNROLL for (int j = 0; j < 4; j++) key[b][j] = fs_e2m1_twice_eight(sh.row[thread][b * 4 + j]);
    sk[b] = fs_f32((sh.row[thread][INDEX_DIM / 8] >> (8 * b) & 255) << 23);
  }
  float score = 0.0f;
  for (i32 h = 0; h < heads; h++) {
    float a = 0.0f;
    FS_UNROLL for (int b = 0; b < INDEX_BLOCKS; b++) {
      i32 dot = FS_MAGIC_BITS;
      FS_UNROLL for (int j = 0; j < 2; j++) {
        const u32x4 q = ((const u32x4*)&sh.twice[h][b * 32])[j];
        dot = fs_dp4a(key[b][2 * j].x, q.x, dot);
        dot = fs_dp4a(key[b][2 * j].y, q.y, dot);
        dot = fs_dp4a(key[b][2 * j + 1].x, q.z, dot);
        dot = fs_dp4a(key[b][2 * j + 1].y, q.w, dot);
      }
      a = fs_fma(fs_sub(fs_f32((u32)dot), FS_MAGIC), fs_mul(fs_mul(sh.scale[h][b], sk[b]), 0.25f), a);
    }
    score = fs_fma(sh.w[h], a > 0.0f ? a : 0.0f, score);
  }
  scores[pos * (u64)stride + (u64)(first + thread)] = score;
}
FS_EXPORT(index_scores, 128)

FS_KERNEL(index_scores_f32, 256, 1)(const float* FS_RESTRICT q, const float* FS_RESTRICT w, const float* FS_RESTRICT rows,
                                    const u32* FS_RESTRICT visible, const u32* FS_RESTRICT firsts, float* FS_RESTRICT scores, i32 heads,
                                    i32 dim, i32 stride, i32 skip, float factor) {
  fs_begin();
  const i32 row = (i32)fs_bid_x() * 8 + (i32)fs_warp(), lane = (i32)fs_lane();
  const u64 pos = fs_bid_y();
  const i32 seen = (i32)visible[pos];
  if (row >= seen || seen <= skip) return;  // the same for a warp
  const float* query = q + pos * (u64)heads * (u64)dim;
  float key[INDEX_DIM / 32];
  FS_UNROLL for (i32 i = 0; i < INDEX_DIM / 32; i++) key[i] = i * 32 < dim ? rows[((u64)firsts[pos] + (u64)row) * (u64)dim + (u64)(i * 32 + lane)] : 0.0f;
  float score = 0.0f;
  for (i32 h = 0; h < heads; h++) {
    float p = 0.0f;
    FS_UNROLL for (i32 i = 0; i < INDEX_DIM / 32; i++)
      if (i * 32 < dim) p = fs_fma(query[h * dim + i * 32 + lane], key[i], p);
    const float a = fs_fold_lanes(p);
    score = fs_fma(fs_mul(w[pos * (u64)heads + (u64)h], factor), a > 0.0f ? a : 0.0f, score);
  }
  if (lane == 0) scores[pos * (u64)stride + (u64)row] = score;
}
FS_EXPORT(index_scores_f32, 256)
