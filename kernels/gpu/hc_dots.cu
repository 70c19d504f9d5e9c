// The streams after a sublayer together with the dots of the next site, of a few tokens: contract rules 4, 8 and 12.
// Of many tokens hc_post merges, which reads less, and hc_dots_many makes the dots. The same bits.
//
// hc_dots_{f32,f16,bf16}
//   formula  x' as hc_post, or x where there is no block; part[s][r] = the sum of segment s of dot(W[r], x') for
//            r < 24, of dot(x', x') for r = 24: hc_pre adds the segments in order
//   shapes   x [n][4][d] f32; w [24][4 d]; block, slots, mix as hc_post, out [n][4][d] f32 (not x), or all null;
//            part [n][segments][25] f32, segments = ceil(4 d / 512)
//   launch   grid (segments, n) of 256 threads: a segment of x' in shared memory, three rows of W a warp
//   cost     a segment: 20 bytes an element of x' and 4 a slot, and 24 weights; reads x four times in all, from a
//            cache. Bound by latency: what it saves is a launch and two passes over x
//   order    a lane k mod 32: fma in k order from +0; lanes by xor 16 .. 1
// hc_dots_many_{f32,f16,bf16}
//   formula  part as hc_dots of x as it is
//   shapes   x, w, part as hc_dots
//   launch   grid (segments, ceil(n / 16)) of 256 threads: three rows of W a warp in registers for 16 tokens, a token's
//            segment in shared memory while the next one's is on its way
//   cost     reads x once, 24 weights an element for 16 tokens; 50 flops an element: memory-bound
//   order    as hc_dots
#include "fourspark.h"
#include "fs_dense.h"
#include "fs_hc.h"
#include "fs_math.h"

static constexpr int DOTS_THREADS = 256, DOTS_WARPS = DOTS_THREADS / 32, DOTS_MINE = FS_SITE / DOTS_WARPS, DOTS_STEPS = FS_SEGMENT / 32;

struct DotsShared {
  float x[FS_SEGMENT];
};

// Element e of the token's four streams behind each other.
FS_DEVICE float dots_element(const float* x, const FsHcBlock& from, const float* mix, u64 token, u32 e) {
  if (!from.block) return x[e];
  const u32 d = (u32)from.d, k = e / d, i = e % d;
  float old[FS_STREAMS];
  FS_UNROLL for (int j = 0; j < FS_STREAMS; j++) old[j] = x[(u64)j * d + i];
  return fs_hc_post(old, from.at(token, i), mix, k);
}

// This warp's rows of W over the block's segment; past the end 0, which nobody adds.
template <int T>
FS_DEVICE void dots_weights(float (&ws)[DOTS_MINE][DOTS_STEPS], const u8* w, u32 first, u32 all) {
  FS_UNROLL for (int r = 0; r < DOTS_MINE; r++)
    FS_UNROLL for (int i = 0; i < DOTS_STEPS; i++) {
      const u32 e = first + (u32)(i * 32) + fs_lane();
      const u64 row = (u64)(fs_warp() + (u32)(r * DOTS_WARPS)) * all;
      ws[r][i] = e < all ? dense_weight<T>(w, row + e) : 0.0f;
    }
}

// The sums of the segment at `x`, `inside` elements of it or all.
FS_DEVICE void dots_sums(const float (&ws)[DOTS_MINE][DOTS_STEPS], const float (&x)[FS_SEGMENT], u32 inside, float* part) {
  float p[DOTS_MINE + 1];
  FS_UNROLL for (int r = 0; r <= DOTS_MINE; r++) p[r] = 0.0f;
  FS_UNROLL for (int i = 0; i < DOTS_STEPS; i++) {
    const u32 at = (u32)(i * 32) + fs_lane();
    if (at >= inside) continue;
    const float v = x[at];
    FS_UNROLL for (int r = 0; r < DOTS_MINE; r++) p[r] = fs_fma(ws[r][i], v, p[r]);
    p[DOTS_MINE] = fs_fma(v, v, p[DOTS_MINE]);
  }
  FS_UNROLL for (int r = 0; r <= DOTS_MINE; r++) p[r] = fs_fold_lanes(p[r]);
  FS_UNROLL for (int r = 0; r < DOTS_MINE; r++)
    if (fs_lane() == 0) part[fs_warp() + (u32)(r * DOTS_WARPS)] = p[r];
  if (fs_tid() == 0) part[FS_SITE] = p[DOTS_MINE];
}

template <int T>
FS_DEVICE void hc_dots(DotsShared& sh, const float* x, const u8* w, const FsHcBlock& from, const float* mix, float* out, float* part) {
  const u64 token = fs_bid_y();
  const u32 all = (u32)(FS_STREAMS * from.d), first = fs_bid_x() * FS_SEGMENT;
  float ws[DOTS_MINE][DOTS_STEPS];
  dots_weights<T>(ws, w, first, all);  // needs nothing of this pass
  x += token * all;
  constexpr int EACH = FS_SEGMENT / DOTS_THREADS;
  float mine[EACH];  // all reads before the first write, so that they overlap
  FS_UNROLL for (int n = 0; n < EACH; n++) {
    const u32 e = first + (u32)(n * DOTS_THREADS) + fs_tid();
    mine[n] = e < all ? dots_element(x, from, mix + token * FS_SITE, token, e) : 0.0f;
  }
  FS_UNROLL for (int n = 0; n < EACH; n++) {
    const u32 i = (u32)(n * DOTS_THREADS) + fs_tid();
    if (first + i >= all) continue;
    sh.x[i] = mine[n];
    if (out) out[token * all + first + i] = mine[n];
  }
  fs_barrier();
  const u64 segments = (all + FS_SEGMENT - 1) / FS_SEGMENT;
  part += (token * segments + fs_bid_x()) * (FS_SITE + 1);
  dots_sums(ws, sh.x, all - first, part);
}

#define HC_DOTS(name, T)                                                                                                  \
  FS_KERNEL(hc_dots_##name, 256, 1)(const float* FS_RESTRICT x, const u8* FS_RESTRICT w, const float* FS_RESTRICT block,   \
                                    const float* FS_RESTRICT slots, const float* FS_RESTRICT mix, float* FS_RESTRICT out, \
                                    float* FS_RESTRICT part, i32 d, i32 used) {                                           \
    fs_begin();                                                                                                           \
    FS_SHARED(DotsShared, sh);                                                                                            \
    hc_dots<T>(sh, x, w, FsHcBlock{block, slots, d, used}, mix, out, part);                                               \
  }                                                                                                                       \
  FS_EXPORT(hc_dots_##name, 256)

static constexpr int DOTS_TOKENS = 16, DOTS_EACH = FS_SEGMENT / DOTS_THREADS;

struct DotsManyShared {
  float x[2][FS_SEGMENT];
};

// This thread's elements of a segment of `inside` elements; past the end anything.
FS_DEVICE void dots_many_load(float (&mine)[DOTS_EACH], const float* x, u32 inside) {
  FS_UNROLL for (int i = 0; i < DOTS_EACH; i++) {
    const u32 at = (u32)(i * DOTS_THREADS) + fs_tid();
    mine[i] = x[at < inside ? at : 0];
  }
}

template <int T>
FS_DEVICE void hc_dots_many(DotsManyShared& sh, const float* x, const u8* w, float* part, i32 d, i32 n) {
  const u32 all = (u32)(FS_STREAMS * d), first = fs_bid_x() * FS_SEGMENT;
  const u64 segments = (all + FS_SEGMENT - 1) / FS_SEGMENT, token0 = fs_bid_y() * (u64)DOTS_TOKENS;
  const i32 count = n - (i32)token0 < DOTS_TOKENS ? n - (i32)token0 : DOTS_TOKENS;
  float ws[DOTS_MINE][DOTS_STEPS], mine[DOTS_EACH];
  dots_weights<T>(ws, w, first, all);
  x += token0 * all + first;
  part += (token0 * segments + fs_bid_x()) * (FS_SITE + 1);
  dots_many_load(mine, x, all - first);
  FS_ROLLED for (i32 t = 0; t < count; t++) {
    float(&now)[FS_SEGMENT] = sh.x[t % 2];
    FS_UNROLL for (int i = 0; i < DOTS_EACH; i++) now[(u32)(i * DOTS_THREADS) + fs_tid()] = mine[i];
    fs_barrier();
    if (t + 1 < count) dots_many_load(mine, x + (u64)(t + 1) * all, all - first);
    dots_sums(ws, now, all - first, part + (u64)t * segments * (FS_SITE + 1));
  }
}

#define HC_DOTS_MANY(name, T)                                                                                             \
  FS_KERNEL(hc_dots_many_##name, 256, 3)(const float* FS_RESTRICT x, const u8* FS_RESTRICT w, float* FS_RESTRICT part,    \
                                         i32 d, i32 n) {                                                                  \
    fs_begin();                                                                                                           \
    FS_SHARED(DotsManyShared, sh);                                                                                        \
    hc_dots_many<T>(sh, x, w, part, d, n);                                                                                \
  }                                                                                                                       \
  FS_EXPORT(hc_dots_many_##name, 256)

HC_DOTS(f32, DENSE_F32)
HC_DOTS(f16, DENSE_F16)
HC_DOTS(bf16, DENSE_BF16)
HC_DOTS_MANY(f32, DENSE_F32)
HC_DOTS_MANY(f16, DENSE_F16)
HC_DOTS_MANY(bf16, DENSE_BF16)
