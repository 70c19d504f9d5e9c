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
  alignas(16) float u[HC_DIM];
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

// A thread's elements of the streams: V of them lie beside each other. V 4 where d is a multiple of 128, so that warps are whole.
struct HcStreams {
  float v[HC_EACH][HC_STREAMS];
};

// V values from `at`, 0 if it is not `there`; four of them aligned.
template <int V>
FS_DEVICE void hc_read(float (&v)[V], const float* at, bool there) {
  if constexpr (V == 4) {
    const u32x4 four = there ? *(const u32x4*)at : u32x4{0, 0, 0, 0};
    FS_UNROLL for (int j = 0; j < 4; j++) v[j] = fs_f32(fs_word(four, j));
  } else {
    v[0] = there ? *at : 0.0f;
  }
}

template <int V>
FS_DEVICE void hc_write(float* at, const float (&v)[V]) {
  if constexpr (V == 4)
    *(u32x4*)at = u32x4{fs_bits(v[0]), fs_bits(v[1]), fs_bits(v[2]), fs_bits(v[3])};
  else
    *at = v[0];
}

// A thread's element t.
template <int V>
FS_DEVICE i32 hc_at(i32 t) {
  return (t / V * HC_THREADS + (i32)fs_tid()) * V + t % V;
}

template <int V>
FS_DEVICE void hc_load(HcStreams& to, const float* x, i32 d) {
  FS_UNROLL for (i32 t = 0; t < HC_EACH; t += V) {
    const i32 i = hc_at<V>(t);
    FS_UNROLL for (int s = 0; s < HC_STREAMS; s++) {
      float v[V];
      hc_read<V>(v, x + (u64)s * (u64)d + (u64)i, i < d);
      FS_UNROLL for (int j = 0; j < V; j++) to.v[t + j][s] = v[j];
    }
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

// V values of h and their blocks, if they are asked for.
template <int V>
FS_DEVICE void hc_store(const float (&v)[V], u64 at, const HcOut& out) {
  if constexpr (V == 4) {
    if (out.q) fs_a8_store_four(v, at, out.q, out.meta);
    if (out.h) hc_write<V>(out.h + at, v);
  } else if (out.q) {
    fs_a8_store(v[0], at, out.q, out.meta, out.h);
  } else {
    out.h[at] = v[0];
  }
}

// Part 0: the weights of the streams, their sum and its norm. `mix` has its first four written; `term` is those of
// dots 0 to 3 in the first threads.
template <int V>
FS_DEVICE void hc_collapse(HcShared& sh, const HcStreams& x, const HcTerm& term, const float* norm, float* mix, const HcOut& out, i32 d,
                           float r, float rms_eps, float eps) {
  const u64 row = (u64)fs_bid_x() * (u64)d;
  const i32 thread = (i32)fs_tid();
  float weights[HC_EACH];  // all reads before the first write, so that they overlap
  FS_UNROLL for (i32 t = 0; t < HC_EACH; t += V) {
    float w[V];
    hc_read<V>(w, norm + hc_at<V>(t), hc_at<V>(t) < d);
    FS_UNROLL for (int j = 0; j < V; j++) weights[t + j] = w[j];
  }
  if (thread < HC_STREAMS) {
    const float pre = fs_add(fs_sigmoid(term.of(sh.m[thread], r)), eps);
    sh.mix[thread] = pre;
    mix[thread] = pre;
  }
  fs_barrier();
  FS_UNROLL for (i32 t = 0; t < HC_EACH; t += V) {
    const i32 i = hc_at<V>(t);
    if (i >= d) continue;
    float v[V];
    FS_UNROLL for (int j = 0; j < V; j++) {
      v[j] = fs_mul(sh.mix[0], x.v[t + j][0]);
      FS_UNROLL for (int s = 1; s < HC_STREAMS; s++) v[j] = fs_fma(sh.mix[s], x.v[t + j][s], v[j]);
    }
    hc_write<V>(&sh.u[i], v);
    if (out.u) hc_write<V>(out.u + row + (u64)i, v);
  }
  fs_barrier();
  const float ru = hc_factor(sh, sh.u, d, rms_eps);
  FS_UNROLL for (i32 t = 0; t < HC_EACH; t += V) {
    const i32 i = hc_at<V>(t);
    if (i >= d) continue;  // with blocks d is a multiple of 32: whole warps
    float v[V];
    hc_read<V>(v, &sh.u[i], true);
    FS_UNROLL for (int j = 0; j < V; j++) v[j] = fs_mul(fs_mul(v[j], ru), weights[t + j]);
    hc_store<V>(v, row + (u64)i, out);
  }
}

// What the kernel of a site reads and mixes, of all tokens.
struct HcSite {
  const float* x;
  const float* m;
  const float* norm;
  float* mix;
  i32 segments, d;
  float rms_eps, eps;
};

// A block of hc_pre.
template <int V>
FS_DEVICE void hc_pre_part(HcShared& sh, const HcSite& w, const float* base, const float* scale, const HcOut& out, i32 iterations, i32 open) {
  const u64 token = fs_bid_x();
  const float* streams = w.x + token * HC_STREAMS * (u64)w.d;
  // Which dot a thread mixes, all of them in one part or 0 to 3, C (warp 0) and post in two: read before anybody waits for
  // sums.
  const u32 thread = fs_tid(), all = thread < FS_SITE ? thread : FS_SITE - 1;
  const u32 at = open ? all : fs_bid_y() == 0 ? thread & 3 : fs_warp() == 0 ? 8 + (thread & 15) : HC_STREAMS + (thread & 3);
  const u32 kind = at < HC_STREAMS ? 0 : at < 2 * HC_STREAMS ? 1 : 2;
  const HcTerm term = {base[at], scale[kind]};
  HcStreams v;
  if (fs_bid_y() == 0) hc_load<V>(v, streams, w.d);
  float r;
  if (w.segments > 0)
    r = hc_added(sh, w.m + token * (u64)w.segments * (FS_SITE + 1), w.segments, w.d, w.rms_eps);
  else
    r = hc_given(sh, w.m + token * FS_SITE, FS_SITE, streams, w.d, w.rms_eps);
  float* mix = w.mix + token * FS_SITE;
  if (fs_bid_y() == 0) {
    hc_collapse<V>(sh, v, term, w.norm, mix, out, w.d, r, w.rms_eps, w.eps);
    if (open && thread >= HC_STREAMS && thread < FS_SITE) mix[at] = term.of(sh.m[at], r);
  } else if (fs_warp() == 0) {
    const float c = fs_hc_sinkhorn(term.of(sh.m[at], r), iterations, w.eps);
    if (fs_lane() < 16) mix[at] = c;
  } else if (fs_warp() == 1 && fs_lane() < HC_STREAMS) {
    mix[at] = fs_mul(2.0f, fs_sigmoid(term.of(sh.m[at], r)));
  }
}

FS_KERNEL(hc_pre, 512, 1)(const float* FS_RESTRICT x, const float* FS_RESTRICT m, const float* FS_RESTRICT base,
                          const float* FS_RESTRICT scale, const float* FS_WEIGHTS norm, float* mix, float* u, float* h, i8* q,
                          fs_a8_meta* meta, i32 segments, i32 d, i32 iterations, i32 open, float rms_eps, float eps) {
  fs_begin();
  FS_SHARED(HcShared, sh);
  const HcSite site = {x, m, norm, mix, segments, d, rms_eps, eps};
  if (d % 128 == 0)
    hc_pre_part<4>(sh, site, base, scale, HcOut{u, h, q, meta}, iterations, open);
  else
    hc_pre_part<1>(sh, site, base, scale, HcOut{u, h, q, meta}, iterations, open);
}
FS_EXPORT(hc_pre, 512)

template <int V>
FS_DEVICE void hc_head_row(HcShared& sh, const HcSite& w, const HcTerm& term, const HcOut& out) {
  const u64 token = fs_bid_x();
  const float* streams = w.x + token * HC_STREAMS * (u64)w.d;
  HcStreams v;
  hc_load<V>(v, streams, w.d);
  const float r = hc_given(sh, w.m + token * HC_STREAMS, HC_STREAMS, streams, w.d, w.rms_eps);
  hc_collapse<V>(sh, v, term, w.norm, w.mix + token * 4, out, w.d, r, w.rms_eps, w.eps);
}

FS_KERNEL(hc_head, 512, 1)(const float* FS_RESTRICT x, const float* FS_RESTRICT m, const float* FS_RESTRICT base,
                           const float* FS_RESTRICT scale, const float* FS_WEIGHTS norm, float* mix, float* u, float* h, i8* q,
                           fs_a8_meta* meta, i32 d, float rms_eps, float eps) {
  fs_begin();
  FS_SHARED(HcShared, sh);
  const HcSite site = {x, m, norm, mix, 0, d, rms_eps, eps};
  const HcTerm term = {base[fs_lane() & 3], scale[0]};
  if (d % 128 == 0)
    hc_head_row<4>(sh, site, term, HcOut{u, h, q, meta});
  else
    hc_head_row<1>(sh, site, term, HcOut{u, h, q, meta});
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
