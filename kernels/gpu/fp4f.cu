// ROCmFP4_FAST matrices: repack to tile32 (fs_fp4.h), and the matrix-vector product on 4-way dots.
//
// fp4f_repack
//   formula  a permutation of the file's bytes, zero padded; scale bytes must be valid (<= 0x7e)
//   shapes   raw [m][blocks] 17 bytes at any address, packed = codes + scales (layout.rs: Tile32)
//   launch   ceil(tiles * 32 * (4 groups + segments) / 256) blocks of 256 threads, a thread 16 bytes
//   cost     reads and writes 17 bytes a block, once at load
//
// fp4f_gemv_{1,2} and fp4f_gemv_wide_{1,2}: one or two activation rows a block, the grid's y over
// more of them; each row's bits independent of the others
//   formula  y[c][row] = sum over blocks b of d[c][b] * (s[row][b] * f32(I)), I the exact int8 dot
//            (contract rules 2, 3)
//   shapes   packed as above, q [cols][k] i8, meta [cols][blocks] of a8_quantise, y [cols][m] f32,
//            k = 32 blocks
//   launch   gemv: 16 warps a block, a warp half a segment of 16 rows; wide: 8 warps, a warp a segment
//            of 32 rows. A block holds the 8 segments of its rows, or, if there are at most 4, 2, 1,
//            as many times 16 (32) rows; more than 8 segments take several passes
//   cost     17 bytes a block of 32 weights, 64 cols integer ops and 2 cols flops; bound by memory
//   order    gemv: terms in shared memory, then a lane a segment of a row: fma over its 16 blocks
//            from +0. wide: a lane does both for a row. Then segments added in order
//   choice   the same bits: wide where there are enough rows to fill the device, else gemv
// fp4f_gemv_pair, fp4f_gemv_wide_pair: two matrices of the same activation row in one launch, as fp4f_gemv_1 and
// fp4f_gemv_wide_1; the second one's blocks lie behind the first one's, grid (first + all of the second)
#include "fourspark.h"
#include "fs_fp4.h"
#include "fs_math.h"

// The 4 codes of elements 4 j .. 4 j + 3, lowest nibble first, of a file block.
FS_DEVICE u32 fp4f_quarter(const u8* block, i32 j) {
  const u8* bytes = block + (j & 3) * 4;
  const u32 shift = j < 4 ? 0 : 4;
  u32 codes = 0;
  FS_UNROLL for (u32 n = 0; n < 4; n++) codes |= (((u32)bytes[n] >> shift) & 15) << (4 * n);
  return codes;
}

FS_KERNEL(fp4f_repack, 256, 1)(const u8* FS_RESTRICT raw, u8* packed, i32 m, i32 blocks) {
  fs_begin();
  const fs_tile32 w = fs_tile32_of(packed, m, blocks);
  const u64 id = (u64)fs_bid_x() * 256 + fs_tid();
  const u64 codes = (u64)w.tiles * (u64)w.groups * 128, all = codes + (u64)w.tiles * (u64)w.segments * 32;
  if (id >= all) return;
  const u64 unit = id < codes ? id : id - codes;
  const i32 per_tile = id < codes ? w.groups * 4 : w.segments;  // units of 32 rows in a tile
  const i32 row = (i32)(unit / 32 / (u64)per_tile * 32 + unit % 32);
  const i32 at = (i32)(unit / 32 % (u64)per_tile);
  u32 out[4] = {0, 0, 0, 0};
  const u8* line = raw + (u64)row * (u64)blocks * 17;
  if (row < m && id < codes) {
    const i32 word = at % 4;
    for (i32 e = 0; e < 4; e++) {
      const i32 b = at / 4 * 4 + e;
      if (b < blocks) out[e] = fp4f_quarter(line + b * 17, 2 * word) | fp4f_quarter(line + b * 17, 2 * word + 1) << 16;
    }
  } else if (row < m) {
    for (i32 i = 0; i < 16; i++) {
      const i32 b = at * 16 + i;
      if (b < blocks) out[i / 4] |= (u32)line[b * 17 + 16] << (8 * (i % 4));
    }
  }
  ((u32x4*)packed)[id] = u32x4{out[0], out[1], out[2], out[3]};
}
FS_EXPORT(fp4f_repack, 256)

static constexpr int GEMV_SEGMENTS = 8, GEMV_BLOCKS = GEMV_SEGMENTS * FS_SEGMENT_BLOCKS;  // of a pass

// The activations of a pass.
template <int Q>
struct Fp4fInput {
  alignas(16) u8 q[Q][GEMV_BLOCKS * 32];
  fs_a8_meta meta[Q][GEMV_BLOCKS];
};

// Starts the copy of a pass's activations; columns beyond the last repeat it.
template <int Q, int THREADS>
FS_DEVICE void fp4f_stage_input(Fp4fInput<Q>& to, const i8* q, const fs_a8_meta* meta, i32 first, i32 blocks, i32 col0, i32 cols) {
  const i32 count = blocks - first < GEMV_BLOCKS ? blocks - first : GEMV_BLOCKS;
  FS_UNROLL for (int c = 0; c < Q; c++) {
    const u64 from = (u64)(col0 + c < cols ? col0 + c : cols - 1) * (u64)blocks + (u64)first;
    for (i32 i = (i32)fs_tid(); i < count * 2; i += THREADS) fs_copy16(&to.q[c][i * 16], q + from * 32 + (u64)i * 16);
    for (i32 i = (i32)fs_tid(); i < count * 2; i += THREADS) fs_copy4((u32*)&to.meta[c][0] + i, (const u32*)(meta + from) + i);
  }
  fs_copy_commit();
}

// s * f32(I) of one block and one activation block.
FS_DEVICE float fp4f_term(const u32x2 (&level)[4], float s, float shift, const u8* q, u32 sums) {
  const u32x4 x0 = ((const u32x4*)q)[0], x1 = ((const u32x4*)q)[1];
  i32 even = fs_pair_sum(sums, -FS_FP4_BIAS, FS_MAGIC_BITS), odd = 0;
  even = fs_dp4a(level[0].x, x0.x, even);
  odd = fs_dp4a(level[0].y, x0.y, odd);
  even = fs_dp4a(level[1].x, x0.z, even);
  odd = fs_dp4a(level[1].y, x0.w, odd);
  even = fs_dp4a(level[2].x, x1.x, even);
  odd = fs_dp4a(level[2].y, x1.y, odd);
  even = fs_dp4a(level[3].x, x1.z, even);
  odd = fs_dp4a(level[3].y, x1.w, odd);
  return fs_fma(s, fs_f32((u32)(even + odd)), shift);
}

// Four blocks of one row.
struct Fp4fUnit {
  u32x4 word[4];
  u32 scales;
};

// A group past the end repeats the last one: nobody uses its terms.
FS_DEVICE Fp4fUnit fp4f_unit(const fs_tile32& w, i32 tile, u32 row, i32 group) {
  const u32x4* line = fs_tile32_codes(w, tile, group < w.groups ? group : w.groups - 1, 0) + row;
  Fp4fUnit u;
  FS_UNROLL for (u32 j = 0; j < 4; j++) u.word[j] = fs_load_stream(line + j * 32);
  u.scales = ((const u32*)(fs_tile32_scales(w, tile, group / 4) + row))[group % 4];
  return u;
}

// Adds the sums of a pass's segments, `part` [slot << log2 | segment][column][row], to the totals, and
// writes them after the last pass. `total` belongs to the one output a thread has if there are
// several passes.
template <int Q, int ROWS, int THREADS>
FS_DEVICE void fp4f_totals(float& total, const float (*part)[Q][ROWS], float* y, i32 pass, i32 segments, i32 log2, i32 m, i32 col0, i32 cols,
                           i32 block) {
  const i32 per_block = GEMV_SEGMENTS >> log2, here = segments - pass < GEMV_SEGMENTS ? segments - pass : GEMV_SEGMENTS;
  for (i32 o = (i32)fs_tid(); o < per_block * Q * ROWS; o += THREADS) {
    const i32 slot = o / (Q * ROWS), c = o / ROWS % Q, row = (block * per_block + slot) * ROWS + o % ROWS;
    if (per_block > 1) total = -0.0f;
    for (i32 i = 0; i < here; i++) total = fs_add(total, part[(slot << log2) + i][c][o % ROWS]);
    if (pass + here == segments && row < m && col0 + c < cols) y[(u64)(col0 + c) * (u64)m + (u64)row] = total;
  }
}

template <int Q>
struct Fp4fGemvShared {
  Fp4fInput<Q> input;
  float term[16][4][Q][32];  // of a warp: [block of the lane's 4][column][lane]
  float part[GEMV_SEGMENTS][Q][16];
};

// Which weights a lane of fp4f_gemv has.
struct Fp4fPlace {
  i32 log2, half_tile, local;
  u32 row;
};

// Lanes 0..15 take the first group of a half segment, the others the second.
FS_DEVICE Fp4fPlace fp4f_place(const fs_tile32& w, i32 block) {
  const i32 log2 = fs_slots_log2(w.segments), warp = (i32)fs_warp(), lane = (i32)fs_lane();
  const i32 half_tile = block * (GEMV_SEGMENTS >> log2) + (warp / 2 >> log2);
  const i32 local = (warp / 2 & ((1 << log2) - 1)) * 4 + warp % 2 * 2 + lane / 16;
  return Fp4fPlace{log2, half_tile, local, (u32)(half_tile % 2 * 16 + lane % 16)};
}

template <int Q>
FS_DEVICE void fp4f_gemv(Fp4fGemvShared<Q>& sh, const u8* packed, const i8* q, const fs_a8_meta* meta, float* y, i32 m, i32 blocks,
                         i32 cols, i32 block) {
  const fs_tile32 w = fs_tile32_of(packed, m, blocks);
  const fs_fp4_tables tables = fs_fp4_tables_of((u32)(cols >> 31) & fs_lane());  // in a register of each lane: fs_opaque_lane
  const Fp4fPlace at = fp4f_place(w, block);
  const i32 log2 = at.log2, in_slot = (1 << log2) - 1, half_tile = at.half_tile, local = at.local;
  const i32 warp = (i32)fs_warp(), lane = (i32)fs_lane(), col0 = (i32)fs_bid_y() * Q;
  float total = -0.0f;  // the sum of nothing: -0 + a is a, bit for bit
  for (i32 pass = 0; pass < w.segments; pass += GEMV_SEGMENTS) {
    fp4f_stage_input<Q, 512>(sh.input, q, meta, pass * FS_SEGMENT_BLOCKS, blocks, col0, cols);
    const i32 group = pass * 4 + local;
    const bool busy = half_tile < w.tiles * 2 && group / 4 < w.segments;
    Fp4fUnit u;
    if (busy) u = fp4f_unit(w, half_tile / 2, at.row, group);
    fs_copy_wait<0>();
    fs_barrier();
    if (busy) {
      FS_UNROLL for (i32 e = 0; e < 4; e++) {
        u32x2 level[4];
        FS_UNROLL for (int j = 0; j < 4; j++) level[j] = fs_fp4_biased(tables, fs_word(u.word[j], e));
        const float s = fs_ue4m3((u.scales >> (8 * e)) & 255), shift = fs_mul(s, -FS_MAGIC);
        FS_UNROLL for (int c = 0; c < Q; c++)
          sh.term[warp][e][c][lane] = fp4f_term(level, s, shift, &sh.input.q[c][(local * 4 + e) * 32], sh.input.meta[c][local * 4 + e].sums);
      }
    }
    fs_barrier();
    for (i32 p = (i32)fs_tid(); p < GEMV_SEGMENTS * Q * 16; p += 512) {
      const i32 pair = p / 16 / Q, c = p / 16 % Q, first = (pair & in_slot) * FS_SEGMENT_BLOCKS;
      float acc = 0.0f;
      FS_UNROLL for (i32 i = 0; i < FS_SEGMENT_BLOCKS; i++) {
        const float next = fs_fma(sh.input.meta[c][first + i].d, sh.term[pair * 2 + i / 8][i % 4][c][i / 4 % 2 * 16 + p % 16], acc);
        acc = pass * FS_SEGMENT_BLOCKS + first + i < blocks ? next : acc;
      }
      sh.part[pair][c][p % 16] = acc;
    }
    fs_barrier();
    fp4f_totals<Q, 16, 512>(total, sh.part, y, pass, w.segments, log2, m, col0, cols, block);
  }
}

template <int Q>
struct Fp4fWideShared {
  Fp4fInput<Q> input;
  float part[GEMV_SEGMENTS][Q][32];
};

template <int Q>
FS_DEVICE void fp4f_gemv_wide(Fp4fWideShared<Q>& sh, const u8* packed, const i8* q, const fs_a8_meta* meta, float* y, i32 m, i32 blocks,
                              i32 cols, i32 block) {
  const fs_tile32 w = fs_tile32_of(packed, m, blocks);
  const fs_fp4_tables tables = fs_fp4_tables_of((u32)(cols >> 31) & fs_lane());  // in a register of each lane: fs_opaque_lane
  const i32 log2 = fs_slots_log2(w.segments), col0 = (i32)fs_bid_y() * Q, warp = (i32)fs_warp();
  const i32 tile = block * (GEMV_SEGMENTS >> log2) + (warp >> log2), local = warp & ((1 << log2) - 1);
  float total = -0.0f;
  for (i32 pass = 0; pass < w.segments; pass += GEMV_SEGMENTS) {
    fp4f_stage_input<Q, 256>(sh.input, q, meta, pass * FS_SEGMENT_BLOCKS, blocks, col0, cols);
    const i32 segment = pass + local;
    const bool busy = tile < w.tiles && segment < w.segments;
    Fp4fUnit u[4];
    if (busy) {
      FS_UNROLL for (i32 g = 0; g < 4; g++) u[g] = fp4f_unit(w, tile, fs_lane(), segment * 4 + g);
    }
    fs_copy_wait<0>();
    fs_barrier();
    float acc[Q];
    FS_UNROLL for (int c = 0; c < Q; c++) acc[c] = 0.0f;
    if (busy) {
      FS_UNROLL for (i32 i = 0; i < FS_SEGMENT_BLOCKS; i++) {
        u32x2 level[4];
        FS_UNROLL for (int j = 0; j < 4; j++) level[j] = fs_fp4_biased(tables, fs_word(u[i / 4].word[j], i % 4));
        const float s = fs_ue4m3((u[i / 4].scales >> (8 * (i % 4))) & 255), shift = fs_mul(s, -FS_MAGIC);
        const bool inside = segment * FS_SEGMENT_BLOCKS + i < blocks;
        FS_UNROLL for (int c = 0; c < Q; c++) {
          const fs_a8_meta mx = sh.input.meta[c][local * FS_SEGMENT_BLOCKS + i];
          const float t = fp4f_term(level, s, shift, &sh.input.q[c][(local * FS_SEGMENT_BLOCKS + i) * 32], mx.sums);
          const float next = fs_fma(mx.d, t, acc[c]);
          acc[c] = inside ? next : acc[c];
        }
      }
      FS_UNROLL for (int c = 0; c < Q; c++) sh.part[warp][c][fs_lane()] = acc[c];
    }
    fs_barrier();
    fp4f_totals<Q, 32, 256>(total, sh.part, y, pass, w.segments, log2, m, col0, cols, block);
  }
}

#define FP4F_GEMV_ARGS                                                                                     \
  (const u8* FS_RESTRICT packed, const i8* FS_RESTRICT q, const fs_a8_meta* FS_RESTRICT meta, float* FS_RESTRICT y, \
   i32 m, i32 blocks, i32 cols)
#define FP4F_GEMV(Q)                                           \
  FS_KERNEL(fp4f_gemv_##Q, 512, 2) FP4F_GEMV_ARGS {            \
    fs_begin();                                                \
    FS_SHARED(Fp4fGemvShared<Q>, sh);                          \
    fp4f_gemv<Q>(sh, packed, q, meta, y, m, blocks, cols, (i32)fs_bid_x()); \
  }                                                            \
  FS_EXPORT(fp4f_gemv_##Q, 512)                                \
  FS_KERNEL(fp4f_gemv_wide_##Q, 256, 2) FP4F_GEMV_ARGS {       \
    fs_begin();                                                \
    FS_SHARED(Fp4fWideShared<Q>, sh);                          \
    fp4f_gemv_wide<Q>(sh, packed, q, meta, y, m, blocks, cols, (i32)fs_bid_x()); \
  }                                                            \
  FS_EXPORT(fp4f_gemv_wide_##Q, 256)

FP4F_GEMV(1)
FP4F_GEMV(2)

#define FP4F_PAIR(name, Shared, THREADS)                                                                                   \
  FS_KERNEL(name##_pair, THREADS, 2)(const i8* FS_RESTRICT q, const fs_a8_meta* FS_RESTRICT meta, const u8* FS_RESTRICT w0, \
                                     float* FS_RESTRICT y0, const u8* FS_RESTRICT w1, float* FS_RESTRICT y1, i32 m0,       \
                                     i32 m1, i32 blocks, i32 first, i32 cols) {                                            \
    fs_begin();                                                                                                            \
    FS_SHARED(Shared, sh);                                                                                                 \
    const i32 block = (i32)fs_bid_x();                                                                                     \
    const bool second = block >= first; /* the same for all threads */                                                     \
    name<1>(sh, second ? w1 : w0, q, meta, second ? y1 : y0, second ? m1 : m0, blocks, cols,                    \
            second ? block - first : block);                                                                                \
  }                                                                                                                        \
  FS_EXPORT(name##_pair, THREADS)

FP4F_PAIR(fp4f_gemv, Fp4fGemvShared<1>, 512)
FP4F_PAIR(fp4f_gemv_wide, Fp4fWideShared<1>, 256)
