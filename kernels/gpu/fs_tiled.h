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

// A group past the end repeats the last one: nobody uses its terms.
template <class F>
FS_DEVICE void fs_tiled_load(FsTiledGroup<F>& out, const FsTiled<F>& w, i32 tile, i32 group) {
  const i32 safe = group < w.groups ? group : w.groups - 1;
  const u32x4* line = w.codes + ((u64)tile * (u64)w.groups + (u64)safe) * F::WORDS * 32 + fs_lane();
  FS_UNROLL for (int j = 0; j < F::WORDS; j++) out.word[j] = fs_load_stream(line + j * 32);
  F::read_scales(out.scales, w.scales + ((u64)tile * (u64)w.segments + (u64)(safe / 4)) * F::SCALES * 32 + fs_lane(), safe % 4);
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

// Groups of a segment that a lane has in flight: the first ones are asked for before their activations have come.
template <class F>
struct FsTiledAhead {
  static constexpr int GROUPS = F::WORDS <= 4 ? 2 : 1;  // other warps fill the gaps
  FsTiledGroup<F> group[GROUPS];
};

template <class F>
FS_DEVICE void fs_tiled_begin(FsTiledAhead<F>& ahead, const FsTiled<F>& w, i32 tile, i32 segment) {
  FS_UNROLL for (i32 g = 0; g < FsTiledAhead<F>::GROUPS; g++) fs_tiled_load<F>(ahead.group[g], w, tile, segment * 4 + g);
}

// Sums of one segment of this lane's row, over the blocks in order from +0. The segment's activations
// start at block `local` of the input.
template <class F, int Q>
FS_DEVICE void fs_tiled_segment(float (&acc)[Q], FsTiledAhead<F>& ahead, const FsTiled<F>& w, const FsTiledInput<Q>& in, i32 tile,
                                i32 segment, i32 local, i32 blocks, i32 count, u32 table) {
  constexpr int AHEAD = FsTiledAhead<F>::GROUPS;
  FS_UNROLL for (int c = 0; c < Q; c++) acc[c] = 0.0f;
  FS_ROLLED for (i32 part = 0; part < 4; part += AHEAD) {
    FS_UNROLL for (i32 i = 0; i < AHEAD * 4; i++) {
      const FsTiledGroup<F>& group = ahead.group[i / 4];
      u32 words[F::WORDS];
      FS_UNROLL for (int j = 0; j < F::WORDS; j++) words[j] = fs_word(group.word[j], i % 4);
      const FsScale s = fs_scale_of<F>(group.scales, i % 4);
      if (i % 4 == 3 && part + AHEAD < 4) fs_tiled_load<F>(ahead.group[i / 4], w, tile, segment * 4 + part + AHEAD + i / 4);
      const FsLevels levels = fs_levels<F>(words, table);
      const i32 at = local + part * 4 + i;
      const bool inside = segment * FS_SEGMENT_BLOCKS + part * 4 + i < blocks;
      FS_UNROLL for (int c = 0; c < Q; c++) {
        if (Q > 1 && c >= count) continue;  // the same for a warp
        const float next = fs_fma(in.meta[c][at].d, fs_block_term<F>(levels, s, &in.q[c][at * 32], in.meta[c][at].sums), acc[c]);
        acc[c] = inside ? next : acc[c];
      }
    }
  }
}
