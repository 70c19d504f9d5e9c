// Attention of many positions over packed rows of keys and values (prefill): contract rule 7 in two launches, the
// bits of attend_chunk_packed and attend_merge. A block takes all heads of a position, so that a row is unpacked
// once for 64 heads and not for four; heads of 512 elements, 64 of them rotated (rows of 584 bytes: fs_rows.h).
//
// attend_many_weights: the weights of a position's keys
//   formula  s_j = dot(q, k_j) * scale; m = max s_j of a chunk of 128; w_j = exp(s_j - m); l = sum w_j
//   shapes   q [positions][heads][512] f32; raw and comp [any][584] of packed rows, a key with bit 31 naming a row
//            of comp; keys [positions][stride] u32, of which count[position] are valid; m, l [positions][chunks][heads]
//            f32, weights [positions][chunks][128][heads] f32, chunks = ceil(stride / 128); heads a multiple of 8.
//            Entries of keys past the last are not written
//   launch   grid (positions, ceil(heads / 64)) of 256 threads, 64 KiB of dynamic shared memory; a warp eight heads,
//            whose query elements stay in its registers for all keys (fs_dots.h)
//   cost     584 bytes a key; 2 flops a key, head and element, about 30 instructions a key and eight heads for the
//            sums over lanes, and a fifth of that for unpacking: bound by fmas
//   order    dot by rule 4; l by fma in key order from +0
// attend_many_values: the values under these weights, chunks put together
//   formula  acc_c[d] = sum w_j v_j[d] of a chunk; M = max of m and the sink; f_c = exp(m_c - M); L = sum f_c l_c, then
//            + exp(sink - M); out[d] = (sum f_c acc_c[d]) / L, its last 64 turned back by the position's angles
//   shapes   as above; sinks [heads] f32, angles [positions][32] of (cos, sin) or null: not turned;
//            out [positions][heads][512] f32 or null; q [positions][heads][512] i8 and meta of a8_quantise, or null
//   launch   grid (positions * 2, ceil(heads / 64)) of 256 threads: 256 elements of 64 heads, a warp eight heads, a
//            thread eight elements of each
//   cost     half of a row's bytes and 256 bytes of weights a key; 2 flops a key, head and element: bound by fmas
//   order    acc by fma in key order, the sums over chunks by fma in chunk order, all from +0
#include "fourspark.h"
#include "fs_a8.h"
#include "fs_dots.h"
#include "fs_math.h"
#include "fs_packed.h"

static constexpr int MANY_KEYS = 128, MANY_HEADS = 64, MANY_EACH = FS_DOT_VECTORS, MANY_DIM = FS_SEGMENT;
static constexpr int MANY_ROT = 64, MANY_NOPE = MANY_DIM - MANY_ROT, MANY_TAIL = MANY_NOPE + 8, MANY_BYTES = MANY_TAIL + 2 * MANY_ROT;
static constexpr int MANY_ROWS = 8;                            // keys whose scores are made at once, a warp unpacks each
static constexpr int MANY_AHEAD = 16, MANY_PART = MANY_DIM / 2;  // keys whose values are staged at once, elements of a block

// The key list of a position, and the stores that it names rows of.
struct ManyKeys {
  const u8 *raw, *comp;
  const u32* list;
  i32 count;

  // Key j; past the last the last again. It is asked for a stage before its row, so that nobody waits for both.
  FS_DEVICE_MEMBER u32 key(i32 j) const { return list[j < count ? j : count - 1]; }
  FS_DEVICE_MEMBER const u8* row(u32 key) const { return (key >> 31 ? comp : raw) + (u64)(key & 0x7fffffffu) * MANY_BYTES; }
};

FS_DEVICE i32 many_least(i32 a, i32 b) { return a < b ? a : b; }

// Element b of four: codes of a word, or bf16 of two.
FS_DEVICE float many_code(const u32x2& words, int b, float scale) { return packed_value(words.x << (24 - 8 * b), scale); }
FS_DEVICE float many_bf16(const u32x2& words, int b) {
  const u32 pair = b < 2 ? words.x : words.y;
  return fs_f32(b % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
}

// ---- weights

struct ManyWeights {
  FsDotRow stage[2][MANY_ROWS];
  float score[MANY_HEADS][MANY_KEYS];  // a warp's own heads; many_place
};
static_assert(sizeof(ManyWeights) == 64 << 10, "the launch gives as much");

// Where a head has key j: lanes meet all banks by keys of a head and by heads of a key.
FS_DEVICE i32 many_place(i32 head, i32 j) { return j ^ head % MANY_EACH * 4; }

// A lane's part of a row: elements 32 (4 (lane / 8) + c) + 4 (lane % 8) + b of quarter c, and their blocks' exponents.
struct ManyRaw {
  u32x2 words[4];
  u32 scales;
};

// Whether quarter c of this lane is bf16: the last 64 elements are.
FS_DEVICE bool many_tail(int c) { return c >= 2 && fs_lane() >= 24; }

FS_DEVICE void many_fetch(ManyRaw& to, const u8* row) {
  const i32 first = (i32)(fs_lane() / 8) * 128 + (i32)(fs_lane() % 8) * 4;
  FS_UNROLL for (int c = 0; c < 4; c++) {
    const bool tail = many_tail(c);
    const i32 k = first + 32 * c;
    const u32* at = (const u32*)(row + (tail ? MANY_TAIL + 2 * (k - MANY_NOPE) : k));
    to.words[c] = u32x2{at[0], tail ? at[1] : 0u};
  }
  to.scales = *(const u16*)(row + MANY_NOPE + fs_lane() / 8 * 2);
}

FS_DEVICE void many_unpack(FsDotRow& to, const ManyRaw& raw) {
  const float scale[2] = {packed_scale(raw.scales & 255), packed_scale(raw.scales >> 8)};
  const u32 residue = fs_lane() % 8 * 4, deep = fs_lane() / 8 * 8;
  u32 nan = 0;
  FS_UNROLL for (int c = 0; c < 4; c++) nan |= many_tail(c) ? 0u : packed_nan(raw.words[c].x);
  FS_UNROLL for (int b = 0; b < 4; b++) {
    fs_four v;
    FS_UNROLL for (int c = 0; c < 4; c++) {
      const float code = many_code(raw.words[c], b, scale[c / 2]);
      v.v[c] = many_tail(c) ? many_bf16(raw.words[c], b) : code;
    }
    to.quad[fs_dot_place(residue + (u32)b) + deep] = v;
  }
  if ((nan & 0x80808080u) == 0) return;  // no warp operation follows
  FS_ROLLED for (int b = 0; b < 4; b++)
    FS_UNROLL for (int c = 0; c < 4; c++)
      if (!many_tail(c) && (raw.words[c].x >> (8 * b) & 0x7f) == 0x7f) to.quad[fs_dot_place(residue + (u32)b) + deep].v[c] = fs_f32(FS_NAN);
}

// The scores of keys t and on of the chunk, four.
FS_DEVICE void many_put(ManyWeights& sh, i32 t, float dot, float scale) {
  const i32 lane = (i32)fs_lane(), head = (i32)fs_warp() * MANY_EACH + lane / 4;
  sh.score[head][many_place(head, t + lane % 4)] = fs_mul(dot, scale);
}

// The largest score of each of this warp's heads. A maximum has no order.
FS_DEVICE void many_peaks(const ManyWeights& sh, float (&peak)[MANY_EACH], i32 count) {
  const i32 first = (i32)fs_warp() * MANY_EACH;
  FS_UNROLL for (int h = 0; h < MANY_EACH; h++) {
    float p = fs_f32(0xff800000u);
    FS_UNROLL for (i32 i = 0; i < MANY_KEYS; i += 32) {
      const i32 j = i + (i32)fs_lane();
      p = j < count ? fs_max(p, sh.score[first + h][many_place(h, j)]) : p;
    }
    FS_UNROLL for (u32 mask = 16; mask > 0; mask >>= 1) p = fs_max(p, fs_shfl_xor(p, mask));
    peak[h] = p;
  }
}

// Scores become weights, here and in `out` [key][heads].
FS_DEVICE void many_weigh(ManyWeights& sh, const float (&peak)[MANY_EACH], i32 count, float* out, i32 heads) {
  const i32 first = (i32)fs_warp() * MANY_EACH;
  FS_ROLLED for (i32 j = (i32)fs_lane(); j < count; j += 32) {
    fs_four w[2];
    FS_UNROLL for (int h = 0; h < MANY_EACH; h++) {
      float* at = &sh.score[first + h][many_place(h, j)];
      w[h / 4].v[h % 4] = *at = fs_exp(fs_sub(*at, peak[h]));
    }
    FS_UNROLL for (int i = 0; i < 2; i++) *(fs_four*)(out + (u64)j * (u64)heads + (u64)(4 * i)) = w[i];
  }
}

// What a chunk leaves, of this warp's heads (`mine`: there are such): m, l, weights from their first head on.
FS_DEVICE void many_chunk(ManyWeights& sh, i32 count, float* m, float* l, float* weights, i32 heads, bool mine) {
  const i32 lane = (i32)fs_lane(), head = (i32)fs_warp() * MANY_EACH + lane;
  float peak[MANY_EACH], peaks = 0.0f;
  fs_barrier();
  many_peaks(sh, peak, count);
  if (mine) many_weigh(sh, peak, count, weights, heads);
  fs_barrier();
  FS_UNROLL for (int h = 0; h < MANY_EACH; h++) peaks = lane == h ? peak[h] : peaks;
  if (lane >= MANY_EACH || !mine) return;
  float sum = 0.0f;
  FS_ROLLED for (i32 j = 0; j < count; j += 8) {
    float w[8];  // read together; past the last what was there, and nobody adds it
    FS_UNROLL for (int i = 0; i < 8; i++) w[i] = sh.score[head][many_place(lane, j + i)];
    FS_UNROLL for (int i = 0; i < 8; i++) sum = j + i < count ? fs_fma(w[i], 1.0f, sum) : sum;
  }
  m[lane] = peaks;
  l[lane] = sum;
}

FS_KERNEL(attend_many_weights, 256, 1)(const float* FS_RESTRICT q, const u8* FS_RESTRICT raw, const u8* FS_RESTRICT comp,
                                       const u32* FS_RESTRICT keys, const u32* FS_RESTRICT counts, float* FS_RESTRICT m,
                                       float* FS_RESTRICT l, float* FS_RESTRICT weights, i32 heads, i32 stride, float scale) {
  fs_begin();
  FS_SHARED_DYN(ManyWeights, sh);
  const u64 pos = fs_bid_x();
  const i32 head = (i32)fs_bid_y() * MANY_HEADS + (i32)fs_warp() * MANY_EACH, warp = (i32)fs_warp();
  const bool mine = head < heads;
  const ManyKeys list = {raw, comp, keys + pos * (u64)stride, (i32)counts[pos]};
  FsDotVectors x;
  q += (pos * (u64)heads + (u64)(mine ? head : 0)) * MANY_DIM + fs_lane();
  FS_UNROLL for (int h = 0; h < MANY_EACH; h++) {
    FS_UNROLL for (int i = 0; i < FS_DOT_DEPTH; i++) x.v[h][i] = q[h * MANY_DIM + i * 32];
    fs_schedule_fence();
  }
  u64 at = pos * (u64)((stride + MANY_KEYS - 1) / MANY_KEYS);  // of the chunk
  ManyRaw next;
  u32 key = list.key(2 * MANY_ROWS + warp);
  many_fetch(next, list.row(list.key(warp)));
  many_unpack(sh.stage[0][warp], next);
  many_fetch(next, list.row(list.key(MANY_ROWS + warp)));
  FsDotBehind behind;
  behind.clear();
  FS_ROLLED for (i32 t = 0; t < list.count; t += MANY_ROWS) {
    const i32 turn = t / MANY_ROWS & 1, in_chunk = t % MANY_KEYS, ahead = t + 3 * MANY_ROWS + warp;
    const FsDotRow* stage = sh.stage[turn];
    fs_barrier();  // the stage is filled, and the other one free again
    const float before = fs_dot_four(behind, x, stage);
    if (in_chunk > 0) many_put(sh, in_chunk - 4, before, scale);
    many_unpack(sh.stage[turn ^ 1][warp], next);
    many_fetch(next, list.row(key));
    key = list.key(ahead);
    many_put(sh, in_chunk, fs_dot_four(behind, x, stage + 4), scale);
    if (in_chunk + MANY_ROWS < MANY_KEYS && t + MANY_ROWS < list.count) continue;  // the same for all threads
    many_put(sh, in_chunk + 4, fs_dot_end(behind), scale);
    const u64 to = at * (u64)heads + (u64)head;
    const i32 count = many_least(list.count - (t - in_chunk), MANY_KEYS);
    many_chunk(sh, count, m + to, l + to, weights + at * MANY_KEYS * (u64)heads + (u64)head, heads, mine);
    at++;
  }
}
FS_EXPORT(attend_many_weights, 256)

// ---- values

struct ManyValues {
  fs_four value[2][MANY_AHEAD][MANY_PART / 4];
  fs_four weight[2][MANY_AHEAD][MANY_HEADS / 4];
};

// A thread's part of a row: elements 64 b + 4 (thread % 16) and on of each block b of the half.
struct ManyPart {
  u32x2 words[4], scales;
};

FS_DEVICE void many_part(ManyPart& to, const u8* row, i32 half) {
  const i32 first = half * MANY_PART + (i32)(fs_tid() % 16) * 4;
  FS_UNROLL for (int b = 0; b < 4; b++) {
    if (b == 3 && half == 1)  // the same for all threads
      to.words[b] = *(const u32x2*)(row + MANY_TAIL + 2 * (first + 64 * b - MANY_NOPE));
    else
      to.words[b] = u32x2{*(const u32*)(row + first + 64 * b), 0};
  }
  to.scales = *(const u32x2*)(row + MANY_NOPE);
}

// A NaN code needs no care here: its key's weights are NaN.
FS_DEVICE void many_spread(fs_four (&to)[MANY_PART / 4], const ManyPart& part, i32 half) {
  const u32 scales = half == 0 ? part.scales.x : part.scales.y;
  FS_UNROLL for (int b = 0; b < 4; b++) {
    const float scale = packed_scale(scales >> (8 * b) & 255);
    const bool tail = b == 3 && half == 1;
    fs_four v;
    FS_UNROLL for (int i = 0; i < 4; i++) v.v[i] = tail ? many_bf16(part.words[b], i) : many_code(part.words[b], i, scale);
    to[16 * b + (i32)fs_tid() % 16] = v;
  }
}

// Sums of eight heads by eight elements: 4 lane and on of both quarters.
struct ManySums {
  float v[MANY_EACH][8];
};

FS_DEVICE void many_zero(ManySums& sums) {
  FS_UNROLL for (int h = 0; h < MANY_EACH; h++)
    FS_UNROLL for (int i = 0; i < 8; i++) sums.v[h][i] = 0.0f;
}

// Adds one staged key.
FS_DEVICE void many_add(ManySums& sums, const fs_four (&value)[MANY_PART / 4], const fs_four (&weight)[MANY_HEADS / 4]) {
  const u32 lane = fs_lane(), warp = fs_warp();
  const fs_four v[2] = {value[lane], value[32 + lane]}, w[2] = {weight[2 * warp], weight[2 * warp + 1]};
  FS_UNROLL for (int h = 0; h < MANY_EACH; h++)
    FS_UNROLL for (int i = 0; i < 8; i++) sums.v[h][i] = fs_fma(w[h / 4].v[h % 4], v[i / 4].v[i % 4], sums.v[h][i]);
}

// What lane h % 8 knows of this warp's head h: the largest score of all chunks or the sink, and the sum of weights.
struct ManyTotal {
  float peak, sum;
};

// Puts a chunk behind those before it.
FS_DEVICE void many_merge(ManySums& out, ManyTotal& total, const ManySums& acc, float m, float l) {
  const float f = fs_exp(fs_sub(m, total.peak));
  total.sum = fs_fma(f, l, total.sum);
  FS_UNROLL for (int h = 0; h < MANY_EACH; h++) {
    const float factor = fs_shfl(f, (u32)h);
    FS_UNROLL for (int i = 0; i < 8; i++) out.v[h][i] = fs_fma(factor, acc.v[h][i], out.v[h][i]);
  }
}

// Where results go; null: not asked for.
struct ManyOut {
  float* floats;
  i8* q;
  fs_a8_meta* meta;
};

// Four elements of a head's part, turned back if there are angles for them, and stored at `at`.
FS_DEVICE void many_store(const ManyOut& to, float (&v)[4], const f32x2* angles, u64 at) {
  if (angles) {
    FS_UNROLL for (int i = 0; i < 4; i += 2) {
      const f32x2 angle = angles[i / 2];
      const float even = v[i], odd = v[i + 1], s = -angle.y;
      v[i] = fs_fma(even, angle.x, -fs_mul(odd, s));
      v[i + 1] = fs_fma(even, s, fs_mul(odd, angle.x));
    }
  }
  if (to.q) fs_a8_store_four(v, at, to.q, to.meta);
  if (to.floats) *(fs_four*)(to.floats + at) = fs_four{{v[0], v[1], v[2], v[3]}};
}

FS_KERNEL(attend_many_values, 256, 1)(const u8* FS_RESTRICT raw, const u8* FS_RESTRICT comp, const u32* FS_RESTRICT keys,
                                      const u32* FS_RESTRICT counts, const float* FS_RESTRICT m, const float* FS_RESTRICT l,
                                      const float* FS_RESTRICT weights, const float* FS_RESTRICT sinks,
                                      const f32x2* FS_RESTRICT angles, float* out, i8* q, fs_a8_meta* meta, i32 heads, i32 stride) {
  fs_begin();
  FS_SHARED(ManyValues, sh);
  const u64 pos = fs_bid_x() / 2, first_head = fs_bid_y() * (u64)MANY_HEADS;
  const i32 half = (i32)(fs_bid_x() % 2), lane = (i32)fs_lane(), slot = (i32)fs_tid() / 16, piece = (i32)fs_tid() % 16;
  const u64 head = first_head + fs_warp() * (u64)MANY_EACH;
  const bool mine = head < (u64)heads, copies = first_head + (u64)(4 * piece) < (u64)heads;
  const u64 own = mine ? head + (u64)(lane % MANY_EACH) : 0;  // the head that this lane keeps totals of
  const ManyKeys list = {raw, comp, keys + pos * (u64)stride, (i32)counts[pos]};
  const u64 chunk0 = pos * (u64)((stride + MANY_KEYS - 1) / MANY_KEYS);
  const i32 chunks = (list.count + MANY_KEYS - 1) / MANY_KEYS;
  ManyTotal total = {sinks[own], 0.0f};
  for (i32 c = 0; c < chunks; c++) total.peak = fs_max(total.peak, m[(chunk0 + (u64)c) * (u64)heads + own]);
  weights += chunk0 * MANY_KEYS * (u64)heads + first_head + (u64)(4 * piece);
  ManySums acc, sum;
  many_zero(acc);
  many_zero(sum);
  ManyPart next;
  u32 key = list.key(2 * MANY_AHEAD + slot);
  many_part(next, list.row(list.key(slot)), half);
  many_spread(sh.value[0][slot], next, half);
  many_part(next, list.row(list.key(MANY_AHEAD + slot)), half);
  if (copies && slot < list.count) fs_copy16(&sh.weight[0][slot][piece], weights + (u64)slot * (u64)heads);
  fs_copy_commit();
  FS_ROLLED for (i32 t = 0; t < list.count; t += MANY_AHEAD) {
    const i32 stage = t / MANY_AHEAD & 1, count = many_least(list.count - t, MANY_AHEAD), later = t + MANY_AHEAD + slot;
    fs_copy_wait<0>();
    fs_barrier();  // the stage is filled, and the other one free again
    if (copies && later < list.count) fs_copy16(&sh.weight[stage ^ 1][slot][piece], weights + (u64)later * (u64)heads);
    fs_copy_commit();
    if (count == MANY_AHEAD) {
      FS_UNROLL for (int j = 0; j < MANY_AHEAD / 2; j++) many_add(acc, sh.value[stage][j], sh.weight[stage][j]);
    } else {
      FS_ROLLED for (i32 j = 0; j < count; j++) many_add(acc, sh.value[stage][j], sh.weight[stage][j]);
    }
    many_spread(sh.value[stage ^ 1][slot], next, half);
    many_part(next, list.row(key), half);
    key = list.key(later + 2 * MANY_AHEAD);
    if (count == MANY_AHEAD) {
      FS_UNROLL for (int j = MANY_AHEAD / 2; j < MANY_AHEAD; j++) many_add(acc, sh.value[stage][j], sh.weight[stage][j]);
    }
    if ((t + MANY_AHEAD) % MANY_KEYS != 0 && t + MANY_AHEAD < list.count) continue;  // the same for all threads
    const u64 at = (chunk0 + (u64)(t / MANY_KEYS)) * (u64)heads + own;
    many_merge(sum, total, acc, m[at], l[at]);
    many_zero(acc);
  }
  if (!mine) return;  // whole warps, and no barrier follows
  total.sum = fs_add(total.sum, fs_exp(fs_sub(sinks[own], total.peak)));
  const ManyOut to = {out, q, meta};
  const f32x2* mine_angles = angles && half == 1 && lane >= 16 ? angles + pos * (MANY_ROT / 2) + (u64)(2 * (lane - 16)) : nullptr;
  FS_UNROLL for (int h = 0; h < MANY_EACH; h++) {
    const float by = fs_shfl(total.sum, (u32)h);
    FS_UNROLL for (int g = 0; g < 2; g++) {
      float v[4];
      FS_UNROLL for (int i = 0; i < 4; i++) v[i] = fs_div(sum.v[h][4 * g + i], by);
      const u64 at = (pos * (u64)heads + head + (u64)h) * MANY_DIM + (u64)(half * MANY_PART + 128 * g + 4 * lane);
      many_store(to, v, g == 1 ? mine_angles : nullptr, at);
    }
  }
}
FS_EXPORT(attend_many_values, 256)
