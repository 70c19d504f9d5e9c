// The streams after a sublayer together with the dots of the next site, of a few tokens: contract rules 4, 8 and 12.
// Of many tokens hc_post merges, which reads less, and hc_dots_many makes the dots. The same bits.
//
// hc_dots_{f32,f16,bf16}
//   formula  x' as hc_post, or x where there is no block; part[s][r] = the sum of segment s of dot(W[r], x') for
//            r < 24, of dot(x', x') for r = 24: hc_pre adds the segments in order
//   shapes   x [n][4][d] f32; w [24][4 d]; block, slots, mix as hc_post, out [n][4][d] f32 (not x), or all null;
//            part [n][segments][25] f32, segments = ceil(4 d / 512)
//   launch   grid (segments, n, shares) of 256 threads: a segment of x' in shared memory, three rows of W a warp; with
//            three shares one row a warp, in three blocks that all make x': where tokens are too few to fill a device
//   cost     a segment and share: 20 bytes an element of x' and 4 a slot, and 24 weights in all; reads x four times a share,
//            from a cache. Bound by latency: what it saves is a launch and two passes over x
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

// What an element of the token's four streams behind each other is made of.
struct DotsElement {
  float old[FS_STREAMS];
  FsHcParts parts;
  FsHcWeights weights;
};

// Reads what element e needs; nobody uses what this leaves of an element past the end.
FS_DEVICE void dots_read(DotsElement& to, const float* x, const FsHcBlock& from, const float* mix, u64 token, u32 e, bool there) {
  if (!there) return;
  if (!from.block) {
    to.old[0] = x[e];
    return;
  }
  const u32 d = (u32)from.d, i = e % d;
  to.weights.read(mix, e / d);
  FS_UNROLL for (int j = 0; j < FS_STREAMS; j++) to.old[j] = x[(u64)j * d + i];
  from.read(to.parts, token, i);
}

FS_DEVICE float dots_value(const DotsElement& of, const FsHcBlock& from, u64 token, u32 e) {
  if (!from.block) return of.old[0];
  return fs_hc_post(of.old, from.sum(of.parts, token, e % (u32)from.d), of.weights);
}

// This warp's rows of W, from `row0` of the block on, over the block's segment; past the end 0, which nobody adds.
template <int T, int MINE>
FS_DEVICE void dots_weights(float (&ws)[MINE][DOTS_STEPS], const u8* w, u32 row0, u32 first, u32 all) {
  FS_UNROLL for (int r = 0; r < MINE; r++)
    FS_UNROLL for (int i = 0; i < DOTS_STEPS; i++) {
      const u32 e = first + (u32)(i * 32) + fs_lane();
      const u64 row = (u64)(row0 + fs_warp() + (u32)(r * DOTS_WARPS)) * all;
      ws[r][i] = e < all ? dense_weight<T>(w, row + e) : 0.0f;
    }
}

// The sums of the segment at `x`, `inside` elements of it or all, for rows `row0` and on; with the first ones the squares.
template <int MINE>
FS_DEVICE void dots_sums(const float (&ws)[MINE][DOTS_STEPS], const float (&x)[FS_SEGMENT], u32 row0, u32 inside, float* part) {
  float p[MINE + 1];
  FS_UNROLL for (int r = 0; r <= MINE; r++) p[r] = 0.0f;
  FS_UNROLL for (int i = 0; i < DOTS_STEPS; i++) {
    const u32 at = (u32)(i * 32) + fs_lane();
    if (at >= inside) continue;
    const float v = x[at];
    FS_UNROLL for (int r = 0; r < MINE; r++) p[r] = fs_fma(ws[r][i], v, p[r]);
    p[MINE] = fs_fma(v, v, p[MINE]);
  }
  FS_UNROLL for (int r = 0; r <= MINE; r++) p[r] = fs_fold_lanes(p[r]);
  FS_UNROLL for (int r = 0; r < MINE; r++)
    if (fs_lane() == 0) part[row0 + fs_warp() + (u32)(r * DOTS_WARPS)] = p[r];
  if (row0 == 0 && fs_tid() == 0) part[FS_SITE] = p[MINE];
}

// Block z of as many as share a segment takes MINE rows a warp; all of them make x', the first one writes it.
template <int T, int MINE>
FS_DEVICE void hc_dots(DotsShared& sh, const float* x, const u8* w, const FsHcBlock& from, const float* mix, float* out, float* part) {
  const u64 token = fs_bid_y();
  const u32 all = (u32)(FS_STREAMS * from.d), first = fs_bid_x() * FS_SEGMENT, row0 = fs_bid_z() * (u32)(MINE * DOTS_WARPS);
  float ws[MINE][DOTS_STEPS];
  dots_weights<T, MINE>(ws, w, row0, first, all);  // needs nothing of this pass
  x += token * all;
  constexpr int EACH = FS_SEGMENT / DOTS_THREADS;
  DotsElement mine[EACH];  // all reads before the first use, so that they overlap
  FS_UNROLL for (int n = 0; n < EACH; n++) {
    const u32 e = first + (u32)(n * DOTS_THREADS) + fs_tid();
    dots_read(mine[n], x, from, mix + token * FS_SITE, token, e, e < all);
  }
  FS_UNROLL for (int n = 0; n < EACH; n++) {
    const u32 i = (u32)(n * DOTS_THREADS) + fs_tid();
    if (first + i >= all) continue;
    const float v = dots_value(mine[n], from, token, first + i);
    sh.x[i] = v;
    if (out && row0 == 0) out[token * all + first + i] = v;
  }
  fs_barrier();
  const u64 segments = (all + FS_SEGMENT - 1) / FS_SEGMENT;
  part += (token * segments + fs_bid_x()) * (FS_SITE + 1);
  dots_sums<MINE>(ws, sh.x, row0, all - first, part);
}

#define HC_DOTS(name, T)                                                                                                  \
  FS_KERNEL(hc_dots_##name, 256, 2)(const float* FS_RESTRICT x, const u8* FS_RESTRICT w, const float* FS_RESTRICT block,   \
                                    const float* FS_RESTRICT slots, const float* FS_RESTRICT mix, float* FS_RESTRICT out, \
                                    float* FS_RESTRICT part, i32 d, i32 used, i32 shares) {                               \
    fs_begin();                                                                                                           \
    FS_SHARED(DotsShared, sh);                                                                                            \
    const FsHcBlock from = {block, slots, d, used};                                                                       \
    if (shares == 1)                                                                                                      \
      hc_dots<T, DOTS_MINE>(sh, x, w, from, mix, out, part);                                                              \
    else                                                                                                                  \
      hc_dots<T, 1>(sh, x, w, from, mix, out, part);                                                                      \
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
  dots_weights<T, DOTS_MINE>(ws, w, 0, first, all);
  x += token0 * all + first;
  part += (token0 * segments + fs_bid_x()) * (FS_SITE + 1);
  dots_many_load(mine, x, all - first);
  FS_ROLLED for (i32 t = 0; t < count; t++) {
    float(&now)[FS_SEGMENT] = sh.x[t % 2];
    FS_UNROLL for (int i = 0; i < DOTS_EACH; i++) now[(u32)(i * DOTS_THREADS) + fs_tid()] = mine[i];
    fs_barrier();
    if (t + 1 < count) dots_many_load(mine, x + (u64)(t + 1) * all, all - first);
    dots_sums<DOTS_MINE>(ws, now, 0, all - first, part + (u64)t * segments * (FS_SITE + 1));
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
