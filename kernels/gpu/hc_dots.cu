// The streams after a sublayer together with the dots of the next site, of a few tokens: contract rules 4, 8 and 12.
// For many tokens hc_post and a product of dense.cu give the same bits.
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
  float p[DOTS_MINE + 1];
  FS_UNROLL for (int r = 0; r <= DOTS_MINE; r++) p[r] = 0.0f;
  FS_UNROLL for (int i = 0; i < DOTS_STEPS; i++) {
    const u32 at = (u32)(i * 32) + fs_lane();
    if (first + at >= all) continue;
    const float v = sh.x[at];
    FS_UNROLL for (int r = 0; r < DOTS_MINE; r++) p[r] = fs_fma(ws[r][i], v, p[r]);
    p[DOTS_MINE] = fs_fma(v, v, p[DOTS_MINE]);
  }
  const u64 segments = (all + FS_SEGMENT - 1) / FS_SEGMENT;
  part += (token * segments + fs_bid_x()) * (FS_SITE + 1);
  FS_UNROLL for (int r = 0; r < DOTS_MINE; r++) {
    const float sum = fs_fold_lanes(p[r]);
    if (fs_lane() == 0) part[fs_warp() + (u32)(r * DOTS_WARPS)] = sum;
  }
  const float squares = fs_fold_lanes(p[DOTS_MINE]);
  if (fs_tid() == 0) part[FS_SITE] = squares;
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

HC_DOTS(f32, DENSE_F32)
HC_DOTS(f16, DENSE_F16)
HC_DOTS(bf16, DENSE_BF16)
