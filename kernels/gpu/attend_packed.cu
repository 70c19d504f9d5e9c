// Attention over packed rows of keys and values: the first of the two launches of contract rule 7 (the second is
// attend_merge of attend.cu). For few positions, as of decode and verify; the same bits as attend_many.cu.
//
// attend_chunk_packed: one chunk of 128 keys of one position, four heads
//   formula  s_j = dot(q, k_j) * scale; m = max s_j; w_j = exp(s_j - m); l = sum w_j;
//            acc[d] = sum w_j v_j[d]
//   shapes   q [positions][heads][dim] f32; raw and comp [any][row bytes] of packed rows (fs_rows.h), a key
//            with bit 31 naming a row of comp; keys [positions][stride] u32, of which count[position] are
//            valid; m, l [positions][chunks][heads] f32, acc [positions][chunks][heads][dim] f32,
//            chunks = ceil(stride / 128); dim - n_rot a multiple of 64, n_rot a positive multiple of 32, dim
//            up to 512, heads a multiple of 8
//   launch   grid (chunks, heads / 4, positions) of 256 threads; chunks beyond a position's keys write
//            nothing
//   cost     reads each row twice (scores, values) for four heads: 75 KiB a chunk at 584 bytes, the second
//            time out of the nearest cache. Two flops an element, head and phase; unpacking takes about as
//            many instructions as four heads' products, so that more heads a block would pay little
//   bound    one position of 640 keys and 64 heads has 5 chunks: at eight heads a block 40 blocks, which leave
//            most of a large device idle, each waiting for loads of one byte. Hence four heads (80 blocks),
//            loads of 8 bytes for the scores with the next block of 64 in flight, and eight keys of the
//            values in flight
//   order    dot by rule 4; l and acc by fma in key order from +0
#include "fourspark.h"
#include "fs_math.h"
#include "fs_packed.h"
#include "fs_rows.h"

static constexpr int PACKED_KEYS = 128, PACKED_HEADS = 4, PACKED_DIM = 512, PACKED_BLOCKS = PACKED_DIM / 64;
static constexpr int PACKED_SLOTS = 64, PACKED_AHEAD = 8;  // keys that the block scores at once; values in flight

// One 16-byte load.
struct alignas(16) PackedFour {
  float v[4];
};

struct PackedShared {
  PackedFour q[PACKED_HEADS][PACKED_DIM / 4];
  PackedFour weight[PACKED_KEYS];  // a key's heads together: scores, then weights
  float scale[PACKED_KEYS][PACKED_BLOCKS];
  const u8* row[PACKED_KEYS];
};

// Where things lie in a row, and whether its parts can be read by 8 bytes.
struct PackedRow {
  i32 nope, tail;
  bool whole;
};

// 8 bytes of a row, which starts at an even address.
FS_DEVICE u32x2 packed_load(const u8* at, bool whole) {
  if (whole) return *(const u32x2*)at;
  const u16* half = (const u16*)at;
  return u32x2{half[0] | (u32)half[1] << 16, half[2] | (u32)half[3] << 16};
}

// Sums of one key: residue 8 * (lane % 4) + e of rule 4's 32, four heads.
struct PackedSums {
  float p[PACKED_HEADS][8];
};

// p += q * v for the 8 elements at k.
FS_DEVICE void packed_products(const PackedShared& sh, i32 k, const float (&v)[2][8], PackedSums (&sums)[2]) {
  FS_UNROLL for (int h = 0; h < PACKED_HEADS; h++) {
    const PackedFour low = sh.q[h][k / 4], high = sh.q[h][k / 4 + 1];
    FS_UNROLL for (int t = 0; t < 2; t++)
      FS_UNROLL for (int e = 0; e < 4; e++) {
        sums[t].p[h][e] = fs_fma(low.v[e], v[t][e], sums[t].p[h][e]);
        sums[t].p[h][e + 4] = fs_fma(high.v[e], v[t][e + 4], sums[t].p[h][e + 4]);
      }
  }
}

// The sum of head lane % 4 by rule 4: residues 16 and 8 apart lie in the lanes 2 and 1 apart, the others in one lane.
// At both exchanges a lane keeps half of the heads and sends the other.
FS_DEVICE float packed_fold(const PackedSums& sums) {
  const bool upper = fs_lane() & 2, odd = fs_lane() & 1;
  float a[2][8], b[8];
  FS_UNROLL for (int h = 0; h < 2; h++)
    FS_UNROLL for (int e = 0; e < 8; e++) {
      const float keep = upper ? sums.p[h + 2][e] : sums.p[h][e], send = upper ? sums.p[h][e] : sums.p[h + 2][e];
      a[h][e] = fs_add(keep, fs_shfl_xor(send, 2));
    }
  FS_UNROLL for (int e = 0; e < 8; e++) b[e] = fs_add(odd ? a[1][e] : a[0][e], fs_shfl_xor(odd ? a[0][e] : a[1][e], 1));
  FS_UNROLL for (int e = 0; e < 4; e++) b[e] = fs_add(b[e], b[e + 4]);
  return fs_add(fs_add(b[0], b[2]), fs_add(b[1], b[3]));
}

// Codes of block b: this lane's 8 of each half, two keys.
FS_DEVICE void packed_codes(const u8* const (&row)[2], i32 b, bool whole, u32x2 (&codes)[2][2]) {
  const i32 first = 64 * b + 8 * (i32)(fs_lane() % 4);
  FS_UNROLL for (int t = 0; t < 2; t++)
    FS_UNROLL for (int half = 0; half < 2; half++) codes[t][half] = packed_load(row[t] + first + 32 * half, whole);
}

// Adds the fp8 part of two keys. Returns in nan[t] bits 7 of bytes where a code was NaN.
FS_DEVICE void packed_scores_fp8(const PackedShared& sh, const PackedRow& at, const i32 (&key)[2], PackedSums (&sums)[2], u32 (&nan)[2]) {
  const u8* const row[2] = {sh.row[key[0]], sh.row[key[1]]};
  const i32 blocks = at.nope / 64;
  u32x2 next[2][2];
  packed_codes(row, 0, at.whole, next);
  FS_ROLLED for (i32 b = 0; b < blocks; b++) {
    u32x2 codes[2][2];
    FS_UNROLL for (int t = 0; t < 2; t++)
      FS_UNROLL for (int half = 0; half < 2; half++) codes[t][half] = next[t][half];
    packed_codes(row, b + 1 < blocks ? b + 1 : b, at.whole, next);
    FS_UNROLL for (int half = 0; half < 2; half++) {
      float v[2][8];
      FS_UNROLL for (int t = 0; t < 2; t++) {
        const float scale = sh.scale[key[t]][b];
        const u32x2 c = codes[t][half];
        nan[t] |= packed_nan(c.x) | packed_nan(c.y);
        FS_UNROLL for (int e = 0; e < 4; e++) {
          v[t][e] = packed_value(c.x << (24 - 8 * e), scale);
          v[t][e + 4] = packed_value(c.y << (24 - 8 * e), scale);
        }
      }
      packed_products(sh, 64 * b + 32 * half + 8 * (i32)(fs_lane() % 4), v, sums);
    }
  }
}

// Adds the bf16 part of two keys.
FS_DEVICE void packed_scores_tail(const PackedShared& sh, const PackedRow& at, i32 dim, const i32 (&key)[2], PackedSums (&sums)[2]) {
  FS_ROLLED for (i32 k = at.nope + 8 * (i32)(fs_lane() % 4); k < dim; k += 32) {
    float v[2][8];
    FS_UNROLL for (int t = 0; t < 2; t++)
      FS_UNROLL for (int part = 0; part < 2; part++) {
        const u32x2 pairs = packed_load(sh.row[key[t]] + at.tail + 2 * (k - at.nope) + 8 * part, at.whole);
        v[t][4 * part] = fs_f32(pairs.x << 16);
        v[t][4 * part + 1] = fs_f32(pairs.x & 0xffff0000u);
        v[t][4 * part + 2] = fs_f32(pairs.y << 16);
        v[t][4 * part + 3] = fs_f32(pairs.y & 0xffff0000u);
      }
    packed_products(sh, k, v, sums);
  }
}

// Scores of all keys: four lanes a key, 64 apart two keys a lane. Keys past the last repeat it.
FS_DEVICE void packed_scores(PackedShared& sh, const PackedRow& at, i32 count, i32 dim, float scale) {
  const i32 slot = (i32)fs_tid() / 4;
  i32 key[2];
  u32 nan[2] = {0, 0};
  PackedSums sums[2];
  FS_UNROLL for (int t = 0; t < 2; t++) {
    key[t] = slot + PACKED_SLOTS * t < count ? slot + PACKED_SLOTS * t : count - 1;
    FS_UNROLL for (int h = 0; h < PACKED_HEADS; h++)
      FS_UNROLL for (int e = 0; e < 8; e++) sums[t].p[h][e] = 0.0f;
  }
  packed_scores_fp8(sh, at, key, sums, nan);
  packed_scores_tail(sh, at, dim, key, sums);
  FS_UNROLL for (int t = 0; t < 2; t++) {
    u32 any = nan[t] & 0x80808080u;
    any |= fs_shfl_xor(any, 2);
    any |= fs_shfl_xor(any, 1);
    const float sum = packed_fold(sums[t]);
    if (slot + PACKED_SLOTS * t < count) sh.weight[key[t]].v[fs_lane() % 4] = any ? fs_f32(FS_NAN) : fs_mul(sum, scale);
  }
}

// A warp a head: the largest score, then weights. A maximum has no order.
FS_DEVICE void packed_weights(PackedShared& sh, i32 count, float* m) {
  const i32 head = (i32)fs_warp(), lane = (i32)fs_lane();
  if (head >= PACKED_HEADS) return;  // whole warps
  float s[PACKED_KEYS / 32], peak = fs_f32(0xff800000u);
  FS_UNROLL for (int i = 0; i < PACKED_KEYS / 32; i++) {
    s[i] = lane + 32 * i < count ? sh.weight[lane + 32 * i].v[head] : fs_f32(0xff800000u);
    peak = fs_max(peak, s[i]);
  }
  FS_UNROLL for (u32 mask = 16; mask > 0; mask >>= 1) peak = fs_max(peak, fs_shfl_xor(peak, mask));
  FS_UNROLL for (int i = 0; i < PACKED_KEYS / 32; i++)
    if (lane + 32 * i < count) sh.weight[lane + 32 * i].v[head] = fs_exp(fs_sub(s[i], peak));
  if (lane == 0) m[head] = peak;
}

struct PackedValues {
  float sum[2][PACKED_HEADS], total[PACKED_HEADS];
};

// Two values of a row: codes, or bf16 (TAIL).
template <bool TAIL>
FS_DEVICE u32 packed_pair(const u8* at) {
  const u16* half = (const u16*)at;
  return TAIL ? half[0] | (u32)half[1] << 16 : half[0];
}

// Adds key j. A NaN code needs no care here: its key's weights are NaN.
template <bool TAIL>
FS_DEVICE void packed_add(const PackedShared& sh, i32 j, i32 b, u32 pair, PackedValues& out) {
  const PackedFour w = sh.weight[j];
  float v[2];
  if (TAIL) {
    v[0] = fs_f32(pair << 16);
    v[1] = fs_f32(pair & 0xffff0000u);
  } else {
    const float scale = sh.scale[j][b];
    v[0] = packed_value(pair << 24, scale);
    v[1] = packed_value(pair << 16, scale);
  }
  FS_UNROLL for (int h = 0; h < PACKED_HEADS; h++) {
    FS_UNROLL for (int c = 0; c < 2; c++) out.sum[c][h] = fs_fma(w.v[h], v[c], out.sum[c][h]);
    if (TAIL) out.total[h] = fs_fma(w.v[h], 1.0f, out.total[h]);
  }
}

// Sums of two channels of block b over the keys, `at` bytes into a row; with TAIL, whose values are cheaper, the weights' too.
template <bool TAIL>
FS_DEVICE void packed_values(const PackedShared& sh, i32 count, i32 b, i32 at, PackedValues& out) {
  i32 j = 0;
  FS_ROLLED for (; j + PACKED_AHEAD <= count; j += PACKED_AHEAD) {
    u32 pair[PACKED_AHEAD];
    FS_UNROLL for (int i = 0; i < PACKED_AHEAD; i++) pair[i] = packed_pair<TAIL>(sh.row[j + i] + at);
    FS_UNROLL for (int i = 0; i < PACKED_AHEAD; i++) packed_add<TAIL>(sh, j + i, b, pair[i], out);
  }
  FS_ROLLED for (; j < count; j++) packed_add<TAIL>(sh, j, b, packed_pair<TAIL>(sh.row[j] + at), out);
}

// Queries, row addresses and scales of this block into shared memory; ends with a barrier.
FS_DEVICE void packed_stage(PackedShared& sh, const PackedFour* query, const u8* raw, const u8* comp, const u32* keys, i32 count, i32 dim,
                            i32 n_rot) {
  const i32 thread = (i32)fs_tid(), nope = dim - n_rot;
  const u64 bytes = (u64)fs_kv_bytes(dim, n_rot);
  for (i32 i = thread % 64; i < dim / 4; i += 64) sh.q[thread / 64][i] = query[thread / 64 * (dim / 4) + i];
  FS_UNROLL for (i32 t = 0; t < PACKED_KEYS * PACKED_BLOCKS / 256; t++) {
    const i32 i = t * 256 + thread, j = i / PACKED_BLOCKS, b = i % PACKED_BLOCKS;
    if (j < count) {
      const u32 key = keys[j];
      const u8* row = (key >> 31 ? comp : raw) + (u64)(key & 0x7fffffffu) * bytes;
      if (b == 0) sh.row[j] = row;
      if (b < nope / 64) sh.scale[j][b] = packed_scale(row[nope + b]);
    }
  }
  fs_barrier();
}

FS_KERNEL(attend_chunk_packed, 256, 2)(const float* FS_RESTRICT q, const u8* FS_RESTRICT raw, const u8* FS_RESTRICT comp,
                                       const u32* FS_RESTRICT keys, const u32* FS_RESTRICT counts, float* FS_RESTRICT m,
                                       float* FS_RESTRICT l, float* FS_RESTRICT acc, i32 heads, i32 dim, i32 n_rot, i32 stride, float scale) {
  fs_begin();
  FS_SHARED(PackedShared, sh);
  const u64 pos = fs_bid_z(), chunk = fs_bid_x(), head = fs_bid_y() * (u64)PACKED_HEADS;
  const i32 left = (i32)counts[pos] - (i32)chunk * PACKED_KEYS, count = left < PACKED_KEYS ? left : PACKED_KEYS;
  if (count <= 0) return;  // the same for all threads
  packed_stage(sh, (const PackedFour*)(q + (pos * (u64)heads + head) * (u64)dim), raw, comp, keys + pos * (u64)stride + chunk * PACKED_KEYS,
               count, dim, n_rot);
  const u64 odd = (u64)raw | (u64)comp | (u64)fs_kv_bytes(dim, n_rot) | (u64)fs_kv_tail(dim, n_rot);
  const PackedRow at = {dim - n_rot, fs_kv_tail(dim, n_rot), odd % 8 == 0};
  packed_scores(sh, at, count, dim, scale);
  fs_barrier();
  const u64 out = (pos * (u64)((stride + PACKED_KEYS - 1) / PACKED_KEYS) + chunk) * (u64)heads + head;
  packed_weights(sh, count, m + out);
  fs_barrier();
  const i32 d = 2 * (i32)fs_tid();
  if (d >= dim) return;  // no warp operation and no barrier follows
  PackedValues values;
  FS_UNROLL for (int h = 0; h < PACKED_HEADS; h++) values.sum[0][h] = values.sum[1][h] = values.total[h] = 0.0f;
  if (d < at.nope) {  // the same for a warp: 64 channels
    packed_values<false>(sh, count, d / 64, d, values);
  } else {
    packed_values<true>(sh, count, 0, at.tail + 2 * (d - at.nope), values);
  }
  FS_UNROLL for (int h = 0; h < PACKED_HEADS; h++) {
    *(f32x2*)(acc + (out + (u64)h) * (u64)dim + (u64)d) = f32x2{values.sum[0][h], values.sum[1][h]};
    if (d == at.nope) l[out + (u64)h] = values.total[h];
  }
}
FS_EXPORT(attend_chunk_packed, 256)
