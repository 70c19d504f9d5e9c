// Routing: which experts a token visits, with what weight, in which units of work. Contract rules 5, 11, 12.
//
// route_top_k, route_hash
//   formula  p = sqrt(softplus(logit)); experts = the best `used` by p + bias (rule 14), or the token's
//            row of the table; w = (scale * p) / (sum of p in slot order from +0); counts[expert] += 1
//   shapes   logits [n][experts] f32; bias [experts], or tokens [n] u32 and table [vocabulary][used] u32;
//            chosen [n][used] u32, weights [n][used] f32, counts [experts] u64 (added to) or null,
//            units [n * used] of {expert, slot, 1, 0} or null: every slot on its own;
//            experts up to 512, used up to 16
//   launch   grid ceil(n / 4) of 128 threads, a warp a token
//   cost     4 bytes a logit, about 60 flops a logit for the functions
// route_plan
//   formula  slots sorted by expert (stable), and each expert's run cut into units of up to `wide`
//   shapes   chosen [slots] u32; order [slots] u32; units [slots] of {expert, first place in order,
//            slots, 0}, those past the last all zero
//   launch   one block of 512 threads, a thread an expert
//   cost     a thread reads all of `chosen` twice
// swiglu
//   formula  silu(min(gate, limit)) * clamp(up, +-limit), then * weights[row] if there are weights
//   shapes   gate, up, h [rows][n], weights [rows] or null
//   launch   grid (ceil(n / 256), rows) of 256 threads
// moe_combine
//   formula  out = ((+0 + slot_0) + slot_1 ..) + shared
//   shapes   slots [n][used][d], shared, out [n][d]
//   launch   grid (ceil(d / 256), n) of 256 threads
#include "fourspark.h"
#include "fs_math.h"
#include "fs_rank.h"
#include "fs_swiglu.h"

static constexpr int ROUTE_EXPERTS = 512, ROUTE_LANE = ROUTE_EXPERTS / 32, ROUTE_USED = 16;

struct RouteShared {
  float p[4][ROUTE_EXPERTS];
  u32 chosen[4][ROUTE_USED];
};

// Scores of one token into shared memory.
FS_DEVICE void route_scores(float (&p)[ROUTE_EXPERTS], const float* logits, i32 experts) {
  for (i32 e = (i32)fs_lane(); e < experts; e += 32) p[e] = fs_sqrt_softplus(logits[e]);
}

// Weights of the chosen experts, and what follows from them. One lane a slot.
FS_DEVICE void route_weigh(const float (&p)[ROUTE_EXPERTS], const u32 (&chosen)[ROUTE_USED], u64 token, u32* out, float* weights,
                           u64* counts, u32x4* units, i32 used, float scale) {
  const i32 lane = (i32)fs_lane();
  if (lane >= used) return;
  float sum = 0.0f;
  for (i32 s = 0; s < used; s++) sum = fs_add(sum, p[chosen[s]]);
  const u64 slot = token * (u64)used + (u64)lane;
  out[slot] = chosen[lane];
  weights[slot] = fs_div(fs_mul(scale, p[chosen[lane]]), sum);
  if (counts) fs_count(&counts[chosen[lane]], (u64)1);
  if (units) units[slot] = u32x4{chosen[lane], (u32)slot, 1, 0};
}

// Tokens past the last repeat it and write nothing, so that every warp reaches the barriers.
FS_KERNEL(route_top_k, 128, 1)(const float* FS_RESTRICT logits, const float* FS_RESTRICT bias, u32* FS_RESTRICT chosen,
                               float* FS_RESTRICT weights, u64* counts, u32x4* units, i32 n, i32 experts, i32 used, float scale) {
  FS_SHARED(RouteShared, sh);
  const i32 lane = (i32)fs_lane(), warp = (i32)fs_warp(), token = (i32)fs_bid_x() * 4 + warp, safe = token < n ? token : n - 1;
  route_scores(sh.p[warp], logits + (u64)safe * (u64)experts, experts);
  fs_barrier();
  u64 keys[ROUTE_LANE];
  FS_UNROLL for (i32 i = 0; i < ROUTE_LANE; i++) {
    const i32 e = i * 32 + lane;
    keys[i] = e < experts ? fs_rank_key(fs_add(sh.p[warp][e], bias[e]), (u32)e) : 0;
  }
  for (i32 s = 0; s < used; s++) {
    u64 best = 0;
    FS_UNROLL for (i32 i = 0; i < ROUTE_LANE; i++) best = keys[i] > best ? keys[i] : best;
    best = fs_rank_best(best);
    FS_UNROLL for (i32 i = 0; i < ROUTE_LANE; i++) keys[i] = keys[i] == best ? 0 : keys[i];
    if (lane == 0) sh.chosen[warp][s] = fs_rank_index(best);
  }
  fs_barrier();
  if (token < n) route_weigh(sh.p[warp], sh.chosen[warp], (u64)token, chosen, weights, counts, units, used, scale);
}
FS_EXPORT(route_top_k, 128)

FS_KERNEL(route_hash, 128, 1)(const float* FS_RESTRICT logits, const u32* FS_RESTRICT tokens, const u32* FS_RESTRICT table,
                              u32* FS_RESTRICT chosen, float* FS_RESTRICT weights, u64* counts, u32x4* units, i32 n, i32 experts, i32 used,
                              float scale) {
  FS_SHARED(RouteShared, sh);
  const i32 lane = (i32)fs_lane(), warp = (i32)fs_warp(), token = (i32)fs_bid_x() * 4 + warp, safe = token < n ? token : n - 1;
  route_scores(sh.p[warp], logits + (u64)safe * (u64)experts, experts);
  if (lane < used) sh.chosen[warp][lane] = table[(u64)tokens[safe] * (u64)used + (u64)lane];
  fs_barrier();
  if (token < n) route_weigh(sh.p[warp], sh.chosen[warp], (u64)token, chosen, weights, counts, units, used, scale);
}
FS_EXPORT(route_hash, 128)

struct PlanShared {
  u32 slots[ROUTE_EXPERTS], units[ROUTE_EXPERTS];
};

FS_KERNEL(route_plan, 512, 1)(const u32* FS_RESTRICT chosen, u32* FS_RESTRICT order, u32x4* FS_RESTRICT units, i32 slots, i32 wide) {
  FS_SHARED(PlanShared, sh);
  const u32 expert = fs_tid();
  u32 mine = 0;
  for (i32 s = 0; s < slots; s++) mine += chosen[s] == expert ? 1 : 0;
  sh.slots[expert] = mine;
  sh.units[expert] = (mine + (u32)wide - 1) / (u32)wide;
  fs_barrier();
  u32 at = 0, unit = 0, all = 0;
  for (u32 e = 0; e < ROUTE_EXPERTS; e++) {
    at += e < expert ? sh.slots[e] : 0;
    unit += e < expert ? sh.units[e] : 0;
    all += sh.units[e];
  }
  for (u32 first = 0; first < mine; first += (u32)wide, unit++)
    units[unit] = u32x4{expert, at + first, mine - first < (u32)wide ? mine - first : (u32)wide, 0};
  for (i32 s = 0; s < slots && mine > 0; s++)
    if (chosen[s] == expert) order[at++] = (u32)s;
  for (u32 u = all + expert; u < (u32)slots; u += ROUTE_EXPERTS) units[u] = u32x4{0, 0, 0, 0};
}
FS_EXPORT(route_plan, 512)

FS_KERNEL(swiglu, 256, 1)(const float* FS_RESTRICT gate, const float* FS_RESTRICT up, const float* FS_RESTRICT weights,
                          float* FS_RESTRICT h, i32 n, float limit) {
  const i32 i = (i32)fs_bid_x() * 256 + (i32)fs_tid();
  if (i >= n) return;
  const u64 at = (u64)fs_bid_y() * (u64)n + (u64)i;
  const float v = fs_swiglu(gate[at], up[at], limit);
  h[at] = weights ? fs_mul(v, weights[fs_bid_y()]) : v;
}
FS_EXPORT(swiglu, 256)

FS_KERNEL(moe_combine, 256, 1)(const float* FS_RESTRICT slots, const float* FS_RESTRICT shared, float* FS_RESTRICT out, i32 d, i32 used) {
  const i32 i = (i32)fs_bid_x() * 256 + (i32)fs_tid();
  if (i >= d) return;
  const u64 token = fs_bid_y();
  float sum = 0.0f;
  for (i32 s = 0; s < used; s++) sum = fs_add(sum, slots[(token * (u64)used + (u64)s) * (u64)d + (u64)i]);
  out[token * (u64)d + (u64)i] = fs_add(sum, shared[token * (u64)d + (u64)i]);
}
FS_EXPORT(moe_combine, 256)
