// The first values of a list by contract rule 14, found digit by digit: counts of a digit's values are
// integers, so that their order does not matter. One block of THREADS threads.
#pragma once
#include "fourspark.h"
#include "fs_rank.h"

static constexpr int FS_DIGITS = 256;

struct FsSelect {
  u64 sum[FS_DIGITS];
  u64 above;  // what lies above the digit found, and the digit
  u32 digit;
};

// The digit in which the sum of digits from the top reaches `target`, by the first warp: a lane eight
// digits. If all together do not, digit 0. All threads call; ends with a barrier.
FS_DEVICE void fs_select_digit(FsSelect& sh, u64 target) {
  if (fs_warp() == 0) {
    const u32 lane = fs_lane();
    u64 mine = 0;
    FS_UNROLL for (u32 i = 0; i < 8; i++) mine += sh.sum[255 - (lane * 8 + i)];
    u64 upto = mine;  // of this lane's digits and all larger ones
    FS_UNROLL for (u32 step = 1; step < 32; step *= 2) {
      const u32 from = lane >= step ? lane - step : lane;
      const u64 other = (u64)fs_shfl((u32)(upto >> 32), from) << 32 | fs_shfl((u32)upto, from);
      upto += lane >= step ? other : 0;
    }
    u64 above = upto - mine;
    if ((above < target && upto >= target) || (lane == 31 && upto < target)) {
      u32 digit = 255 - lane * 8;
      for (u32 i = 0; i < 7 && above + sh.sum[digit] < target; i++) above += sh.sum[digit--];
      sh.above = above;
      sh.digit = digit;
    }
  }
  fs_barrier();
}

// The exclusive prefix of `mine` over the block's threads; scratch one u32 a warp and one more.
template <int THREADS>
FS_DEVICE u32 fs_block_prefix(u32 (&scratch)[THREADS / 32], u32 mine) {
  const u32 lane = fs_lane();
  u32 upto = mine;
  FS_UNROLL for (u32 step = 1; step < 32; step *= 2) {
    const u32 other = fs_shfl(upto, lane >= step ? lane - step : lane);
    upto += lane >= step ? other : 0;
  }
  if (lane == 31) scratch[fs_warp()] = upto;
  fs_barrier();
  u32 before = 0;
  for (u32 w = 0; w < fs_warp(); w++) before += scratch[w];
  fs_barrier();
  return before + upto - mine;
}
