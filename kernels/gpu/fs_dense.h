// Elements of float matrices in file order.
#pragma once
#include "fourspark.h"
#include "fs_math.h"

enum DenseType { DENSE_F32, DENSE_F16, DENSE_BF16 };

template <int T>
FS_DEVICE float dense_weight(const u8* w, u64 at) {
  if (T == DENSE_F32) return ((const float*)w)[at];
  if (T == DENSE_F16) return fs_f16(((const u16*)w)[at]);
  return fs_f32((u32)((const u16*)w)[at] << 16);
}
