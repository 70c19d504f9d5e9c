// Measurements only: memory ceilings, random weights made on the device, and the products in an
// order of their own choosing, compiled with contraction allowed. What the contract costs is the
// distance of its kernels to the best of these (docs/adr/0001-arithmetic.md).
//
// bench_fill       n 4-byte words of hash bits; bytes = (hash & and) | or
// bench_read       sums n 16-byte words, one result a thread (never all zero, so it is kept)
// bench_copy       n 16-byte words
// fp4f_free_dp_*   y = W x on 4-way dots, a warp R rows, lanes striding along K, scales folded into
//                  one factor, warp sums by shuffles; `split` warps share a row group's K
//                  weights "planar": codes [row][block] 16 bytes in element order, scales [row][block]
// fp4f_free_mma    y = W x on matrix units over tile32, one running sum a warp, `split` warps along K
#include "fourspark.h"
#include "fs_fp4.h"
#include "fs_fp4_tile.h"
#include "fs_tile.h"

FS_DEVICE u32 bench_hash(u32 v) {
  v ^= v >> 16;
  v *= 0x7feb352du;
  v ^= v >> 15;
  v *= 0x846ca68bu;
  return v ^ (v >> 16);
}

FS_KERNEL(bench_fill, 256, 1)(u32* out, u32 thousands, u32 seed, u32 mask_and, u32 mask_or) {
  fs_begin();
  const u64 n = (u64)thousands * 1024, threads = 4096ull * 256;
  for (u64 i = (u64)fs_bid_x() * 256 + fs_tid(); i < n; i += threads)
    out[i] = (bench_hash((u32)i * 2654435761u + (u32)(i >> 32) + seed) & mask_and) | mask_or;
}
FS_EXPORT(bench_fill, 256)

FS_KERNEL(bench_read, 512, 2)(const u32x4* FS_RESTRICT in, u32* out, u32 thousands, u32 blocks) {
  fs_begin();
  const u64 n = (u64)thousands * 1024, threads = (u64)blocks * 512;
  u32 sum = 0;
  u64 i = (u64)fs_bid_x() * 512 + fs_tid();
  for (; i + 3 * threads < n; i += 4 * threads) {
    u32x4 v[4];
    FS_UNROLL for (int j = 0; j < 4; j++) v[j] = fs_load_stream(in + i + (u64)j * threads);
    FS_UNROLL for (int j = 0; j < 4; j++) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  for (; i < n; i += threads) sum += in[i].x;
  if (sum == 0x12345678u) out[0] = sum;
}
FS_EXPORT(bench_read, 512)

FS_KERNEL(bench_copy, 512, 2)(const u32x4* FS_RESTRICT in, u32x4* FS_RESTRICT out, u32 thousands, u32 blocks) {
  fs_begin();
  const u64 n = (u64)thousands * 1024, threads = (u64)blocks * 512;
  u64 i = (u64)fs_bid_x() * 512 + fs_tid();
  for (; i + 3 * threads < n; i += 4 * threads) {
    u32x4 v[4];
    FS_UNROLL for (int j = 0; j < 4; j++) v[j] = fs_load_stream(in + i + (u64)j * threads);
    FS_UNROLL for (int j = 0; j < 4; j++) out[i + (u64)j * threads] = v[j];
  }
  for (; i < n; i += threads) out[i] = in[i];
}
FS_EXPORT(bench_copy, 512)

template <int R, int Q>
struct FreeDpShared {
  float part[8][R * Q];
};

template <int R, int Q>
FS_DEVICE void fp4f_free_dp(FreeDpShared<R, Q>& sh, const u8* planar, const i8* q, const fs_a8_meta* meta, float* y, i32 m,
                            i32 blocks, i32 split) {
  const i32 lane = (i32)fs_lane(), warp = (i32)fs_warp(), part = warp % split;
  const fs_fp4_tables tables = fs_fp4_tables_of((u32)(split >> 31));
  const i32 row0 = ((i32)fs_bid_x() * (8 / split) + warp / split) * R;
  const u8* scales = planar + (u64)m * (u64)blocks * 16;
  float acc[R][Q];
  FS_UNROLL for (int r = 0; r < R; r++) FS_UNROLL for (int c = 0; c < Q; c++) acc[r][c] = 0.0f;
  for (i32 b = part * 32 + lane; b < blocks; b += split * 32) {
    u32x4 w[R];
    u32 e[R];
    FS_UNROLL for (int r = 0; r < R; r++) {
      const u64 at = (u64)(row0 + r < m ? row0 + r : m - 1) * (u64)blocks + (u64)b;
      w[r] = fs_load_stream((const u32x4*)planar + at);
      e[r] = scales[at];
    }
    u32x4 x[Q][2];
    fs_a8_meta mx[Q];
    FS_UNROLL for (int c = 0; c < Q; c++) {
      const u64 at = (u64)c * (u64)blocks + (u64)b;
      x[c][0] = ((const u32x4*)q)[at * 2];
      x[c][1] = ((const u32x4*)q)[at * 2 + 1];
      mx[c] = meta[at];
    }
    FS_UNROLL for (int r = 0; r < R; r++) {
      const u32x2 l0 = fs_fp4_biased(tables, w[r].x), l1 = fs_fp4_biased(tables, w[r].y);
      const u32x2 l2 = fs_fp4_biased(tables, w[r].z), l3 = fs_fp4_biased(tables, w[r].w);
      const float s = fs_f32(e[r] << 20) * 6.646139978924579e35f;
      FS_UNROLL for (int c = 0; c < Q; c++) {
        i32 i0 = fs_dp4a(l0.x, x[c][0].x, fs_pair_sum(mx[c].sums, -FS_FP4_BIAS, 0)), i1 = fs_dp4a(l0.y, x[c][0].y, 0);
        i0 = fs_dp4a(l1.x, x[c][0].z, i0);
        i1 = fs_dp4a(l1.y, x[c][0].w, i1);
        i0 = fs_dp4a(l2.x, x[c][1].x, i0);
        i1 = fs_dp4a(l2.y, x[c][1].y, i1);
        i0 = fs_dp4a(l3.x, x[c][1].z, i0);
        i1 = fs_dp4a(l3.y, x[c][1].w, i1);
        acc[r][c] += s * mx[c].d * (float)(i0 + i1);
      }
    }
  }
  FS_UNROLL for (int r = 0; r < R; r++)
    FS_UNROLL for (int c = 0; c < Q; c++) {
      float v = acc[r][c];
      FS_UNROLL for (u32 mask = 16; mask > 0; mask >>= 1) v += fs_shfl_xor(v, mask);
      if (lane == 0) sh.part[warp][r * Q + c] = v;
    }
  fs_barrier();
  for (i32 o = (i32)fs_tid(); o < 8 / split * R * Q; o += 256) {
    const i32 group = o / (R * Q), rc = o % (R * Q);
    float v = 0.0f;
    for (i32 i = 0; i < split; i++) v += sh.part[group * split + i][rc];
    const i32 row = ((i32)fs_bid_x() * (8 / split) + group) * R + rc / Q;
    if (row < m) y[(u64)(rc % Q) * (u64)m + (u64)row] = v;
  }
}

#define FREE_DP(R, Q)                                                                                                \
  FS_KERNEL(fp4f_free_dp_r##R##_##Q, 256, 2)(const u8* FS_RESTRICT planar, const i8* FS_RESTRICT q,                  \
                                             const fs_a8_meta* FS_RESTRICT meta, float* FS_RESTRICT y, i32 m, i32 blocks, i32 split) { \
    fs_begin();                                                                                                                        \
    typedef FreeDpShared<R, Q> Shared;                                                                               \
    FS_SHARED(Shared, sh);                                                                                           \
    fp4f_free_dp<R, Q>(sh, planar, q, meta, y, m, blocks, split);                                                       \
  }                                                                                                                  \
  FS_EXPORT(fp4f_free_dp_r##R##_##Q, 256)

FREE_DP(2, 1)
FREE_DP(4, 1)
FREE_DP(2, 2)
FREE_DP(4, 2)
FREE_DP(2, 4)
FREE_DP(2, 8)

struct FreeMmaShared {
  float part[8][FS_TILE_N][32];
};

FS_KERNEL(fp4f_free_mma, 256, 2)(const u8* FS_RESTRICT packed, const i8* FS_RESTRICT q, const fs_a8_meta* FS_RESTRICT meta,
                                 float* FS_RESTRICT y, i32 m, i32 blocks, i32 cols, i32 split) {
  fs_begin();
  FS_SHARED(FreeMmaShared, sh);
  const fs_fp4_tables tables = fs_fp4_tables_of((u32)(split >> 31));
  const fs_tile32 w = fs_tile32_of(packed, m, blocks);
  const u32 lane = fs_lane();
  const i32 warp = (i32)fs_warp(), part = warp % split, per_block = 8 / split;
  const i32 tile = (i32)fs_bid_x() * per_block + warp / split, safe = tile < w.tiles ? tile : w.tiles - 1;
  const i32 each = (w.groups + split - 1) / split, first = part * each, last = first + each < w.groups ? first + each : w.groups;
  float acc[2][FS_TILE_C];
  FS_UNROLL for (int i = 0; i < FS_TILE_C; i++) acc[0][i] = acc[1][i] = 0.0f;
  Fp4fGroup<2> now, next;
  if (first < last) fp4f_load<2>(now, w, safe, 0, first);
  for (i32 group = first; group < last; group++) {
    if (group + 1 < last) fp4f_load<2>(next, w, safe, 0, group + 1);
    FS_UNROLL for (int e = 0; e < 4; e++) {
      const i32 at = group * 4 + e;
      if (at < blocks) {
        Fp4fBlock<2> b;
        fp4f_decode<2>(b, tables, now, e);
        u32x2 x[FS_TILE_BW];
        float dc[FS_TILE_CC];
        FS_UNROLL for (int j = 0; j < FS_TILE_BW; j++) {
          const i32 c = (i32)fs_tile_line(lane, j) < cols ? (i32)fs_tile_line(lane, j) : cols - 1;
          x[j] = *(const u32x2*)(q + ((u64)c * (u64)blocks + (u64)at) * 32 + fs_tile_word(lane, j) * 8);
        }
        FS_UNROLL for (int j = 0; j < FS_TILE_CC; j++) {
          const i32 c = (i32)fs_tile_col(lane, j) < cols ? (i32)fs_tile_col(lane, j) : cols - 1;
          dc[j] = meta[(u64)c * (u64)blocks + (u64)at].d;
        }
        fp4f_step<2>(acc, b, x, dc);
      }
    }
    now = next;
  }
  FS_UNROLL for (int half = 0; half < 2; half++)
    FS_UNROLL for (int r = 0; r < FS_TILE_CR; r++)
      FS_UNROLL for (int c = 0; c < FS_TILE_CC; c++)
        sh.part[warp][fs_tile_col(lane, c)][(u32)half * 16 + fs_tile_row(lane, r)] = acc[half][r * FS_TILE_CC + c];
  fs_barrier();
  for (i32 o = (i32)fs_tid(); o < per_block * FS_TILE_N * 32; o += 256) {
    const i32 from = o / (FS_TILE_N * 32), c = o / 32 % FS_TILE_N;
    float v = 0.0f;
    for (i32 i = 0; i < split; i++) v += sh.part[from * split + i][c][o % 32];
    const i32 row = ((i32)fs_bid_x() * per_block + from) * 32 + o % 32;
    if (row < m && c < cols) y[(u64)c * (u64)m + (u64)row] = v;
  }
}
FS_EXPORT(fp4f_free_mma, 256)
