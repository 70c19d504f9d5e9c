// The experts of a few tokens, the routed ones of format F and the shared one of ROCmFP4_FAST, in one launch: matrices in
// tile order, as tiled.cu.
//
// tiled_gate_up_with_F_{1,2}, tiled_gemv_with_F_{1,2}
//   formula  as tiled_gate_up_F and tiled_gemv_F; the activation row of a routed slot is its token's (slot / used) for gate and up,
//            the slot's for down
//   shapes   as there: units [routed] of up to one or two slots and, of more than one token, order [routed]; the shared matrices have the
//            shape of the routed ones, and their rows are tokens: shared_q, shared_meta, shared_y [tokens]
//   launch   as there with grid y routed + ceil(tokens / 1 or 2): the first ones are the shared expert, whose blocks take
//            longest
//   cost     as there; units of one and of two slots each take a way of as many columns, the shared expert's one of two
//   order    as there
#include "fourspark.h"
#include "fs_gemv.h"

#define TILED_GATE_UP_WITH(name, F, Q, occupancy)                                                                         \
  FS_KERNEL(tiled_gate_up_with_##name##_##Q, 256, occupancy)(                                                             \
      const u8* FS_RESTRICT gate, const u8* FS_RESTRICT up, const i8* FS_RESTRICT q, const fs_a8_meta* FS_RESTRICT meta,  \
      const u32x4* FS_RESTRICT units, const u32* FS_RESTRICT order, const float* FS_RESTRICT weights, i8* FS_RESTRICT h_q, \
      fs_a8_meta* FS_RESTRICT h_meta, const u8* FS_RESTRICT shared_gate, const u8* FS_RESTRICT shared_up,                 \
      i8* FS_RESTRICT shared_q, fs_a8_meta* FS_RESTRICT shared_meta, i32 m, i32 blocks, i32 tokens, u32 used, u32 table, \
      float limit, float shared_limit) {                                                                                  \
    fs_begin();                                                                                                           \
    FS_SHARED(TiledTwo<Q>, sh);                                                                                           \
    const FsTiledColumns my = fs_tiled_with<Q>(units, order, tokens, 0);                                                  \
    if (!fs_tiled_shared<Q>(tokens, 0))                                                                                   \
      tiled_gate_up<F, Q>(sh, gate, up, q, meta, my, weights, h_q, h_meta, nullptr, m, blocks, used, table, limit);        \
    else                                                                                                                  \
      tiled_gate_up<FsFp4Fast, Q, true>(sh, shared_gate, shared_up, q, meta, my, nullptr, shared_q, shared_meta, nullptr, m,    \
                                  blocks, 1, (u32)(tokens >> 31), shared_limit);                                                            \
  }                                                                                                                       \
  FS_EXPORT(tiled_gate_up_with_##name##_##Q, 256)
#define TILED_GEMV_WITH(name, F, Q, occupancy, deep)                                                                      \
  FS_KERNEL(tiled_gemv_with_##name##_##Q, 256, occupancy)(                                                                \
      const u8* FS_RESTRICT packed, const i8* FS_RESTRICT q, const fs_a8_meta* FS_RESTRICT meta,                          \
      const u32x4* FS_RESTRICT units, const u32* FS_RESTRICT order, float* FS_RESTRICT y, const u8* FS_RESTRICT shared,   \
      const i8* FS_RESTRICT shared_q, const fs_a8_meta* FS_RESTRICT shared_meta, float* FS_RESTRICT shared_y, i32 m,      \
      i32 blocks, i32 tokens, u32 table) {                                                                                \
    fs_begin();                                                                                                           \
    FS_SHARED(TiledOne<Q>, sh);                                                                                           \
    const FsTiledColumns my = fs_tiled_with<Q>(units, order, tokens, 0);                                                  \
    if (!fs_tiled_shared<Q>(tokens, 0))                                                                                   \
      tiled_gemv<F, Q, deep>(sh, packed, q, meta, my, y, nullptr, nullptr, m, blocks, 1, table);                                \
    else                                                                                                                  \
      tiled_gemv<FsFp4Fast, Q, false, true>(sh, shared, shared_q, shared_meta, my, shared_y, nullptr, nullptr, m, blocks, 1, (u32)(tokens >> 31));        \
  }                                                                                                                       \
  FS_EXPORT(tiled_gemv_with_##name##_##Q, 256)
#define TILED_WITH(name, F, occupancy, deep)                                                                                  \
  TILED_GATE_UP_WITH(name, F, 1, 2) TILED_GATE_UP_WITH(name, F, 2, 2)                                                     \
  TILED_GEMV_WITH(name, F, 1, occupancy, false) TILED_GEMV_WITH(name, F, 2, 2, deep)

TILED_WITH(fp4f, FsFp4Fast, 2, false)
TILED_WITH(fp2, FsFp2, 3, true)
TILED_WITH(fp3, FsFp3, 3, true)
