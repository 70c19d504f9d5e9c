// Small codes to signed bytes: eight codes of four bits, one a nibble, lowest first, through a table
// of eight bytes or through a table of magnitudes and a sign bit.
#pragma once
#include "fourspark.h"

// v_perm_b32 for selectors 0..7: byte n of the result is byte (selector byte n) of {hi, lo}.
FS_DEVICE u32 fs_pick(u32 hi, u32 lo, u32 sel) {
#if FS_HIP && defined(__AMDGCN__)
  return __builtin_amdgcn_perm(hi, lo, sel);
#else
  const u64 pool = (u64)hi << 32 | lo;
  u32 r = 0;
  for (int n = 0; n < 4; n++) r |= ((u32)(pool >> (8 * (sel >> (8 * n) & 7))) & 255) << (8 * n);
  return r;
#endif
}
// Nibble selectors 0..7 of {hi, lo}, in order: by byte selectors, and by nibble selectors.
FS_DEVICE u32x2 fs_pick_by_bytes(u32 hi, u32 lo, u32 word) {
  const u32 even = fs_pick(hi, lo, word & 0x07070707u), odd = fs_pick(hi, lo, word >> 4 & 0x07070707u);
  return u32x2{fs_pick(odd, even, 0x05010400u), fs_pick(odd, even, 0x07030602u)};
}
FS_DEVICE u32x2 fs_pick_by_nibbles(u32 hi, u32 lo, u32 word) {
  const u32 sel = word & 0x77777777u;
  return u32x2{fs_prmt(lo, hi, sel & 0xffffu), fs_prmt(lo, hi, sel >> 16)};
}
FS_DEVICE u32x2 fs_pick_nibbles(u32 hi, u32 lo, u32 word) {
#if FS_HIP
  return fs_pick_by_bytes(hi, lo, word);
#elif FS_CUDA
  return fs_pick_by_nibbles(hi, lo, word);
#else
  // The host holds both ways against each other.
  const u32x2 a = fs_pick_by_bytes(hi, lo, word), b = fs_pick_by_nibbles(hi, lo, word);
  if (a.x != b.x || a.y != b.y) fs_host_fail("codes %08x: %08x %08x by bytes, %08x %08x by nibbles", word, a.x, a.y, b.x, b.y);
  return a;
#endif
}

// 0xff in every byte whose nibble of the code has bit 3.
FS_DEVICE u32x2 fs_nibble_signs(u32 word) {
  const u32 bit = word >> 3 & 0x11111111u;
  const u32 low = (bit & 1) | (bit >> 4 & 1) << 8 | (bit >> 8 & 1) << 16 | (bit >> 12 & 1) << 24;
  const u32 high = (bit >> 16 & 1) | (bit >> 20 & 1) << 8 | (bit >> 24 & 1) << 16 | (bit >> 28 & 1) << 24;
  return u32x2{low * 255u, high * 255u};
}

// Eight codes of sign (bit 3) and magnitude; pos and neg are the tables of both signs.
FS_DEVICE u32x2 fs_sign_magnitude(u32 word, u32 pos_hi, u32 pos_lo, u32 neg_hi, u32 neg_lo) {
  const u32x2 p = fs_pick_nibbles(pos_hi, pos_lo, word), n = fs_pick_nibbles(neg_hi, neg_lo, word), s = fs_nibble_signs(word);
  return u32x2{(p.x & ~s.x) | (n.x & s.x), (p.y & ~s.y) | (n.y & s.y)};
}

// Twice the e2m1 numbers: 0 1 2 3 4 6 8 12 and their negatives.
FS_DEVICE u32x2 fs_e2m1_twice_eight(u32 word) { return fs_sign_magnitude(word, 0x0c080604u, 0x03020100u, 0xf4f8fafcu, 0xfdfeff00u); }
