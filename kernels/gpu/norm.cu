// rms_norm: y = (x * r) * w with r = 1 / sqrt(sum(x^2) / n + eps), or y = x * r (contract rules 4, 6), and the
// activation blocks of y (rule 1).
// softmax_rows: probabilities of rows of scores in chunks of 128, with a sink (contract rule 7).
//
// rms_norm
//   shapes   x, y [rows][n] f32, w [n] f32 or null; q [rows][n] i8 and meta [rows][n / 32] of a8_quantise of y,
//            n a multiple of 32, or null
//   launch   rows blocks of 256 threads
//   cost     12 bytes and 4 flops an element (the second read of x hits a cache), and 1.25 bytes with blocks
//   order    a warp a segment of 512, a lane a partial sum over k mod 32; lanes by xor 16 .. 1;
//            segments in order
// softmax_rows
//   formula  chunk c: m_c = max, w_j = exp(s_j - m_c), l_c = fma(w_j, 1, l_c) in key order from +0;
//            M = max(m_c, sink), f_c = exp(m_c - M), L = fma(f_c, l_c, L) in order from +0,
//            then L + exp(sink - M) if there is a sink; p_j = (f_c * w_j) / L
//   shapes   s, p [rows][n] f32, sink [rows] f32 or null; 1 <= n <= 8192
//   launch   rows blocks of 128 threads
//   cost     8 bytes and about 25 flops an element
#include "fourspark.h"
#include "fs_a8.h"
#include "fs_math.h"

// Elements of a thread that are read together.
static constexpr int RMS_AHEAD = 4;

struct RmsShared {
  float part[8];
};

FS_KERNEL(rms_norm, 256, 1)(const float* FS_RESTRICT x, const float* FS_WEIGHTS w, float* FS_RESTRICT y, i8* q, fs_a8_meta* meta, i32 n,
                            float eps) {
  fs_begin();
  FS_SHARED(RmsShared, sh);
  const u32 lane = fs_lane(), warp = fs_warp();
  const float* row = x + (u64)fs_bid_x() * (u64)n;
  const i32 segments = (n + FS_SEGMENT - 1) / FS_SEGMENT;
  float ahead[RMS_AHEAD];  // this thread's first weights, on their way while the sum is made
  FS_UNROLL for (int i = 0; i < RMS_AHEAD; i++) {
    const i32 k = (i32)fs_tid() + 256 * i;
    ahead[i] = w && k < n ? w[k] : 1.0f;
  }
  float total = 0.0f;
  for (i32 first = 0; first < segments; first += 8) {
    const i32 segment = first + (i32)warp;
    float p = 0.0f;
    FS_UNROLL for (i32 i = 0; i < FS_SEGMENT / 32; i++) {
      const i32 k = segment * FS_SEGMENT + i * 32 + (i32)lane;
      if (k < n) p = fs_fma(row[k], row[k], p);
    }
    p = fs_fold_lanes(p);
    if (lane == 0) sh.part[warp] = p;
    fs_barrier();
    for (i32 i = 0; i < 8 && first + i < segments; i++) total = first + i == 0 ? sh.part[i] : fs_add(total, sh.part[i]);
    fs_barrier();
  }
  const float r = fs_rsqrt(fs_add(fs_div(total, (float)n), eps));
  const u64 out = (u64)fs_bid_x() * (u64)n;
  for (i32 first = (i32)fs_tid(); first < n; first += 256 * RMS_AHEAD) {
    float v[RMS_AHEAD];  // reads before writes, so that they overlap
    FS_UNROLL for (int i = 0; i < RMS_AHEAD; i++) {
      const i32 k = first + 256 * i;
      const float unit = k < n ? fs_mul(row[k], r) : 0.0f;
      const float weight = first == (i32)fs_tid() ? ahead[i] : w && k < n ? w[k] : 1.0f;
      v[i] = w ? fs_mul(unit, weight) : unit;
    }
    FS_UNROLL for (int i = 0; i < RMS_AHEAD; i++) {
      const i32 k = first + 256 * i;
      if (k >= n) continue;  // with blocks n is a multiple of 32: whole warps
      if (q)
        fs_a8_store(v[i], out + (u64)k, q, meta, y);
      else
        y[out + (u64)k] = v[i];
    }
  }
}
FS_EXPORT(rms_norm, 256)

static constexpr int SOFTMAX_CHUNK = 128, SOFTMAX_CHUNKS = 64;

struct SoftmaxShared {
  float weight[SOFTMAX_CHUNK * SOFTMAX_CHUNKS];
  float peak[SOFTMAX_CHUNKS], sum[SOFTMAX_CHUNKS], factor[SOFTMAX_CHUNKS];
  float warp[4];
  float total;
};

// The maximum of 128 values, one a thread; NaN loses against every number.
FS_DEVICE float softmax_peak(SoftmaxShared& sh, float v) {
  FS_UNROLL for (u32 mask = 16; mask > 0; mask >>= 1) v = fs_max(v, fs_shfl_xor(v, mask));
  if (fs_lane() == 0) sh.warp[fs_warp()] = v;
  fs_barrier();
  const float m = fs_max(fs_max(sh.warp[0], sh.warp[1]), fs_max(sh.warp[2], sh.warp[3]));
  fs_barrier();
  return m;
}

FS_KERNEL(softmax_rows, 128, 1)(const float* FS_RESTRICT s, const float* FS_RESTRICT sink, float* FS_RESTRICT p, i32 n) {
  fs_begin();
  FS_SHARED(SoftmaxShared, sh);
  const i32 thread = (i32)fs_tid(), row = (i32)fs_bid_x();
  const float* in = s + (u64)row * (u64)n;
  const i32 chunks = (n + SOFTMAX_CHUNK - 1) / SOFTMAX_CHUNK;
  const float lowest = fs_f32(0xff800000u);
  for (i32 c = 0; c < chunks; c++) {
    const i32 j = c * SOFTMAX_CHUNK + thread;
    const float v = j < n ? in[j] : lowest;
    const float peak = softmax_peak(sh, v);
    sh.weight[j] = j < n ? fs_exp(fs_sub(v, peak)) : 0.0f;
    if (thread == 0) sh.peak[c] = peak;
  }
  fs_barrier();
  // One lane a chunk: the sum runs in key order.
  if (thread < chunks) {
    const i32 last = n - thread * SOFTMAX_CHUNK < SOFTMAX_CHUNK ? n - thread * SOFTMAX_CHUNK : SOFTMAX_CHUNK;
    float l = 0.0f;
    for (i32 i = 0; i < last; i++) l = fs_fma(sh.weight[thread * SOFTMAX_CHUNK + i], 1.0f, l);
    sh.sum[thread] = l;
  }
  fs_barrier();
  if (thread == 0) {
    float peak = sink ? sink[row] : lowest;
    for (i32 c = 0; c < chunks; c++) peak = fs_max(peak, sh.peak[c]);
    float total = 0.0f;
    for (i32 c = 0; c < chunks; c++) {
      const float f = fs_exp(fs_sub(sh.peak[c], peak));
      sh.factor[c] = f;
      total = fs_fma(f, sh.sum[c], total);
    }
    sh.total = sink ? fs_add(total, fs_exp(fs_sub(sink[row], peak))) : total;
  }
  fs_barrier();
  float* out = p + (u64)row * (u64)n;
  for (i32 j = thread; j < n; j += SOFTMAX_CHUNK) out[j] = fs_div(fs_mul(sh.factor[j / SOFTMAX_CHUNK], sh.weight[j]), sh.total);
}
FS_EXPORT(softmax_rows, 128)
