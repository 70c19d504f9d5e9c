// Matrices of f32, f16 and bf16 (router, hyper-connections, compressors, indexer, embeddings) times one
// to eight f32 activation rows: contract rule 4.
//
// dense_{f32,f16,bf16}_{1,2,4,8}: up to that many activation rows, the grid's y over more of them
//   formula  y[c][row] = dot(W[row], x[c]); weights widen exactly
//   shapes   W [m][k] in file order, aligned to its element; x [cols][k] f32, y [cols][m] f32
//   launch   8 warps a block, a warp one segment of 512 of 8 / C rows; a block holds the 8 segments of its
//            rows or, if there are at most 4, 2, 1, as many times the rows; more take several passes
//   cost     the bytes of W once for each y of the grid; 2 flops a weight and column; bound by memory
//   order    a lane k mod 32: fma in k order from +0; lanes by xor 16 .. 1; segments in order
#include "fourspark.h"
#include "fs_math.h"

enum DenseType { DENSE_F32, DENSE_F16, DENSE_BF16 };

template <int T>
FS_DEVICE float dense_weight(const u8* w, u64 at) {
  if (T == DENSE_F32) return ((const float*)w)[at];
  if (T == DENSE_F16) return fs_f16(((const u16*)w)[at]);
  return fs_f32((u32)((const u16*)w)[at] << 16);
}

static constexpr int DENSE_OUTPUTS = 8;  // of a warp: rows times columns

struct DenseShared {
  float part[8][DENSE_OUTPUTS];
};

// One segment of R = 8 / C rows and C columns: partial sums by k mod 32.
template <int T, int C>
FS_DEVICE void dense_segment(float (&p)[DENSE_OUTPUTS], const u8* w, const float* x, i32 row0, i32 col0, i32 segment, i32 m, i32 k, i32 cols) {
  constexpr int R = DENSE_OUTPUTS / C;
  u64 line[R], column[C];
  FS_UNROLL for (int r = 0; r < R; r++) line[r] = (u64)(row0 + r < m ? row0 + r : m - 1) * (u64)k;
  FS_UNROLL for (int c = 0; c < C; c++) column[c] = (u64)(col0 + c < cols ? col0 + c : cols - 1) * (u64)k;
  FS_UNROLL for (int i = 0; i < DENSE_OUTPUTS; i++) p[i] = 0.0f;
  FS_UNROLL for (i32 i = 0; i < FS_SEGMENT / 32; i++) {
    const i32 at = segment * FS_SEGMENT + i * 32 + (i32)fs_lane();
    const bool inside = at < k;
    const u64 safe = (u64)(inside ? at : k - 1);
    float xs[C];
    FS_UNROLL for (int c = 0; c < C; c++) xs[c] = x[column[c] + safe];
    FS_UNROLL for (int r = 0; r < R; r++) {
      const float ws = dense_weight<T>(w, line[r] + safe);
      FS_UNROLL for (int c = 0; c < C; c++) {
        const float next = fs_fma(ws, xs[c], p[r * C + c]);
        p[r * C + c] = inside ? next : p[r * C + c];
      }
    }
  }
}

template <int T, int C>
FS_DEVICE void dense(DenseShared& sh, const u8* w, const float* x, float* y, i32 m, i32 k, i32 cols) {
  constexpr int R = DENSE_OUTPUTS / C;
  const i32 segments = (k + FS_SEGMENT - 1) / FS_SEGMENT, log2 = fs_slots_log2(segments), slots = 8 >> log2;
  const i32 warp = (i32)fs_warp(), row0 = ((i32)fs_bid_x() * slots + (warp >> log2)) * R, col0 = (i32)fs_bid_y() * C;
  float total = -0.0f;  // the sum of nothing: -0 + a is a, bit for bit
  for (i32 pass = 0; pass < segments; pass += 8) {
    const i32 segment = pass + (warp & ((1 << log2) - 1));
    if (row0 < m && segment < segments) {
      float p[DENSE_OUTPUTS];
      dense_segment<T, C>(p, w, x, row0, col0, segment, m, k, cols);
      const float sum = fs_fold_eight(p);
      if (fs_lane() % 4 == 0) sh.part[warp][fs_lane() / 4] = sum;
    }
    fs_barrier();
    const i32 here = segments - pass < 8 ? segments - pass : 8, o = (i32)fs_tid();
    if (o < slots * DENSE_OUTPUTS) {
      const i32 slot = o / DENSE_OUTPUTS, i = o % DENSE_OUTPUTS;
      for (i32 s = 0; s < here; s++) total = fs_add(total, sh.part[(slot << log2) + s][i]);
      const i32 row = ((i32)fs_bid_x() * slots + slot) * R + i / C, col = col0 + i % C;
      if (pass + here == segments && row < m && col < cols) y[(u64)col * (u64)m + (u64)row] = total;
    }
    fs_barrier();
  }
}

#define DENSE(type, T, C)                                                                                          \
  FS_KERNEL(dense_##type##_##C, 256, 2)(const u8* FS_RESTRICT w, const float* FS_RESTRICT x, float* FS_RESTRICT y, \
                                        i32 m, i32 k, i32 cols) {                                                  \
    FS_SHARED(DenseShared, sh);                                                                                    \
    dense<T, C>(sh, w, x, y, m, k, cols);                                                                          \
  }                                                                                                                \
  FS_EXPORT(dense_##type##_##C, 256)
#define DENSE_ALL(type, T) DENSE(type, T, 1) DENSE(type, T, 2) DENSE(type, T, 4) DENSE(type, T, 8)

DENSE_ALL(f32, DENSE_F32)
DENSE_ALL(f16, DENSE_F16)
DENSE_ALL(bf16, DENSE_BF16)
