// Queries and keys after their projections: norms, rotation, the model's roundings, rows into stores.
// Contract rules 5 (angles), 6, 10, 13; packed rows as in fs_rows.h.
//
// angles of all kernels: [n][n_rot / 2] pairs (cos, sin) f32, made on the host (rule 5)
//
// kv_rows_packed, kv_rows_f32
//   formula  row = rotate((x * r) * w), then fp8 by 64 and a bf16 tail (packed), or as it is (f32)
//   shapes   x [n][dim] f32, w [dim], slots [n] u32: the row's place in the store, all ones: nowhere;
//            store [any][row bytes]; dim up to 512, n_rot even
//   launch   grid n of 256 threads
//   cost     4 bytes an element in, a row out
// query_heads, query_heads_plain
//   formula  q = rotate(q * r), r = 1 / sqrt(mean(q^2) + eps) a head; plain: rotate only. In place
//   shapes   q [n][heads][dim]; dim a multiple of 32 up to 512
//   launch   grid (ceil(heads / 8), n) of 256 threads, a warp a head
//   cost     8 bytes an element
// index_queries
//   formula  e2m1(Hadamard(rotate(q))) by 32: doubled codes as int8 and their scales
//   shapes   q [n][heads][dim] f32, twice [n][heads][dim] i8, scale [n][heads][dim / 32] f32;
//            dim a power of two, 32 to 512
//   launch   grid (ceil(heads / 8), n) of 256 threads, a warp a head
//   order    butterflies a + b, a - b with strides 1, 2, ..
#include "fourspark.h"
#include "fs_math.h"
#include "fs_rows.h"

static constexpr u32 ROWS_NOWHERE = 0xffffffffu;

struct RowsShared {
  FsRow row;
};

FS_DEVICE void rows_finish(RowsShared& sh, const float* x, const float* w, const f32x2* angles, i32 dim, i32 n_rot, float eps) {
  const u64 token = fs_bid_x();
  for (i32 k = (i32)fs_tid(); k < dim; k += 256) sh.row.v[k] = x[token * (u64)dim + (u64)k];
  fs_barrier();
  fs_row_norm<256>(sh.row, w, dim, eps);
  fs_row_rotate<256>(sh.row, angles + token * (u64)(n_rot / 2), dim, n_rot);
}

FS_KERNEL(kv_rows_packed, 256, 1)(const float* FS_RESTRICT x, const float* FS_RESTRICT w, const f32x2* FS_RESTRICT angles,
                                  const u32* FS_RESTRICT slots, u8* store, i32 dim, i32 n_rot, float eps) {
  fs_begin();
  FS_SHARED(RowsShared, sh);
  const u32 slot = slots[fs_bid_x()];
  if (slot == ROWS_NOWHERE) return;  // the same for all threads
  rows_finish(sh, x, w, angles, dim, n_rot, eps);
  fs_row_pack_kv<256>(sh.row, store + (u64)slot * (u64)fs_kv_bytes(dim, n_rot), dim, n_rot);
}
FS_EXPORT(kv_rows_packed, 256)

FS_KERNEL(kv_rows_f32, 256, 1)(const float* FS_RESTRICT x, const float* FS_RESTRICT w, const f32x2* FS_RESTRICT angles,
                               const u32* FS_RESTRICT slots, float* store, i32 dim, i32 n_rot, float eps) {
  fs_begin();
  FS_SHARED(RowsShared, sh);
  const u32 slot = slots[fs_bid_x()];
  if (slot == ROWS_NOWHERE) return;
  rows_finish(sh, x, w, angles, dim, n_rot, eps);
  for (i32 k = (i32)fs_tid(); k < dim; k += 256) store[(u64)slot * (u64)dim + (u64)k] = sh.row.v[k];
}
FS_EXPORT(kv_rows_f32, 256)

// A head of a warp: element i * 32 + lane in v[i].
static constexpr int HEAD_LANE = FS_ROW_MAX / 32;

FS_DEVICE void head_rotate(float (&v)[HEAD_LANE], const f32x2* angles, i32 dim, i32 n_rot) {
  const i32 lane = (i32)fs_lane();
  FS_UNROLL for (i32 i = 0; i < HEAD_LANE; i++) {
    if (i * 32 < dim) {
      const i32 at = i * 32 + lane - (dim - n_rot);  // pairs start at even lanes
      const float other = fs_shfl_xor(v[i], 1);
      if (at >= 0) {
        const f32x2 angle = angles[at / 2];
        const float first = fs_fma(v[i], angle.x, -fs_mul(other, angle.y));
        const float second = fs_fma(other, angle.y, fs_mul(v[i], angle.x));
        v[i] = at % 2 == 0 ? first : second;
      }
    }
  }
}

template <bool NORM>
FS_DEVICE void query_head(float* q, const f32x2* angles, i32 heads, i32 dim, i32 n_rot, float eps) {
  const i32 head = (i32)fs_bid_x() * 8 + (i32)fs_warp(), lane = (i32)fs_lane();
  if (head >= heads) return;  // the same for a warp, and no barrier follows
  const u64 token = fs_bid_y();
  float* mine = q + (token * (u64)heads + (u64)head) * (u64)dim;
  float v[HEAD_LANE], p = 0.0f;
  FS_UNROLL for (i32 i = 0; i < HEAD_LANE; i++) {
    v[i] = i * 32 < dim ? mine[i * 32 + lane] : 0.0f;
    if (i * 32 < dim) p = fs_fma(v[i], v[i], p);
  }
  if (NORM) {
    const float r = fs_rsqrt(fs_add(fs_div(fs_fold_lanes(p), (float)dim), eps));
    FS_UNROLL for (i32 i = 0; i < HEAD_LANE; i++) v[i] = fs_mul(v[i], r);
  }
  head_rotate(v, angles + token * (u64)(n_rot / 2), dim, n_rot);
  FS_UNROLL for (i32 i = 0; i < HEAD_LANE; i++)
    if (i * 32 < dim) mine[i * 32 + lane] = v[i];
}

FS_KERNEL(query_heads, 256, 2)(float* q, const f32x2* FS_RESTRICT angles, i32 heads, i32 dim, i32 n_rot, float eps) {
  fs_begin();
  query_head<true>(q, angles, heads, dim, n_rot, eps);
}
FS_EXPORT(query_heads, 256)

FS_KERNEL(query_heads_plain, 256, 2)(float* q, const f32x2* FS_RESTRICT angles, i32 heads, i32 dim, i32 n_rot) {
  fs_begin();
  query_head<false>(q, angles, heads, dim, n_rot, 0.0f);
}
FS_EXPORT(query_heads_plain, 256)

FS_DEVICE void head_hadamard(float (&v)[HEAD_LANE], i32 dim) {
  FS_UNROLL for (u32 stride = 1; stride < 32; stride *= 2)
    FS_UNROLL for (i32 i = 0; i < HEAD_LANE; i++)
      if (i * 32 < dim) {
        const float other = fs_shfl_xor(v[i], stride);
        v[i] = fs_lane() & stride ? fs_sub(other, v[i]) : fs_add(v[i], other);
      }
  FS_UNROLL for (i32 step = 1; step < HEAD_LANE; step *= 2)
    FS_UNROLL for (i32 i = 0; i < HEAD_LANE; i++)
      if ((i & step) == 0 && (i + step) * 32 < dim) {
        const float a = v[i], b = v[i + step];
        v[i] = fs_add(a, b);
        v[i + step] = fs_sub(a, b);
      }
  const float factor = fs_hadamard_factor(dim);
  FS_UNROLL for (i32 i = 0; i < HEAD_LANE; i++) v[i] = fs_mul(v[i], factor);
}

FS_KERNEL(index_queries, 256, 2)(const float* FS_RESTRICT q, const f32x2* FS_RESTRICT angles, i8* FS_RESTRICT twice,
                                 float* FS_RESTRICT scales, i32 heads, i32 dim, i32 n_rot) {
  fs_begin();
  const i32 head = (i32)fs_bid_x() * 8 + (i32)fs_warp(), lane = (i32)fs_lane();
  if (head >= heads) return;
  const u64 token = fs_bid_y(), at = (token * (u64)heads + (u64)head) * (u64)dim;
  float v[HEAD_LANE];
  FS_UNROLL for (i32 i = 0; i < HEAD_LANE; i++) v[i] = i * 32 < dim ? q[at + (u64)(i * 32 + lane)] : 0.0f;
  head_rotate(v, angles + token * (u64)(n_rot / 2), dim, n_rot);
  head_hadamard(v, dim);
  FS_UNROLL for (i32 i = 0; i < HEAD_LANE; i++)
    if (i * 32 < dim) {
      const i32 exponent = fs_fp4_exponent(fs_warp_amax(fs_max(0.0f, fs_f32(fs_bits(v[i]) & 0x7fffffffu))));
      const float scale = fs_pow2(exponent);
      twice[at + (u64)(i * 32 + lane)] = (i8)fs_e2m1_twice(fs_e2m1_encode(fs_div(v[i], scale)));
      if (lane == 0) scales[at / 32 + (u64)i] = scale;
    }
}
FS_EXPORT(index_queries, 256)
