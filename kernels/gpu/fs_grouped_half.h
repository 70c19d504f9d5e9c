// The way of fs_grouped.h on f16 matrix units, for formats of two scales whose levels times scales are exact there
// (fs_halves.h): a step's sum is the block's term, so that one fma an output follows where the way on int8 units takes
// four operations. Activations become f16 once for all warps. Contract rules 2 and 3, the same bits.
#pragma once
#include "fourspark.h"
#include "fs_a8.h"
#include "fs_grouped_parts.h"
#include "fs_halves.h"

struct GroupedHalfShared {
  union {
    // Of two steps of two blocks: 64 bytes a column, 16 for each word of a fragment (grouped_half_word).
    alignas(16) u8 q[2][2][GROUPED_COLS * 64 + 16];
    float part[2][32][65];  // as in GroupedShared
  };
  alignas(16) u8 bytes[2][256][16];  // of two steps, a thread its own
  float d[2][4][GROUPED_COLS];       // of two groups
  float total[GROUPED_SUMS][256];
};
static_assert(sizeof(GroupedHalfShared) == 59648, "the launch gives as much");

#if FS_TILE_HALVES

// Where word t of a column is: writers of four columns and readers of two meet in no bank.
FS_DEVICE u32 grouped_half_word(u32 col, u32 t) { return col * 64 + (t ^ (col & 2)) * 16; }

// What a thread brings: of every step half a block of a column, of every group one d. Columns past the last repeat it.
// Few registers: addresses are made of the column's first block where they are used.
struct GroupedHalfInput {
  const i8* q;
  const fs_a8_meta* meta;
  u32 row, blocks;
};

FS_DEVICE GroupedHalfInput grouped_half_input(const FsTiledColumns& my, const i8* q, const fs_a8_meta* meta, i32 blocks, u32 per) {
  const i32 col = (i32)fs_tid() / 4, last = my.count - 1;
  return GroupedHalfInput{q, meta, (u32)(my.slot(col < last ? col : last) / per) * (u32)blocks, (u32)blocks};
}

FS_DEVICE void grouped_half_ask(GroupedHalfShared& sh, const GroupedHalfInput& my, u32 step) {
  const u32 thread = fs_tid(), block = step * 2 + thread % 4 / 2;
  if (block < my.blocks) fs_copy16(&sh.bytes[step % 2][thread][0], my.q + (u64)(my.row + block) * 32 + thread % 2 * 16);
}

FS_DEVICE void grouped_half_ask_d(GroupedHalfShared& sh, const GroupedHalfInput& my, u32 group) {
  const u32 thread = fs_tid(), block = group * 4 + thread % 4;
  if (block < my.blocks) fs_copy4(&sh.d[group % 2][thread % 4][thread / 4], &my.meta[(u64)(my.row + block)].d);
}

// Puts a thread's bytes of a step in their place as f16: word t is elements 4 t .. 4 t + 3 of each half.
FS_DEVICE void grouped_half_put(GroupedHalfShared& sh, u32 step) {
  const u32 col = fs_tid() / 4, block = fs_tid() % 4 / 2, half = fs_tid() % 2;
  const u32x4 from = *(const u32x4*)&sh.bytes[step % 2][fs_tid()][0];
  u8* to = sh.q[step % 2][block] + half * 8;
  *(u32x2*)(to + grouped_half_word(col, 0)) = fs_half_pairs(from.x);
  *(u32x2*)(to + grouped_half_word(col, 1)) = fs_half_pairs(from.y);
  *(u32x2*)(to + grouped_half_word(col, 2)) = fs_half_pairs(from.z);
  *(u32x2*)(to + grouped_half_word(col, 3)) = fs_half_pairs(from.w);
}

// What a lane holds of a step's two blocks of its two rows: words as in GroupedWords, and scales.
template <class F>
struct GroupedHalfWords {
  u32x2 words[FS_TILE_AW][2][F::PARTS];
  u32 scales[FS_TILE_CR];
};

// Where a lane's words and scales of a warp's rows begin.
struct GroupedHalfFrom {
  const u32x2* codes;
  const u32* scales;
};

template <class F>
FS_DEVICE GroupedHalfFrom grouped_half_from(const FsTiled<F>& w, i32 tile, u32 row0) {
  const u32 line = row0 + fs_tile_line(fs_lane(), 0);
  return GroupedHalfFrom{(const u32x2*)(w.codes + (u64)tile * (u64)w.groups * F::WORDS * 32 + line),
                         (const u32*)(w.scales + (u64)tile * (u64)w.segments * F::SCALES * 32 + line)};
}

// Half a unit of 16 bytes a line; the other half comes from the first-level cache. The second row is 8 lines further.
template <class F>
FS_DEVICE void grouped_half_load(GroupedHalfWords<F>& g, const GroupedHalfFrom& from, u32 step) {
  const u32x2* codes = from.codes + (u64)(step / 2 * (F::WORDS * 64) + step % 2);
  const u32* scales = from.scales + (step / 4 * 128 + step % 4);
  FS_UNROLL for (u32 j = 0; j < (u32)FS_TILE_AW; j++) {
    FS_UNROLL for (u32 h = 0; h < 2; h++)
      FS_UNROLL for (u32 i = 0; i < (u32)F::PARTS; i++) {
        if (h == 1 && F::part(0, i) == F::part(2, i))  // a word of both halves
          g.words[j][h][i] = g.words[j][0][i];
        else
          g.words[j][h][i] = codes[F::part(2 * h, i) * 64 + j * 16];
      }
    g.scales[j] = scales[j * 32];
  }
}

// The scales of this lane's rows as f16: of each half, those of both blocks a word.
struct GroupedHalfScales {
  u32 of[FS_TILE_CR][2];
};

// Also whether all rows of the warp have the scales of the blocks' halves close together.
template <class F>
FS_DEVICE bool grouped_half_scales(GroupedHalfScales& s, const GroupedHalfWords<F>& g) {
  u32 apart = 0;
  FS_UNROLL for (int r = 0; r < FS_TILE_CR; r++) {
    FS_UNROLL for (u32 h = 0; h < 2; h++) s.of[r][h] = fs_half_scales(g.scales[r], h);
    apart |= fs_half_apart(s.of[r][0], s.of[r][1]);
  }
  return !fs_warp_any(apart & FS_HALF_APART);
}

// Block e of a step, levels times scales: fragments of both of its halves.
struct GroupedHalfBlock {
  u32 a[2][4];
};

template <class F>
FS_DEVICE void grouped_half_decode(GroupedHalfBlock& b, const GroupedHalfWords<F>& g, const GroupedHalfScales& s, u32 e, u32 table) {
  const u32 t = fs_tile_word(fs_lane(), 0);
  FS_UNROLL for (int r = 0; r < FS_TILE_CR; r++) {
    u32 p[2][F::PARTS];
    FS_UNROLL for (int h = 0; h < 2; h++)
      FS_UNROLL for (int i = 0; i < F::PARTS; i++) p[h][i] = fs_either(g.words[r][h][i], e);
    FS_UNROLL for (u32 h = 0; h < 2; h++) {
      const u32x2 v = FsHalves<F>::four(p, t, h, table);
      b.a[h][r] = fs_half2_mul(v.x, s.of[r][h], e);
      b.a[h][2 + r] = fs_half2_mul(v.y, s.of[r][h], e);
    }
  }
}

// Block e of a step against the columns, column 8 n and on in acc[n]. CLOSE: the scales of halves are.
template <int TILES, bool CLOSE>
FS_DEVICE void grouped_half_block(float (&acc)[TILES][FS_TILE_C], const GroupedHalfShared& sh, const GroupedHalfBlock& b, u32 step, u32 e) {
  const u32 lane = fs_lane();
  const u8* q = sh.q[step % 2][e] + grouped_half_word(fs_tile_line(lane, 0), fs_tile_word(lane, 0));
  FS_UNROLL for (int n = 0; n < TILES; n++) {
    const u32x4 x = *(const u32x4*)(q + n * FS_TILE_N * 64);
    float term[FS_TILE_C], second[FS_TILE_C], d[FS_TILE_CC];
    const float zero[FS_TILE_C] = {0.0f, 0.0f, 0.0f, 0.0f};
    fs_tile_columns(&sh.d[step / 2 % 2][step % 2 * 2 + e][n * FS_TILE_N], lane, d);
    fs_half_mma(term, b.a[0], x.x, x.y, zero);
    if (CLOSE) {
      fs_half_mma(term, b.a[1], x.z, x.w, term);
    } else {
      fs_half_mma(second, b.a[1], x.z, x.w, zero);
      FS_UNROLL for (int i = 0; i < FS_TILE_C; i++) term[i] = fs_add(term[i], second[i]);
    }
    FS_UNROLL for (int i = 0; i < FS_TILE_C; i++) acc[n][i] = fs_fma(d[i % FS_TILE_CC], term[i], acc[n][i]);
  }
}

// Starts a step: the next one's activations find their place while this one's are multiplied. A warp brings those of a
// tile of columns.
template <int TILES>
FS_DEVICE void grouped_half_begin(GroupedHalfShared& sh, const GroupedHalfInput& in, u32 step) {
  fs_copy_wait<1>();
  fs_barrier();  // the step's activations are there, and those of the step before read
  if (fs_warp() < (u32)TILES) {
    grouped_half_put(sh, step + 1);
    grouped_half_ask(sh, in, step + 3);
    if (step % 2 == 0) grouped_half_ask_d(sh, in, step / 2 + 1);
  }
  fs_copy_commit();
}

// Before the first step: its activations are in their place, those of the next two on their way.
FS_DEVICE void grouped_half_first(GroupedHalfShared& sh, const GroupedHalfInput& in) {
  grouped_half_ask(sh, in, 0);
  grouped_half_ask_d(sh, in, 0);
  fs_copy_commit();
  grouped_half_ask(sh, in, 1);
  fs_copy_commit();
  fs_copy_wait<1>();
  grouped_half_put(sh, 0);
  grouped_half_ask(sh, in, 2);
  fs_copy_commit();
}

template <class F, int TILES>
FS_DEVICE void grouped_half_tiles(GroupedHalfShared& sh, const FsTiled<F>& w, const GroupedHalfInput& in, i32 tile, u32 row0, u32 table) {
  float acc[TILES][FS_TILE_C];
  FS_UNROLL for (int n = 0; n < TILES; n++)
    FS_UNROLL for (int i = 0; i < FS_TILE_C; i++) acc[n][i] = 0.0f;
  const u32 groups = (u32)w.groups, blocks = in.blocks;
  const GroupedHalfFrom from = grouped_half_from<F>(w, tile, row0);
  GroupedHalfWords<F> words[2];
  grouped_half_load<F>(words[0], from, 0);
  grouped_half_first(sh, in);
  FS_ROLLED for (u32 group = 0; group < groups; group++) {
    FS_UNROLL for (u32 p = 0; p < 2; p++) {
      const u32 step = group * 2 + p;
      if (step * 2 >= blocks) continue;  // the same for all threads
      grouped_half_load<F>(words[1 - p], from, p == 0 ? step + 1 : (group + 1 < groups ? group + 1 : group) * 2);
      grouped_half_begin<TILES>(sh, in, step);
      GroupedHalfScales scales;
      const bool close = grouped_half_scales<F>(scales, words[p]);
      FS_UNROLL for (u32 e = 0; e < 2; e++) {
        if (step * 2 + e >= blocks) continue;  // as before
        GroupedHalfBlock b;
        grouped_half_decode<F>(b, words[p], scales, e, table);
        if (close)  // the same for the warp
          grouped_half_block<TILES, true>(acc, sh, b, step, e);
        else
          grouped_half_block<TILES, false>(acc, sh, b, step, e);
      }
    }
    if (group % 4 == 3 || group + 1 == groups) grouped_total(sh, acc, group < 4);
  }
  fs_copy_wait<0>();
}

template <class F>
FS_DEVICE void grouped_half_rows(GroupedHalfShared& sh, const FsTiled<F>& w, const FsTiledColumns& my, const i8* q, const fs_a8_meta* meta,
                                i32 tile, u32 row0, i32 blocks, u32 per, u32 table) {
  const GroupedHalfInput in = grouped_half_input(my, q, meta, blocks, per);
  const u32 levels = FsHalves<F>::table_of(table);
  // Units of a prompt's experts have some 40 to 60 columns.
  if (my.count > 56)
    grouped_half_tiles<F, 8>(sh, w, in, tile, row0, levels);
  else if (my.count > 48)
    grouped_half_tiles<F, 7>(sh, w, in, tile, row0, levels);
  else if (my.count > 32)
    grouped_half_tiles<F, 6>(sh, w, in, tile, row0, levels);
  else
    grouped_half_tiles<F, 4>(sh, w, in, tile, row0, levels);
}

#else

template <class F, class... Args>
FS_DEVICE void grouped_half_rows(Args&&...) {}

#endif
