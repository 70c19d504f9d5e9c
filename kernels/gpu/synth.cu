// synth_fill: made-up weights in file order, byte for byte those of src/cpu/synth.rs, so that a model of full size needs
// neither a file nor the bus.
//
// formula  S = 0x9e3779b97f4a7c15; word n = mix(key + S * (n + 1)), mix the finaliser of SplitMix64; byte i = byte i mod 8,
//          least significant first, of word i / 8; then the byte j of a block's field, where 0 <= j < len and
//          j = i mod block - at, becomes (byte and byte j of keep) or byte j of set
// shapes   out [8 * words + tail] bytes from byte `first` of the tensor on, at an address that is a multiple of 8; block 2 or
//          more, at + len <= block, len 1 to 4, tail below 8
// launch   one thread eight bytes, one more for the tail: ceil((words + (tail > 0)) / 256) blocks of 256 threads
// cost     a byte a byte; about 90 integer operations a word, 180 where `first` is no multiple of 8
// order    none: a thread's bytes follow from their place alone
#include "fourspark.h"
#include "fs_noise.h"

FS_DEVICE u64 synth_word(u64 key, u64 n) { return fs_noise_mix(key + 0x9e3779b97f4a7c15ull * (n + 1)); }

FS_KERNEL(synth_fill, 256, 1)(u8* FS_RESTRICT out, u32 key_low, u32 key_high, u32 first_low, u32 first_high, u32 words,
                              u32 tail, u32 block, u32 at, u32 len, u32 keep, u32 set) {
  fs_begin();
  const u64 i = (u64)fs_bid_x() * 256 + fs_tid();
  if (i >= (u64)words + (tail > 0 ? 1 : 0)) return;
  const u64 key = (u64)key_high << 32 | key_low, place = ((u64)first_high << 32 | first_low) + 8 * i;
  const u32 shift = 8 * ((u32)place & 7);
  u64 raw = synth_word(key, place >> 3) >> shift;
  if (shift > 0) raw |= synth_word(key, (place >> 3) + 1) << (64 - shift);
  u32 in = (u32)(place % block), low = 0, high = 0;
  FS_UNROLL for (u32 j = 0; j < 8; j++) {
    u32 b = (u32)(raw >> (8 * j)) & 255;
    // Wraps where the byte stands before the field.
    const u32 part = in - at;
    if (part < len) b = (b & (keep >> (8 * part) & 255)) | (set >> (8 * part) & 255);
    if (j < 4) low |= b << (8 * j);
    else high |= b << (8 * (j - 4));
    in = in + 1 == block ? 0 : in + 1;
  }
  if (i < words) {
    ((u32x2*)out)[i] = u32x2{low, high};
    return;
  }
  const u64 all = (u64)high << 32 | low;
  for (u32 j = 0; j < tail; j++) out[8 * i + j] = (u8)(all >> (8 * j));
}
FS_EXPORT(synth_fill, 256)
