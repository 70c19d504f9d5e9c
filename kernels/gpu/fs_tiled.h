// Matrices in tile order (fs_formats.h) against a few activation rows on 4-way dots: contract rules 2 and 3.
#pragma once
#include "fourspark.h"
#include "fs_formats.h"
#include "fs_math.h"

static constexpr int TILED_SEGMENTS = 8, TILED_BLOCKS = TILED_SEGMENTS * FS_SEGMENT_BLOCKS;  // of a pass

template <class F>
struct FsTiled {
  const u32x4* codes;
  const u32x4* scales;
  i32 tiles, groups, segments;
};

FS_DEVICE u64 fs_tiled_codes(i32 words, i32 m, i32 blocks) { return (u64)((m + 31) / 32) * (u64)((blocks + 3) / 4) * (u64)words * 32; }
FS_DEVICE u64 fs_tiled_scales(i32 scales, i32 m, i32 blocks) { return (u64)((m + 31) / 32) * (u64)((blocks + 15) / 16) * (u64)scales * 32; }

// Matrix `index` of a stack of [m][blocks].
template <class F>
FS_DEVICE FsTiled<F> fs_tiled_of(const u8* packed, u64 index, i32 m, i32 blocks) {
  const u64 codes = fs_tiled_codes(F::WORDS, m, blocks), all = codes + fs_tiled_scales(F::SCALES, m, blocks);
  const u32x4* at = (const u32x4*)packed + index * all;
  return FsTiled<F>{at, at + codes, (m + 31) / 32, (blocks + 3) / 4, (blocks + 15) / 16};
}

// Four blocks of one row.
template <class F>
struct FsTiledGroup {
  u32x4 word[F::WORDS];
  u32 scales[F::LOADS];
};

// A lane's segment of a row: where its first group and its scales are, and its last group.
template <class F>
struct FsTiledJob {
  const u32x4* codes;
  const u32x4* scales;
  i32 last;
};

// Beyond the matrix: a job that is there instead. Nobody uses its terms.
template <class F>
FS_DEVICE FsTiledJob<F> fs_tiled_job(const FsTiled<F>& w, i32 tile, i32 segment) {
  const u64 t = (u64)(tile < w.tiles ? tile : w.tiles - 1);
  const i32 s = segment < w.segments ? segment : w.segments - 1, left = w.groups - 1 - s * 4;
  return FsTiledJob<F>{w.codes + (t * (u64)w.groups + (u64)s * 4) * F::WORDS * 32 + fs_lane(),
                       w.scales + (t * (u64)w.segments + (u64)s) * F::SCALES * 32 + fs_lane(), left < 3 ? left : 3};
}

// A group past the end repeats the last one: nobody uses its terms.
template <class F>
FS_DEVICE void fs_tiled_load(FsTiledGroup<F>& out, const FsTiledJob<F>& job, i32 group) {
  const i32 safe = group < job.last ? group : job.last;
  const u32x4* line = job.codes + safe * (F::WORDS * 32);
  FS_UNROLL for (int j = 0; j < F::WORDS; j++) out.word[j] = fs_load_stream(line + j * 32);
  F::read_scales(out.scales, job.scales, safe);
}

// The activations of a pass.
template <int Q>
struct FsTiledInput {
  alignas(16) u8 q[Q][TILED_BLOCKS * 32];
  fs_a8_meta meta[Q][TILED_BLOCKS];
};

// Which output rows a block's columns are; the activation row is slot / per.
struct FsTiledColumns {
  u32 expert, first;
  i32 count;
  const u32* order;

  FS_DEVICE_MEMBER u64 slot(i32 c) const { return order ? order[first + (u32)c] : first + (u32)c; }
};

// Unit y of the grid: given by the list, or the next Q of `cols` columns of matrix 0.
template <int Q>
FS_DEVICE FsTiledColumns fs_tiled_columns(const u32x4* units, const u32* order, i32 cols) {
  const i32 first = (i32)fs_bid_y() * Q, left = cols - first;
  const u32x4 unit = units ? units[fs_bid_y()] : u32x4{0, (u32)first, (u32)(left < Q ? left : Q), 0};
  return FsTiledColumns{unit.x, unit.y, (i32)unit.z < Q ? (i32)unit.z : Q, order};
}

// The same of a grid whose units from `first` on are a shared expert's, alone in its stack: Q of the tokens each.
template <int Q>
FS_DEVICE FsTiledColumns fs_tiled_with(const u32x4* units, const u32* order, i32 tokens, i32 first) {
  const i32 alone = (tokens + Q - 1) / Q, y = (i32)fs_bid_y(), own = y - first, left = tokens - own * Q;
  if (own >= 0 && own < alone) return FsTiledColumns{0, (u32)(own * Q), left < Q ? left : Q, nullptr};
  const u32x4 unit = units[own < 0 ? y : y - alone];
  return FsTiledColumns{unit.x, unit.y, (i32)unit.z < Q ? (i32)unit.z : Q, order};
}

// Whether this block's unit is the shared expert's.
template <int Q>
FS_DEVICE bool fs_tiled_shared(i32 tokens, i32 first) {
  const i32 own = (i32)fs_bid_y() - first;
  return own >= 0 && own * Q < tokens;
}

// Starts the copy of a pass's activations.
template <int Q, int THREADS>
FS_DEVICE void fs_tiled_stage(FsTiledInput<Q>& to, const FsTiledColumns& my, const i8* q, const fs_a8_meta* meta, i32 first, i32 blocks,
                              u32 per) {
  const i32 count = blocks - first < TILED_BLOCKS ? blocks - first : TILED_BLOCKS;
  FS_UNROLL for (int c = 0; c < Q; c++) {
    if (c >= my.count) continue;  // the same for all threads
    const u64 from = my.slot(c) / per * (u64)blocks + (u64)first;
    for (i32 i = (i32)fs_tid(); i < count * 2; i += THREADS) fs_copy16(&to.q[c][i * 16], q + from * 32 + (u64)i * 16);
    for (i32 i = (i32)fs_tid(); i < count * 2; i += THREADS) fs_copy4((u32*)&to.meta[c][0] + i, (const u32*)(meta + from) + i);
  }
  fs_copy_commit();
}

// Activations in the order that a format's dots take; the other threads' after a barrier.
template <class F, int Q, int THREADS>
FS_DEVICE void fs_tiled_arrange(FsTiledInput<Q>& in, const FsTiledColumns& my, i32 first, i32 blocks) {
  if (!F::CODES) return;
  const i32 count = blocks - first < TILED_BLOCKS ? blocks - first : TILED_BLOCKS;
  fs_barrier();
  FS_UNROLL for (int c = 0; c < Q; c++) {
    if (c >= my.count) continue;  // the same for all threads
    for (i32 i = (i32)fs_tid(); i < count * 2; i += THREADS) {
      u32x4* at = (u32x4*)&in.q[c][i * 16];
      *at = fs_split(*at);
    }
  }
}

// Groups that a lane has in flight of a segment's four, for one column: of formats of two words, and where a kernel is
// DEEP, with registers for them. On AMD four of them spill, as does a way of two columns beside that of four.
#if FS_HIP
static constexpr int FS_TILED_FEW = 2;
static constexpr bool FS_TILED_PAIRS = false;
#else
static constexpr int FS_TILED_FEW = 4;
static constexpr bool FS_TILED_PAIRS = true;
#endif

// Groups that a lane has in flight: the first ones of its next job are asked for while it computes the last ones of
// this one, so that its reads never pause.
template <class F, int Q, bool DEEP>
struct FsTiledAhead {
  static constexpr bool MOST = Q == 1 && (F::WORDS == 2 || (F::WORDS <= 4 && DEEP));
  static constexpr int GROUPS = MOST ? FS_TILED_FEW : F::WORDS <= 4 ? 2 : 1;
  FsTiledGroup<F> group[GROUPS];
};

template <class F, int Q, bool DEEP>
FS_DEVICE void fs_tiled_begin(FsTiledAhead<F, Q, DEEP>& ahead, const FsTiledJob<F>& job) {
  FS_UNROLL for (i32 g = 0; g < ahead.GROUPS; g++) fs_tiled_load<F>(ahead.group[g], job, g);
}

// Where a segment's activations start in the input, its blocks, and the columns.
struct FsTiledSpan {
  i32 local, left, count;
};

// Sums of one segment of this lane's row, of one or two columns all of them, over the blocks in order from +0; leaves the first groups of `next`, if
// there are `more`, on their way.
template <class F, int Q, bool DEEP>
FS_DEVICE void fs_tiled_segment(float (&acc)[Q], FsTiledAhead<F, Q, DEEP>& ahead, const FsTiledJob<F>& job, const FsTiledJob<F>& next,
                                bool more, const FsTiledInput<Q>& in, const FsTiledSpan& span, u32 table) {
  constexpr int AHEAD = FsTiledAhead<F, Q, DEEP>::GROUPS;
  FS_UNROLL for (int c = 0; c < Q; c++) acc[c] = 0.0f;
  FS_ROLLED for (i32 part = 0; part < 4; part += AHEAD) {
    // What to ask for: the rest of this job, or the start of the next.
    const bool here = part + AHEAD < 4;
    const FsTiledJob<F> from = {here ? job.codes : next.codes, here ? job.scales : next.scales, here ? job.last : next.last};
    FS_UNROLL for (i32 i = 0; i < AHEAD * 4; i++) {
      const FsTiledGroup<F>& group = ahead.group[i / 4];
      u32 words[F::WORDS];
      FS_UNROLL for (int j = 0; j < F::WORDS; j++) words[j] = fs_word(group.word[j], i % 4);
      const FsScale s = fs_scale_of<F>(group.scales, i % 4);
      if (i % 4 == 3 && (here || more)) fs_tiled_load<F>(ahead.group[i / 4], from, (here ? part + AHEAD : 0) + i / 4);
      const FsLevels levels = fs_levels<F>(words, table);
      const i32 at = span.local + part * 4 + i;
      const bool inside = part * 4 + i < span.left;
      FS_UNROLL for (int c = 0; c < Q; c++) {
        if (Q > 2 && c >= span.count) continue;  // the same for a warp
        const float term = fs_block_term<F>(levels, s, &in.q[c][at * 32], in.meta[c][at].sums);
        const float sum = fs_fma(in.meta[c][at].d, term, acc[c]);
        acc[c] = inside ? sum : acc[c];
      }
    }
  }
}
