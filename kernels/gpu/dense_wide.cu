// Matrices of f32, f16 and bf16 times many f32 activation rows (prefill): contract rule 4, the bits of dense.cu.
//
// dense_wide_{f32,f16,bf16}
//   formula  y[c][row] = dot(W[row], x[c]); weights widen exactly
//   shapes   W [m][k] in file order, aligned to its element; x [cols][k] f32, y [cols][m] f32
//   launch   grid (ceil(m / 64), ceil(cols / 64)) of 256 threads: 64 rows by 64 columns; a warp eight columns, of which a
//            segment stays in registers while eight rows at a time pass through shared memory (fs_dots.h)
//   cost     the bytes of W once for 64 columns, those of x once for 64 rows; 2 flops a weight and column, about 30
//            instructions a row, segment and eight columns for the sums over lanes: bound by fmas
//   order    a lane k mod 32: fma in k order from +0; lanes by xor 16 .. 1; segments in order. What is missing from a short
//            segment is -0 times +0: it changes no sum, not even the sign of a zero
#include "fourspark.h"
#include "fs_dense.h"
#include "fs_dots.h"
#include "fs_math.h"

static constexpr int WIDE_ROWS = 64, WIDE_COLS = 64, WIDE_STAGE = 8;

struct WideShared {
  FsDotRow stage[2][WIDE_STAGE];
  float total[WIDE_COLS][WIDE_ROWS];  // wide_place
};

// Where a column has row r: lanes meet all banks by rows of a column and by columns of a row.
FS_DEVICE i32 wide_place(i32 col, i32 r) { return r ^ col % 8 * 4; }

struct WideMatrix {
  const u8* w;
  i32 m, k;
  bool whole;  // four elements are one load, and inside or outside together
};

// A lane's part of a row's segment: elements 32 (4 (lane / 8) + c) + 4 (lane % 8) + b of quarter c.
template <int T>
struct WideRaw {
  static constexpr int WORDS = T == DENSE_F32 ? 4 : 2;
  u32 words[4][WORDS];
};

template <int T>
FS_DEVICE u32 wide_bits(const u8* w, u64 at) {
  return T == DENSE_F32 ? ((const u32*)w)[at] : ((const u16*)w)[at];
}

template <int T>
FS_DEVICE void wide_fetch(WideRaw<T>& to, const WideMatrix& w, i32 row, i32 segment) {
  constexpr int SIZE = T == DENSE_F32 ? 4 : 2, EACH = 4 / WideRaw<T>::WORDS;  // elements of a word
  constexpr u32 NONE = T == DENSE_F32 ? 0x80000000u : 0x8000u;                // -0
  const i32 first = segment * FS_SEGMENT + (i32)(fs_lane() / 8) * 128 + (i32)(fs_lane() % 8) * 4;
  const u64 line = (u64)(row < w.m ? row : w.m - 1) * (u64)w.k;
  FS_UNROLL for (int c = 0; c < 4; c++) {
    const i32 k = first + 32 * c;
    if (w.whole && k < w.k) {
      const u8* at = w.w + (line + (u64)k) * SIZE;
      FS_UNROLL for (int i = 0; i < WideRaw<T>::WORDS; i += 2) {
        const u32x2 two = ((const u32x2*)at)[i / 2];
        to.words[c][i] = two.x;
        to.words[c][i + 1] = two.y;
      }
      continue;
    }
    FS_UNROLL for (int i = 0; i < WideRaw<T>::WORDS; i++) {
      to.words[c][i] = 0;
      FS_UNROLL for (int e = 0; e < EACH; e++) {
        const i32 here = k + i * EACH + e;
        to.words[c][i] |= (here < w.k ? wide_bits<T>(w.w, line + (u64)here) : NONE) << (16 * e);
      }
    }
  }
}

template <int T>
FS_DEVICE float wide_value(const u32 (&words)[WideRaw<T>::WORDS], int b) {
  if (T == DENSE_F32) return fs_f32(words[b % WideRaw<T>::WORDS]);
  const u32 pair = words[b / 2 % WideRaw<T>::WORDS];
  if (T == DENSE_F16) return fs_f16((u16)(pair >> (b % 2 * 16)));
  return fs_f32(b % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
}

template <int T>
FS_DEVICE void wide_unpack(FsDotRow& to, const WideRaw<T>& raw) {
  const u32 residue = fs_lane() % 8 * 4, deep = fs_lane() / 8 * 8;
  FS_UNROLL for (int b = 0; b < 4; b++) {
    fs_four v;
    FS_UNROLL for (int c = 0; c < 4; c++) v.v[c] = wide_value<T>(raw.words[c], b);
    to.quad[fs_dot_place(residue + (u32)b) + deep] = v;
  }
}

// A segment of this warp's columns. FULL: all of it is inside. Columns past the last repeat it.
template <bool FULL>
FS_DEVICE void wide_columns(FsDotVectors& to, const float* x, i32 col0, i32 segment, i32 k, i32 cols) {
  const i32 first = segment * FS_SEGMENT + (i32)fs_lane();
  FS_UNROLL for (int n = 0; n < FS_DOT_VECTORS; n++) {
    const float* at = x + (u64)(col0 + n < cols ? col0 + n : cols - 1) * (u64)k + (u64)(FULL ? first : 0);
    FS_UNROLL for (int i = 0; i < FS_DOT_DEPTH; i++) {
      const i32 e = first + 32 * i;
      const float v = at[FULL ? 32 * i : e < k ? e : k - 1];  // always read: no branch
      to.v[n][i] = FULL || e < k ? v : 0.0f;
    }
    fs_schedule_fence();
  }
}

// Adds the sums of four rows' segment, `t` and on of the block, to this warp's totals.
FS_DEVICE void wide_add(WideShared& sh, i32 t, float sum, bool first) {
  const i32 lane = (i32)fs_lane(), col = (i32)fs_warp() * FS_DOT_VECTORS + lane / 4;
  float* total = &sh.total[col][wide_place(col, t + lane % 4)];
  *total = first ? sum : fs_add(*total, sum);
}

// Which rows come next: segment after segment, and the last one again at the end.
struct WideNext {
  i32 t, segment;

  FS_DEVICE_MEMBER void step(i32 rows, i32 segments) {
    t += WIDE_STAGE;
    if (t < rows) return;
    t = 0;
    segment = segment + 1 < segments ? segment + 1 : segment;
  }
};

template <int T>
FS_DEVICE void wide(WideShared& sh, const WideMatrix& w, const float* x, float* y, i32 cols) {
  const i32 row0 = (i32)fs_bid_x() * WIDE_ROWS, col0 = (i32)fs_bid_y() * WIDE_COLS, warp = (i32)fs_warp();
  const i32 rows = w.m - row0 < WIDE_ROWS ? w.m - row0 : WIDE_ROWS, segments = (w.k + FS_SEGMENT - 1) / FS_SEGMENT;
  const bool mine = col0 + warp * FS_DOT_VECTORS < cols;
  WideRaw<T> raw;
  WideNext next = {0, 0};
  wide_fetch<T>(raw, w, row0 + warp, 0);
  wide_unpack<T>(sh.stage[0][warp], raw);
  next.step(rows, segments);
  wide_fetch<T>(raw, w, row0 + warp + next.t, next.segment);
  i32 turn = 0;
  FS_ROLLED for (i32 s = 0; s < segments; s++) {
    FsDotVectors v;
    if ((s + 1) * FS_SEGMENT <= w.k)
      wide_columns<true>(v, x, col0 + warp * FS_DOT_VECTORS, s, w.k, cols);
    else
      wide_columns<false>(v, x, col0 + warp * FS_DOT_VECTORS, s, w.k, cols);
    FsDotBehind behind;
    behind.clear();
    FS_ROLLED for (i32 t = 0; t < rows; t += WIDE_STAGE, turn ^= 1) {
      const FsDotRow* stage = sh.stage[turn];
      fs_barrier();  // the stage is filled, and the other one free again
      if (mine) {
        const float before = fs_dot_four(behind, v, stage);
        if (t > 0) wide_add(sh, t - 4, before, s == 0);
      }
      wide_unpack<T>(sh.stage[turn ^ 1][warp], raw);
      next.step(rows, segments);
      wide_fetch<T>(raw, w, row0 + warp + next.t, next.segment);
      if (mine) wide_add(sh, t, fs_dot_four(behind, v, stage + 4), s == 0);
    }
    if (mine) wide_add(sh, (rows - 1) / WIDE_STAGE * WIDE_STAGE + 4, fs_dot_end(behind), s == 0);
  }
  fs_barrier();
  const i32 r = (i32)fs_tid() % WIDE_ROWS;
  for (i32 c = (i32)fs_tid() / WIDE_ROWS; c < WIDE_COLS && col0 + c < cols; c += 256 / WIDE_ROWS)
    if (r < rows) y[(u64)(col0 + c) * (u64)w.m + (u64)(row0 + r)] = sh.total[c][wide_place(c, r)];
}

#define WIDE(name, T, size)                                                                                                       \
  FS_KERNEL(dense_wide_##name, 256, 1)(const u8* FS_RESTRICT w, const float* FS_RESTRICT x, float* FS_RESTRICT y, i32 m, i32 k, i32 cols) { \
    fs_begin();                                                                                                                   \
    FS_SHARED(WideShared, sh);                                                                                                    \
    const WideMatrix matrix = {w, m, k, k % 4 == 0 && (u64)w % (4 * size) == 0};                                                  \
    wide<T>(sh, matrix, x, y, cols);                                                                                              \
  }                                                                                                                               \
  FS_EXPORT(dense_wide_##name, 256)

WIDE(f32, DENSE_F32, 4)
WIDE(f16, DENSE_F16, 2)
WIDE(bf16, DENSE_BF16, 2)
