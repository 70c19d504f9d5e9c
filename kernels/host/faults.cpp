// Kernels with one mistake each: what the executor must notice (tests/executor.rs).
#include "../gpu/fourspark.h"
#include "../gpu/fs_halves.h"

struct FaultShared {
  float v[64];
};

FS_KERNEL(fault_none, 64, 1)(float* out) {
  fs_begin();
  FS_SHARED(FaultShared, sh);
  sh.v[fs_tid()] = (float)fs_tid();
  fs_barrier();
  out[fs_tid()] = sh.v[63 - fs_tid()];
}
FS_EXPORT(fault_none, 64)

FS_KERNEL(fault_divergent_barrier, 64, 1)(float* out) {
  fs_begin();
  if (fs_warp() == 0) fs_barrier();
  out[fs_tid()] = 1.0f;
}
FS_EXPORT(fault_divergent_barrier, 64)

FS_KERNEL(fault_two_barriers, 64, 1)(float* out) {
  fs_begin();
  if (fs_warp() == 0)
    fs_barrier();
  else
    fs_barrier();
  out[fs_tid()] = 1.0f;
}
FS_EXPORT(fault_two_barriers, 64)

FS_KERNEL(fault_divergent_shuffle, 64, 1)(float* out) {
  fs_begin();
  float v = 1.0f;
  if (fs_lane() < 31) v = fs_shfl_xor(v, 1);
  out[fs_tid()] = v;
}
FS_EXPORT(fault_divergent_shuffle, 64)

FS_KERNEL(fault_early_exit, 64, 1)(float* out) {
  fs_begin();
  if (fs_tid() == 40) return;
  fs_barrier();
  out[fs_tid()] = 1.0f;
}
FS_EXPORT(fault_early_exit, 64)

FS_KERNEL(fault_missing_barrier, 64, 1)(float* out) {
  fs_begin();
  FS_SHARED(FaultShared, sh);
  sh.v[fs_tid()] = (float)fs_tid();
  out[fs_tid()] = sh.v[63 - fs_tid()];
}
FS_EXPORT(fault_missing_barrier, 64)

FS_KERNEL(fault_missing_wait, 64, 1)(float* out) {
  fs_begin();
  FS_SHARED(FaultShared, sh);
  sh.v[fs_tid()] = -1.0f;
  fs_copy4(&sh.v[fs_tid()], out + fs_tid());
  fs_copy_commit();
  fs_barrier();
  out[fs_tid()] = sh.v[fs_tid()] + 1.0f;
}
FS_EXPORT(fault_missing_wait, 64)

FS_KERNEL(fault_shared_index, 64, 1)(float* out) {
  fs_begin();
  FS_SHARED(FaultShared, sh);
  sh.v[fs_tid() + 1] = 1.0f;
  fs_barrier();
  out[fs_tid()] = sh.v[fs_tid()];
}
FS_EXPORT(fault_shared_index, 64)

FS_KERNEL(fault_shared_unwritten, 64, 1)(float* out) {
  fs_begin();
  FS_SHARED(FaultShared, sh);
  out[fs_tid()] = sh.v[fs_tid()];
}
FS_EXPORT(fault_shared_unwritten, 64)

FS_KERNEL(fault_overflow, 64, 1)(float* out, i32 huge) {
  fs_begin();
  out[fs_tid()] = (float)(huge + (i32)fs_tid());
}
FS_EXPORT(fault_overflow, 64)

FS_KERNEL(fault_write_outside, 64, 1)(float* out) {
  fs_begin();
  out[fs_tid() + 1] = 1.0f;
}
FS_EXPORT(fault_write_outside, 64)

struct FaultTooMuch {
  float v[13000];
};
FS_KERNEL(fault_too_much_shared, 64, 1)(float* out) {
  fs_begin();
  FS_SHARED(FaultTooMuch, sh);
  out[fs_tid()] = sh.v[fs_tid()];
}
FS_EXPORT(fault_too_much_shared, 64)

FS_KERNEL(fault_dynamic, 64, 1)(float* out) {
  fs_begin();
  FS_SHARED_DYN(FaultShared, sh);
  sh.v[fs_tid()] = (float)fs_tid();
  fs_barrier();
  out[fs_tid()] = sh.v[63 - fs_tid()];
}
FS_EXPORT(fault_dynamic, 64)

// Shifts the block index into the output: every block of the grid runs once, in any order.
FS_KERNEL(fault_blocks, 64, 1)(u32* out) {
  fs_begin();
  if (fs_tid() == 0) out[fs_bid_y() * 5 + fs_bid_x()] = fs_bid_y() * 256 + fs_bid_x();
}
FS_EXPORT(fault_blocks, 64)

FS_KERNEL(fault_never_begins, 64, 1)(float* out) { out[fs_tid()] = 1.0f; }
FS_EXPORT(fault_never_begins, 64)

FS_KERNEL(fault_begins_late, 64, 1)(float* out) {
  fs_barrier();
  fs_begin();
  out[fs_tid()] = 1.0f;
}
FS_EXPORT(fault_begins_late, 64)

FS_KERNEL(fault_some_begin, 64, 1)(float* out) {
  if (fs_tid() != 7) fs_begin();
  out[fs_tid()] = 1.0f;
}
FS_EXPORT(fault_some_begin, 64)

FS_KERNEL(fault_copies_before, 64, 1)(float* out) {
  FS_SHARED(FaultShared, sh);
  fs_copy4(&sh.v[fs_tid()], out + fs_tid());
  fs_begin();
}
FS_EXPORT(fault_copies_before, 64)

// One f16 matrix step of pairs `ab` on both sides, from c.
FS_KERNEL(fault_half_step, 32, 1)(float* out, u32 ab, float c) {
  fs_begin();
  const u32 a[4] = {ab, ab, ab, ab};
  const float start[4] = {c, c, c, c};
  float d[4];
  fs_half_mma(d, a, ab, ab, start);
  out[fs_tid()] = d[0];
}
FS_EXPORT(fault_half_step, 32)
