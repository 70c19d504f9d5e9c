// The expert's activation (contract rule 12). NaN passes through.
#pragma once
#include "fs_math.h"

FS_DEVICE float fs_swiglu(float gate, float up, float limit) {
  const float g = gate > limit ? limit : gate;
  const float top = up > limit ? limit : up, u = top < -limit ? -limit : top;
  return fs_mul(fs_silu(g), u);
}
