// Hyper-connections around a sublayer, fused with the norm and the blocks of its input and the sum of expert outputs:
// contract rules 1, 6, 8 and 12. The dot products m of a site come from dense.cu (or a quantised product), or from
// hc_dots.cu, where hc_post is part of the dots.
//
// hc_pre
//   formula  r = 1 / sqrt(ss(x) / 4d + rms_eps); m_i = m_i * r; m and ss(x) are the sums of hc_dots' segments if
//            there are any, else m is given and ss(x) made here;
//            pre = sigmoid(fma(m, scale_0, base)) + eps; post = 2 * sigmoid(fma(m, scale_1, base));
//            C = Sinkhorn(fma(m, scale_2, base)); u = sum_h pre_h * x_h; h = (u * r_u) * norm
//   shapes   x [n][4][d] f32, m [n][24] or [n][segments][25] of hc_dots, base [24], scale [3], norm [d], mix [n][24] (pre 4, post 4,
//            C [source][destination] 16), u [n][d] or null, h [n][d]; q [n][d] i8 and meta [n][d / 32] of
//            a8_quantise of h, or null; d up to 8192, with q a multiple of 32
//   launch   grid (n, 2) of 512 threads: part 0 makes pre, u and h, part 1 post and C; or (n, 1) with `open`: part 0 leaves what
//            goes into the functions of post and C in their places, and a block of another kernel finishes them (FsHcOpen)
//   cost     reads x once a part, without segments twice (from a cache), writes 4 to 10 bytes an element of h;
//            x waits in registers for its weights
//   order    sums of squares by rule 4; u from stream 0 up by fma; sums of four in index order
// hc_head
//   formula  as part 0 with four dots, base [4] and scale [1]; mix [n][4]; u, h, q and meta as hc_pre
//   launch   grid (n, 1) of 512 threads
// hc_post
//   formula  x_k = fma over j of C[j][k] * x_j, from post_k * a, in place; a = block, or
//            ((+0 + slot_0) + slot_1 ..) + block where there are slots (the shared expert is the block)
//   shapes   x [n][4][d], block [n][d], slots [n][used][d] or null, mix [n][24]
//   launch   grid (ceil(d / 256), n) of 256 threads
//   cost     reads and writes 16 bytes an element of a stream row, and 4 bytes a slot; memory-bound
// hc_tap
//   formula  out[i][place] = (((x_0 + x_1) + x_2) + x_3) * 0.25: what a drafter sees of a layer
//   shapes   x [n][4][d], out [n][layers][d]
//   launch   grid (ceil(d / 256), n) of 256 threads
//   cost     16 bytes an element in, 4 out
#include "fourspark.h"
#include "fs_a8.h"
#include "fs_hc.h"
#include "fs_math.h"

static constexpr int HC_STREAMS = FS_STREAMS, HC_THREADS = 512, HC_DIM = 8192;
static constexpr int HC_SEGMENTS = HC_STREAMS * HC_DIM / FS_SEGMENT, HC_EACH = HC_DIM / HC_THREADS;

struct HcShared {
  float u[HC_DIM];
  float part[HC_SEGMENTS];
  float mix[HC_STREAMS];
  float m[FS_SITE + 1];  // dots, and at [24] the streams' squares
};

// Sum of squares by rule 4, in every thread.
FS_DEVICE float hc_squares(float (&part)[HC_SEGMENTS], const float* v, i32 n) {
  const i32 segments = (n + FS_SEGMENT - 1) / FS_SEGMENT;
  for (i32 s = (i32)fs_warp(); s < segments; s += HC_THREADS / 32) {
    float p = 0.0f;
    FS_UNROLL for (i32 i = 0; i < FS_SEGMENT / 32; i++) {
      const i32 k = s * FS_SEGMENT + i * 32 + (i32)fs_lane();
      if (k < n) p = fs_fma(v[k], v[k], p);
    }
    p = fs_fold_lanes(p);
    if (fs_lane() == 0) part[s] = p;
  }
  fs_barrier();
  float total = part[0];
  for (i32 s = 1; s < segments; s++) total = fs_add(total, part[s]);
  fs_barrier();
  return total;
}

FS_DEVICE float hc_factor(HcShared& sh, const float* v, i32 n, float eps) {
  return fs_rsqrt(fs_add(fs_div(hc_squares(sh.part, v, n), (float)n), eps));
}

// The dots of a token as they are given, and the factor of its streams.
FS_DEVICE float hc_given(HcShared& sh, const float* m, i32 rows, const float* x, i32 d, float eps) {
  if ((i32)fs_tid() < rows) sh.m[fs_tid()] = m[fs_tid()];
  return hc_factor(sh, x, HC_STREAMS * d, eps);  // with a barrier
}

// The same from segments [segments][25]: sums in order.
FS_DEVICE float hc_added(HcShared& sh, const float* part, i32 segments, i32 d, float eps) {
  constexpr i32 ROW = FS_SITE + 1;
  for (i32 i = (i32)fs_tid(); i < segments * ROW; i += HC_THREADS) sh.u[i] = part[i];
  fs_barrier();
  if ((i32)fs_tid() < ROW) {
    float total = sh.u[fs_tid()];
    for (i32 s = 1; s < segments; s++) total = fs_add(total, sh.u[s * ROW + (i32)fs_tid()]);
    sh.m[fs_tid()] = total;
  }
  fs_barrier();
  return fs_rsqrt(fs_add(fs_div(sh.m[FS_SITE], (float)(HC_STREAMS * d)), eps));
}

// A thread's elements of the streams.
struct HcStreams {
  float v[HC_EACH][HC_STREAMS];
};

FS_DEVICE void hc_load(HcStreams& to, const float* x, i32 d) {
  FS_UNROLL for (i32 t = 0; t < HC_EACH; t++) {
    const i32 i = t * HC_THREADS + (i32)fs_tid();
    FS_UNROLL for (int s = 0; s < HC_STREAMS; s++) to.v[t][s] = i < d ? x[(u64)s * (u64)d + (u64)i] : 0.0f;
  }
}

// What part 0 writes of all tokens; u and the blocks may be null.
struct HcOut {
  float* u;
  float* h;
  i8* q;
  fs_a8_meta* meta;
};

// What a thread's dot is mixed with.
struct HcTerm {
  float base, scale;

  FS_DEVICE_MEMBER float of(float m, float r) const { return fs_fma(fs_mul(m, r), scale, base); }
};

// Part 0: the weights of the streams, their sum and its norm. `mix` has its first four written; `term` is those of
// dots 0 to 3 in the first threads.
FS_DEVICE void hc_collapse(HcShared& sh, const HcStreams& x, const HcTerm& term, const float* norm, float* mix, const HcOut& out, i32 d,
                           float r, float rms_eps, float eps) {
  const u64 row = (u64)fs_bid_x() * (u64)d;
  const i32 thread = (i32)fs_tid();
  float weights[HC_EACH];  // all reads before the first write, so that they overlap
  FS_UNROLL for (i32 t = 0; t < HC_EACH; t++) weights[t] = t * HC_THREADS + thread < d ? norm[t * HC_THREADS + thread] : 0.0f;
  if (thread < HC_STREAMS) {
    const float pre = fs_add(fs_sigmoid(term.of(sh.m[thread], r)), eps);
    sh.mix[thread] = pre;
    mix[thread] = pre;
  }
  fs_barrier();
  FS_UNROLL for (i32 t = 0; t < HC_EACH; t++) {
    const i32 i = t * HC_THREADS + thread;
    if (i >= d) continue;
    float v = fs_mul(sh.mix[0], x.v[t][0]);
    FS_UNROLL for (int s = 1; s < HC_STREAMS; s++) v = fs_fma(sh.mix[s], x.v[t][s], v);
    sh.u[i] = v;
    if (out.u) out.u[row + (u64)i] = v;
  }
  fs_barrier();
  const float ru = hc_factor(sh, sh.u, d, rms_eps);
  FS_UNROLL for (i32 t = 0; t < HC_EACH; t++) {
    const i32 i = t * HC_THREADS + thread;
    if (i >= d) continue;  // with blocks d is a multiple of 32: whole warps
    const float v = fs_mul(fs_mul(sh.u[i], ru), weights[t]);
    if (out.q)
      fs_a8_store(v, row + (u64)i, out.q, out.meta, out.h);
    else
      out.h[row + (u64)i] = v;
  }
}

FS_KERNEL(hc_pre, 512, 1)(const float* FS_RESTRICT x, const float* FS_RESTRICT m, const float* FS_RESTRICT base,
                          const float* FS_RESTRICT scale, const float* FS_WEIGHTS norm, float* mix, float* u, float* h, i8* q,
                          fs_a8_meta* meta, i32 segments, i32 d, i32 iterations, i32 open, float rms_eps, float eps) {
  fs_begin();
  FS_SHARED(HcShared, sh);
  const u64 token = fs_bid_x();
  const float* streams = x + token * HC_STREAMS * (u64)d;
  // Which dot a thread mixes, all of them in one part or 0 to 3, C (warp 0) and post in two: read before anybody waits for
  // sums.
  const u32 thread = fs_tid(), all = thread < FS_SITE ? thread : FS_SITE - 1;
  const u32 at = open ? all : fs_bid_y() == 0 ? thread & 3 : fs_warp() == 0 ? 8 + (thread & 15) : HC_STREAMS + (thread & 3);
  const u32 kind = at < HC_STREAMS ? 0 : at < 2 * HC_STREAMS ? 1 : 2;
  const HcTerm term = {base[at], scale[kind]};
  HcStreams v;
  if (fs_bid_y() == 0) hc_load(v, streams, d);
  float r;
  if (segments > 0)
    r = hc_added(sh, m + token * (u64)segments * (FS_SITE + 1), segments, d, rms_eps);
  else
    r = hc_given(sh, m + token * FS_SITE, FS_SITE, streams, d, rms_eps);
  mix += token * FS_SITE;
  if (fs_bid_y() == 0) {
    hc_collapse(sh, v, term, norm, mix, HcOut{u, h, q, meta}, d, r, rms_eps, eps);
    if (open && thread >= HC_STREAMS && thread < FS_SITE) mix[at] = term.of(sh.m[at], r);
  } else if (fs_warp() == 0) {
    const float c = fs_hc_sinkhorn(term.of(sh.m[at], r), iterations, eps);
    if (fs_lane() < 16) mix[at] = c;
  } else if (fs_warp() == 1 && fs_lane() < HC_STREAMS) {
    mix[at] = fs_mul(2.0f, fs_sigmoid(term.of(sh.m[at], r)));
  }
}
FS_EXPORT(hc_pre, 512)

FS_KERNEL(hc_head, 512, 1)(const float* FS_RESTRICT x, const float* FS_RESTRICT m, const float* FS_RESTRICT base,
                           const float* FS_RESTRICT scale, const float* FS_WEIGHTS norm, float* mix, float* u, float* h, i8* q,
                           fs_a8_meta* meta, i32 d, float rms_eps, float eps) {
  fs_begin();
  FS_SHARED(HcShared, sh);
  const u64 token = fs_bid_x();
  const float* streams = x + token * HC_STREAMS * (u64)d;
  const HcTerm term = {base[fs_lane() & 3], scale[0]};
  HcStreams v;
  hc_load(v, streams, d);
  const float r = hc_given(sh, m + token * HC_STREAMS, HC_STREAMS, streams, d, rms_eps);
  hc_collapse(sh, v, term, norm, mix + token * 4, HcOut{u, h, q, meta}, d, r, rms_eps, eps);
}
FS_EXPORT(hc_head, 512)

FS_KERNEL(hc_post, 256, 1)(float* x, const float* FS_RESTRICT block, const float* FS_RESTRICT slots, const float* FS_RESTRICT mix, i32 d,
                           i32 used) {
  fs_begin();
  const u64 token = fs_bid_y();
  const i32 i = (i32)fs_bid_x() * 256 + (i32)fs_tid();
  if (i >= d) return;
  const float a = FsHcBlock{block, slots, d, used}.at(token, (u64)i);
  float* stream = x + token * HC_STREAMS * (u64)d + (u64)i;
  float old[HC_STREAMS];
  FS_UNROLL for (int j = 0; j < HC_STREAMS; j++) old[j] = stream[(u64)j * (u64)d];
  FS_UNROLL for (int k = 0; k < HC_STREAMS; k++) stream[(u64)k * (u64)d] = fs_hc_post(old, a, mix + token * FS_SITE, (u64)k);
}
FS_EXPORT(hc_post, 256)

FS_KERNEL(hc_tap, 256, 1)(const float* FS_RESTRICT x, float* FS_RESTRICT out, i32 d, i32 layers, i32 place) {
  fs_begin();
  const u64 token = fs_bid_y();
  const i32 i = (i32)fs_bid_x() * 256 + (i32)fs_tid();
  if (i >= d) return;
  const float* stream = x + token * HC_STREAMS * (u64)d + (u64)i;
  float v = stream[0];
  FS_UNROLL for (int s = 1; s < HC_STREAMS; s++) v = fs_add(v, stream[(u64)s * (u64)d]);
  out[(token * (u64)layers + (u64)place) * (u64)d + (u64)i] = fs_mul(v, 0.25f);
}
FS_EXPORT(hc_tap, 256)
