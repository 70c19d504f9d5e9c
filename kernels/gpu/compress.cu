// Compressors: a pooled row out of the keys and gates of its window, finished and stored; and the open
// rows that later windows need. Contract rules 6, 9, 10, 13.
//
// A pass holds spans of several sequences: token i stands at position spans[i].x of a span of positions
// spans[i].y to spans[i].z (not included) of the sequence whose parts of rings and store have index spans[i].w.
// Positions are read here, so that a captured launch serves every step.
//
// compress_kv, compress_index, compress_f32: the row of window w where token i ends one, a token a block
//   formula  entries = second halves of window w, preceded by first halves of window w - 1 where windows
//            overlap (overlap 2, w > 0); per channel m = max g, e = exp(g - m), den = sum e,
//            num = sum e * k; row = rotate((num / den * r) * norm); then packed fp8 with bf16 tail (kv),
//            Hadamard and packed fp4 (index), or as it is (f32). Stored at place w of its sequence
//   shapes   keys, gates [tokens][wide] f32 of this pass, gates without the position table; ring_keys,
//            ring_gates [sequences][mask + 1][wide] of earlier positions, gates with it;
//            ape [ratio][wide], norm [width]; angles [tokens][n_rot / 2] (cos, sin) of position w * ratio;
//            spans [tokens]; store [sequences][stored][row bytes]; wide = overlap * width, width a multiple
//            of 32 up to 512 (index: a power of two)
//   launch   grid tokens of 512 threads, a thread a channel; a token that ends no window makes no row. With `keep`
//            each block also does its token's part of compress_keep: for passes so short that no row needs a
//            place of the ring which the pass takes (tokens + ratio * overlap - 2 < ring)
//   cost     reads 8 bytes an entry and channel twice (the second read hits a cache). Bound by the latency of
//            loads (one block a row, since the norm needs all channels): eight entries are on their way at once
//   order    entries in position order, both sums from +0
// compress_keep: the last open rows of every span into its ring, after the rows were made
//   formula  ring_keys[x & mask] = keys of position x; ring_gates = gates + ape[x mod ratio]
//   launch   grid (ceil(wide / 256), tokens) of 256 threads; positions a ring's length before the end write nothing
#include "fourspark.h"
#include "fs_math.h"
#include "fs_rows.h"

static constexpr int COMPRESS_THREADS = 512;

// Where a row's entries are.
struct Compress {
  const float *keys, *gates, *ring_keys, *ring_gates, *ape;
  i32 pos, ratio, overlap, width, mask;
};

struct CompressEntry {
  float key, gate;
};

// Channel `d` of position x's half `half`.
FS_DEVICE CompressEntry compress_entry(const Compress& c, i32 x, i32 half, i32 d) {
  const u64 wide = (u64)(c.overlap * c.width), at = (u64)(half * c.width + d);
  if (x >= c.pos) {
    const u64 from = (u64)(x - c.pos) * wide + at;
    return CompressEntry{c.keys[from], fs_add(c.gates[from], c.ape[(u64)(x % c.ratio) * wide + at])};
  }
  const u64 from = (u64)(x & c.mask) * wide + at;
  return CompressEntry{c.ring_keys[from], c.ring_gates[from]};
}

// Entries that are on their way at once.
static constexpr int COMPRESS_AHEAD = 8;

// The entries of channel d from position x on that lie in the window, which ends at `end`.
FS_DEVICE void compress_entries(const Compress& c, i32 x, i32 own, i32 end, i32 d, CompressEntry (&e)[COMPRESS_AHEAD]) {
  FS_UNROLL for (int i = 0; i < COMPRESS_AHEAD; i++)
    if (x + i < end) e[i] = compress_entry(c, x + i, x + i < own ? 0 : c.overlap - 1, d);
}

// The pool of window w into shared memory; ends with a barrier.
FS_DEVICE void compress_pool(FsRow& row, const Compress& c, i32 w) {
  const i32 d = (i32)fs_tid(), own = w * c.ratio, before = c.overlap == 2 && w > 0 ? c.ratio : 0, end = own + c.ratio;
  if (d < c.width) {
    float peak = fs_f32(0xff800000u), den = 0.0f, num = 0.0f;
    CompressEntry e[COMPRESS_AHEAD];
    FS_ROLLED for (i32 x = own - before; x < end; x += COMPRESS_AHEAD) {
      compress_entries(c, x, own, end, d, e);
      FS_UNROLL for (int i = 0; i < COMPRESS_AHEAD; i++)
        if (x + i < end) peak = fs_max(peak, e[i].gate);
    }
    FS_ROLLED for (i32 x = own - before; x < end; x += COMPRESS_AHEAD) {
      compress_entries(c, x, own, end, d, e);
      FS_UNROLL for (int i = 0; i < COMPRESS_AHEAD; i++) {
        if (x + i < end) {
          const float weight = fs_exp(fs_sub(e[i].gate, peak));
          den = fs_add(den, weight);
          num = fs_fma(weight, e[i].key, num);
        }
      }
    }
    row.v[d] = fs_div(num, den);
  }
  fs_barrier();
}

struct CompressShared {
  FsRow row;
};

// The finished row of window w, which the block's token ends.
FS_DEVICE void compress_row(CompressShared& sh, const Compress& c, const float* norm, const f32x2* angles, i32 w, i32 n_rot, float eps) {
  compress_pool(sh.row, c, w);
  fs_row_norm<COMPRESS_THREADS>(sh.row, norm, c.width, eps);
  fs_row_rotate<COMPRESS_THREADS>(sh.row, angles + (u64)fs_bid_x() * (u64)(n_rot / 2), c.width, n_rot);
}

// Channel d of token `token` into its ring.
FS_DEVICE void compress_keep_one(const float* keys, const float* gates, const float* ape, const u32x4& span, float* ring_keys,
                                 float* ring_gates, u64 token, i32 d, i32 ratio, i32 wide, i32 mask) {
  const u64 source = token * (u64)wide + (u64)d;
  const u64 slot = ((u64)span.w * (u64)(mask + 1) + (span.x & (u32)mask)) * (u64)wide + (u64)d;
  ring_keys[slot] = keys[source];
  ring_gates[slot] = fs_add(gates[source], ape[(u64)(span.x % (u32)ratio) * (u64)wide + (u64)d]);
}

// The last argument is what becomes of sh.row at `place` of the store.
#define COMPRESS(name, store_type, ...)                                                                                       \
  FS_KERNEL(name, 512, 1)(const float* FS_RESTRICT keys, const float* FS_RESTRICT gates, float* ring_keys, float* ring_gates, \
                          const float* FS_RESTRICT ape, const float* FS_RESTRICT norm, const f32x2* FS_RESTRICT angles,       \
                          const u32x4* FS_RESTRICT spans, store_type* store, i32 ratio, i32 overlap, i32 width, i32 mask,     \
                          i32 n_rot, i32 stored, i32 keep, float eps) {                                                       \
    fs_begin();                                                                                                               \
    FS_SHARED(CompressShared, sh);                                                                                            \
    const u32x4 span = spans[fs_bid_x()];                                                                                     \
    const u64 wide = (u64)(overlap * width), from = (fs_bid_x() - (u64)(span.x - span.y)) * wide;                             \
    if (keep)                                                                                                                 \
      for (i32 d = (i32)fs_tid(); d < (i32)wide; d += COMPRESS_THREADS)                                                       \
        compress_keep_one(keys, gates, ape, span, ring_keys, ring_gates, fs_bid_x(), d, ratio, (i32)wide, mask);              \
    if ((span.x + 1) % (u32)ratio != 0) return; /* the same for all threads */                                                \
    const u64 ring = (u64)span.w * (u64)(mask + 1) * wide;                                                                    \
    const Compress c = {keys + from, gates + from, ring_keys + ring, ring_gates + ring, ape,                                  \
                        (i32)span.y, ratio, overlap, width, mask};                                                            \
    compress_row(sh, c, norm, angles, (i32)span.x / ratio, n_rot, eps);                                                       \
    const u64 place = (u64)span.w * (u64)stored + (u64)((i32)span.x / ratio);                                                 \
    __VA_ARGS__                                                                                                               \
  }                                                                                                                           \
  FS_EXPORT(name, 512)

COMPRESS(compress_kv, u8, fs_row_pack_kv<COMPRESS_THREADS>(sh.row, store + place * (u64)fs_kv_bytes(width, n_rot), width, n_rot);)
COMPRESS(compress_index, u8, fs_row_hadamard<COMPRESS_THREADS>(sh.row, width);
         fs_row_pack_index<COMPRESS_THREADS>(sh.row, store + place * (u64)fs_index_bytes(width), width);)
COMPRESS(compress_f32, float, if ((i32)fs_tid() < width) store[place * (u64)width + fs_tid()] = sh.row.v[fs_tid()];)

FS_KERNEL(compress_keep, 256, 1)(const float* FS_RESTRICT keys, const float* FS_RESTRICT gates, const float* FS_RESTRICT ape,
                                 const u32x4* FS_RESTRICT spans, float* FS_RESTRICT ring_keys, float* FS_RESTRICT ring_gates, i32 ratio,
                                 i32 wide, i32 mask) {
  fs_begin();
  const i32 d = (i32)fs_bid_x() * 256 + (i32)fs_tid();
  const u32x4 span = spans[fs_bid_y()];
  if (d >= wide || span.z - span.x > (u32)mask + 1) return;
  compress_keep_one(keys, gates, ape, span, ring_keys, ring_gates, fs_bid_y(), d, ratio, wide, mask);
}
FS_EXPORT(compress_keep, 256)
