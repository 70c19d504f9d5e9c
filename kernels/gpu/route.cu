// Routing: which experts a token visits, with what weight, in which units of work. Contract rules 5, 11, 12.
//
// route_top_k, route_hash
//   formula  p = sqrt(softplus(logit)); experts = the best `used` by p + bias (rule 14), or the token's
//            row of the table; w = (scale * p) / (sum of p in slot order from +0); counts[expert] += 1;
//            visits += experts chosen at least once
//   shapes   logits [n][experts] f32; bias [experts], or tokens [n] u32 and table [vocabulary][used] u32;
//            chosen [n][used] u32, weights [n][used] f32, counts [experts] u64 (added to) or null;
//            visits u64 (added to) or null, for up to 8 tokens;
//            units [n * used] and order [n * used] u32 as route_plan's, for up to 8 tokens; or units of
//            {expert, slot, 1, 0}, every slot on its own, and no order; or neither;
//            experts up to 512, used up to 16
//   launch   grid ceil(n / 8) of 512 threads: 8 tokens a block; with `mix` n more, each of which finishes a token's open site
//            (fs_hc.h)
//   cost     4 bytes a logit, about 60 flops a logit for the functions. Bound by latency: a warp finds the rank of
//            each of 32 experts among them by 32 exchanges that do not wait for each other, then a thread counts how many of all
//            groups' best come before its own; ranks are unique, so that no step of a selection follows another
// route_plan
//   formula  slots sorted by expert (stable), and each expert's run cut into units of up to `wide`;
//            visits += experts chosen at least once
//   shapes   chosen [slots] u32; visits u64 (added to) or null; order [slots] u32; units [slots] of {expert, first place in order,
//            slots, 0}, those past the last all zero
//   launch   one block of 512 threads; for more tokens than route_top_k plans itself
//   cost     `chosen` is read twice: a warp counts a part of the slots by expert, a thread an expert finds where each
//            warp's slots of it go, then warps put theirs there, 32 at a time with two barriers
// swiglu
//   formula  silu(min(gate, limit)) * clamp(up, +-limit), then * weights[row] if there are weights
//   shapes   gate, up, h [rows][n], weights [rows] or null
//   launch   grid (ceil(n / 256), rows) of 256 threads
// moe_combine
//   formula  out = ((+0 + slot_0) + slot_1 ..) + shared
//   shapes   slots [n][used][d], shared, out [n][d]
//   launch   grid (ceil(d / 256), n) of 256 threads
#include "fourspark.h"
#include "fs_hc.h"
#include "fs_math.h"
#include "fs_rank.h"
#include "fs_swiglu.h"

static constexpr int ROUTE_EXPERTS = 512, ROUTE_THREADS = 512, ROUTE_TOKENS = 8, ROUTE_USED = 16;
static constexpr int ROUTE_BEST = ROUTE_EXPERTS / 32 * ROUTE_USED, ROUTE_SLOTS = ROUTE_TOKENS * ROUTE_USED;

// The slots of a block's tokens, one after the other.
struct RouteSlots {
  u32 chosen[ROUTE_SLOTS], leads[ROUTE_SLOTS];
  float p[ROUTE_SLOTS];
};
// The best of each group of 32 experts, and their p.
struct RouteShared {
  u64 key[ROUTE_TOKENS][ROUTE_BEST];
  float p[ROUTE_TOKENS][ROUTE_BEST];
  RouteSlots slots;
};

// What routing writes.
struct RouteOut {
  u32* chosen;
  float* weights;
  u64 *counts, *visits;
  u32x4* units;
  u32* order;
};

// A warp's 32 experts from `first` on: the best `used` into places of their rank. Experts past the last come after all others.
FS_DEVICE void route_group(u64* best, float* best_p, const float* logits, const float* bias, i32 first, i32 experts, i32 used) {
  const i32 lane = (i32)fs_lane(), e = first + lane;
  const float p = e < experts ? fs_sqrt_softplus(logits[e]) : 0.0f;
  const u64 key = e < experts ? fs_rank_key(fs_add(p, bias[e]), (u32)e) : (u64)lane;
  i32 rank = 0;
  FS_UNROLL for (u32 other = 0; other < 32; other++) {
    const u64 theirs = (u64)fs_shfl((u32)(key >> 32), other) << 32 | fs_shfl((u32)key, other);
    rank += theirs > key ? 1 : 0;
  }
  if (rank >= used) return;
  best[rank] = key;
  best_p[rank] = p;
}

// The best of all groups, a thread each: as many come before it as its slot says. `used` real ones are among them.
FS_DEVICE void route_select(RouteShared& sh, i32 tokens, i32 all, i32 used) {
  for (i32 i = (i32)fs_tid(); i < tokens * all; i += ROUTE_THREADS) {
    const i32 token = i / all;
    const u64 key = sh.key[token][i % all];
    i32 rank = 0;
    for (i32 c = 0; c < all; c++) rank += sh.key[token][c] > key ? 1 : 0;
    if (rank < used) {
      sh.slots.chosen[token * used + rank] = fs_rank_index(key);
      sh.slots.p[token * used + rank] = sh.p[token][i % all];
    }
  }
  fs_barrier();
}

// Weights and counts of the chosen experts. A thread a slot; `first` is the block's first slot.
FS_DEVICE void route_weigh(const RouteSlots& sh, const RouteOut& out, u64 first, i32 slots, i32 used, float scale) {
  const i32 slot = (i32)fs_tid();
  if (slot >= slots) return;  // no barrier inside
  float sum = 0.0f;
  for (i32 s = 0; s < used; s++) sum = fs_add(sum, sh.p[slot / used * used + s]);
  const u64 at = first + (u64)slot;
  out.chosen[at] = sh.chosen[slot];
  out.weights[at] = fs_div(fs_mul(scale, sh.p[slot]), sum);
  if (out.counts) fs_count(&out.counts[sh.chosen[slot]], (u64)1);
  if (out.units && !out.order) out.units[at] = u32x4{sh.chosen[slot], (u32)at, 1, 0};
  if (out.visits) {
    bool again = false;
    for (i32 s = 0; s < slot; s++) again |= sh.chosen[s] == sh.chosen[slot];
    if (!again) fs_count(out.visits, (u64)1);
  }
}

// The plan of a pass that is one block's. A thread a slot counts what comes before it, all threads call.
FS_DEVICE void route_order(RouteSlots& sh, const RouteOut& out, i32 slots, u32 wide) {
  const i32 slot = (i32)fs_tid();
  const bool mine = slot < slots;
  const u32 expert = mine ? sh.chosen[slot] : 0;
  u32 before = 0, run = 0, same = 0;  // slots of lower experts, of this one before and in all
  for (i32 s = 0; s < slots; s++) {
    before += sh.chosen[s] < expert ? 1 : 0;
    same += sh.chosen[s] == expert ? 1 : 0;
    run += sh.chosen[s] == expert && s < slot ? 1 : 0;
  }
  const bool leads = run % wide == 0;
  if (mine) sh.leads[slot] = leads ? 1 : 0;
  fs_barrier();
  if (!mine) return;
  u32 unit = 0, all = 0;
  for (i32 s = 0; s < slots; s++) {
    const bool earlier = sh.chosen[s] < expert || (sh.chosen[s] == expert && s < slot);
    unit += earlier ? sh.leads[s] : 0;
    all += sh.leads[s];
  }
  out.order[before + run] = (u32)slot;
  if (leads) out.units[unit] = u32x4{expert, before + run, same - run < wide ? same - run : wide, 0};
  if ((u32)slot >= all) out.units[slot] = u32x4{0, 0, 0, 0};
}

// Whether this block is one beside those that route; it has finished its token's site then.
FS_DEVICE bool route_beside(const FsHcOpen& open, i32 n) {
  const i32 own = (n + ROUTE_TOKENS - 1) / ROUTE_TOKENS, block = (i32)fs_bid_x();
  if (block < own) return false;
  open.finish((u64)(block - own));
  return true;
}

FS_KERNEL(route_top_k, 512, 1)(const float* FS_RESTRICT logits, const float* FS_RESTRICT bias, u32* FS_RESTRICT chosen,
                               float* FS_RESTRICT weights, u64* counts, u64* visits, u32x4* units, u32* order, i32 n, i32 experts,
                               i32 used, i32 wide, float scale, float* mix, i32 iterations, float eps) {
  fs_begin();
  FS_SHARED(RouteShared, sh);
  if (route_beside(FsHcOpen{mix, iterations, eps}, n)) return;  // the same for all threads
  const i32 first = (i32)fs_bid_x() * ROUTE_TOKENS, tokens = n - first < ROUTE_TOKENS ? n - first : ROUTE_TOKENS;
  const i32 groups = (experts + 31) / 32;
  for (i32 i = (i32)fs_warp(); i < tokens * groups; i += ROUTE_THREADS / 32) {
    const i32 token = i / groups, g = i % groups;
    route_group(&sh.key[token][g * used], &sh.p[token][g * used], logits + (u64)(first + token) * (u64)experts, bias, g * 32, experts, used);
  }
  fs_barrier();
  route_select(sh, tokens, groups * used, used);
  const RouteOut out = {chosen, weights, counts, visits, units, order};
  route_weigh(sh.slots, out, (u64)first * (u64)used, tokens * used, used, scale);
  if (order) route_order(sh.slots, out, tokens * used, (u32)wide);
}
FS_EXPORT(route_top_k, 512)

FS_KERNEL(route_hash, 512, 1)(const float* FS_RESTRICT logits, const u32* FS_RESTRICT tokens, const u32* FS_RESTRICT table,
                              u32* FS_RESTRICT chosen, float* FS_RESTRICT weights, u64* counts, u64* visits, u32x4* units,
                              u32* order, i32 n, i32 experts, i32 used, i32 wide, float scale, float* mix, i32 iterations,
                              float eps) {
  fs_begin();
  FS_SHARED(RouteSlots, sh);
  if (route_beside(FsHcOpen{mix, iterations, eps}, n)) return;  // the same for all threads
  const i32 slot = (i32)fs_tid(), first = (i32)fs_bid_x() * ROUTE_TOKENS;
  const i32 slots = (n - first < ROUTE_TOKENS ? n - first : ROUTE_TOKENS) * used;
  if (slot < slots) {
    const u64 token = (u64)(first + slot / used);
    sh.chosen[slot] = table[(u64)tokens[token] * (u64)used + (u64)(slot % used)];
    sh.p[slot] = fs_sqrt_softplus(logits[token * (u64)experts + sh.chosen[slot]]);
  }
  fs_barrier();
  const RouteOut out = {chosen, weights, counts, visits, units, order};
  route_weigh(sh, out, (u64)first * (u64)used, slots, used, scale);
  if (order) route_order(sh, out, slots, (u32)wide);
}
FS_EXPORT(route_hash, 512)

static constexpr int PLAN_WARPS = ROUTE_THREADS / 32;

struct PlanShared {
  u32 slots[ROUTE_EXPERTS], units[ROUTE_EXPERTS];
  u32 next[PLAN_WARPS][ROUTE_EXPERTS];  // a warp's slots of an expert: how many, then where the next one goes
};

// Units of this thread's expert, and where each warp's slots of it begin. `mine` slots in all.
FS_DEVICE void plan_expert(PlanShared& sh, u32x4* units, u32 mine, u32 slots, u32 wide) {
  const u32 expert = fs_tid();
  u32 at = 0, unit = 0, all = 0;
  for (u32 e = 0; e < ROUTE_EXPERTS; e++) {
    at += e < expert ? sh.slots[e] : 0;
    unit += e < expert ? sh.units[e] : 0;
    all += sh.units[e];
  }
  for (u32 first = 0; first < mine; first += wide, unit++)
    units[unit] = u32x4{expert, at + first, mine - first < wide ? mine - first : wide, 0};
  for (u32 u = all + expert; u < slots; u += ROUTE_EXPERTS) units[u] = u32x4{0, 0, 0, 0};
  FS_UNROLL for (int w = 0; w < PLAN_WARPS; w++) {
    const u32 here = sh.next[w][expert];
    sh.next[w][expert] = at;
    at += here;
  }
}

// Slots in their order: a warp takes 32 at a time of its part, a slot goes behind those of its expert in lower lanes.
FS_DEVICE void plan_order(PlanShared& sh, const u32* chosen, u32* order, i32 slots, i32 part) {
  const i32 first = (i32)fs_warp() * part, lane = (i32)fs_lane();
  u32* next = sh.next[fs_warp()];
  for (i32 step = 0; step < part; step += 32) {  // as many for every warp
    const i32 slot = first + step + lane;
    const u32 expert = slot < slots ? chosen[slot] : ~0u;
    u32 before = 0, same = 0;
    FS_UNROLL for (u32 other = 0; other < 32; other++) {
      const bool equal = fs_shfl(expert, other) == expert;
      same += equal ? 1 : 0;
      before += equal && (i32)other < lane ? 1 : 0;
    }
    const u32 at = slot < slots ? next[expert] : 0;
    fs_barrier();
    if (slot < slots) {
      order[at + before] = (u32)slot;
      if (before == 0) next[expert] = at + same;
    }
    fs_barrier();
  }
}

FS_KERNEL(route_plan, 512, 1)(const u32* FS_RESTRICT chosen, u64* visits, u32* FS_RESTRICT order, u32x4* FS_RESTRICT units, i32 slots,
                              i32 wide) {
  fs_begin();
  FS_SHARED(PlanShared, sh);
  const u32 expert = fs_tid();
  // A part of the slots for each warp, a multiple of 32.
  const i32 part = (slots + PLAN_WARPS * 32 - 1) / (PLAN_WARPS * 32) * 32;
  FS_UNROLL for (int w = 0; w < PLAN_WARPS; w++) sh.next[w][expert] = 0;
  fs_barrier();
  for (i32 step = (i32)fs_lane(); step < part; step += 32) {
    const i32 slot = (i32)fs_warp() * part + step;
    if (slot < slots) fs_count(&sh.next[fs_warp()][chosen[slot]], 1u);
  }
  fs_barrier();
  u32 mine = 0;
  FS_UNROLL for (int w = 0; w < PLAN_WARPS; w++) mine += sh.next[w][expert];
  if (visits && mine > 0) fs_count(visits, (u64)1);
  sh.slots[expert] = mine;
  sh.units[expert] = (mine + (u32)wide - 1) / (u32)wide;
  fs_barrier();
  plan_expert(sh, units, mine, (u32)slots, (u32)wide);
  fs_barrier();
  plan_order(sh, chosen, order, slots, part);
}
FS_EXPORT(route_plan, 512)

FS_KERNEL(swiglu, 256, 1)(const float* FS_RESTRICT gate, const float* FS_RESTRICT up, const float* FS_RESTRICT weights,
                          float* FS_RESTRICT h, i32 n, float limit) {
  fs_begin();
  const i32 i = (i32)fs_bid_x() * 256 + (i32)fs_tid();
  if (i >= n) return;
  const u64 at = (u64)fs_bid_y() * (u64)n + (u64)i;
  const float v = fs_swiglu(gate[at], up[at], limit);
  h[at] = weights ? fs_mul(v, weights[fs_bid_y()]) : v;
}
FS_EXPORT(swiglu, 256)

FS_KERNEL(moe_combine, 256, 1)(const float* FS_RESTRICT slots, const float* FS_RESTRICT shared, float* FS_RESTRICT out, i32 d, i32 used) {
  fs_begin();
  const i32 i = (i32)fs_bid_x() * 256 + (i32)fs_tid();
  if (i >= d) return;
  const u64 token = fs_bid_y();
  float sum = 0.0f;
  for (i32 s = 0; s < used; s++) sum = fs_add(sum, slots[(token * (u64)used + (u64)s) * (u64)d + (u64)i]);
  out[token * (u64)d + (u64)i] = fs_add(sum, shared[token * (u64)d + (u64)i]);
}
FS_EXPORT(moe_combine, 256)
