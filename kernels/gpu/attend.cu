// Attention of query positions over lists of shared key/value rows with a learned sink a head: contract
// rule 7, in two launches. Decode, verify and prefill differ in the number of positions only.
//
// attend_chunk: one chunk of 128 keys of one position, eight heads, rows of f32 (packed rows: attend_packed.cu)
//   formula  s_j = dot(q, k_j) * scale; m = max s_j; w_j = exp(s_j - m); l = sum w_j;
//            acc[d] = sum w_j v_j[d]
//   shapes   q [positions][heads][dim] f32; rows [any][dim] f32; keys [positions][stride] u32, of which
//            count[position] are valid; m, l [positions][chunks][heads] f32,
//            acc [positions][chunks][heads][dim] f32, chunks = ceil(stride / 128)
//            dim a multiple of 32 up to 512, heads a multiple of 8
//   launch   grid (chunks, heads / 8, positions) of 256 threads; chunks beyond a position's keys write
//            nothing
//   cost     reads each row twice (scores, values) for eight heads; 4 flops an element and head
//   order    dot by rule 4; l and acc by fma in key order from +0
// attend_merge: all chunks of one position and head
//   formula  M = max of m and the sink; f_c = exp(m_c - M); L = sum f_c l_c, then + exp(sink - M);
//            out[d] = (sum f_c acc_c[d]) / L, its last n_rot turned back by the position's angles
//   shapes   sinks [heads] f32, angles [positions][n_rot / 2] of (cos, sin) or null: not turned;
//            out [positions][heads][dim] f32 or null; q [positions][heads][dim] i8 and meta of
//            a8_quantise, or null
//   launch   grid (heads, positions, ceil(dim / 128)) of 128 threads, an element each
//   cost     bound by latency: values of the first chunks are on their way while factors are made
//   order    both sums by fma in chunk order from +0
#include "fourspark.h"
#include "fs_a8.h"
#include "fs_math.h"

static constexpr int ATTEND_KEYS = 128, ATTEND_HEADS = 8, ATTEND_DIM = 512, ATTEND_CHUNKS = 256;
static constexpr int ATTEND_LANE = ATTEND_DIM / 32;  // query elements of a lane
static constexpr int ATTEND_ABREAST = 4, ATTEND_AHEAD = 4;

struct AttendShared {
  // [head][lane][k / 32], a lane's elements together; the pad keeps 16-byte loads off each other's banks.
  alignas(16) float q[ATTEND_HEADS][32][ATTEND_LANE + 4];
  // The heads of a key together: one 16-byte load serves four of them.
  alignas(16) float weight[ATTEND_KEYS][ATTEND_HEADS];
  float peak[ATTEND_HEADS];
  u32 key[ATTEND_KEYS];
};

// Rows of f32.
struct AttendF32 {
  const float* rows;
  i32 dim;

  // Element k of key j.
  FS_DEVICE_MEMBER float at(const AttendShared& sh, i32 j, i32 k) const { return rows[(u64)sh.key[j] * (u64)dim + (u64)k]; }
};

// Scores of this warp's keys (16 of the chunk), all eight heads and four keys at once, so that a query
// element is loaded once for four keys. Keys past the last repeat it.
template <class Rows>
FS_DEVICE void attend_scores(AttendShared& sh, const Rows& rows, i32 count, i32 dim, float scale) {
  const u32 lane = fs_lane();
  for (i32 first = (i32)fs_warp(); first < count; first += 8 * ATTEND_ABREAST) {
    float p[ATTEND_ABREAST][ATTEND_HEADS];
    i32 at[ATTEND_ABREAST];
    FS_UNROLL for (int t = 0; t < ATTEND_ABREAST; t++) {
      at[t] = first + 8 * t < count ? first + 8 * t : count - 1;
      FS_UNROLL for (int h = 0; h < ATTEND_HEADS; h++) p[t][h] = 0.0f;
    }
    FS_UNROLL for (i32 i = 0; i < ATTEND_LANE; i++) {
      if (i * 32 < dim) {
        float k[ATTEND_ABREAST];
        FS_UNROLL for (int t = 0; t < ATTEND_ABREAST; t++) k[t] = rows.at(sh, at[t], i * 32 + (i32)lane);
        FS_UNROLL for (int h = 0; h < ATTEND_HEADS; h++)
          FS_UNROLL for (int t = 0; t < ATTEND_ABREAST; t++) p[t][h] = fs_fma(sh.q[h][lane][i], k[t], p[t][h]);
      }
    }
    FS_UNROLL for (int t = 0; t < ATTEND_ABREAST; t++) {
      const float sum = fs_fold_eight(p[t]);
      if (lane % 4 == 0 && first + 8 * t < count) sh.weight[first + 8 * t][lane / 4] = fs_mul(sum, scale);
    }
  }
}

// A warp a head: the largest score, then weights. A maximum has no order.
FS_DEVICE void attend_weights(AttendShared& sh, i32 count) {
  const i32 head = (i32)fs_warp(), lane = (i32)fs_lane();
  float peak = fs_f32(0xff800000u);
  for (i32 j = lane; j < count; j += 32) peak = fs_max(peak, sh.weight[j][head]);
  FS_UNROLL for (u32 mask = 16; mask > 0; mask >>= 1) peak = fs_max(peak, fs_shfl_xor(peak, mask));
  for (i32 j = lane; j < count; j += 32) sh.weight[j][head] = fs_exp(fs_sub(sh.weight[j][head], peak));
  if (lane == 0) sh.peak[head] = peak;
}

// Adds one key's values of two channels, eight heads each.
FS_DEVICE void attend_add(const AttendShared& sh, i32 j, const float (&v)[2], float (&sum)[2][ATTEND_HEADS]) {
  FS_UNROLL for (int h = 0; h < ATTEND_HEADS; h++) {
    const float w = sh.weight[j][h];
    FS_UNROLL for (int c = 0; c < 2; c++) sum[c][h] = fs_fma(w, v[c], sum[c][h]);
  }
}

// Sums of channels d[0] and d[1] over the keys, eight loads in flight.
template <class Rows>
FS_DEVICE void attend_values(const AttendShared& sh, const Rows& rows, i32 count, const i32 (&d)[2], float (&sum)[2][ATTEND_HEADS]) {
  FS_UNROLL for (int c = 0; c < 2; c++)
    FS_UNROLL for (int h = 0; h < ATTEND_HEADS; h++) sum[c][h] = 0.0f;
  i32 j = 0;
  for (; j + 4 <= count; j += 4) {
    float v[4][2];
    FS_UNROLL for (int i = 0; i < 4; i++)
      FS_UNROLL for (int c = 0; c < 2; c++) v[i][c] = rows.at(sh, j + i, d[c]);
    FS_UNROLL for (int i = 0; i < 4; i++) attend_add(sh, j + i, v[i], sum);
  }
  for (; j < count; j++) {
    float v[2];
    FS_UNROLL for (int c = 0; c < 2; c++) v[c] = rows.at(sh, j, d[c]);
    attend_add(sh, j, v, sum);
  }
}

// Keys of a chunk, 0 or less if it has none. The same for all threads.
FS_DEVICE i32 attend_count(const u32* counts) {
  const i32 left = (i32)counts[fs_bid_z()] - (i32)fs_bid_x() * ATTEND_KEYS;
  return left < ATTEND_KEYS ? left : ATTEND_KEYS;
}

// Query elements and the key list of this block into shared memory.
FS_DEVICE void attend_stage(AttendShared& sh, const float* q, const u32* keys, i32 count, i32 heads, i32 dim, i32 stride) {
  const i32 thread = (i32)fs_tid();
  const u64 pos = fs_bid_z();
  const float* query = q + (pos * (u64)heads + (u64)fs_bid_y() * ATTEND_HEADS) * (u64)dim;
  for (i32 i = thread; i < ATTEND_HEADS * dim; i += 256) sh.q[i / dim][i % 32][i % dim / 32] = query[i];
  if (thread < count) sh.key[thread] = keys[pos * (u64)stride + (u64)fs_bid_x() * ATTEND_KEYS + (u64)thread];
  fs_barrier();
}

template <class Rows>
FS_DEVICE void attend(AttendShared& sh, const Rows& rows, float* m, float* l, float* acc, i32 count, i32 heads, i32 dim, i32 stride,
                      float scale) {
  attend_scores(sh, rows, count, dim, scale);
  fs_barrier();
  attend_weights(sh, count);
  fs_barrier();
  const i32 thread = (i32)fs_tid(), chunks = (stride + ATTEND_KEYS - 1) / ATTEND_KEYS;
  const u64 at = ((u64)fs_bid_z() * (u64)chunks + fs_bid_x()) * (u64)heads + (u64)fs_bid_y() * ATTEND_HEADS;
  if (thread < ATTEND_HEADS) {
    float sum = 0.0f;
    for (i32 j = 0; j < count; j++) sum = fs_fma(sh.weight[j][thread], 1.0f, sum);
    m[at + (u64)thread] = sh.peak[thread];
    l[at + (u64)thread] = sum;
  }
  if (thread >= dim) return;  // whole warps, and no barrier follows
  const bool two = thread + 256 < dim;
  const i32 d[2] = {thread, two ? thread + 256 : thread};
  float sum[2][ATTEND_HEADS];
  attend_values(sh, rows, count, d, sum);
  FS_UNROLL for (int h = 0; h < ATTEND_HEADS; h++) {
    acc[(at + (u64)h) * (u64)dim + (u64)d[0]] = sum[0][h];
    if (two) acc[(at + (u64)h) * (u64)dim + (u64)d[1]] = sum[1][h];
  }
}

FS_KERNEL(attend_chunk, 256, 2)(const float* FS_RESTRICT q, const float* FS_RESTRICT rows, const u32* FS_RESTRICT keys,
                                const u32* FS_RESTRICT counts, float* FS_RESTRICT m, float* FS_RESTRICT l, float* FS_RESTRICT acc,
                                i32 heads, i32 dim, i32 stride, float scale) {
  fs_begin();
  FS_SHARED(AttendShared, sh);
  const i32 count = attend_count(counts);
  if (count <= 0) return;  // the same for all threads
  attend_stage(sh, q, keys, count, heads, dim, stride);
  attend(sh, AttendF32{rows, dim}, m, l, acc, count, heads, dim, stride, scale);
}
FS_EXPORT(attend_chunk, 256)

struct AttendMergeShared {
  float factor[ATTEND_CHUNKS];
};

// The element of a turned-back head; the pair's other one lies in the next lane.
FS_DEVICE float attend_back(float v, const f32x2* angles, i32 d, i32 dim, i32 n_rot) {
  const float other = fs_shfl_xor(v, 1);
  const i32 at = d - (dim - n_rot);
  if (!angles || at < 0) return v;
  const f32x2 angle = angles[at / 2];
  const float s = -angle.y;
  return at % 2 == 0 ? fs_fma(v, angle.x, -fs_mul(other, s)) : fs_fma(other, s, fs_mul(v, angle.x));
}

FS_KERNEL(attend_merge, 128, 1)(const float* FS_RESTRICT m, const float* FS_RESTRICT l, const float* FS_RESTRICT acc,
                                const float* FS_RESTRICT sinks, const u32* FS_RESTRICT counts, const f32x2* FS_RESTRICT angles, float* out,
                                i8* q, fs_a8_meta* meta, i32 heads, i32 dim, i32 n_rot, i32 stride) {
  fs_begin();
  FS_SHARED(AttendMergeShared, sh);
  const i32 thread = (i32)fs_tid(), head = (i32)fs_bid_x(), pos = (i32)fs_bid_y();
  const i32 chunks = (stride + ATTEND_KEYS - 1) / ATTEND_KEYS, mine = ((i32)counts[pos] + ATTEND_KEYS - 1) / ATTEND_KEYS;
  const u64 first = (u64)pos * (u64)chunks * (u64)heads + (u64)head;  // of chunk 0; chunks are `heads` apart
  const i32 d = (i32)fs_bid_z() * 128 + thread;
  acc += first * (u64)dim + (u64)d;
  const u64 next = (u64)heads * (u64)dim;
  float ahead[ATTEND_AHEAD];
  FS_UNROLL for (i32 c = 0; c < ATTEND_AHEAD; c++) ahead[c] = c < mine && d < dim ? acc[(u64)c * next] : 0.0f;
  const float sink = sinks[head];
  float peak = sink;
  for (i32 c = 0; c < mine; c++) peak = fs_max(peak, m[first + (u64)c * (u64)heads]);
  for (i32 c = thread; c < mine; c += 128) sh.factor[c] = fs_exp(fs_sub(m[first + (u64)c * (u64)heads], peak));
  fs_barrier();
  float total = 0.0f;
  for (i32 c = 0; c < mine; c++) total = fs_fma(sh.factor[c], l[first + (u64)c * (u64)heads], total);
  total = fs_add(total, fs_exp(fs_sub(sink, peak)));
  if (angles) angles += (u64)pos * (u64)(n_rot / 2);
  const u64 row = ((u64)pos * (u64)heads + (u64)head) * (u64)dim;
  if (d >= dim) return;  // dim is a multiple of 32: whole warps, and no barrier follows
  float sum = 0.0f;
  FS_UNROLL for (i32 c = 0; c < ATTEND_AHEAD; c++)
    if (c < mine) sum = fs_fma(sh.factor[c], ahead[c], sum);
  for (i32 c = ATTEND_AHEAD; c < mine; c++) sum = fs_fma(sh.factor[c], acc[(u64)c * next], sum);
  const float v = attend_back(fs_div(sum, total), angles, d, dim, n_rot);
  if (q)
    fs_a8_store(v, row + (u64)d, q, meta, out);
  else if (out)
    out[row + (u64)d] = v;
}
FS_EXPORT(attend_merge, 128)
