// Tokens from logits: argmax, and draws with keyed noise (docs/adr/0007-keyed-noise.md). The token stays on
// the device for the embedding of the next step of a chain.
//
// Rows of all kernels: logits [n][vocabulary] f32; base [n][vocabulary] f32 or null, added to them
// (logit + base: the Markov head's and the tied head's); plans [n] of {noise row low, high, temperature
// f32 (0: argmax), top-k (0: off), min-p f32 (0: off), top-p in units of 2^-32 (0: off), 0, 0} u32
//
// draw_part, draw_merge: no filters
//   formula  y = logit / temperature (or logit); the token with the largest y + noise (or y), the lowest
//            id of equal sums; NaN and minus infinity are never drawn; all ones if nothing is left
//   shapes   best [n][parts] u64; tokens [n] u32
//   launch   grid (parts, n) of 256 threads; grid n of 32 threads
//   cost     4 or 8 bytes a logit; about 60 flops for a logit's noise
// draw_filtered: top-k, then min-p, then top-p, then the draw among what is left
//   formula  m = largest y; w = 1 where y = m, else exp(y - m); top-p sums floor(w * 2^40)
//   shapes   y [n][vocabulary] f32 for its own use; tokens [n] u32
//   launch   grid n of 1024 threads
//   cost     up to 18 passes over y, from a cache
//   order    none: weights are summed as integers, ranks are compared as integers
// draw_sound: after a draw, takes the token of a row that holds NaN back: all ones
//   launch   grid (parts, n) of 256 threads
//   cost     4 bytes a logit
#include "fourspark.h"
#include "fs_math.h"
#include "fs_noise.h"
#include "fs_rank.h"
#include "fs_select.h"

struct DrawPlan {
  u64 noise;
  float temperature;
  u32 top_k;
  float min_p;
  u32 top_p;
};

FS_DEVICE DrawPlan draw_plan(const u32x4* plans, u64 row) {
  const u32x4 a = plans[row * 2], b = plans[row * 2 + 1];
  return DrawPlan{(u64)a.y << 32 | a.x, fs_f32(a.z), a.w, fs_f32(b.x), b.y};
}

FS_DEVICE float draw_value(const float* logits, const float* base, u64 at, float temperature) {
  const float v = base ? fs_add(logits[at], base[at]) : logits[at];
  return temperature > 0.0f ? fs_div(v, temperature) : v;
}

// The key of a token that may be drawn, 0 of another.
FS_DEVICE u64 draw_key(const DrawPlan& plan, float y, u32 token) {
  if (fs_rank(y) <= FS_RANK_LOWEST) return 0;
  return fs_rank_key(plan.temperature > 0.0f ? fs_add(y, fs_gumbel(fs_noise_bits(plan.noise, token))) : y, token);
}

template <int WARPS>
struct DrawShared {
  u64 best[WARPS];
};

// The largest key of the block, in every thread.
template <int WARPS>
FS_DEVICE u64 draw_best(DrawShared<WARPS>& sh, u64 key) {
  key = fs_rank_best(key);
  if (fs_lane() == 0) sh.best[fs_warp()] = key;
  fs_barrier();
  u64 best = 0;
  for (int w = 0; w < WARPS; w++) best = sh.best[w] > best ? sh.best[w] : best;
  fs_barrier();
  return best;
}

FS_DEVICE u32 draw_token(u64 best) { return best == 0 ? ~0u : fs_rank_index(best); }

FS_KERNEL(draw_part, 256, 2)(const float* FS_RESTRICT logits, const float* FS_RESTRICT base, const u32x4* FS_RESTRICT plans,
                             u64* FS_RESTRICT best, i32 vocabulary, i32 parts) {
  FS_SHARED(DrawShared<8>, sh);
  const u64 row = fs_bid_y();
  const DrawPlan plan = draw_plan(plans, row);
  u64 mine = 0;
  for (i32 t = (i32)fs_bid_x() * 256 + (i32)fs_tid(); t < vocabulary; t += parts * 256) {
    const u64 key = draw_key(plan, draw_value(logits, base, row * (u64)vocabulary + (u64)t, plan.temperature), (u32)t);
    mine = key > mine ? key : mine;
  }
  mine = draw_best<8>(sh, mine);
  if (fs_tid() == 0) best[row * (u64)parts + fs_bid_x()] = mine;
}
FS_EXPORT(draw_part, 256)

FS_KERNEL(draw_merge, 32, 1)(const u64* FS_RESTRICT best, u32* FS_RESTRICT tokens, i32 parts) {
  const u64 row = fs_bid_x();
  u64 mine = 0;
  for (i32 p = (i32)fs_tid(); p < parts; p += 32) mine = best[row * (u64)parts + (u64)p] > mine ? best[row * (u64)parts + (u64)p] : mine;
  mine = fs_rank_best(mine);
  if (fs_tid() == 0) tokens[row] = draw_token(mine);
}
FS_EXPORT(draw_merge, 32)

FS_KERNEL(draw_sound, 256, 2)(const float* FS_RESTRICT logits, u32* tokens, i32 vocabulary, i32 parts) {
  const u64 row = fs_bid_y();
  bool sound = true;
  for (i32 t = (i32)fs_bid_x() * 256 + (i32)fs_tid(); t < vocabulary; t += parts * 256) {
    const float v = logits[row * (u64)vocabulary + (u64)t];
    sound = sound && v == v;
  }
  if (!sound) tokens[row] = ~0u;  // everybody who writes writes the same
}
FS_EXPORT(draw_sound, 256)

static constexpr int FILTER_THREADS = 1024;

struct FilterShared {
  FsSelect select;
  DrawShared<FILTER_THREADS / 32> draw;
};

// A row being filtered: kept are tokens of key `from` on with weight min_p at least.
struct Filter {
  const float* y;
  i32 vocabulary;
  float largest, min_p;
  u64 from;
};

FS_DEVICE float filter_weight(const Filter& f, float y) { return y == f.largest ? 1.0f : fs_exp(fs_sub(y, f.largest)); }

// The key of a kept token, 0 of another; q its weight in units of 2^-40.
FS_DEVICE u64 filter_key(const Filter& f, i32 t, u64& q, bool weigh) {
  const float y = f.y[t];
  const u64 key = fs_rank_key(y, (u32)t);
  if (fs_rank(y) <= FS_RANK_LOWEST || key < f.from) return 0;
  q = 1;
  if (!weigh && !(f.min_p > 0.0f)) return key;
  const float w = filter_weight(f, y);
  if (f.min_p > 0.0f && !(w >= f.min_p)) return 0;
  if (weigh) q = (u64)fs_mul(w, 1099511627776.0f);
  return key;
}

// The smallest key such that kept tokens from it on reach `target`, in units or in tokens.
FS_DEVICE u64 filter_cut(FilterShared& sh, const Filter& f, u64 target, bool weigh) {
  u64 prefix = 0;
  for (i32 shift = 56; shift >= 0; shift -= 8) {
    for (i32 d = (i32)fs_tid(); d < FS_DIGITS; d += FILTER_THREADS) sh.select.sum[d] = 0;
    fs_barrier();
    for (i32 t = (i32)fs_tid(); t < f.vocabulary; t += FILTER_THREADS) {
      u64 q = 0;
      const u64 key = filter_key(f, t, q, weigh);
      if (key != 0 && q != 0 && (shift == 56 || key >> (shift + 8) == prefix >> (shift + 8)))
        fs_count(&sh.select.sum[key >> shift & 255], q);
    }
    fs_barrier();
    fs_select_digit(sh.select, target);
    prefix |= (u64)sh.select.digit << shift;
    target -= sh.select.above < target ? sh.select.above : target;
    fs_barrier();
  }
  return prefix;
}

// All kept weight.
FS_DEVICE u64 filter_total(FilterShared& sh, const Filter& f) {
  if (fs_tid() == 0) sh.select.above = 0;
  fs_barrier();
  u64 mine = 0;
  for (i32 t = (i32)fs_tid(); t < f.vocabulary; t += FILTER_THREADS) {
    u64 q = 0;
    if (filter_key(f, t, q, true) != 0) mine += q;
  }
  fs_count(&sh.select.above, mine);
  fs_barrier();
  const u64 total = sh.select.above;
  fs_barrier();
  return total;
}

// total * share / 2^32, rounded up.
FS_DEVICE u64 filter_share(u64 total, u32 share) {
  return (total >> 32) * share + (((total & 0xffffffffu) * share + 0xffffffffu) >> 32);
}

FS_KERNEL(draw_filtered, 1024, 1)(const float* FS_RESTRICT logits, const float* FS_RESTRICT base, const u32x4* FS_RESTRICT plans, float* y,
                                  u32* FS_RESTRICT tokens, i32 vocabulary) {
  FS_SHARED(FilterShared, sh);
  const u64 row = fs_bid_x();
  const DrawPlan plan = draw_plan(plans, row);
  float* mine = y + row * (u64)vocabulary;
  u64 best = 0;
  for (i32 t = (i32)fs_tid(); t < vocabulary; t += FILTER_THREADS) {
    mine[t] = draw_value(logits, base, row * (u64)vocabulary + (u64)t, plan.temperature);
    const u64 key = fs_rank(mine[t]) > FS_RANK_LOWEST ? fs_rank_key(mine[t], (u32)t) : 0;
    best = key > best ? key : best;
  }
  best = draw_best<FILTER_THREADS / 32>(sh.draw, best);  // its barriers show all of y to the block
  Filter f = {mine, vocabulary, best == 0 ? 0.0f : mine[fs_rank_index(best)], 0.0f, 0};
  if (best != 0 && plan.temperature > 0.0f) {  // the same for all threads
    if (plan.top_k > 0 && plan.top_k < (u32)vocabulary) f.from = filter_cut(sh, f, plan.top_k, false);
    f.min_p = plan.min_p;
    if (plan.top_p > 0) f.from = filter_cut(sh, f, filter_share(filter_total(sh, f), plan.top_p), true);
  }
  u64 drawn = 0;
  for (i32 t = (i32)fs_tid(); t < vocabulary; t += FILTER_THREADS) {
    u64 q = 0;
    if (filter_key(f, t, q, false) == 0) continue;
    const u64 key = draw_key(plan, mine[t], (u32)t);
    drawn = key > drawn ? key : drawn;
  }
  drawn = draw_best<FILTER_THREADS / 32>(sh.draw, drawn);
  if (fs_tid() == 0) tokens[row] = draw_token(drawn);
}
FS_EXPORT(draw_filtered, 1024)
