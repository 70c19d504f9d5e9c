// The SIMT executor: what a kernel source sees of it (through gpu/fourspark.h) and its C interface.
//
// One block runs at a time on the calling thread, one fiber a GPU thread. A fiber runs until it
// meets a warp operation or a barrier; the scheduler then checks that everybody who must be there
// is there, at the same place in the source, and performs it. What it reports instead of running on:
// divergent warp operations and barriers, threads that left early or never began (fs_begin), shared memory that no device
// has, undefined behaviour (the kernels are built with UBSan; ubsan.cpp is its runtime). Shared
// memory starts as NaN in every block. The order of blocks, warps and lanes is chosen by a seed, so
// that a missing barrier shows as a wrong result under some seed.
//
// Must not know: which kernels exist, Rust.
#pragma once
#include <cstddef>
#include <cstdint>

// ---- seen by kernels

std::uint32_t fs_host_tid();
std::uint32_t fs_host_bid(int axis);
void fs_host_begin();
void fs_host_barrier(const char* file, int line);
std::uint32_t fs_host_shfl(std::uint32_t value, std::uint32_t lane, const char* file, int line);
void* fs_host_shared(std::size_t bytes, std::size_t align, bool dynamic);
void fs_host_copy(void* shared, const void* global, std::uint32_t bytes);
void fs_host_copy_commit();
void fs_host_copy_wait(int left);

// The shape of a matrix step (gpu/fs_tile.h): where each lane's fragments sit.
struct fs_host_tile {
  int n, aw, bw, cr, cc;
  std::uint32_t (*line)(std::uint32_t lane, int j);
  std::uint32_t (*word)(std::uint32_t lane, int j);
  std::uint32_t (*row)(std::uint32_t lane, int r);
  std::uint32_t (*col)(std::uint32_t lane, int c);
};
void fs_host_tile_mma(const fs_host_tile* shape, std::int32_t* d, const std::uint32_t* a, const std::uint32_t* b,
                      const std::int32_t* c, const char* file, int line);

// A step of f16 matrix units in NVIDIA's order of fragments (gpu/fs_halves.h): d = c + a b, 16 rows, 8 columns, 16 deep.
// Its order of sums is nobody's promise, so the executor refuses a sum that is not exact in every order.
void fs_host_half_mma(float* d, const std::uint32_t* a, const std::uint32_t* b, const float* c, const char* file, int line);

// Ends the launch with a message. Does not return to the kernel.
[[noreturn]] void fs_host_fail(const char* format, ...);

// ---- the table of kernels

template <class Function, class Indices>
struct fs_host_thunk;
template <std::size_t... I>
struct fs_host_indices {};
template <std::size_t N, std::size_t... I>
struct fs_host_make : fs_host_make<N - 1, N - 1, I...> {};
template <std::size_t... I>
struct fs_host_make<0, I...> {
  using type = fs_host_indices<I...>;
};

// Calls a kernel of any signature with arguments given by address, as the drivers do.
template <class... A, std::size_t... I>
struct fs_host_thunk<void(A...), fs_host_indices<I...>> {
  static void call(void (*kernel)(), void** args) {
    (void)args;
    reinterpret_cast<void (*)(A...)>(kernel)(*static_cast<A*>(args[I])...);
  }
};

struct fs_host_entry {
  const char* name;
  void (*kernel)();
  void (*thunk)(void (*)(), void**);
  std::uint32_t args;
  std::uint32_t sizes[20];
  std::uint32_t threads;
  const fs_host_entry* next;

  template <class... A>
  fs_host_entry(const char* name_, void (*kernel_)(A...), std::uint32_t threads_)
      : name(name_),
        kernel(reinterpret_cast<void (*)()>(kernel_)),
        thunk(&fs_host_thunk<void(A...), typename fs_host_make<sizeof...(A)>::type>::call),
        args(sizeof...(A)),
        sizes{std::uint32_t(sizeof(A))...},
        threads(threads_),
        next(first()) {
    static_assert(sizeof...(A) <= 20, "too many kernel arguments");
    first() = this;
  }
  static const fs_host_entry*& first();
};

// ---- C interface

extern "C" {
struct fs_host_launch_t {
  const char* kernel;
  std::uint32_t grid[3];
  std::uint32_t threads;       // of a block, one dimension
  std::uint32_t shared_bytes;  // dynamic shared memory
  std::uint32_t args;
  void** values;               // addresses of the arguments
  const std::uint32_t* sizes;  // their sizes, compared with the kernel's signature
  std::uint64_t seed;          // 0: ascending order, 1: descending, else shuffled
};
// 0, or 1 with a zero-terminated message of at most `room` bytes.
int fs_host_launch(const fs_host_launch_t* launch, char* message, std::size_t room);
// Name of kernel `index`, or null past the last.
const char* fs_host_kernel_name(std::uint32_t index);
// Number of arguments of a kernel and their sizes (room for 16), or -1 if there is no such kernel.
int fs_host_kernel_sizes(const char* kernel, std::uint32_t* sizes);
}
