// experts.cu for several tokens on devices that copy to shared memory by themselves: the same formulas, shapes and order, the weights on
// their way through shared memory (fs_staged.h).
//
// staged_gate_up_F, staged_gemv_F
//   formula  tiled_gate_up_with_F_2, tiled_gemv_with_F_2
//   shapes   as there
//   launch   as there but for the place of the shared expert's units along y (GATE_UP_FIRST); dynamic shared memory of a block:
//            FsStagedShared of the larger format
//   cost     as there. Four blocks share a multiprocessor; each has two groups of its warps' segments on their way
//   order    as there
#include "fourspark.h"
#include "fs_gemv.h"
#include "fs_staged.h"

// Most slots of a unit.
static constexpr int STAGED_Q = 2;

// Where the shared expert's units begin along y: its blocks take longest, so they are not last. For gate and up they are second: what
// does not fill the device evenly then falls on other multiprocessors than theirs.
static constexpr i32 DOWN_FIRST = 0, GATE_UP_FIRST = 1;

// From one packed matrix to another, in units of 16 bytes.
FS_DEVICE i64 staged_apart(const u8* from, const u8* to) { return (const u32x4*)to - (const u32x4*)from; }

// Shared memory of a block: of the routed experts' format, or of the shared one's.
template <class F, int MATRICES>
union StagedShared {
  FsStagedShared<F, STAGED_Q, MATRICES> routed;
  FsStagedShared<F, 1, MATRICES> alone;
  FsStagedShared<FsFp4Fast, STAGED_Q, MATRICES> shared;
};

// Units of one column take a way of one.
template <class F, int MATRICES, class Out>
FS_DEVICE void staged_unit(StagedShared<F, MATRICES>& sh, const FsTiled<F>& w, i64 second, const i8* q, const fs_a8_meta* meta,
                           const FsTiledColumns& my, i32 blocks, u32 per, u32 table, const Out& out) {
  if (my.count == 1)
    fs_staged_products<F, 1, MATRICES>(sh.alone, w, second, q, meta, my, blocks, per, table, out);
  else
    fs_staged_products<F, STAGED_Q, MATRICES>(sh.routed, w, second, q, meta, my, blocks, per, table, out);
}

#define STAGED_GATE_UP(name, F)                                                                                             \
  FS_KERNEL(staged_gate_up_##name, 256, 4)(                                                                                 \
      const u8* FS_RESTRICT gate, const u8* FS_RESTRICT up, const i8* FS_RESTRICT q, const fs_a8_meta* FS_RESTRICT meta,    \
      const u32x4* FS_RESTRICT units, const u32* FS_RESTRICT order, const float* FS_RESTRICT weights, i8* FS_RESTRICT h_q,  \
      fs_a8_meta* FS_RESTRICT h_meta, const u8* FS_RESTRICT shared_gate, const u8* FS_RESTRICT shared_up,                   \
      i8* FS_RESTRICT shared_q, fs_a8_meta* FS_RESTRICT shared_meta, i32 m, i32 blocks, i32 tokens, u32 used, u32 table,    \
      float limit, float shared_limit) {                                                                                    \
    fs_begin();                                                                                                             \
    typedef StagedShared<F, 2> Shared;                                                                                      \
    FS_SHARED_DYN(Shared, sh);                                                                                              \
    const FsTiledColumns my = fs_tiled_with<STAGED_Q>(units, order, tokens, GATE_UP_FIRST);                                 \
    if (!fs_tiled_shared<STAGED_Q>(tokens, GATE_UP_FIRST)) {                                                                \
      const FsTiled<F> w = fs_tiled_of<F>(gate, my.expert, m, blocks);                                                      \
      const TiledAct out = {weights, h_q, h_meta, nullptr, m, limit, my};                                                   \
      staged_unit<F, 2>(sh, w, staged_apart(gate, up), q, meta, my, blocks, used, table, out);                              \
    } else {                                                                                                                \
      const FsTiled<FsFp4Fast> w = fs_tiled_of<FsFp4Fast>(shared_gate, 0, m, blocks);                                       \
      const TiledAct out = {nullptr, shared_q, shared_meta, nullptr, m, shared_limit, my};                                  \
      fs_staged_products<FsFp4Fast, STAGED_Q, 2>(sh.shared, w, staged_apart(shared_gate, shared_up), q, meta, my, blocks, 1,\
                                                 (u32)(tokens >> 31), out);                                                 \
    }                                                                                                                       \
  }                                                                                                                         \
  FS_EXPORT(staged_gate_up_##name, 256)
#define STAGED_GEMV(name, F)                                                                                                \
  FS_KERNEL(staged_gemv_##name, 256, 4)(                                                                                    \
      const u8* FS_RESTRICT packed, const i8* FS_RESTRICT q, const fs_a8_meta* FS_RESTRICT meta,                            \
      const u32x4* FS_RESTRICT units, const u32* FS_RESTRICT order, float* FS_RESTRICT y, const u8* FS_RESTRICT shared,     \
      const i8* FS_RESTRICT shared_q, const fs_a8_meta* FS_RESTRICT shared_meta, float* FS_RESTRICT shared_y, i32 m,        \
      i32 blocks, i32 tokens, u32 table) {                                                                                  \
    fs_begin();                                                                                                             \
    typedef StagedShared<F, 1> Shared;                                                                                      \
    FS_SHARED_DYN(Shared, sh);                                                                                              \
    const FsTiledColumns my = fs_tiled_with<STAGED_Q>(units, order, tokens, DOWN_FIRST);                                    \
    if (!fs_tiled_shared<STAGED_Q>(tokens, DOWN_FIRST)) {                                                                   \
      const FsTiled<F> w = fs_tiled_of<F>(packed, my.expert, m, blocks);                                                    \
      staged_unit<F, 1>(sh, w, 0, q, meta, my, blocks, 1, table, TiledOut{y, nullptr, nullptr, m, my});                     \
    } else {                                                                                                                \
      const FsTiled<FsFp4Fast> w = fs_tiled_of<FsFp4Fast>(shared, 0, m, blocks);                                            \
      fs_staged_products<FsFp4Fast, STAGED_Q, 1>(sh.shared, w, 0, shared_q, shared_meta, my, blocks, 1, (u32)(tokens >> 31),\
                                                 TiledOut{shared_y, nullptr, nullptr, m, my});                              \
    }                                                                                                                       \
  }                                                                                                                         \
  FS_EXPORT(staged_gemv_##name, 256)

STAGED_GATE_UP(fp4f, FsFp4Fast) STAGED_GEMV(fp4f, FsFp4Fast)
STAGED_GATE_UP(fp2, FsFp2) STAGED_GEMV(fp2, FsFp2)
STAGED_GATE_UP(fp3, FsFp3) STAGED_GEMV(fp3, FsFp3)
