// Attention of query positions over lists of shared key/value rows with a learned sink a head: contract
// rule 7, in two launches.
//
// attend_chunk: one chunk of 128 keys of one position, eight heads
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
//            out[d] = (sum f_c acc_c[d]) / L
//   shapes   sinks [heads] f32, out [positions][heads][dim] f32
//   launch   grid (heads, positions) of 128 threads
//   order    both sums by fma in chunk order from +0
#include "fourspark.h"
#include "fs_math.h"

static constexpr int ATTEND_KEYS = 128, ATTEND_HEADS = 8, ATTEND_DIM = 512, ATTEND_CHUNKS = 256;
static constexpr int ATTEND_LANE = ATTEND_DIM / 32;  // query elements of a lane

struct AttendShared {
  // [head][lane][k / 32], a lane's elements together; the pad keeps 16-byte loads off each other's banks.
  alignas(16) float q[ATTEND_HEADS][32][ATTEND_LANE + 4];
  float weight[ATTEND_HEADS][ATTEND_KEYS];
  float peak[ATTEND_HEADS];
  u32 key[ATTEND_KEYS];
};

// Scores of this warp's keys (16 of the chunk), all eight heads at once.
FS_DEVICE void attend_scores(AttendShared& sh, const float* rows, i32 count, i32 dim, float scale) {
  const u32 lane = fs_lane();
  for (i32 j = (i32)fs_warp(); j < count; j += 8) {
    const float* row = rows + (u64)sh.key[j] * (u64)dim;
    float p[ATTEND_HEADS];
    FS_UNROLL for (int h = 0; h < ATTEND_HEADS; h++) p[h] = 0.0f;
    FS_UNROLL for (i32 i = 0; i < ATTEND_LANE; i++) {
      if (i * 32 < dim) {
        const float k = row[i * 32 + (i32)lane];
        FS_UNROLL for (int h = 0; h < ATTEND_HEADS; h++) p[h] = fs_fma(sh.q[h][lane][i], k, p[h]);
      }
    }
    const float sum = fs_fold_eight(p);
    if (lane % 4 == 0) sh.weight[lane / 4][j] = fs_mul(sum, scale);
  }
}

FS_KERNEL(attend_chunk, 256, 2)(const float* FS_RESTRICT q, const float* FS_RESTRICT rows, const u32* FS_RESTRICT keys,
                                const u32* FS_RESTRICT counts, float* FS_RESTRICT m, float* FS_RESTRICT l, float* FS_RESTRICT acc,
                                i32 heads, i32 dim, i32 stride, float scale) {
  FS_SHARED(AttendShared, sh);
  const i32 thread = (i32)fs_tid(), chunk = (i32)fs_bid_x(), head0 = (i32)fs_bid_y() * ATTEND_HEADS, pos = (i32)fs_bid_z();
  const i32 chunks = (stride + ATTEND_KEYS - 1) / ATTEND_KEYS, left = (i32)counts[pos] - chunk * ATTEND_KEYS;
  const i32 count = left < ATTEND_KEYS ? left : ATTEND_KEYS;
  if (count <= 0) return;  // the same for all threads
  const float* query = q + ((u64)pos * (u64)heads + (u64)head0) * (u64)dim;
  for (i32 i = thread; i < ATTEND_HEADS * dim; i += 256) sh.q[i / dim][i % 32][i % dim / 32] = query[i];
  if (thread < count) sh.key[thread] = keys[(u64)pos * (u64)stride + (u64)(chunk * ATTEND_KEYS + thread)];
  fs_barrier();
  attend_scores(sh, rows, count, dim, scale);
  fs_barrier();
  // A warp a head: the largest score, then weights. A maximum has no order.
  const i32 head = (i32)fs_warp(), lane = (i32)fs_lane();
  float peak = fs_f32(0xff800000u);
  for (i32 j = lane; j < count; j += 32) peak = fs_max(peak, sh.weight[head][j]);
  FS_UNROLL for (u32 mask = 16; mask > 0; mask >>= 1) peak = fs_max(peak, fs_shfl_xor(peak, mask));
  for (i32 j = lane; j < count; j += 32) sh.weight[head][j] = fs_exp(fs_sub(sh.weight[head][j], peak));
  if (lane == 0) sh.peak[head] = peak;
  fs_barrier();
  const u64 at = ((u64)pos * (u64)chunks + (u64)chunk) * (u64)heads + (u64)head0;
  if (thread < ATTEND_HEADS) {
    float sum = 0.0f;
    for (i32 j = 0; j < count; j++) sum = fs_fma(sh.weight[thread][j], 1.0f, sum);
    m[at + (u64)thread] = sh.peak[thread];
    l[at + (u64)thread] = sum;
  }
  for (i32 d = thread; d < dim; d += 256) {
    float sum[ATTEND_HEADS];
    FS_UNROLL for (int h = 0; h < ATTEND_HEADS; h++) sum[h] = 0.0f;
    for (i32 j = 0; j < count; j++) {
      const float v = rows[(u64)sh.key[j] * (u64)dim + (u64)d];
      FS_UNROLL for (int h = 0; h < ATTEND_HEADS; h++) sum[h] = fs_fma(sh.weight[h][j], v, sum[h]);
    }
    FS_UNROLL for (int h = 0; h < ATTEND_HEADS; h++) acc[(at + (u64)h) * (u64)dim + (u64)d] = sum[h];
  }
}
FS_EXPORT(attend_chunk, 256)

struct AttendMergeShared {
  float factor[ATTEND_CHUNKS];
};

FS_KERNEL(attend_merge, 128, 1)(const float* FS_RESTRICT m, const float* FS_RESTRICT l, const float* FS_RESTRICT acc,
                                const float* FS_RESTRICT sinks, const u32* FS_RESTRICT counts, float* FS_RESTRICT out, i32 heads, i32 dim,
                                i32 stride) {
  FS_SHARED(AttendMergeShared, sh);
  const i32 thread = (i32)fs_tid(), head = (i32)fs_bid_x(), pos = (i32)fs_bid_y();
  const i32 chunks = (stride + ATTEND_KEYS - 1) / ATTEND_KEYS, mine = ((i32)counts[pos] + ATTEND_KEYS - 1) / ATTEND_KEYS;
  const u64 first = (u64)pos * (u64)chunks * (u64)heads + (u64)head;  // of chunk 0; chunks are `heads` apart
  const float sink = sinks[head];
  float peak = sink;
  for (i32 c = 0; c < mine; c++) peak = fs_max(peak, m[first + (u64)c * (u64)heads]);
  for (i32 c = thread; c < mine; c += 128) sh.factor[c] = fs_exp(fs_sub(m[first + (u64)c * (u64)heads], peak));
  fs_barrier();
  float total = 0.0f;
  for (i32 c = 0; c < mine; c++) total = fs_fma(sh.factor[c], l[first + (u64)c * (u64)heads], total);
  total = fs_add(total, fs_exp(fs_sub(sink, peak)));
  for (i32 d = thread; d < dim; d += 128) {
    float sum = 0.0f;
    for (i32 c = 0; c < mine; c++) sum = fs_fma(sh.factor[c], acc[(first + (u64)c * (u64)heads) * (u64)dim + (u64)d], sum);
    out[((u64)pos * (u64)heads + (u64)head) * (u64)dim + (u64)d] = fs_div(sum, total);
  }
}
FS_EXPORT(attend_merge, 128)
