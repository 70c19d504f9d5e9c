// ROCmFP4_FAST matrices on int8 matrix units: the narrow product for decode and verify, and the
// tiled product for prefill. The same weights (tile32), the same bits as fp4f_gemv_*.
//
// formula  y[c][row] = sum over blocks b of d[c][b] * (s[row][b] * f32(I)), I exact (rules 2, 3)
// shapes   packed [m][blocks] in tile32 order, q [cols][k] i8, meta [cols][blocks] of a8_quantise,
//          y [cols][m] f32
//
// fp4f_mma_n: columns in groups of FS_TILE_N (8 on NVIDIA, 16 on AMD), one cost for any number in a group
//   launch   grid (rows, groups); 8 warps a block, a warp one segment of 16 rows; a block holds 16 rows (8 or
//            more segments, at most 32) or 16 * floor(8 / segments), and one group of columns
//   cost     17 bytes a block and group, those of the second group on from the cache; per block one step of
//            16 x N x 32 and 2 flops an output
// fp4f_mma_pair: the same of two matrices of the same k, the second one's blocks behind the `first` of the first
// fp4f_mma_stack: fp4f_mma_n of [matrices] with a row each for every column: q, meta, y [cols][matrices], or y as activation
//            blocks (m a multiple of 32); up to 16 segments
//   launch   grid (tiles, groups, matrices); as above with tiles for half tiles
// fp4f_gemm_*: any number of columns
//   launch   grid (ceil(m / rows), ceil(cols / columns)) of 256 threads; a warp 32 rows by 64 or 32
//            columns, weights decoded straight into its registers, activations staged in shared
//            memory four blocks at a time
//   cost     2 m k cols integer ops; 4 flops an output and block: bound by those
//   order    segments of 16 blocks in an accumulator, their sums added in order into a second one
//   variants (the same bits)  a: 128 x 128, for NVIDIA: two sums of 64 values a lane beside weights and
//            dots need some 290 registers on AMD, which has 256; d: 128 x 64, two blocks a processor
//   free_*   (other bits, for the price of the order only) one running sum
#include "fourspark.h"
#include "fs_a8.h"
#include "fs_fp4.h"
#include "fs_fp4_tile.h"
#include "fs_math.h"
#include "fs_tile.h"

// ---- columns in groups of FS_TILE_N

static constexpr int NARROW_SEGMENTS = 32;
// Blocks a processor. Where `restrict` lets the compiler move more loads ahead (fourspark.h), 80 registers do not hold them.
#if FS_CUDA && !FS_EARLY
#define FP4F_NARROW_BLOCKS 2
#else
#define FP4F_NARROW_BLOCKS 3
#endif

struct Fp4fNarrowShared {
  float part[NARROW_SEGMENTS][FS_TILE_N][16];
};

// The columns of a block: column c is activation row c * step of those from q and meta on.
struct Fp4fColumns {
  const i8* q;
  const fs_a8_meta* meta;
  i32 blocks, step, count;

  // Of a column past the last the last one's.
  FS_DEVICE_MEMBER i32 block(u32 column, i32 first) const {
    const i32 c = (i32)column < count ? (i32)column : count - 1;
    return c * step * blocks + first;  // of a step's columns: it fits
  }
};

// Group y of the columns of matrix z, whose rows lie between those of the others.
FS_DEVICE Fp4fColumns fp4f_columns(const i8* q, const fs_a8_meta* meta, i32 blocks, i32 cols, i32 step) {
  const i32 first = (i32)fs_bid_y() * FS_TILE_N, left = cols - first;
  const u64 before = ((u64)first * (u64)step + (u64)fs_bid_z()) * (u64)blocks;
  return Fp4fColumns{q + before * 32, meta + before, blocks, step, left < FS_TILE_N ? left : FS_TILE_N};
}

// Where 16 rows of a segment are, and the last of its groups.
struct Fp4fNarrowPlace {
  const u32x4 *codes, *scales;
  i32 segment, last;
};

FS_DEVICE Fp4fNarrowPlace fp4f_narrow_place(const fs_tile32& w, i32 tile, i32 row0, i32 segment) {
  const i32 left = w.groups - 1 - segment * 4;
  return Fp4fNarrowPlace{fs_tile32_codes(w, tile, segment * 4, 0) + row0, fs_tile32_scales(w, tile, segment) + row0, segment,
                         left < 3 ? left : 3};
}

// A group past the end has the codes of the last and, of the matrix, scales of zero.
template <bool FULL>
FS_DEVICE void fp4f_narrow_load(Fp4fGroup<1>& to, const Fp4fNarrowPlace& from, i32 group) {
  const u32 lane = fs_lane();
  const u32x4* codes = from.codes + (FULL || group < from.last ? group : from.last) * 128;
  FS_UNROLL for (int j = 0; j < FS_TILE_AW; j++) to.words[0][j] = fs_load_stream(codes + (fs_tile_word(lane, j) * 32 + fs_tile_line(lane, j)));
  FS_UNROLL for (int r = 0; r < FS_TILE_CR; r++) to.scales[0][r] = ((const u32*)(from.scales + fs_tile_row(lane, r)))[group];
}

// One segment of 16 rows against FS_TILE_N columns. FULL: all 16 blocks are inside, so that addresses are one base and
// constants.
template <bool FULL>
FS_DEVICE void fp4f_narrow_segment(float (&part)[FS_TILE_N][16], const Fp4fNarrowPlace& at, const fs_fp4_tables& tables, const Fp4fColumns& x) {
  constexpr int AHEAD = FP4F_MAGIC ? 4 : 1;  // groups in flight: AMD's lanes hold more words and rows each
  const u32 lane = fs_lane();
  const i32 first = at.segment * FS_SEGMENT_BLOCKS;
  const u32x2* line[FS_TILE_BW];
  const fs_a8_meta* scale[FS_TILE_CC];
  FS_UNROLL for (int j = 0; j < FS_TILE_BW; j++)
    line[j] = (const u32x2*)x.q + x.block(fs_tile_line(lane, j), first) * 4 + fs_tile_word(lane, j);
  FS_UNROLL for (int j = 0; j < FS_TILE_CC; j++) scale[j] = x.meta + x.block(fs_tile_col(lane, j), first);
  float acc[1][FS_TILE_C];
  FS_UNROLL for (int i = 0; i < FS_TILE_C; i++) acc[0][i] = 0.0f;
  FS_ROLLED for (i32 part_of = 0; part_of < 4; part_of += AHEAD) {
    Fp4fGroup<1> group[AHEAD];
    FS_UNROLL for (i32 n = 0; n < AHEAD; n++) fp4f_narrow_load<FULL>(group[n], at, part_of + n);
    FS_UNROLL for (i32 n = 0; n < AHEAD * 4; n++) {
      const i32 i = part_of * 4 + n, inside = FULL || first + i < x.blocks ? i : x.blocks - 1 - first;
      Fp4fBlock<1> b;
      fp4f_decode<1>(b, tables, group[n / 4], n % 4);
      u32x2 v[FS_TILE_BW];
      float dc[FS_TILE_CC];
      FS_UNROLL for (int j = 0; j < FS_TILE_BW; j++) v[j] = line[j][inside * 4];
      FS_UNROLL for (int j = 0; j < FS_TILE_CC; j++) dc[j] = FULL || inside == i ? scale[j][inside].d : 0.0f;
      fp4f_step<1>(acc, b, v, dc);
    }
  }
  FS_UNROLL for (int r = 0; r < FS_TILE_CR; r++)
    FS_UNROLL for (int c = 0; c < FS_TILE_CC; c++) part[fs_tile_col(lane, c)][fs_tile_row(lane, r)] = acc[0][r * FS_TILE_CC + c];
}

// Which rows a block has: warps side by side on the segments of a slot, H half tiles a slot.
template <int H>
struct Fp4fSlots {
  i32 warps, count;

  FS_DEVICE_MEMBER explicit Fp4fSlots(const fs_tile32& w) : warps(w.segments < 8 ? w.segments : 8), count(8 / warps) {}
  // Of half h of segment s of slot i in the partial sums.
  FS_DEVICE_MEMBER i32 part(i32 i, i32 s, i32 h) const { return (i * warps + s) * H + h; }
};

// The sums of the segments of a block's rows.
template <int H>
FS_DEVICE void fp4f_narrow_parts(Fp4fNarrowShared& sh, const fs_tile32& w, const fs_fp4_tables& tables, const Fp4fSlots<H>& slots, i32 block,
                                 const Fp4fColumns& x) {
  const i32 warp = (i32)fs_warp(), slot = warp / slots.warps, unit = block * slots.count + slot, first = warp % slots.warps;
  // The matrix step needs whole warps: the condition is the same for all lanes.
  if (slot >= slots.count || unit >= w.tiles * 2 / H) return;
  const i32 tile = unit * H / 2, turns = (w.segments - first + 7) / 8 * H;
  FS_ROLLED for (i32 turn = 0; turn < turns; turn++) {
    const i32 segment = first + turn / H * 8, half = H == 1 ? unit % 2 : turn % 2;
    const Fp4fNarrowPlace at = fp4f_narrow_place(w, tile, half * 16, segment);
    float(&part)[FS_TILE_N][16] = sh.part[slots.part(slot, segment, turn % H)];
    if ((segment + 1) * FS_SEGMENT_BLOCKS <= x.blocks)
      fp4f_narrow_segment<true>(part, at, tables, x);
    else
      fp4f_narrow_segment<false>(part, at, tables, x);
  }
}

// Row r of a half tile and column c: the segments in order.
template <int H>
FS_DEVICE float fp4f_narrow_total(const Fp4fNarrowShared& sh, const Fp4fSlots<H>& slots, i32 segments, i32 slot, i32 h, i32 c, i32 r) {
  float total = sh.part[slots.part(slot, 0, h)][c][r];
  for (i32 s = 1; s < segments; s++) total = fs_add(total, sh.part[slots.part(slot, s, h)][c][r]);
  return total;
}

// The block'th block of the matrix, of the columns of group y.
FS_DEVICE void fp4f_narrow(Fp4fNarrowShared& sh, const u8* packed, const i8* q, const fs_a8_meta* meta, float* y, i32 m, i32 blocks, i32 cols,
                           i32 block) {
  const fs_fp4_tables tables = fs_fp4_tables_of((u32)(cols >> 31));
  const fs_tile32 w = fs_tile32_of(packed, m, blocks);
  const Fp4fSlots<1> slots(w);
  const Fp4fColumns x = fp4f_columns(q, meta, blocks, cols, 1);
  fp4f_narrow_parts<1>(sh, w, tables, slots, block, x);
  fs_barrier();
  for (i32 o = (i32)fs_tid(); o < slots.count * FS_TILE_N * 16; o += 256) {
    const i32 from = o / (FS_TILE_N * 16), c = o / 16 % FS_TILE_N, row = (block * slots.count + from) * 16 + o % 16;
    if (row >= m || c >= x.count) continue;
    y[((u64)fs_bid_y() * FS_TILE_N + (u64)c) * (u64)m + (u64)row] = fp4f_narrow_total(sh, slots, w.segments, from, 0, c, o % 16);
  }
}

FS_KERNEL(fp4f_mma_n, 256, FP4F_NARROW_BLOCKS)(const u8* FS_RESTRICT packed, const i8* FS_RESTRICT q, const fs_a8_meta* FS_RESTRICT meta,
                              float* FS_RESTRICT y, i32 m, i32 blocks, i32 cols) {
  fs_begin();
  FS_SHARED(Fp4fNarrowShared, sh);
  fp4f_narrow(sh, packed, q, meta, y, m, blocks, cols, (i32)fs_bid_x());
}
FS_EXPORT(fp4f_mma_n, 256)

FS_KERNEL(fp4f_mma_pair, 256, 2)(const i8* FS_RESTRICT q, const fs_a8_meta* FS_RESTRICT meta, const u8* FS_RESTRICT w0, float* FS_RESTRICT y0,
                                 const u8* FS_RESTRICT w1, float* FS_RESTRICT y1, i32 m0, i32 m1, i32 blocks, i32 first, i32 cols) {
  fs_begin();
  FS_SHARED(Fp4fNarrowShared, sh);
  const i32 block = (i32)fs_bid_x();
  const bool second = block >= first;  // the same for all threads
  fp4f_narrow(sh, second ? w1 : w0, q, meta, second ? y1 : y0, second ? m1 : m0, blocks, cols, second ? block - first : block);
}
FS_EXPORT(fp4f_mma_pair, 256)

// Matrix z of several, for every column its own row of each: whole tiles a slot, so that a warp has an activation block of the result.
FS_KERNEL(fp4f_mma_stack, 256, 2)(const u8* FS_RESTRICT packed, const i8* FS_RESTRICT q, const fs_a8_meta* FS_RESTRICT meta, float* FS_RESTRICT y,
                                  i8* FS_RESTRICT y_q, fs_a8_meta* FS_RESTRICT y_meta, i32 m, i32 blocks, i32 cols, i32 matrices) {
  fs_begin();
  FS_SHARED(Fp4fNarrowShared, sh);
  const fs_fp4_tables tables = fs_fp4_tables_of((u32)(cols >> 31));
  const fs_tile32 one = fs_tile32_of(packed, m, blocks);
  const u64 units = (u64)one.tiles * ((u64)one.groups * 128 + (u64)one.segments * 32);
  const fs_tile32 w = fs_tile32_of(packed + (u64)fs_bid_z() * units * 16, m, blocks);
  const Fp4fSlots<2> slots(w);
  const Fp4fColumns x = fp4f_columns(q, meta, blocks, cols, matrices);
  const i32 block = (i32)fs_bid_x(), lane = (i32)fs_lane();
  fp4f_narrow_parts<2>(sh, w, tables, slots, block, x);
  fs_barrier();
  for (i32 o = (i32)fs_warp(); o < slots.count * FS_TILE_N; o += 8) {
    const i32 from = o / FS_TILE_N, c = o % FS_TILE_N, tile = block * slots.count + from;
    if (tile >= w.tiles || c >= x.count) continue;  // the same for a warp
    const float total = fp4f_narrow_total(sh, slots, w.segments, from, lane / 16, c, lane % 16);
    const u64 slot = ((u64)fs_bid_y() * FS_TILE_N + (u64)c) * (u64)matrices + fs_bid_z(), at = slot * (u64)m + (u64)(tile * 32 + lane);
    if (y_q)
      fs_a8_store(total, at, y_q, y_meta, y);  // m is a multiple of 32
    else if (tile * 32 + lane < m)
      y[at] = total;
  }
}
FS_EXPORT(fp4f_mma_stack, 256)

// ---- any number of columns

template <int COLS>
struct Fp4fStage {
  // A block's columns lie 32 bytes apart; the pad moves the next block to other banks.
  u8 q[4][COLS * 32 + 32];
  float d[4][COLS];
};

template <int COLS>
struct Fp4fGemmShared {
  alignas(16) Fp4fStage<COLS> stage[2];
};

// What a thread copies of every group: COLS / 32 pieces of q and COLS / 64 of d.
template <int COLS>
struct Fp4fCopies {
  static constexpr int Q = COLS / 32, D = (COLS + 63) / 64;
  const i8* q[Q];
  const fs_a8_meta* d[D];
};

// Columns past the last repeat those that are there in turn: if all of them read one, all blocks of the matrix would
// ask one slice of the cache for it.
template <int COLS>
FS_DEVICE Fp4fCopies<COLS> fp4f_copies(const i8* q, const fs_a8_meta* meta, i32 blocks, i32 first, i32 cols) {
  Fp4fCopies<COLS> my;
  const u32 thread = fs_tid(), here = (u32)(cols - first);
  FS_UNROLL for (int i = 0; i < my.Q; i++) {
    const u32 col = (thread / 8 + (u32)i * 32) % here;
    my.q[i] = q + (u64)((u32)first + col) * (u64)blocks * 32 + thread % 8 * 16;
  }
  FS_UNROLL for (int i = 0; i < my.D; i++) {
    const u32 col = (thread / 4 + (u32)i * 64) % here;
    my.d[i] = meta + (u64)((u32)first + col) * (u64)blocks + thread % 4;
  }
  return my;
}

// Starts the copy of blocks 4 group .. 4 group + 3. Past the end of a row d is 0 and q anything.
template <int COLS>
FS_DEVICE void fp4f_stage(Fp4fStage<COLS>& to, const Fp4fCopies<COLS>& my, i32 group, i32 blocks) {
  const i32 thread = (i32)fs_tid(), eq = thread % 8 / 2, ed = thread % 4;
  const bool q_inside = group * 4 + eq < blocks, d_inside = group * 4 + ed < blocks;
  FS_UNROLL for (int i = 0; i < my.Q; i++)
    if (q_inside) fs_copy16(&to.q[eq][(thread / 8 + i * 32) * 32 + thread % 2 * 16], my.q[i] + (u64)group * 128);
  FS_UNROLL for (int i = 0; i < my.D; i++)
    if (thread / 4 + i * 64 < COLS) {
      float* slot = &to.d[ed][thread / 4 + i * 64];
      if (d_inside)
        fs_copy4(slot, &my.d[i][(u64)group * 4].d);
      else
        *slot = 0.0f;
    }
  fs_copy_commit();
}

// A warp's outputs: NT tiles of FS_TILE_N columns.
template <int NT>
struct Fp4fAcc {
  float v[NT][2][FS_TILE_C];
};

// One block of 32 rows against the warp's columns. NVIDIA: the next tile's dots start before this one's
// terms need theirs. AMD has no registers to spare for that.
template <int NT, int COLS>
FS_DEVICE void fp4f_wide_block(Fp4fAcc<NT>& acc, const Fp4fBlock<2>& b, const Fp4fStage<COLS>& stage, int e, u32 col0) {
  constexpr int LAG = FP4F_MAGIC ? 1 : 0;
  const u32 lane = fs_lane();
  i32 dot[LAG + 1][2][FS_TILE_C];
  FS_UNROLL for (int n = 0; n < NT + LAG; n++) {
    if (n < NT) {
      u32x2 x[FS_TILE_BW];
      FS_UNROLL for (int j = 0; j < FS_TILE_BW; j++)
          x[j] = *(const u32x2*)&stage.q[e][(col0 + (u32)(n * FS_TILE_N) + fs_tile_line(lane, j)) * 32 + fs_tile_word(lane, j) * 8];
      fp4f_dots<2>(dot[n & LAG], b, x);
    }
    if (n >= LAG) {
      float d[FS_TILE_CC];
      fs_tile_columns(&stage.d[e][col0 + (u32)((n - LAG) * FS_TILE_N)], lane, d);
      fp4f_terms<2>(acc.v[n - LAG], b, dot[(n - LAG) & LAG], d);
    }
  }
}

// Adds the finished segment to the totals and starts the next one. Totals start at -0, the sum of
// nothing: -0 + a is a, bit for bit.
template <int NT>
FS_DEVICE void fp4f_flush(Fp4fAcc<NT>& acc, Fp4fAcc<NT>& total) {
  FS_UNROLL for (int n = 0; n < NT; n++)
    FS_UNROLL for (int half = 0; half < 2; half++)
      FS_UNROLL for (int i = 0; i < FS_TILE_C; i++) {
        total.v[n][half][i] = fs_add(total.v[n][half][i], acc.v[n][half][i]);
        acc.v[n][half][i] = 0.0f;
      }
}

// WM x WN warps of 32 rows by WC columns; FREE: no segments.
template <int WM, int WN, int WC, bool FREE>
FS_DEVICE void fp4f_gemm(Fp4fGemmShared<WN * WC>& sh, const u8* packed, const i8* q, const fs_a8_meta* meta, float* y, i32 m, i32 blocks,
                         i32 cols) {
  static_assert(WM * WN == 8, "eight warps");
  constexpr int NT = WC / FS_TILE_N;
  const fs_tile32 w = fs_tile32_of(packed, m, blocks);
  const i32 warp = (i32)fs_warp(), first_col = (i32)fs_bid_y() * WN * WC;
  const i32 tile = (i32)fs_bid_x() * WM + warp % WM, safe = tile < w.tiles ? tile : w.tiles - 1;
  const u32 col0 = (u32)(warp / WM * WC), lane = fs_lane();
  const Fp4fCopies<WN * WC> copies = fp4f_copies<WN * WC>(q, meta, blocks, first_col, cols);
  const fs_fp4_tables tables = fs_fp4_tables_of((u32)(cols >> 31));
  Fp4fAcc<NT> acc, total;
  FS_UNROLL for (int n = 0; n < NT; n++)
    FS_UNROLL for (int half = 0; half < 2; half++)
      FS_UNROLL for (int i = 0; i < FS_TILE_C; i++) {
        acc.v[n][half][i] = 0.0f;
        total.v[n][half][i] = -0.0f;
      }
  Fp4fGroup<2> now;
  fp4f_stage(sh.stage[0], copies, 0, blocks);
  fp4f_load<2>(now, w, safe, 0, 0);
  for (i32 group = 0; group < w.groups; group++) {
    fs_copy_wait<0>();
    fs_barrier();  // the stage is filled, and the other one free again
    if (group + 1 < w.groups) fp4f_stage(sh.stage[(group + 1) & 1], copies, group + 1, blocks);
    FS_UNROLL for (int e = 0; e < 4; e++) {
      Fp4fBlock<2> b;
      fp4f_decode<2>(b, tables, now, e);
      if (e == 3) fp4f_load<2>(now, w, safe, 0, group + 1 < w.groups ? group + 1 : group);
      fp4f_wide_block<NT>(acc, b, sh.stage[group & 1], e, col0);
      fs_schedule_fence();
    }
    if (!FREE && (group % 4 == 3 || group + 1 == w.groups)) fp4f_flush<NT>(acc, total);
  }
  FS_UNROLL for (int n = 0; n < NT; n++)
    FS_UNROLL for (int half = 0; half < 2; half++)
      FS_UNROLL for (int r = 0; r < FS_TILE_CR; r++)
        FS_UNROLL for (int c = 0; c < FS_TILE_CC; c++) {
          const int i = r * FS_TILE_CC + c;
          const i32 row = tile * 32 + half * 16 + (i32)fs_tile_row(lane, r);
          const i32 col = first_col + (i32)col0 + n * FS_TILE_N + (i32)fs_tile_col(lane, c);
          const float out = FREE ? acc.v[n][half][i] : total.v[n][half][i];
          if (row < m && col < cols) y[(u64)col * (u64)m + (u64)row] = out;
        }
}

#define FP4F_GEMM_ARGS                                                                                            \
  (const u8* FS_RESTRICT packed, const i8* FS_RESTRICT q, const fs_a8_meta* FS_RESTRICT meta,            \
   float* FS_RESTRICT y, i32 m, i32 blocks, i32 cols)
#define FP4F_GEMM(name, occupancy, WM, WN, WC, FREE)                  \
  FS_KERNEL(fp4f_gemm_##name, 256, occupancy) FP4F_GEMM_ARGS {        \
    fs_begin();                                                       \
    FS_SHARED(Fp4fGemmShared<WN * WC>, sh);                           \
    fp4f_gemm<WM, WN, WC, FREE>(sh, packed, q, meta, y, m, blocks, cols); \
  }                                                                   \
  FS_EXPORT(fp4f_gemm_##name, 256)

FP4F_GEMM(a, 1, 4, 2, 64, false)
FP4F_GEMM(d, 2, 4, 2, 32, false)
FP4F_GEMM(free_a, 1, 4, 2, 64, true)
FP4F_GEMM(free_d, 2, 4, 2, 32, true)
