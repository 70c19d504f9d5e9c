// Queries and keys after their projections: norms, rotation, the model's roundings, rows into stores.
// Contract rules 5 (angles), 6, 10, 13; packed rows as in fs_rows.h.
//
// angles of all kernels: [n][n_rot / 2] pairs (cos, sin) f32, made on the host (rule 5)
//
// heads_and_keys_packed, heads_and_keys_f32: every query head, the key row and the indexer's heads of a token
//   formula  q = rotate(q * r) in place, r = 1 / sqrt(mean(q^2) + eps) a head;
//            row = rotate((x * r) * w), then fp8 by 64 and a bf16 tail (packed), or as it is (f32);
//            with index heads: e2m1(Hadamard(rotate(iq))) by 32, doubled codes as int8 and their scales
//   shapes   q [n][heads][dim] f32; x [n][dim] f32, w [dim], slots [n] u32: the row's place in the store, all
//            ones: nowhere; store [any][row bytes]; iq [n][iheads][idim] f32, twice [n][iheads][idim] i8, scale
//            [n][iheads][idim / 32] f32, or iheads 0; dim a multiple of 32 up to 512, n_rot even, idim a power of
//            two, 32 to 512
//   launch   grid (ceil(heads / 8) + 1 + ceil(iheads / 8), n) of 256 threads: the first blocks take a query head a
//            warp, the next the key row, the others an index head a warp; with `mix` one more, which finishes the token's
//            open site (fs_hc.h)
//   cost     8 bytes an element of a query head; 4 bytes an element of a row in, a row out; 5 an index element
//   order    butterflies a + b, a - b with strides 1, 2, ..
// query_heads_plain
//   formula  q = rotate(q) a head, in place
//   shapes   q [n][heads][dim]; dim a multiple of 32 up to 512
//   launch   grid (ceil(heads / 8), n) of 256 threads, a warp a head
//   cost     8 bytes an element
#include "fourspark.h"
#include "fs_hc.h"
#include "fs_math.h"
#include "fs_rows.h"

static constexpr u32 ROWS_NOWHERE = 0xffffffffu;

struct RowsShared {
  FsRow row;
};

// The key row of a token, finished.
FS_DEVICE void rows_finish(RowsShared& sh, const float* x, const float* w, const f32x2* angles, i32 dim, i32 n_rot, float eps) {
  const u64 token = fs_bid_y();
  for (i32 k = (i32)fs_tid(); k < dim; k += 256) sh.row.v[k] = x[token * (u64)dim + (u64)k];
  fs_barrier();
  fs_row_norm<256>(sh.row, w, dim, eps);
  fs_row_rotate<256>(sh.row, angles + token * (u64)(n_rot / 2), dim, n_rot);
}

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

// Index heads of a token; block `block` of them.
struct IndexHeads {
  const float* q;
  i8* twice;
  float* scales;
  i32 heads, dim;
};

FS_DEVICE void index_head(const IndexHeads& of, const f32x2* angles, i32 block, i32 n_rot) {
  const i32 head = block * 8 + (i32)fs_warp(), lane = (i32)fs_lane(), dim = of.dim;
  if (head >= of.heads) return;  // the same for a warp, and no barrier follows
  const u64 token = fs_bid_y(), at = (token * (u64)of.heads + (u64)head) * (u64)dim;
  float v[HEAD_LANE];
  FS_UNROLL for (i32 i = 0; i < HEAD_LANE; i++) v[i] = i * 32 < dim ? of.q[at + (u64)(i * 32 + lane)] : 0.0f;
  head_rotate(v, angles + token * (u64)(n_rot / 2), dim, n_rot);
  head_hadamard(v, dim);
  FS_UNROLL for (i32 i = 0; i < HEAD_LANE; i++)
    if (i * 32 < dim) {
      const i32 exponent = fs_fp4_exponent(fs_warp_amax(fs_max(0.0f, fs_f32(fs_bits(v[i]) & 0x7fffffffu))));
      const float scale = fs_pow2(exponent);
      of.twice[at + (u64)(i * 32 + lane)] = (i8)fs_e2m1_twice(fs_e2m1_encode(fs_div(v[i], scale)));
      if (lane == 0) of.scales[at / 32 + (u64)i] = scale;
    }
}

template <bool PACKED>
FS_DEVICE void heads_and_keys(RowsShared& sh, float* q, const float* x, const float* w, const f32x2* angles, const u32* slots, u8* store,
                              const IndexHeads& index, const FsHcOpen& open, i32 heads, i32 dim, i32 n_rot, float eps) {
  const i32 own = (heads + 7) / 8, block = (i32)fs_bid_x();  // a block's kind is the same for all threads
  if (block < own) {
    query_head<true>(q, angles, heads, dim, n_rot, eps);
    return;
  }
  if (block > own + (index.heads + 7) / 8) {
    open.finish(fs_bid_y());
    return;
  }
  if (block > own) {
    index_head(index, angles, block - own - 1, n_rot);
    return;
  }
  const u32 slot = slots[fs_bid_y()];
  if (slot == ROWS_NOWHERE) return;  // the same for all threads
  rows_finish(sh, x, w, angles, dim, n_rot, eps);
  if (PACKED) {
    fs_row_pack_kv<256>(sh.row, store + (u64)slot * (u64)fs_kv_bytes(dim, n_rot), dim, n_rot);
  } else {
    float* row = (float*)store + (u64)slot * (u64)dim;
    for (i32 k = (i32)fs_tid(); k < dim; k += 256) row[k] = sh.row.v[k];
  }
}

FS_KERNEL(heads_and_keys_packed, 256, 2)(float* q, const float* FS_RESTRICT x, const float* FS_RESTRICT w, const f32x2* FS_RESTRICT angles,
                                         const u32* FS_RESTRICT slots, u8* store, const float* FS_RESTRICT iq, i8* FS_RESTRICT twice,
                                         float* FS_RESTRICT scales, i32 heads, i32 dim, i32 n_rot, i32 iheads, i32 idim, float eps, float* mix,
                                         i32 iterations, float mix_eps) {
  fs_begin();
  FS_SHARED(RowsShared, sh);
  heads_and_keys<true>(sh, q, x, w, angles, slots, store, IndexHeads{iq, twice, scales, iheads, idim},
                       FsHcOpen{mix, iterations, mix_eps}, heads, dim, n_rot, eps);
}
FS_EXPORT(heads_and_keys_packed, 256)

FS_KERNEL(heads_and_keys_f32, 256, 2)(float* q, const float* FS_RESTRICT x, const float* FS_RESTRICT w, const f32x2* FS_RESTRICT angles,
                                      const u32* FS_RESTRICT slots, float* store, i32 heads, i32 dim, i32 n_rot, float eps, float* mix,
                                      i32 iterations, float mix_eps) {
  fs_begin();
  FS_SHARED(RowsShared, sh);
  heads_and_keys<false>(sh, q, x, w, angles, slots, (u8*)store, IndexHeads{nullptr, nullptr, nullptr, 0, 32},
                        FsHcOpen{mix, iterations, mix_eps}, heads, dim, n_rot, eps);
}
FS_EXPORT(heads_and_keys_f32, 256)
