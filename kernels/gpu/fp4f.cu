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
//   shapes   packed as above, q [cols][k] i8, d [cols][blocks] f32, y [cols][m] f32, k = 32 blocks
//   launch   8 warps a block, a warp one segment of a tile of 32 rows, a lane one row; a block holds
//            one tile (8 or more segments) or floor(8 / segments) of them
//   cost     17 bytes a block of 32 weights, 64 cols integer ops and 2 cols flops; bound by memory
//            at one or two columns
//   order    fma over the 16 blocks of a segment from +0; segments meet in shared memory and are
//            added in order, eight a pass
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

template <int Q>
struct Fp4fGemvShared {
  float part[8][Q][32];
};

// One segment of 32 rows, a lane a row, against Q activation rows.
template <int Q>
FS_DEVICE void fp4f_segment(const fs_tile32& w, i32 tile, i32 segment, i32 blocks, const i8* q, const float* d, i32 cols,
                            float (&acc)[Q]) {
  const u32 lane = fs_lane();
  const i32 first = segment * FS_SEGMENT_BLOCKS, count = blocks - first < FS_SEGMENT_BLOCKS ? blocks - first : FS_SEGMENT_BLOCKS;
  u32x4 codes[4][4];  // all loads in flight before the first use
  FS_UNROLL for (i32 g = 0; g < 4; g++) {
    FS_UNROLL for (u32 word = 0; word < 4; word++) {
      codes[g][word] = u32x4{0, 0, 0, 0};
      if (g * 4 < count) codes[g][word] = fs_load_stream(fs_tile32_codes(w, tile, segment * 4 + g, word) + lane);
    }
  }
  const u32x4 scales = fs_load_stream(fs_tile32_scales(w, tile, segment) + lane);
  FS_UNROLL for (int c = 0; c < Q; c++) acc[c] = 0.0f;
  FS_UNROLL for (i32 i = 0; i < FS_SEGMENT_BLOCKS; i++) {
    if (i < count) {
      u32x2 level[4];
      FS_UNROLL for (int word = 0; word < 4; word++) level[word] = fs_fp4_levels(fs_word(codes[i / 4][word], i % 4));
      const float s = fs_ue4m3((fs_word(scales, i / 4) >> (8 * (i % 4))) & 255);
      const float shift = fs_mul(s, -FS_MAGIC);
      FS_UNROLL for (int c = 0; c < Q; c++) {
        if (c < cols) {
          const u64 block = (u64)c * (u64)blocks + (u64)(first + i);
          const u32x4* x = (const u32x4*)(q + block * 32);
          const u32x4 x0 = x[0], x1 = x[1];
          i32 even = FS_MAGIC_BITS, odd = 0;
          even = fs_dp4a(level[0].x, x0.x, even);
          odd = fs_dp4a(level[0].y, x0.y, odd);
          even = fs_dp4a(level[1].x, x0.z, even);
          odd = fs_dp4a(level[1].y, x0.w, odd);
          even = fs_dp4a(level[2].x, x1.x, even);
          odd = fs_dp4a(level[2].y, x1.y, odd);
          even = fs_dp4a(level[3].x, x1.z, even);
          odd = fs_dp4a(level[3].y, x1.w, odd);
          const float t = fs_fma(s, fs_f32((u32)(even + odd)), shift);
          acc[c] = fs_fma(d[block], t, acc[c]);
        }
      }
    }
  }
}

template <int Q>
FS_DEVICE void fp4f_gemv(Fp4fGemvShared<Q>& sh, const u8* packed, const i8* q, const float* d, float* y, i32 m, i32 blocks, i32 cols) {
  const fs_tile32 w = fs_tile32_of(packed, m, blocks);
  const i32 lanes_of = w.segments < 8 ? w.segments : 8;  // warps of a tile
  const i32 per_block = 8 / lanes_of;                    // tiles of a block
  const i32 warp = (i32)fs_warp(), thread = (i32)fs_tid();
  const i32 slot = warp / lanes_of, tile = (i32)fs_bid_x() * per_block + slot;
  float total = 0.0f;
  for (i32 pass = 0; pass < w.segments; pass += 8) {
    const i32 segment = pass + warp % lanes_of;
    if (slot < per_block && tile < w.tiles && segment < w.segments) {
      float acc[Q];
      fp4f_segment<Q>(w, tile, segment, blocks, q, d, cols, acc);
      FS_UNROLL for (int c = 0; c < Q; c++) sh.part[warp][c][fs_lane()] = acc[c];
    }
    fs_barrier();
    const i32 here = w.segments - pass < 8 ? w.segments - pass : 8;
    // More than one pass means one tile a block, so `total` belongs to one output.
    for (i32 o = thread; o < per_block * Q * 32; o += 256) {
      const i32 c = o / 32 % Q, from = o / (32 * Q);
      for (i32 i = 0; i < here; i++) {
        const float p = sh.part[from * lanes_of + i][c][o % 32];
        total = pass + i == 0 ? p : fs_add(total, p);
      }
      const i32 row = ((i32)fs_bid_x() * per_block + from) * 32 + o % 32;
      if (pass + here == w.segments && row < m && c < cols) y[(u64)c * (u64)m + (u64)row] = total;
    }
    fs_barrier();
  }
}

#define FP4F_GEMV(Q, occupancy)                                                                                        \
  FS_KERNEL(fp4f_gemv_##Q, 256, occupancy)(const u8* FS_RESTRICT packed, const i8* FS_RESTRICT q,                      \
                                           const float* FS_RESTRICT d, float* FS_RESTRICT y, i32 m, i32 blocks, i32 cols) { \
    FS_SHARED(Fp4fGemvShared<Q>, sh);                                                                                  \
    fp4f_gemv<Q>(sh, packed, q, d, y, m, blocks, cols);                                                                \
  }                                                                                                                    \
  FS_EXPORT(fp4f_gemv_##Q, 256)

FP4F_GEMV(1, 2)
FP4F_GEMV(2, 2)
FP4F_GEMV(4, 2)
FP4F_GEMV(8, 2)
