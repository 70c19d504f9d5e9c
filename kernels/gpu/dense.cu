// Matrices of f32, f16 and bf16 (router, hyper-connections, compressors, indexer, embeddings) times one
// to eight f32 activation rows: contract rule 4.
//
// dense_{f32,f16,bf16}_{1,2,4,8}: up to that many activation rows; _many: any number of them, eight a block;
// _few_{1,2,4,8}: matrices of few rows, where blocks of the others would leave most of a device without work;
// _set_{1,2,4,8}: up to five matrices of the same activation rows in one launch
//   formula  y[c][row] = dot(W[row], x[c]); weights widen exactly
//   shapes   W [m][k] in file order, aligned to its element; x [cols][k] f32, y [cols][m] f32
//   launch   grid (ceil(m / rows of a block), ceil(cols / C)); a warp one segment of 512 of R rows and C columns, a
//            block the segments of its rows or, if they are fewer than its warps, 2, 4, .. times the rows; more
//            segments than warps take several passes.
//              C = 1: R = 8, C = 2, 4, 8: R = 4, many: R = 8, C = 8; all of 256 threads
//              few: R = 1, 1,024 threads, so that 32 segments are read at once
//              set: as C says, with the blocks of the matrices behind each other; m 0: no matrix
//            C = 1 takes whole segments of aligned rows by 16 bytes: four lanes a row, eight rows at once
//   cost     the bytes of W once for each y of the grid; 2 flops a weight and column. A lane loads R weights and C
//            activations for R * C fmas: with R = 1 and C = 8 loads from the L1 bind it, hence R = 4 and 8
//            (cols of 64 and more with enough blocks: dense_wide.cu)
//   order    a residue of k mod 32: fma in k order from +0; lanes by xor 16 .. 1; segments in order
#include "fourspark.h"
#include "fs_dense.h"
#include "fs_math.h"

// Of a warp with R rows and C columns; sums over lanes are made eight at a time.
template <int R, int C>
struct DenseOutputs {
  static constexpr int N = R * C < 8 ? 8 : R * C;
};

template <int WARPS, int OUTPUTS>
struct DenseShared {
  float part[WARPS][OUTPUTS];
};

// log2 of the smallest power of two that is at least n, at most that of `most`, which is one.
FS_DEVICE i32 dense_log2(i32 n, i32 most) {
  i32 log2 = 0;
  while (1 << log2 < n && 1 << log2 < most) log2++;
  return log2;
}

struct alignas(16) DenseFour {
  float v[4];
};

// Element e of eight.
template <int T, int LOADS>
FS_DEVICE float dense_element(const u32x4 (&words)[LOADS], int e) {
  if (T == DENSE_F32) return fs_f32(fs_word(words[e / 4 % LOADS], e % 4));
  const u32 pair = fs_word(words[0], e / 2);
  if (T == DENSE_F16) return fs_f16((u16)(pair >> (e % 2 * 16)));
  return fs_f32(e % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
}

// One segment of R rows and C columns: partial sums by k mod 32. FULL: all of it is inside. Rows and columns past the
// last repeat it.
template <int T, int R, int C, int OUTPUTS, bool FULL>
FS_DEVICE void dense_segment(float (&p)[OUTPUTS], const u8* w, const float* x, i32 row0, i32 col0, i32 segment, i32 m, i32 k, i32 cols) {
  u64 line[R], column[C];
  const u64 first = (u64)segment * FS_SEGMENT + fs_lane();
  FS_UNROLL for (int r = 0; r < R; r++) line[r] = (u64)(row0 + r < m ? row0 + r : m - 1) * (u64)k + (FULL ? first : 0);
  FS_UNROLL for (int c = 0; c < C; c++) column[c] = (u64)(col0 + c < cols ? col0 + c : cols - 1) * (u64)k + (FULL ? first : 0);
  FS_UNROLL for (int i = 0; i < OUTPUTS; i++) p[i] = 0.0f;
  FS_UNROLL for (i32 i = 0; i < FS_SEGMENT / 32; i++) {
    const bool inside = FULL || first + (u64)(i * 32) < (u64)k;
    const u64 at = FULL ? (u64)(i * 32) : inside ? first + (u64)(i * 32) : (u64)(k - 1);
    float xs[C];
    FS_UNROLL for (int c = 0; c < C; c++) xs[c] = x[column[c] + at];
    FS_UNROLL for (int r = 0; r < R; r++) {
      const float ws = dense_weight<T>(w, line[r] + at);
      FS_UNROLL for (int c = 0; c < C; c++) {
        const float next = fs_fma(ws, xs[c], p[r * C + c]);
        p[r * C + c] = inside ? next : p[r * C + c];
      }
    }
  }
}

// One whole segment of eight rows and a column by loads of 16 bytes: lane 4 r + g has residues 8 g and on of row r, and
// returns the row's sum. Residues 16 and 8 apart lie in the lanes 2 and 1 apart, the others in one lane. Rows past the
// last repeat it.
template <int T>
FS_DEVICE float dense_eight(const u8* w, const float* x, i32 row0, i32 segment, i32 m, i32 k) {
  constexpr int LOADS = T == DENSE_F32 ? 2 : 1, AHEAD = FS_SEGMENT / 32 / LOADS;
  const i32 row = row0 + (i32)fs_lane() / 4, first = segment * FS_SEGMENT + (i32)(fs_lane() % 4) * 8;
  const u32x4* line = (const u32x4*)(w + ((u64)(row < m ? row : m - 1) * (u64)k + (u64)first) * (T == DENSE_F32 ? 4 : 2));
  float p[8];
  FS_UNROLL for (int e = 0; e < 8; e++) p[e] = 0.0f;
  FS_UNROLL for (int part = 0; part < FS_SEGMENT / 32; part += AHEAD) {
    u32x4 ws[AHEAD][LOADS];
    FS_UNROLL for (int i = 0; i < AHEAD; i++)
      FS_UNROLL for (int n = 0; n < LOADS; n++) ws[i][n] = fs_load_stream(line + (part + i) * 4 * LOADS + n);
    FS_UNROLL for (int i = 0; i < AHEAD; i++) {
      const DenseFour* at = (const DenseFour*)(x + first + (part + i) * 32);
      const DenseFour xs[2] = {at[0], at[1]};
      FS_UNROLL for (int e = 0; e < 8; e++) p[e] = fs_fma(dense_element<T>(ws[i], e), xs[e / 4].v[e % 4], p[e]);
      fs_schedule_fence();
    }
  }
  FS_UNROLL for (u32 mask = 2; mask > 0; mask >>= 1)
    FS_UNROLL for (int e = 0; e < 8; e++) p[e] = fs_add(p[e], fs_shfl_xor(p[e], mask));
  FS_UNROLL for (int e = 0; e < 4; e++) p[e] = fs_add(p[e], p[e + 4]);
  return fs_add(fs_add(p[0], p[2]), fs_add(p[1], p[3]));
}

// A segment's sums over lanes into `part`.
template <int OUTPUTS>
FS_DEVICE void dense_fold(float (&part)[OUTPUTS], const float (&p)[OUTPUTS]) {
  FS_UNROLL for (int g = 0; g < OUTPUTS / 8; g++) {
    float eight[8];
    FS_UNROLL for (int i = 0; i < 8; i++) eight[i] = p[g * 8 + i];
    const float sum = fs_fold_eight(eight);
    if (fs_lane() % 4 == 0) part[g * 8 + (i32)fs_lane() / 4] = sum;
  }
}

template <int T, int WARPS, int R, int C>
FS_DEVICE void dense(DenseShared<WARPS, DenseOutputs<R, C>::N>& sh, i32 block, const u8* w, const float* x, float* y, i32 m, i32 k,
                     i32 cols) {
  constexpr int OUTPUTS = DenseOutputs<R, C>::N, MINE = (WARPS * OUTPUTS + WARPS * 32 - 1) / (WARPS * 32);
  const i32 segments = (k + FS_SEGMENT - 1) / FS_SEGMENT, log2 = dense_log2(segments, WARPS), slots = WARPS >> log2;
  const i32 warp = (i32)fs_warp(), row0 = (block * slots + (warp >> log2)) * R, col0 = (i32)fs_bid_y() * C;
  // Rows and columns that can be read by 16 bytes.
  const bool whole = R == 8 && C == 1 && k % 8 == 0 && ((u64)w | (u64)x) % 16 == 0;
  float total[MINE];
  FS_UNROLL for (int n = 0; n < MINE; n++) total[n] = -0.0f;  // the sum of nothing: -0 + a is a, bit for bit
  for (i32 pass = 0; pass < segments; pass += WARPS) {
    const i32 segment = pass + (warp & ((1 << log2) - 1));
    if (whole && row0 < m && (segment + 1) * FS_SEGMENT <= k) {  // the same for a warp, as the next
      const float sum = dense_eight<T>(w, x + (u64)col0 * (u64)k, row0, segment, m, k);
      if (fs_lane() % 4 == 0) sh.part[warp][fs_lane() / 4] = sum;
    } else if (row0 < m && segment < segments) {
      float p[OUTPUTS];
      if ((segment + 1) * FS_SEGMENT <= k)
        dense_segment<T, R, C, OUTPUTS, true>(p, w, x, row0, col0, segment, m, k, cols);
      else
        dense_segment<T, R, C, OUTPUTS, false>(p, w, x, row0, col0, segment, m, k, cols);
      dense_fold<OUTPUTS>(sh.part[warp], p);
    }
    fs_barrier();
    const i32 here = segments - pass < WARPS ? segments - pass : WARPS;
    FS_UNROLL for (int n = 0; n < MINE; n++) {
      const i32 o = (i32)fs_tid() + n * WARPS * 32, slot = o / OUTPUTS, i = o % OUTPUTS;
      if (slot >= slots || i >= R * C) continue;
      for (i32 s = 0; s < here; s++) total[n] = fs_add(total[n], sh.part[(slot << log2) + s][i]);
      const i32 row = (block * slots + slot) * R + i / C, col = col0 + i % C;
      if (pass + here == segments && row < m && col < cols) y[(u64)col * (u64)m + (u64)row] = total[n];
    }
    fs_barrier();
  }
}

template <int WARPS, int R, int C>
using DenseOf = DenseShared<WARPS, DenseOutputs<R, C>::N>;

#define DENSE(name, T, WARPS, R, C, occupancy)                                                                            \
  FS_KERNEL(dense_##name, WARPS * 32, occupancy)(const u8* FS_RESTRICT w, const float* FS_RESTRICT x, float* FS_RESTRICT y, \
                                                 i32 m, i32 k, i32 cols) {                                                \
    fs_begin();                                                                                                           \
    typedef DenseOf<WARPS, R, C> Shared;                                                                                  \
    FS_SHARED(Shared, sh);                                                                                                \
    dense<T, WARPS, R, C>(sh, (i32)fs_bid_x(), w, x, y, m, k, cols);                                                                       \
  }                                                                                                                       \
  FS_EXPORT(dense_##name, WARPS * 32)
static constexpr int DENSE_SET = 5;

struct DenseMatrices {
  const u8* w[DENSE_SET];
  float* y[DENSE_SET];
  i32 m[DENSE_SET];
};

struct DenseMine {
  const u8* w;
  float* y;
  i32 m, block;
};

// The matrix of this block among those of the set, whose blocks lie behind each other.
template <int WARPS, int R>
FS_DEVICE DenseMine dense_mine(const DenseMatrices& all, i32 k) {
  const i32 rows = (WARPS >> dense_log2((k + FS_SEGMENT - 1) / FS_SEGMENT, WARPS)) * R;
  DenseMine my = {all.w[0], all.y[0], all.m[0], (i32)fs_bid_x()};
  i32 first = 0;
  FS_UNROLL for (int i = 0; i < DENSE_SET; i++) {
    const i32 blocks = (all.m[i] + rows - 1) / rows;
    if ((i32)fs_bid_x() >= first && blocks > 0) {
      my.w = all.w[i];
      my.y = all.y[i];
      my.m = all.m[i];
      my.block = (i32)fs_bid_x() - first;
    }
    first += blocks;
  }
  return my;
}

template <int T, int WARPS, int R, int C>
FS_DEVICE void dense_set(DenseShared<WARPS, DenseOutputs<R, C>::N>& sh, const DenseMatrices& all, const float* x, i32 k, i32 cols) {
  const DenseMine my = dense_mine<WARPS, R>(all, k);
  dense<T, WARPS, R, C>(sh, my.block, my.w, x, my.y, my.m, k, cols);
}

#define DENSE_SET_OF(name, T, R, C, occupancy)                                                                            \
  FS_KERNEL(dense_##name, 256, occupancy)(const float* FS_RESTRICT x, const u8* FS_RESTRICT w0, float* FS_RESTRICT y0,    \
                                          const u8* FS_RESTRICT w1, float* FS_RESTRICT y1, const u8* FS_RESTRICT w2,      \
                                          float* FS_RESTRICT y2, const u8* FS_RESTRICT w3, float* FS_RESTRICT y3,         \
                                          const u8* FS_RESTRICT w4, float* FS_RESTRICT y4, i32 m0, i32 m1, i32 m2,        \
                                          i32 m3, i32 m4, i32 k, i32 cols) {                                              \
    fs_begin();                                                                                                           \
    typedef DenseOf<8, R, C> Shared;                                                                                      \
    FS_SHARED(Shared, sh);                                                                                                \
    const DenseMatrices all = {{w0, w1, w2, w3, w4}, {y0, y1, y2, y3, y4}, {m0, m1, m2, m3, m4}};                         \
    dense_set<T, 8, R, C>(sh, all, x, k, cols);                                                                           \
  }                                                                                                                       \
  FS_EXPORT(dense_##name, 256)
#define DENSE_SETS(type, T)                                                                                               \
  DENSE_SET_OF(type##_set_1, T, 8, 1, 2) DENSE_SET_OF(type##_set_2, T, 4, 2, 2) DENSE_SET_OF(type##_set_4, T, 4, 4, 2)    \
  DENSE_SET_OF(type##_set_8, T, 4, 8, 2)
#define DENSE_ALL(type, T)                                                                                                \
  DENSE(type##_1, T, 8, 8, 1, 2) DENSE(type##_2, T, 8, 4, 2, 2) DENSE(type##_4, T, 8, 4, 4, 2) DENSE(type##_8, T, 8, 4, 8, 2) \
  DENSE(type##_many, T, 8, 8, 8, 1)                                                                                       \
  DENSE(type##_few_1, T, 32, 1, 1, 1) DENSE(type##_few_2, T, 32, 1, 2, 1)                                                 \
  DENSE(type##_few_4, T, 32, 1, 4, 1) DENSE(type##_few_8, T, 32, 1, 8, 1)

DENSE_ALL(f32, DENSE_F32) DENSE_SETS(f32, DENSE_F32)
DENSE_ALL(f16, DENSE_F16) DENSE_SETS(f16, DENSE_F16)
DENSE_ALL(bf16, DENSE_BF16) DENSE_SETS(bf16, DENSE_BF16)
