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
  return u32x2{fs_prmt(lo, hi, sel), fs_prmt(lo, hi, sel >> 16)};
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

// Eight codes of sign (bit 3) and magnitude (a table of eight bytes up to 16), as signed bytes in order.
FS_DEVICE u32x2 fs_signs_by_bytes(u32 hi, u32 lo, u32 word) {
  const u32 neg_hi = (0x80808080u - hi) ^ 0x80808080u, neg_lo = (0x80808080u - lo) ^ 0x80808080u;
  u32 four[2];
  FS_UNROLL for (int i = 0; i < 2; i++) {
    const u32 codes = word >> (4 * i) & 0x0f0f0f0fu, index = codes & 0x07070707u, sign = codes >> 3 & 0x01010101u;
    const u32 mask = (sign << 8) - sign;  // the last byte's borrow leaves through the top
    four[i] = (fs_pick(hi, lo, index) & ~mask) | (fs_pick(neg_hi, neg_lo, index) & mask);
  }
  return u32x2{fs_pick(four[1], four[0], 0x05010400u), fs_pick(four[1], four[0], 0x07030602u)};
}
// The same + 16. A selector nibble with bit 3 set replicates the sign bit of a table byte, so that each of two tables of
// levels + 16, all below 128, gives 0 for the codes of the other.
// `zero` is 0; one of run time keeps the tables in registers (fs_opaque_lane).
FS_DEVICE u32x2 fs_signs_more(u32 hi, u32 lo, u32 word, u32 zero) {
  const u32 bias = 0x10101010u, pos = fs_opaque_lane(lo + bias, zero), neg = fs_opaque_lane(bias - lo, zero), flip = word ^ 0x88888888u;
  return u32x2{fs_prmt(pos, hi + bias, word) + fs_prmt(neg, bias - hi, flip),
               fs_prmt(pos, hi + bias, word >> 16) + fs_prmt(neg, bias - hi, flip >> 16)};
}
// + 112 and a flip of bit 7 take the 16 away.
FS_DEVICE u32x2 fs_signs_by_nibbles(u32 hi, u32 lo, u32 word) {
  const u32x2 v = fs_signs_more(hi, lo, word, 0);
  return u32x2{(v.x + 0x70707070u) ^ 0x80808080u, (v.y + 0x70707070u) ^ 0x80808080u};
}
FS_DEVICE u32x2 fs_sign_magnitude(u32 word, u32 hi, u32 lo) {
#if FS_HIP
  return fs_signs_by_bytes(hi, lo, word);
#elif FS_CUDA
  return fs_signs_by_nibbles(hi, lo, word);
#else
  const u32x2 a = fs_signs_by_bytes(hi, lo, word), b = fs_signs_by_nibbles(hi, lo, word);
  if (a.x != b.x || a.y != b.y) fs_host_fail("codes %08x: %08x %08x by bytes, %08x %08x by nibbles", word, a.x, a.y, b.x, b.y);
  return a;
#endif
}

// The cheaper of the two for a dot that takes FS_SIGNS_BIAS times the sum of its other side away.
#if FS_HIP
static constexpr i32 FS_SIGNS_BIAS = 0;
FS_DEVICE u32x2 fs_signs_biased(u32 word, u32 hi, u32 lo, u32) { return fs_signs_by_bytes(hi, lo, word); }
#else
static constexpr i32 FS_SIGNS_BIAS = 16;
FS_DEVICE u32x2 fs_signs_biased(u32 word, u32 hi, u32 lo, u32 zero) { return fs_signs_more(hi, lo, word, zero); }
#endif

// Twice the e2m1 numbers: 0 1 2 3 4 6 8 12 and their negatives.
FS_DEVICE u32x2 fs_e2m1_twice_eight(u32 word) { return fs_sign_magnitude(word, 0x0c080604u, 0x03020100u); }
