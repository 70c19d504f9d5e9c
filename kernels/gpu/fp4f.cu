// ROCmFP4_FAST matrices: repack to tile32 (fs_fp4.h), and the matrix-vector product on 4-way dots.
//
// fp4f_repack
//   formula  a permutation of the file's bytes, zero padded; scale bytes must be valid (<= 0x7e)
//   shapes   raw [m][blocks] 17 bytes at any address, packed = codes + scales (layout.rs: Tile32)
//   launch   ceil(tiles * 32 * (4 groups + segments) / 256) blocks of 256 threads, a thread 16 bytes
//   cost     reads and writes 17 bytes a block, once at load
//
// fp4f_gemv_{1,2,4,8}: up to that many activation rows, each row's bits independent of the others
//   formula  y[c][row] = sum over blocks b of d[c][b] * (s[row][b] * f32(I)), I the exact int8 dot
//            (contract rules 2, 3)
//   shapes   packed as above, q [cols][k] i8, meta [cols][blocks] of a8_quantise, y [cols][m] f32,
//            k = 32 blocks
//   launch   16 warps a block (8 from 2 columns on); a block holds a tile of 32 rows, or as many as
//            have 8 segments together (4 from 2 columns, 2 from 5 columns on)
//   cost     17 bytes a block of 32 weights, 64 cols integer ops and 2 cols flops; bound by memory
//            at one or two columns
//   order    (1) a warp the terms of 4 blocks of 32 rows, a lane a row, so that activations are one
//            address for all lanes; (2) a warp a segment of 32 rows: fma over its 16 blocks from +0;
//            (3) segments added in order
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

// What a block does at a time: units of 4 blocks by 32 rows, whose terms fill 16 to 32 KB.
template <int Q>
struct Fp4fGemvShape {
  static constexpr int THREADS = Q == 1 ? 512 : 256, WARPS = THREADS / 32, UNITS = Q == 1 ? 32 : Q < 8 ? 16 : 8;
  static constexpr int SEGMENTS = UNITS / 4, ROUNDS = UNITS / WARPS;
};

template <int Q>
struct Fp4fGemvShared {
  typedef Fp4fGemvShape<Q> S;
  float term[S::UNITS][4][Q][32];
  float part[S::SEGMENTS][Q][32];
};

// The codes and scale bytes of 4 blocks of one row.
struct Fp4fUnit {
  u32x4 word[4];
  u32 scales;
};

FS_DEVICE Fp4fUnit fp4f_unit(const fs_tile32& w, i32 tile, i32 group) {
  Fp4fUnit u;
  FS_UNROLL for (u32 j = 0; j < 4; j++) u.word[j] = fs_load_stream(fs_tile32_codes(w, tile, group, j) + fs_lane());
  u.scales = ((const u32*)(fs_tile32_scales(w, tile, group / 4) + fs_lane()))[group % 4];
  return u;
}

// s * f32(I) of one block and one activation block.
FS_DEVICE float fp4f_term(const u32x2 (&level)[4], float s, float shift, const u32x4* x, u32 sums) {
  const u32x4 x0 = x[0], x1 = x[1];
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

// The terms of a unit. FULL: all four blocks are inside, so that addresses are one base and
// constants; else blocks past the end repeat the last one, and nobody reads their terms.
template <int Q, bool FULL>
FS_DEVICE void fp4f_terms_of(float (&term)[4][Q][32], const Fp4fUnit& u, const fs_fp4_tables& tables, i32 first, i32 blocks, const i8* q,
                             const fs_a8_meta* meta, i32 cols) {
  FS_UNROLL for (i32 e = 0; e < 4; e++) {
    u32x2 level[4];
    FS_UNROLL for (int j = 0; j < 4; j++) level[j] = fs_fp4_biased(tables, fs_word(u.word[j], e));
    const float s = fs_ue4m3((u.scales >> (8 * e)) & 255), shift = fs_mul(s, -FS_MAGIC);
    FS_UNROLL for (int c = 0; c < Q; c++) {
      const u64 column = (u64)(c < cols ? c : cols - 1) * (u64)blocks + (u64)first;
      const u64 at = column + (u64)(u32)(FULL || first + e < blocks ? e : blocks - 1 - first);
      term[e][c][fs_lane()] = fp4f_term(level, s, shift, (const u32x4*)q + at * 2, meta[at].sums);
    }
  }
}

template <int Q>
FS_DEVICE void fp4f_gemv(Fp4fGemvShared<Q>& sh, const u8* packed, const i8* q, const fs_a8_meta* meta, float* y, i32 m, i32 blocks,
                         i32 cols) {
  typedef Fp4fGemvShape<Q> S;
  const fs_tile32 w = fs_tile32_of(packed, m, blocks);
  const fs_fp4_tables tables = fs_fp4_tables_of((u32)(cols >> 31));
  const i32 segments = w.segments < S::SEGMENTS ? w.segments : S::SEGMENTS;  // of a tile in a pass
  const i32 per_block = S::SEGMENTS / segments;                              // tiles; one if there are more passes
  const i32 warp = (i32)fs_warp(), thread = (i32)fs_tid(), tile0 = (i32)fs_bid_x() * per_block;
  float total = -0.0f;  // the sum of nothing: -0 + a is a, bit for bit
  for (i32 pass = 0; pass < w.segments; pass += S::SEGMENTS) {
    Fp4fUnit unit[S::ROUNDS];
    i32 tile[S::ROUNDS], group[S::ROUNDS];
    FS_UNROLL for (int n = 0; n < S::ROUNDS; n++) {
      const i32 pair = (warp + n * S::WARPS) / 4, slot = pair / segments;
      tile[n] = slot < per_block && tile0 + slot < w.tiles ? tile0 + slot : -1;
      group[n] = (pass + pair % segments) * 4 + (warp + n * S::WARPS) % 4;
      if (group[n] >= w.groups) tile[n] = -1;
      if (tile[n] >= 0) unit[n] = fp4f_unit(w, tile[n], group[n]);
    }
    FS_UNROLL for (int n = 0; n < S::ROUNDS; n++) {
      float(&term)[4][Q][32] = sh.term[warp + n * S::WARPS];
      if (tile[n] < 0) continue;
      if (group[n] * 4 + 4 <= blocks)
        fp4f_terms_of<Q, true>(term, unit[n], tables, group[n] * 4, blocks, q, meta, cols);
      else
        fp4f_terms_of<Q, false>(term, unit[n], tables, group[n] * 4, blocks, q, meta, cols);
    }
    fs_barrier();
    for (i32 p = warp; p < per_block * segments * Q; p += S::WARPS) {
      const i32 pair = p / Q, c = p % Q, first = (pass + pair % segments) * FS_SEGMENT_BLOCKS;
      const i32 count = blocks - first < FS_SEGMENT_BLOCKS ? blocks - first : FS_SEGMENT_BLOCKS;
      const fs_a8_meta* column = meta + (u64)(c < cols ? c : cols - 1) * (u64)blocks + (u64)first;
      float acc = 0.0f;
      FS_UNROLL for (i32 i = 0; i < FS_SEGMENT_BLOCKS; i++)
        if (i < count) acc = fs_fma(column[i].d, sh.term[pair * 4 + i / 4][i % 4][c][fs_lane()], acc);
      sh.part[pair][c][fs_lane()] = acc;
    }
    fs_barrier();
    const i32 here = w.segments - pass < segments ? w.segments - pass : segments;
    for (i32 o = thread; o < per_block * Q * 32; o += S::THREADS) {
      const i32 slot = o / (Q * 32), c = o / 32 % Q, row = (tile0 + slot) * 32 + o % 32;
      if (per_block > 1) total = -0.0f;
      for (i32 i = 0; i < here; i++) total = fs_add(total, sh.part[slot * segments + i][c][o % 32]);
      if (pass + here == w.segments && row < m && c < cols) y[(u64)c * (u64)m + (u64)row] = total;
    }
  }
}

#define FP4F_GEMV(Q, occupancy)                                                                                               \
  FS_KERNEL(fp4f_gemv_##Q, Fp4fGemvShape<Q>::THREADS, occupancy)(const u8* FS_RESTRICT packed, const i8* FS_RESTRICT q,       \
                                                                 const fs_a8_meta* FS_RESTRICT meta, float* FS_RESTRICT y,    \
                                                                 i32 m, i32 blocks, i32 cols) {                               \
    FS_SHARED(Fp4fGemvShared<Q>, sh);                                                                                         \
    fp4f_gemv<Q>(sh, packed, q, meta, y, m, blocks, cols);                                                                    \
  }                                                                                                                           \
  FS_EXPORT(fp4f_gemv_##Q, Fp4fGemvShape<Q>::THREADS)

FP4F_GEMV(1, 2)
FP4F_GEMV(2, 3)
FP4F_GEMV(4, 3)
FP4F_GEMV(8, 2)
