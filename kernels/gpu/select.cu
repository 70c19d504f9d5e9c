// Key lists of query positions: raw rows of the window in time order, then compressed rows ascending;
// of more compressed rows than `top_k`, the first by score (contract rules 7, 10, 14). The list goes to
// attention without leaving the device.
//
// key_lists
//   formula  raw: x = max(0, pos + 1 - window) .. pos, each at raw_base + ((x - raw_from) & mask);
//            compressed: v = (pos + 1) / ratio rows visible (none if ratio is 0), row c at
//            flag | (comp_base + c): all v, or the top_k by (score descending, c ascending)
//   shapes   places [n] of {pos, raw_base, raw_from, comp_base} u32; scores [n][score_stride] f32 or
//            null: all rows; keys [n][stride] u32, counts [n] u32
//   launch   grid n of 512 threads
//   cost     reads the scores of a position five or six times, from a cache
//   order    none: counts are integers, rows leave in index order
#include "fourspark.h"
#include "fs_rank.h"
#include "fs_select.h"

static constexpr int LIST_THREADS = 512;

struct ListShared {
  FsSelect select;
  u32 scratch[LIST_THREADS / 32];
};

// The rank that the k-th value has, and how many values of that rank are among the first k.
struct ListCut {
  u32 rank, ties;
};

FS_DEVICE ListCut list_cut(ListShared& sh, const float* scores, i32 v, u32 k) {
  u32 prefix = 0, left = k;
  for (i32 shift = 24; shift >= 0; shift -= 8) {
    for (i32 d = (i32)fs_tid(); d < FS_DIGITS; d += LIST_THREADS) sh.select.sum[d] = 0;
    fs_barrier();
    for (i32 i = (i32)fs_tid(); i < v; i += LIST_THREADS) {
      const u32 rank = fs_rank(scores[i]);
      if (((u64)rank >> (shift + 8)) == ((u64)prefix >> (shift + 8))) fs_count(&sh.select.sum[rank >> shift & 255], (u64)1);
    }
    fs_barrier();
    fs_select_digit(sh.select, left);
    prefix |= sh.select.digit << shift;
    left -= (u32)sh.select.above;
    fs_barrier();
  }
  return ListCut{prefix, left};
}

// Writes the chosen rows in index order: a thread a run of rows.
FS_DEVICE void list_chosen(ListShared& sh, const float* scores, i32 v, const ListCut& cut, u32 base, u32* keys) {
  const i32 each = (v + LIST_THREADS - 1) / LIST_THREADS, from = (i32)fs_tid() * each, to = from + each < v ? from + each : v;
  u32 better = 0, ties = 0;
  for (i32 i = from; i < to; i++) {
    const u32 rank = fs_rank(scores[i]);
    better += rank > cut.rank ? 1 : 0;
    ties += rank == cut.rank ? 1 : 0;
  }
  const u32 above = fs_block_prefix<LIST_THREADS>(sh.scratch, better);
  u32 tie = fs_block_prefix<LIST_THREADS>(sh.scratch, ties);
  u32 at = above + (tie < cut.ties ? tie : cut.ties);
  for (i32 i = from; i < to; i++) {
    const u32 rank = fs_rank(scores[i]);
    const bool takes = rank > cut.rank || (rank == cut.rank && tie < cut.ties);
    tie += rank == cut.rank ? 1 : 0;
    if (takes) keys[at++] = base + (u32)i;
  }
}

FS_KERNEL(key_lists, 512, 1)(const u32x4* FS_RESTRICT places, const float* FS_RESTRICT scores, u32* FS_RESTRICT keys,
                             u32* FS_RESTRICT counts, i32 window, u32 mask, i32 ratio, i32 top_k, i32 score_stride, i32 stride, u32 flag) {
  fs_begin();
  FS_SHARED(ListShared, sh);
  const u64 n = fs_bid_x();
  const u32x4 place = places[n];
  const u32 seen = place.x + 1, raw = seen < (u32)window ? seen : (u32)window;
  const u32 v = ratio > 0 ? seen / (u32)ratio : 0;
  u32* mine = keys + n * (u64)stride;
  for (u32 i = fs_tid(); i < raw; i += LIST_THREADS) mine[i] = place.y + ((seen - raw + i - place.z) & mask);
  const bool choose = scores && v > (u32)top_k;
  const u32 base = flag | place.w;
  if (choose) {
    const float* row = scores + n * (u64)score_stride;
    const ListCut cut = list_cut(sh, row, (i32)v, (u32)top_k);
    list_chosen(sh, row, (i32)v, cut, base, mine + raw);
  } else {
    for (u32 i = fs_tid(); i < v; i += LIST_THREADS) mine[raw + i] = base + i;
  }
  if (fs_tid() == 0) counts[n] = raw + (choose ? (u32)top_k : v);
}
FS_EXPORT(key_lists, 512)
