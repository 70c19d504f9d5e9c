// Rows of an embedding table by token, the token possibly chosen by the launch before; once or for every
// residual stream.
//
// embed_T
//   formula  out[i][copy] = row tokens[i] of the table, widened or decoded exactly
//   shapes   table [vocabulary][d] in file order (blocks of 32 or 256 at any address; floats aligned to their
//            element), tokens [n] u32, out [n][copies][d] f32. A token past the vocabulary (a draw that found
//            nothing) gives NaN
//   launch   grid (ceil(d / 256), n) of 256 threads, a thread an element
//   cost     the row's bytes, and 4 bytes a copy
#include "fourspark.h"
#include "fs_formats.h"
#include "fs_formats_k.h"
#include "fs_math.h"

struct EmbedF32 {
  FS_DEVICE_STATIC float value(const u8* table, u64 row, i32 d, i32 i, u32) { return ((const float*)table)[row * (u64)d + (u64)i]; }
};
struct EmbedF16 {
  FS_DEVICE_STATIC float value(const u8* table, u64 row, i32 d, i32 i, u32) { return fs_f16(((const u16*)table)[row * (u64)d + (u64)i]); }
};
struct EmbedBf16 {
  FS_DEVICE_STATIC float value(const u8* table, u64 row, i32 d, i32 i, u32) {
    return fs_f32((u32)((const u16*)table)[row * (u64)d + (u64)i] << 16);
  }
};
template <class F>
struct EmbedBlocks {
  FS_DEVICE_STATIC float value(const u8* table, u64 row, i32 d, i32 i, u32 levels) {
    return fs_file_value<F>(table + row * (u64)(d / (32 * F::SUPER)) * F::FILE, i, levels);
  }
};

template <class T>
FS_DEVICE void embed(const u8* table, const u32* tokens, float* out, i32 d, i32 copies, u32 vocabulary, u32 levels) {
  const i32 i = (i32)fs_bid_x() * 256 + (i32)fs_tid();
  if (i >= d) return;
  const u64 n = fs_bid_y();
  const u32 token = tokens[n];
  const float v = token < vocabulary ? T::value(table, token, d, i, levels) : fs_f32(FS_NAN);
  for (i32 c = 0; c < copies; c++) out[(n * (u64)copies + (u64)c) * (u64)d + (u64)i] = v;
}

#define EMBED(name, T)                                                                                                             \
  FS_KERNEL(embed_##name, 256, 1)(const u8* FS_RESTRICT table, const u32* FS_RESTRICT tokens, float* FS_RESTRICT out, i32 d, i32 copies, \
                                  u32 vocabulary, u32 levels) {                                                                    \
    fs_begin();                                                                                                                    \
    embed<T>(table, tokens, out, d, copies, vocabulary, levels);                                                                   \
  }                                                                                                                                \
  FS_EXPORT(embed_##name, 256)

EMBED(f32, EmbedF32)
EMBED(f16, EmbedF16)
EMBED(bf16, EmbedBf16)
EMBED(fp4f, EmbedBlocks<FsFp4Fast>)
EMBED(fp2, EmbedBlocks<FsFp2>)
EMBED(fp3, EmbedBlocks<FsFp3>)
EMBED(q8, EmbedBlocks<FsQ8>)
EMBED(mxfp4, EmbedBlocks<FsMxfp4>)
EMBED(fp4, EmbedBlocks<FsFp4>)
EMBED(fp6, EmbedBlocks<FsFp6>)
EMBED(fp8, EmbedBlocks<FsFp8>)
EMBED(fp2a, EmbedBlocks<FsFp2Affine>)
EMBED(q4k, EmbedBlocks<FsQ4K>)
EMBED(q2k, EmbedBlocks<FsQ2K>)
EMBED(iq2xxs, EmbedBlocks<FsIq2Xxs>)
