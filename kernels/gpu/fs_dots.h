// Rule 4 of many rows against eight vectors that a warp keeps in registers, a segment of 512 elements: lane r holds
// the elements 32 i + r of each vector, so that a row costs it four 16-byte loads of shared memory for 128 fmas,
// and eight sums over lanes.
//
// Must not know: where rows come from, what becomes of the sums.
#pragma once
#include "fourspark.h"
#include "fs_math.h"

static constexpr int FS_DOT_VECTORS = 8, FS_DOT_DEPTH = FS_SEGMENT / 32;

struct alignas(16) fs_four {
  float v[4];
};

// A row in shared memory: elements 32 (4 j + c) + r are fs_dot_place(r) + 8 j, number c. Lanes that read consecutive
// r at one j, or write r of one residue by 4 at one j, meet all banks: bits 0 to 2 of a place are a function of
// bits 0 to 2 of r that has an inverse, and one of bits 2 to 4.
struct FsDotRow {
  fs_four quad[FS_SEGMENT / 4];
};

FS_DEVICE u32 fs_dot_place(u32 r) { return (r >> 3) * 32 + ((r >> 2 & 1) | ((r >> 1 ^ r >> 3) & 1) << 1 | ((r ^ r >> 4) & 1) << 2); }

// A lane's elements of the vectors.
struct FsDotVectors {
  float v[FS_DOT_VECTORS][FS_DOT_DEPTH];
};

// This lane's elements of a row of FsDotRow.
struct FsDotLane {
  fs_four v[FS_DOT_DEPTH / 4];
};

FS_DEVICE void fs_dot_load(FsDotLane& to, const FsDotRow& row) {
  const fs_four* at = &row.quad[fs_dot_place(fs_lane())];
  FS_UNROLL for (int j = 0; j < FS_DOT_DEPTH / 4; j++) to.v[j] = at[8 * j];
}

// The products of a row, by residue.
FS_DEVICE void fs_dot_products(float (&p)[FS_DOT_VECTORS], const FsDotVectors& x, const FsDotRow& from) {
  FsDotLane row;
  fs_dot_load(row, from);
  FS_UNROLL for (int n = 0; n < FS_DOT_VECTORS; n++) p[n] = 0.0f;
  FS_UNROLL for (int i = 0; i < FS_DOT_DEPTH; i++)
    FS_UNROLL for (int n = 0; n < FS_DOT_VECTORS; n++) p[n] = fs_fma(x.v[n][i], row.v[i / 4].v[i % 4], p[n]);
}

// Sums over lanes run one row behind the products, so that neither waits for the other: the last row's products, and
// the sums of those before it that a lane keeps.
struct FsDotBehind {
  float p[FS_DOT_VECTORS], mine;

  // Of no rows.
  FS_DEVICE_MEMBER void clear() {
    mine = 0.0f;
    FS_UNROLL for (int n = 0; n < FS_DOT_VECTORS; n++) p[n] = 0.0f;
  }
};

// Ends the four rows before: lane l returns the dot of vector l / 4 with row l % 4.
FS_DEVICE float fs_dot_end(const FsDotBehind& behind) {
  const float sum = fs_fold_eight(behind.p);
  return fs_lane() % 4 == 3 ? sum : behind.mine;
}

// Begins four rows, and ends those before.
FS_DEVICE float fs_dot_four(FsDotBehind& behind, const FsDotVectors& x, const FsDotRow* rows) {
  float done = 0.0f, mine = 0.0f;
  FS_UNROLL for (u32 u = 0; u < 4; u++) {
    float p[FS_DOT_VECTORS];
    fs_dot_products(p, x, rows[u]);
    if (u == 0) {
      done = fs_dot_end(behind);
    } else {
      const float sum = fs_fold_eight(behind.p);
      mine = fs_lane() % 4 == u - 1 ? sum : mine;
    }
    FS_UNROLL for (int n = 0; n < FS_DOT_VECTORS; n++) behind.p[n] = p[n];
    fs_schedule_fence();
  }
  behind.mine = mine;
  return done;
}
