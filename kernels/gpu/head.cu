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
//   cost     up to 19 passes over y, from a cache, eight tokens of a thread on their way; weights only of tokens that a pass counts
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
  fs_begin();
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
  fs_begin();
  const u64 row = fs_bid_x();
  u64 mine = 0;
  for (i32 p = (i32)fs_tid(); p < parts; p += 32) mine = best[row * (u64)parts + (u64)p] > mine ? best[row * (u64)parts + (u64)p] : mine;
  mine = fs_rank_best(mine);
  if (fs_tid() == 0) tokens[row] = draw_token(mine);
}
FS_EXPORT(draw_merge, 32)

FS_KERNEL(draw_sound, 256, 2)(const float* FS_RESTRICT logits, u32* tokens, i32 vocabulary, i32 parts) {
  fs_begin();
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
static constexpr int FILTER_AHEAD = 8, FILTER_STEP = FILTER_THREADS * FILTER_AHEAD;  // tokens on their way at once
static constexpr int FILTER_PARTS = 8;  // counters of a digit: most tokens share few digits, and additions to one counter wait

struct FilterShared {
  FsSelect select;
  u64 parts[FS_DIGITS][FILTER_PARTS];
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

// Logits of tokens t, t + 1024, ..; past the last NaN, which is never kept.
FS_DEVICE void filter_load(const Filter& f, i32 t, float (&y)[FILTER_AHEAD]) {
  FS_UNROLL for (int i = 0; i < FILTER_AHEAD; i++) y[i] = t + i * FILTER_THREADS < f.vocabulary ? f.y[t + i * FILTER_THREADS] : fs_f32(FS_NAN);
}

// The key of a token that its place keeps, 0 of another.
FS_DEVICE u64 filter_key(const Filter& f, float y, i32 t) {
  const u64 key = fs_rank_key(y, (u32)t);
  return fs_rank(y) <= FS_RANK_LOWEST || key < f.from ? 0 : key;
}

// Of such a token: 0 if min-p drops it, else 1, or its weight in units of 2^-40.
FS_DEVICE u64 filter_share_of(const Filter& f, float y, bool weigh) {
  if (!weigh && !(f.min_p > 0.0f)) return 1;
  const float w = filter_weight(f, y);
  if (f.min_p > 0.0f && !(w >= f.min_p)) return 0;
  return weigh ? (u64)fs_mul(w, 1099511627776.0f) : 1;
}

// Sums of the digit at `shift` over kept tokens whose digits above it are those of prefix. Starts and ends with a barrier.
FS_DEVICE void filter_digits(FilterShared& sh, const Filter& f, u64 prefix, i32 shift, bool weigh) {
  const i32 thread = (i32)fs_tid();
  for (i32 d = thread; d < FS_DIGITS * FILTER_PARTS; d += FILTER_THREADS) sh.parts[d / FILTER_PARTS][d % FILTER_PARTS] = 0;
  fs_barrier();
  FS_ROLLED for (i32 t = thread; t < f.vocabulary; t += FILTER_STEP) {
    float y[FILTER_AHEAD];
    filter_load(f, t, y);
    FS_UNROLL for (int i = 0; i < FILTER_AHEAD; i++) {
      const u64 key = filter_key(f, y[i], t + i * FILTER_THREADS);
      if (key != 0 && (shift == 56 || key >> (shift + 8) == prefix >> (shift + 8))) {
        const u64 q = filter_share_of(f, y[i], weigh);
        if (q != 0) fs_count(&sh.parts[key >> shift & 255][thread % FILTER_PARTS], q);
      }
    }
  }
  fs_barrier();
  if (thread < FS_DIGITS) {
    u64 sum = 0;
    FS_UNROLL for (int i = 0; i < FILTER_PARTS; i++) sum += sh.parts[thread][i];
    sh.select.sum[thread] = sum;
  }
  fs_barrier();
}

// The smallest key such that kept tokens from it on reach `target`, in units or in tokens.
FS_DEVICE u64 filter_cut(FilterShared& sh, const Filter& f, u64 target, bool weigh) {
  u64 prefix = 0;
  for (i32 shift = 56; shift >= 0; shift -= 8) {
    filter_digits(sh, f, prefix, shift, weigh);
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
  FS_ROLLED for (i32 t = (i32)fs_tid(); t < f.vocabulary; t += FILTER_STEP) {
    float y[FILTER_AHEAD];
    filter_load(f, t, y);
    FS_UNROLL for (int i = 0; i < FILTER_AHEAD; i++)
      if (filter_key(f, y[i], t + i * FILTER_THREADS) != 0) mine += filter_share_of(f, y[i], true);
  }
  fs_count(&sh.select.above, mine);
  fs_barrier();
  const u64 total = sh.select.above;
  fs_barrier();
  return total;
}

// This thread's best key of what is left.
FS_DEVICE u64 filter_draw(const Filter& f, const DrawPlan& plan) {
  u64 drawn = 0;
  FS_ROLLED for (i32 t = (i32)fs_tid(); t < f.vocabulary; t += FILTER_STEP) {
    float y[FILTER_AHEAD];
    filter_load(f, t, y);
    FS_UNROLL for (int i = 0; i < FILTER_AHEAD; i++) {
      const i32 token = t + i * FILTER_THREADS;
      if (filter_key(f, y[i], token) != 0 && filter_share_of(f, y[i], false) != 0) {
        const u64 key = draw_key(plan, y[i], (u32)token);
        drawn = key > drawn ? key : drawn;
      }
    }
  }
  return drawn;
}

// total * share / 2^32, rounded up.
FS_DEVICE u64 filter_share(u64 total, u32 share) {
  return (total >> 32) * share + (((total & 0xffffffffu) * share + 0xffffffffu) >> 32);
}

FS_KERNEL(draw_filtered, 1024, 1)(const float* FS_RESTRICT logits, const float* FS_RESTRICT base, const u32x4* FS_RESTRICT plans, float* y,
                                  u32* FS_RESTRICT tokens, i32 vocabulary) {
  fs_begin();
  FS_SHARED(FilterShared, sh);
  const u64 row = fs_bid_x();
  const DrawPlan plan = draw_plan(plans, row);
  float* mine = y + row * (u64)vocabulary;
  u64 best = 0;
  FS_ROLLED for (i32 first = (i32)fs_tid(); first < vocabulary; first += FILTER_STEP) {
    float v[FILTER_AHEAD];
    FS_UNROLL for (int i = 0; i < FILTER_AHEAD; i++) {
      const i32 t = first + i * FILTER_THREADS;
      v[i] = t < vocabulary ? draw_value(logits, base, row * (u64)vocabulary + (u64)t, plan.temperature) : fs_f32(FS_NAN);
    }
    FS_UNROLL for (int i = 0; i < FILTER_AHEAD; i++) {
      const i32 t = first + i * FILTER_THREADS;
      if (t < vocabulary) mine[t] = v[i];
      const u64 key = fs_rank(v[i]) > FS_RANK_LOWEST ? fs_rank_key(v[i], (u32)t) : 0;
      best = key > best ? key : best;
    }
  }
  best = draw_best<FILTER_THREADS / 32>(sh.draw, best);  // its barriers show all of y to the block
  Filter f = {mine, vocabulary, best == 0 ? 0.0f : mine[fs_rank_index(best)], 0.0f, 0};
  if (best != 0 && plan.temperature > 0.0f) {  // the same for all threads
    if (plan.top_k > 0 && plan.top_k < (u32)vocabulary) f.from = filter_cut(sh, f, plan.top_k, false);
    f.min_p = plan.min_p;
    if (plan.top_p > 0) f.from = filter_cut(sh, f, filter_share(filter_total(sh, f), plan.top_p), true);
  }
  const u64 drawn = draw_best<FILTER_THREADS / 32>(sh.draw, filter_draw(f, plan));
  if (fs_tid() == 0) tokens[row] = draw_token(drawn);
}
FS_EXPORT(draw_filtered, 1024)
