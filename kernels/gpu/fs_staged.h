// Matrices in tile order against one or two activation rows, their weights on their way through shared memory: every lane
// copies its own rows' words (fs_copy16) two groups ahead of where it computes and reads only what it copied itself, so that a warp
// waits for its copies and for no other warp. Nothing but the group at hand is in registers: the loop over groups is short (its
// code stays in the instruction cache) and a multiprocessor holds more warps.
//
// The order of sums is fs_tiled.h's; must not know: what becomes of the sums.
#pragma once
#include "fourspark.h"
#include "fs_gemv.h"

// A warp's two groups in flight, and the unit of scales of the pair at hand.
template <class F>
struct FsStaged {
  u32x4 codes[2][F::WORDS][32];
  u32x4 scales[32];
};

template <class F, int Q, int MATRICES>
struct FsStagedShared {
  FsTiledInput<Q> input;
  float part[MATRICES][TILED_SEGMENTS][Q][32];
  FsStaged<F> staged[TILED_SEGMENTS];
};

// Starts the copies of a group from its lane's line of codes.
template <class F>
FS_DEVICE void fs_staged_copy(FsStaged<F>& staged, int slot, const u32x4* line) {
  FS_UNROLL for (int j = 0; j < F::WORDS; j++) fs_copy16(&staged.codes[slot][j][fs_lane()], line + j * 32);
}

// Starts the copies of a whole segment's first pair.
template <class F>
FS_DEVICE void fs_staged_begin(FsStaged<F>& staged, const FsTiledJob<F>& job) {
  fs_copy16(&staged.scales[fs_lane()], job.scales);
  FS_UNROLL for (int g = 0; g < 2; g++) {
    fs_staged_copy<F>(staged, g, job.codes + g * F::WORDS * 32);
    fs_copy_commit();
  }
}

// The terms of the four blocks of a group, from the words of a lane's row.
template <class F, int Q>
FS_DEVICE void fs_staged_group(float (&acc)[Q], const u32x4 (&word)[F::WORDS], const u32 (&scales)[F::LOADS], const FsTiledInput<Q>& in, i32 at,
                             i32 left, u32 table) {
  FS_UNROLL for (i32 i = 0; i < 4; i++) {
    if (i >= left) break;  // the same for a warp
    u32 words[F::WORDS];
    FS_UNROLL for (int j = 0; j < F::WORDS; j++) words[j] = fs_word(word[j], i);
    const FsScale s = fs_scale_of<F>(scales, i);
    const FsLevels levels = fs_levels<F>(words, table);
    FS_UNROLL for (int c = 0; c < Q; c++) {
      const fs_a8_meta meta = in.meta[c][at + i];
      acc[c] = fs_fma(meta.d, fs_block_term<F>(levels, s, &in.q[c][(at + i) * 32], meta.sums), acc[c]);
    }
  }
}

// Whole segments of all matrices, begun with the first one's first pair, into `part`; `second`: from the first matrix to the other.
template <class F, int Q, int MATRICES>
FS_DEVICE void fs_staged_whole(float (&part)[MATRICES][TILED_SEGMENTS][Q][32], FsStaged<F>& staged, const FsTiledJob<F>& job, i64 second,
                             const FsTiledInput<Q>& in, i32 first, u32 table) {
  constexpr i32 PAIRS = MATRICES * 2, PAIR = 2 * F::WORDS * 32;
  float acc[Q];
  FS_UNROLL for (int c = 0; c < Q; c++) acc[c] = 0.0f;
  const u32x4* codes = job.codes;    // of the pair at hand
  const u32x4* scales = job.scales;  // of its unit
  FS_ROLLED for (i32 n = 0; n < PAIRS; n++) {
    // What is asked for: the next pair, with its unit if that is another.
    const bool more = n + 1 < PAIRS, other = MATRICES > 1 && n == 1, unit = F::SCALES == 2 || n % 2 == 1;
    codes += other ? second - PAIR : PAIR;
    if (unit) scales += other ? second - (F::SCALES - 1) * 32 : 32;
    u32x4 mine;
    FS_UNROLL for (int half = 0; half < 2; half++) {
      fs_copy_wait<1>();
      if (half == 0) mine = staged.scales[fs_lane()];
      u32x4 word[F::WORDS];
      FS_UNROLL for (int j = 0; j < F::WORDS; j++) word[j] = staged.codes[half][j][fs_lane()];
      u32 own[F::LOADS];
      if (F::SCALES == 2) {
        FS_UNROLL for (int j = 0; j < F::LOADS; j++) own[j] = fs_word(mine, half * 2 + j);
      } else {
        own[0] = n % 2 == 0 ? fs_word(mine, half) : fs_word(mine, 2 + half);
      }
      fs_staged_group<F, Q>(acc, word, own, in, first + n % 2 * 8 + half * 4, 4, table);
      if (more) {
        if (half == 0 && unit) fs_copy16(&staged.scales[fs_lane()], scales);
        fs_staged_copy<F>(staged, half, codes + half * F::WORDS * 32);
      }
      fs_copy_commit();
    }
    if (n % 2 == 0) continue;
    FS_UNROLL for (int c = 0; c < Q; c++) {
      part[n / 2][fs_warp()][c][fs_lane()] = acc[c];
      acc[c] = 0.0f;
    }
  }
}

// A segment that ends early, of all matrices.
template <class F, int Q, int MATRICES>
FS_DEVICE void fs_staged_ragged(float (&part)[MATRICES][TILED_SEGMENTS][Q][32], FsTiledJob<F> job, i64 second, const FsTiledInput<Q>& in, i32 first,
                              i32 left, u32 table) {
  FS_ROLLED for (i32 i = 0; i < MATRICES; i++) {
    float acc[Q];
    FS_UNROLL for (int c = 0; c < Q; c++) acc[c] = 0.0f;
    FS_ROLLED for (i32 g = 0; g * 4 < left; g++) {
      FsTiledGroup<F> group;
      fs_tiled_load<F>(group, job, g);
      fs_staged_group<F, Q>(acc, group.word, group.scales, in, first + g * 4, left - g * 4, table);
    }
    FS_UNROLL for (int c = 0; c < Q; c++) part[i][fs_warp()][c][fs_lane()] = acc[c];
    job.codes += second;
    job.scales += second;
  }
}

// As tiled_products of fs_gemv.h; `second`: from the matrix `w` to the other in units of 16 bytes.
template <class F, int Q, int MATRICES, class Out>
FS_DEVICE void fs_staged_products(FsStagedShared<F, Q, MATRICES>& sh, const FsTiled<F>& w, i64 second, const i8* q, const fs_a8_meta* meta,
                                  const FsTiledColumns& my, i32 blocks, u32 per, u32 table, const Out& out) {
  if (my.count <= 0) return;  // the same for all threads
  const i32 segments = w.segments, log2 = fs_slots_log2(segments);
  FsStaged<F>& staged = sh.staged[fs_warp()];
  float total[MATRICES];
  FS_UNROLL for (int i = 0; i < MATRICES; i++) total[i] = -0.0f;  // the sum of nothing: -0 + a is a, bit for bit
  for (i32 pass = 0; pass < segments; pass += TILED_SEGMENTS) {
    const i32 here = segments - pass < TILED_SEGMENTS ? segments - pass : TILED_SEGMENTS;
    const bool more = pass + here < segments;
    const TiledPlace at = tiled_place(pass, log2);
    const i32 left = at.tile < w.tiles ? blocks - at.segment * FS_SEGMENT_BLOCKS : 0;  // the same for a warp
    fs_tiled_stage<Q, 256>(sh.input, my, q, meta, pass * FS_SEGMENT_BLOCKS, blocks, per);
    const FsTiledJob<F> job = fs_tiled_job<F>(w, at.tile, at.segment);
    if (left >= FS_SEGMENT_BLOCKS) {
      fs_staged_begin(staged, job);
    } else {
      fs_copy_commit();
      fs_copy_commit();
    }
    fs_copy_wait<2>();
    fs_tiled_arrange<F, Q, 256>(sh.input, my, pass * FS_SEGMENT_BLOCKS, blocks);
    fs_barrier();
    if (left >= FS_SEGMENT_BLOCKS)
      fs_staged_whole<F, Q, MATRICES>(sh.part, staged, job, second, sh.input, at.local * FS_SEGMENT_BLOCKS, table);
    else if (left > 0)
      fs_staged_ragged<F, Q, MATRICES>(sh.part, job, second, sh.input, at.local * FS_SEGMENT_BLOCKS, left, table);
    fs_barrier();
    tiled_totals<Q, MATRICES>(total, sh.part, w.tiles, my.count, log2, here, more, out);
    if (more) fs_barrier();
  }
}
