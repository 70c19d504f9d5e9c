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
static constexpr int HC_SEGMENTS = HC_STREAMS * HC_DIM / FS_SEGMENT;
// Sums that are added at once, and segments of dots that are asked for at once: those of a width of 4096. Threads that hold
// wider streams have registers for fewer.
static constexpr int HC_TOTALS = 8, HC_AHEAD = 32, HC_AHEAD_WIDE = 8;

struct HcShared {
  alignas(16) float u[HC_DIM];
  float part[HC_SEGMENTS];
  float mix[HC_STREAMS];
};

// Sum of squares by rule 4, in every thread. Somebody has a barrier before `part` is written again.
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
  for (i32 first = 1; first < segments; first += HC_TOTALS)
    FS_UNROLL for (i32 s = first; s < first + HC_TOTALS; s++) total = s < segments ? fs_add(total, part[s]) : total;
  return total;
}

// The factor of a row of n values with these squares.
FS_DEVICE float hc_factor(float squares, i32 n, float eps) { return fs_rsqrt(fs_add(fs_div(squares, (float)n), eps)); }

// A token's dots in the lanes of a warp, and the factor of its streams.
struct HcDots {
  float dot, r;
};

// Rows `first` and on of the segments [segments][25] that this lane adds: dots in lanes 0 to 23, squares in the others.
template <int A>
FS_DEVICE void hc_ask(float (&rows)[A], const float* part, i32 first, i32 segments) {
  const i32 lane = (i32)fs_lane() < FS_SITE ? (i32)fs_lane() : FS_SITE;
  FS_UNROLL for (i32 s = 0; s < A; s++) rows[s] = first + s < segments ? part[(first + s) * (FS_SITE + 1) + lane] : 0.0f;
}

// Their sum in order; `rows` are the first ones.
template <int A>
FS_DEVICE HcDots hc_added(float (&rows)[A], const float* part, i32 segments, i32 d, float eps) {
  float total = rows[0];
  FS_UNROLL for (i32 s = 1; s < A; s++) total = s < segments ? fs_add(total, rows[s]) : total;
  FS_ROLLED for (i32 first = A; first < segments; first += A) {
    hc_ask(rows, part, first, segments);
    FS_UNROLL for (i32 s = 0; s < A; s++) total = first + s < segments ? fs_add(total, rows[s]) : total;
  }
  return HcDots{total, hc_factor(fs_shfl(total, FS_SITE), HC_STREAMS * d, eps)};
}

// A thread's elements of a row of up to E * 512; V of them lie beside each other: 4 where d is a multiple of 128, so that
// warps are whole.
template <int E>
struct HcStreams {
  float v[E][HC_STREAMS];
  float norm[E];
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

// Streams and norm; all reads before anybody waits for one, so that they overlap.
template <int V, int E>
FS_DEVICE void hc_load(HcStreams<E>& to, const float* x, const float* norm, i32 d) {
  FS_UNROLL for (i32 t = 0; t < E; t += V) {
    const i32 i = hc_at<V>(t);
    float v[V];
    FS_UNROLL for (int s = 0; s < HC_STREAMS; s++) {
      hc_read<V>(v, x + (u64)s * (u64)d + (u64)i, i < d);
      FS_UNROLL for (int j = 0; j < V; j++) to.v[t + j][s] = v[j];
    }
    hc_read<V>(v, norm + i, i < d);
    FS_UNROLL for (int j = 0; j < V; j++) to.norm[t + j] = v[j];
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

// Part 0: the sum of the streams by the weights that warp 0 puts into sh.mix, and its norm.
template <int V, int E>
FS_DEVICE void hc_collapse(HcShared& sh, const HcStreams<E>& x, const HcOut& out, i32 d, float rms_eps) {
  const u64 row = (u64)fs_bid_x() * (u64)d;
  fs_barrier();
  FS_UNROLL for (i32 t = 0; t < E; t += V) {
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
  const float ru = hc_factor(hc_squares(sh.part, sh.u, d), d, rms_eps);
  FS_UNROLL for (i32 t = 0; t < E; t += V) {
    const i32 i = hc_at<V>(t);
    if (i >= d) continue;  // with blocks d is a multiple of 32: whole warps
    float v[V];
    hc_read<V>(v, &sh.u[i], true);
    FS_UNROLL for (int j = 0; j < V; j++) v[j] = fs_mul(fs_mul(v[j], ru), x.norm[t + j]);
    hc_store<V>(v, row + (u64)i, out);
  }
}

// The weight of stream i by its dot; `mix` is the token's row of weights.
FS_DEVICE void hc_weight(HcShared& sh, float* mix, u32 i, float term, float eps) {
  const float pre = fs_add(fs_sigmoid(term), eps);
  sh.mix[i] = pre;
  mix[i] = pre;
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

// A block of hc_pre that makes h: warp 0 adds the dots while the streams come. What it adds is asked for first: it is what
// everything waits for, and the streams fill the way from the cache.
template <int V, int E>
FS_DEVICE void hc_pre_row(HcShared& sh, const HcSite& w, const float* base, const float* scale, const HcOut& out, i32 open) {
  const u64 token = fs_bid_x();
  const float* streams = w.x + token * HC_STREAMS * (u64)w.d;
  const float* m = w.m + token * (w.segments > 0 ? (u64)w.segments * (FS_SITE + 1) : (u64)FS_SITE);
  const u32 lane = fs_lane(), at = lane < FS_SITE ? lane : FS_SITE - 1;
  HcTerm term = {0.0f, 0.0f};
  float rows[E == 8 ? HC_AHEAD : HC_AHEAD_WIDE];
  if (fs_warp() == 0) {
    term = HcTerm{base[at], scale[at < HC_STREAMS ? 0 : at < 2 * HC_STREAMS ? 1 : 2]};
    if (w.segments > 0) hc_ask(rows, m, 0, w.segments);
  }
  fs_barrier();
  HcStreams<E> v;
  hc_load<V, E>(v, streams, w.norm, w.d);
  HcDots mine = {0.0f, 0.0f};
  if (w.segments == 0) {
    const float squares = hc_squares(sh.part, streams, HC_STREAMS * w.d);
    mine = HcDots{m[at], hc_factor(squares, HC_STREAMS * w.d, w.rms_eps)};
  } else if (fs_warp() == 0) {
    mine = hc_added(rows, m, w.segments, w.d, w.rms_eps);
  }
  float* mix = w.mix + token * FS_SITE;
  if (fs_tid() < HC_STREAMS)
    hc_weight(sh, mix, lane, term.of(mine.dot, mine.r), w.eps);
  else if (open && fs_tid() < FS_SITE)
    mix[lane] = term.of(mine.dot, mine.r);
  hc_collapse<V, E>(sh, v, out, w.d, w.rms_eps);
}

// The block beside it that makes post and C, of a site that is not left open.
FS_DEVICE void hc_pre_rest(HcShared& sh, const HcSite& w, const float* base, const float* scale, i32 iterations) {
  const u64 token = fs_bid_x();
  HcDots mine = {0.0f, 0.0f};
  if (w.segments == 0) {
    const float squares = hc_squares(sh.part, w.x + token * HC_STREAMS * (u64)w.d, HC_STREAMS * w.d);
    const u32 at = fs_lane() < FS_SITE ? fs_lane() : FS_SITE - 1;
    mine = HcDots{w.m[token * FS_SITE + at], hc_factor(squares, HC_STREAMS * w.d, w.rms_eps)};
  }
  if (fs_warp() != 0) return;
  if (w.segments > 0) {
    const float* part = w.m + token * (u64)w.segments * (FS_SITE + 1);
    float rows[HC_AHEAD];
    hc_ask(rows, part, 0, w.segments);
    mine = hc_added(rows, part, w.segments, w.d, w.rms_eps);
  }
  float* mix = w.mix + token * FS_SITE;
  const u32 of_post = HC_STREAMS + (fs_lane() & 3), of_c = 2 * HC_STREAMS + (fs_lane() & 15);
  const float z = HcTerm{base[of_c], scale[2]}.of(fs_shfl(mine.dot, of_c), mine.r);
  const float post = HcTerm{base[of_post], scale[1]}.of(fs_shfl(mine.dot, of_post), mine.r);
  const float c = fs_hc_sinkhorn(z, iterations, w.eps);
  if (fs_lane() < 16) mix[of_c] = c;
  if (fs_lane() < HC_STREAMS) mix[of_post] = fs_mul(2.0f, fs_sigmoid(post));
}

FS_KERNEL(hc_pre, 512, 1)(const float* FS_RESTRICT x, const float* FS_RESTRICT m, const float* FS_RESTRICT base,
                          const float* FS_RESTRICT scale, const float* FS_WEIGHTS norm, float* mix, float* u, float* h, i8* q,
                          fs_a8_meta* meta, i32 segments, i32 d, i32 iterations, i32 open, float rms_eps, float eps) {
  fs_begin();
  FS_SHARED(HcShared, sh);
  const HcSite site = {x, m, norm, mix, segments, d, rms_eps, eps};
  const HcOut out = {u, h, q, meta};
  if (fs_bid_y() == 1)
    hc_pre_rest(sh, site, base, scale, iterations);
  else if (d % 128 == 0 && d <= HC_DIM / 2)
    hc_pre_row<4, 8>(sh, site, base, scale, out, open);
  else if (d % 128 == 0)
    hc_pre_row<4, 16>(sh, site, base, scale, out, open);
  else
    hc_pre_row<1, 16>(sh, site, base, scale, out, open);
}
FS_EXPORT(hc_pre, 512)

template <int V, int E>
FS_DEVICE void hc_head_row(HcShared& sh, const HcSite& w, const HcTerm& term, const HcOut& out) {
  const u64 token = fs_bid_x();
  const float* streams = w.x + token * HC_STREAMS * (u64)w.d;
  HcStreams<E> v;
  hc_load<V, E>(v, streams, w.norm, w.d);
  const float r = hc_factor(hc_squares(sh.part, streams, HC_STREAMS * w.d), HC_STREAMS * w.d, w.rms_eps);
  const u32 at = fs_lane() & 3;
  if (fs_tid() < HC_STREAMS) hc_weight(sh, w.mix + token * 4, at, term.of(w.m[token * 4 + at], r), w.eps);
  hc_collapse<V, E>(sh, v, out, w.d, w.rms_eps);
}

FS_KERNEL(hc_head, 512, 1)(const float* FS_RESTRICT x, const float* FS_RESTRICT m, const float* FS_RESTRICT base,
                           const float* FS_RESTRICT scale, const float* FS_WEIGHTS norm, float* mix, float* u, float* h, i8* q,
                           fs_a8_meta* meta, i32 d, float rms_eps, float eps) {
  fs_begin();
  FS_SHARED(HcShared, sh);
  const HcSite site = {x, m, norm, mix, 0, d, rms_eps, eps};
  const HcTerm term = {base[fs_lane() & 3], scale[0]};
  if (d % 128 == 0 && d <= HC_DIM / 2)
    hc_head_row<4, 8>(sh, site, term, HcOut{u, h, q, meta});
  else if (d % 128 == 0)
    hc_head_row<4, 16>(sh, site, term, HcOut{u, h, q, meta});
  else
    hc_head_row<1, 16>(sh, site, term, HcOut{u, h, q, meta});
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
  FsHcWeights w[HC_STREAMS];  // all reads before the first write
  FS_UNROLL for (int k = 0; k < HC_STREAMS; k++) w[k].read(mix + token * FS_SITE, (u64)k);
  FS_UNROLL for (int k = 0; k < HC_STREAMS; k++) stream[(u64)k * (u64)d] = fs_hc_post(old, a, w[k]);
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
