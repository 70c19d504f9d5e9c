// The scheduler of the SIMT executor; exec.h says what it promises.
#include "exec.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "switch.h"

const fs_host_entry*& fs_host_entry::first() {
  static const fs_host_entry* head = nullptr;
  return head;
}

namespace {

constexpr std::uint32_t kWarp = 32, kMaxThreads = 1024;
constexpr std::size_t kStack = 128 << 10;
// Limits of every device the kernels are built for: static shared memory, and static + dynamic.
constexpr std::size_t kStaticShared = 48 << 10, kDynamicShared = 227 << 10;
constexpr std::uint64_t kCanary = 0x9d1ce57ac4be11f5;

enum class At { Run, Barrier, Shuffle, Tile, Half, Done };

struct Copy {
  void* to;
  const void* from;
  std::uint32_t bytes;
  std::uint32_t group;
};

struct Lane {
  fs_context context;
  At at;
  bool began;
  const char* file;
  int line;
  std::uint32_t value, select;  // shuffle: value in, source lane; value out
  const fs_host_tile* shape;    // matrix step
  std::int32_t* d;
  const std::uint32_t *a, *b;
  const std::int32_t* c;
  float* half_d;  // f16 matrix step, with a and b
  const float* half_c;
  std::vector<Copy> copies;
  std::uint32_t commits;
};

struct Placed {
  const void* key;
  std::size_t offset, bytes;
};

struct Random {
  std::uint64_t state;
  std::uint32_t next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return std::uint32_t(state >> 33);
  }
};

struct Executor {
  std::vector<Lane> lanes;
  std::unique_ptr<char, decltype(&std::free)> stacks{nullptr, &std::free};
  std::size_t stack_count = 0;
  std::vector<char> shared;
  std::size_t shared_used = 0;
  std::vector<Placed> placed;
  fs_context scheduler{};
  const fs_host_entry* entry = nullptr;
  const fs_host_launch_t* launch = nullptr;
  std::uint32_t current = 0, block[3] = {0, 0, 0};
  bool running = false, failed = false;
  char message[512] = {0};
  Random random{0};

  void say(const char* format, ...) {
    if (failed) return;
    failed = true;
    va_list list;
    va_start(list, format);
    say_list(format, list);
    va_end(list);
  }
  void say_list(const char* format, va_list list) {
    int n = std::snprintf(message, sizeof message, "%s, block (%u, %u, %u): ", launch->kernel, block[0], block[1], block[2]);
    if (n > 0 && std::size_t(n) < sizeof message) std::vsnprintf(message + n, sizeof message - std::size_t(n), format, list);
  }

  void prepare(std::uint32_t threads) {
    if (stack_count < threads) {
      stacks.reset(static_cast<char*>(std::aligned_alloc(4096, std::size_t(threads) * kStack)));
      stack_count = stacks ? threads : 0;
    }
    lanes.resize(threads);
    if (shared.empty()) shared.resize(kDynamicShared + 64, char(0xff));
  }

  void start_block();
  bool run_warp(std::uint32_t warp);
  void run_block();
  void resume(std::uint32_t thread);
  void stop(At at, const char* file, int line);
  void shuffle(std::uint32_t first);
  void matrix_step(std::uint32_t first);
  void half_step(std::uint32_t first);
  std::uint32_t order(std::uint32_t i, std::uint32_t n);
};

thread_local Executor* tls = nullptr;

Executor& self() { return *tls; }

void fiber_main() {
  Executor& x = self();
  x.entry->thunk(x.entry->kernel, x.launch->values);
  x.stop(At::Done, "", 0);
  std::abort();  // nobody resumes a finished fiber
}

void Executor::stop(At at, const char* file, int line) {
  Lane& l = lanes[current];
  l.at = at;
  l.file = file;
  l.line = line;
  fs_context_switch(&l.context, &scheduler);
}

const char* name_of(At at) {
  switch (at) {
    case At::Barrier: return "barrier";
    case At::Shuffle: return "shuffle";
    case At::Tile: return "matrix step";
    case At::Half: return "f16 matrix step";
    case At::Done: return "end of the kernel";
    case At::Run: break;
  }
  return "running";
}

void Executor::resume(std::uint32_t thread) {
  current = thread;
  Lane& l = lanes[thread];
  l.at = At::Run;
  fs_context_switch(&scheduler, &l.context);
  if (!l.began) say("thread %u comes to %s (%s:%d) before fs_begin", thread, name_of(l.at), l.file, l.line);
  std::uint64_t canary;
  std::memcpy(&canary, stacks.get() + thread * kStack, sizeof canary);
  if (canary != kCanary) say("thread %u: the fiber's stack of %zu bytes overflowed", thread, kStack);
}

void Executor::start_block() {
  std::memset(shared.data(), 0xff, shared_used);  // f32 NaN, int -1
  shared_used = 0;
  placed.clear();
  for (std::uint32_t t = 0; t < launch->threads; t++) {
    char* stack = stacks.get() + t * kStack;
    std::memcpy(stack, &kCanary, sizeof kCanary);
    fs_context_make(&lanes[t].context, stack, kStack, fiber_main);
    lanes[t].at = At::Run;
    lanes[t].began = false;
    lanes[t].copies.clear();
    lanes[t].commits = 0;
  }
}

// Runs a warp until all of its lanes stand at one barrier or have ended. False on divergence.
bool Executor::run_warp(std::uint32_t warp) {
  const std::uint32_t first = warp * kWarp;
  for (;;) {
    const std::uint32_t odd = launch->seed > 1 ? random.next() | 1 : launch->seed == 1 ? 31 : 1;
    for (std::uint32_t i = 0; i < kWarp; i++) {
      resume(first + ((i + (launch->seed ? 1 : 0)) * odd & 31));
      if (failed) return false;
    }
    const Lane& l0 = lanes[first];
    for (std::uint32_t i = 1; i < kWarp; i++) {
      const Lane& l = lanes[first + i];
      if (l.at != l0.at || l.line != l0.line || std::strcmp(l.file, l0.file) != 0) {
        say("divergent warp: thread %u at %s (%s:%d), thread %u at %s (%s:%d)", first, name_of(l0.at), l0.file, l0.line,
            first + i, name_of(l.at), l.file, l.line);
        return false;
      }
    }
    if (l0.at == At::Barrier || l0.at == At::Done) return true;
    if (l0.at == At::Shuffle) shuffle(first);
    if (l0.at == At::Tile) matrix_step(first);
    if (l0.at == At::Half) half_step(first);
    if (failed) return false;
  }
}

void Executor::shuffle(std::uint32_t first) {
  std::uint32_t out[kWarp];
  for (std::uint32_t i = 0; i < kWarp; i++) {
    const std::uint32_t from = lanes[first + i].select;
    if (from >= kWarp) return say("thread %u shuffles from lane %u", first + i, from);
    out[i] = lanes[first + from].value;
  }
  for (std::uint32_t i = 0; i < kWarp; i++) lanes[first + i].value = out[i];
}

void Executor::matrix_step(std::uint32_t first) {
  const fs_host_tile& s = *lanes[first].shape;
  std::int8_t a[16][32], b[16][32];
  bool seen_a[16][4] = {}, seen_b[16][4] = {};
  for (std::uint32_t i = 0; i < kWarp; i++) {
    const Lane& l = lanes[first + i];
    for (int side = 0; side < 2; side++) {
      const std::uint32_t* words = side ? l.b : l.a;
      for (int j = 0; j < (side ? s.bw : s.aw); j++) {
        const std::uint32_t line = s.line(i, j), word = s.word(i, j);
        std::int8_t* to = (side ? b : a)[line] + 8 * word;
        bool& seen = (side ? seen_b : seen_a)[line][word];
        if (seen && std::memcmp(to, words + 2 * j, 8) != 0)
          return say("matrix step at %s:%d: lanes disagree about a shared fragment", l.file, l.line);
        seen = true;
        std::memcpy(to, words + 2 * j, 8);
      }
    }
  }
  for (std::uint32_t i = 0; i < kWarp; i++) {
    const Lane& l = lanes[first + i];
    for (int r = 0; r < s.cr; r++)
      for (int c = 0; c < s.cc; c++) {
        std::int32_t sum = l.c[r * s.cc + c];
        const std::int8_t *x = a[s.row(i, r)], *y = b[s.col(i, c)];
        for (int k = 0; k < 32; k++) sum += std::int32_t(x[k]) * std::int32_t(y[k]);
        l.d[r * s.cc + c] = sum;
      }
  }
}

// A number as a product of an odd one and 2^low.
struct Exact {
  double value;
  int low;
};

Exact exact_of(double value) {
  if (value == 0) return {0.0, 1 << 20};
  int exponent;
  const auto digits = std::int64_t(std::ldexp(std::frexp(value, &exponent), 53));
  return {value, exponent - 53 + __builtin_ctzll(std::uint64_t(digits))};
}

const Exact& exact_of_half(std::uint32_t bits) {
  static const std::vector<Exact> all = [] {
    std::vector<Exact> out;
    for (std::uint32_t i = 0; i < 65536; i++) {
      const int exponent = int(i >> 10 & 31), rest = int(i & 1023);
      const double size = exponent == 0 ? std::ldexp(rest, -24) : std::ldexp(rest + 1024, exponent - 25);
      out.push_back(exact_of(i & 0x8000 ? -size : size));
    }
    return out;
  }();
  return all[bits];
}

void Executor::half_step(std::uint32_t first) {
  Exact a[16][16], b[8][16];
  for (std::uint32_t i = 0; i < kWarp; i++) {
    const Lane& l = lanes[first + i];
    for (std::uint32_t j = 0; j < 6; j++) {
      const std::uint32_t word = j < 4 ? l.a[j] : l.b[j - 4], k = i % 4 * 2 + (j < 4 ? j / 2 : j - 4) * 8;
      if ((word & 0x7c00) == 0x7c00 || (word >> 16 & 0x7c00) == 0x7c00)
        return say("f16 matrix step at %s:%d: an operand is not finite", l.file, l.line);
      Exact* to = (j < 4 ? a[i / 4 + j % 2 * 8] : b[i / 4]) + k;
      to[0] = exact_of_half(word & 0xffff);
      to[1] = exact_of_half(word >> 16);
    }
  }
  for (std::uint32_t i = 0; i < kWarp; i++) {
    const Lane& l = lanes[first + i];
    for (std::uint32_t n = 0; n < 4; n++) {
      const Exact *x = a[i / 4 + n / 2 * 8], *y = b[i % 4 * 2 + n % 2], start = exact_of(double(l.half_c[n]));
      double sum = start.value, size = std::fabs(start.value);
      int low = start.low;
      for (int k = 0; k < 16; k++) {
        const double product = x[k].value * y[k].value;
        sum += product;
        size += std::fabs(product);
        if (product != 0 && x[k].low + y[k].low < low) low = x[k].low + y[k].low;
      }
      if (!(size == 0 || size <= std::ldexp(1.0, low + 24)))
        return say("f16 matrix step at %s:%d: a sum depends on its order", l.file, l.line);
      l.half_d[n] = float(sum);
    }
  }
}

void Executor::run_block() {
  start_block();
  const std::uint32_t warps = launch->threads / kWarp;
  std::uint32_t order[kMaxThreads / kWarp];
  for (;;) {
    for (std::uint32_t w = 0; w < warps; w++) order[w] = launch->seed == 1 ? warps - 1 - w : w;
    if (launch->seed > 1)
      for (std::uint32_t w = warps; w > 1; w--) std::swap(order[w - 1], order[random.next() % w]);
    for (std::uint32_t w = 0; w < warps; w++)
      if (!run_warp(order[w])) return;
    const Lane& l0 = lanes[0];
    for (std::uint32_t w = 1; w < warps; w++) {
      const Lane& l = lanes[w * kWarp];
      if (l.at != l0.at || l.line != l0.line || std::strcmp(l.file, l0.file) != 0)
        return say("divergent barrier: thread 0 at %s (%s:%d), thread %u at %s (%s:%d)", name_of(l0.at), l0.file, l0.line,
                   w * kWarp, name_of(l.at), l.file, l.line);
    }
    if (l0.at == At::Done) return;
  }
}

}  // namespace

std::uint32_t fs_host_tid() { return self().current; }
std::uint32_t fs_host_bid(int axis) { return self().block[axis]; }
void fs_host_begin() { self().lanes[self().current].began = true; }
void fs_host_barrier(const char* file, int line) { self().stop(At::Barrier, file, line); }

std::uint32_t fs_host_shfl(std::uint32_t value, std::uint32_t lane, const char* file, int line) {
  Executor& x = self();
  Lane& l = x.lanes[x.current];
  l.value = value;
  l.select = lane;
  x.stop(At::Shuffle, file, line);
  return l.value;
}

void fs_host_tile_mma(const fs_host_tile* shape, std::int32_t* d, const std::uint32_t* a, const std::uint32_t* b,
                      const std::int32_t* c, const char* file, int line) {
  Executor& x = self();
  Lane& l = x.lanes[x.current];
  l.shape = shape;
  l.d = d;
  l.a = a;
  l.b = b;
  l.c = c;
  x.stop(At::Tile, file, line);
}

void fs_host_half_mma(float* d, const std::uint32_t* a, const std::uint32_t* b, const float* c, const char* file, int line) {
  Executor& x = self();
  Lane& l = x.lanes[x.current];
  l.half_d = d;
  l.a = a;
  l.b = b;
  l.half_c = c;
  x.stop(At::Half, file, line);
}

// A kernel declares one struct of each kind, so its size and kind name it within a block.
void* fs_host_shared(std::size_t bytes, std::size_t align, bool dynamic) {
  Executor& x = self();
  static const char kStaticKey = 0, kDynamicKey = 0;
  const void* key = dynamic ? &kDynamicKey : &kStaticKey;
  for (const Placed& p : x.placed)
    if (p.key == key) {
      if (p.bytes != bytes) fs_host_fail("two shared structs of %zu and %zu bytes in one kernel", p.bytes, bytes);
      return x.shared.data() + p.offset;
    }
  if (dynamic && bytes > x.launch->shared_bytes)
    fs_host_fail("needs %zu bytes of dynamic shared memory, the launch gives %u", bytes, x.launch->shared_bytes);
  if (!dynamic && bytes > kStaticShared) fs_host_fail("%zu bytes of static shared memory, no device has more than %zu", bytes, kStaticShared);
  const auto base = reinterpret_cast<std::uintptr_t>(x.shared.data());
  const std::size_t offset = ((base + x.shared_used + align - 1) / align) * align - base;
  if (offset + bytes > kDynamicShared) fs_host_fail("more than %zu bytes of shared memory", kDynamicShared);
  x.placed.push_back({key, offset, bytes});
  x.shared_used = offset + bytes;
  return x.shared.data() + offset;
}

// Copies happen as late as the source allows: at the wait that needs them.
void fs_host_copy(void* shared, const void* global, std::uint32_t bytes) {
  Executor& x = self();
  Lane& l = x.lanes[x.current];
  if (!l.began) fs_host_fail("thread %u copies before fs_begin", x.current);
  const auto misaligned = (reinterpret_cast<std::uintptr_t>(shared) | reinterpret_cast<std::uintptr_t>(global)) % bytes;
  if (misaligned) fs_host_fail("misaligned background copy of %u bytes", bytes);
  l.copies.push_back({shared, global, bytes, l.commits});
}
void fs_host_copy_commit() {
  Executor& x = self();
  x.lanes[x.current].commits++;
}
void fs_host_copy_wait(int left) {
  Executor& x = self();
  Lane& l = x.lanes[x.current];
  std::size_t kept = 0;
  for (const Copy& c : l.copies) {
    if (c.group < l.commits && l.commits - c.group > std::uint32_t(left))
      std::memcpy(c.to, c.from, c.bytes);
    else
      l.copies[kept++] = c;
  }
  l.copies.resize(kept);
}

void fs_host_fail(const char* format, ...) {
  Executor* x = tls;
  if (!x || !x->running) {
    std::fprintf(stderr, "kernel code outside a launch: %s\n", format);
    std::abort();
  }
  if (!x->failed) {
    x->failed = true;
    va_list list;
    va_start(list, format);
    x->say_list(format, list);
    va_end(list);
  }
  x->stop(At::Done, "", 0);
  std::abort();
}

extern "C" const char* fs_host_kernel_name(std::uint32_t index) {
  const fs_host_entry* e = fs_host_entry::first();
  while (e && index--) e = e->next;
  return e ? e->name : nullptr;
}

static const fs_host_entry* find(const char* name) {
  const fs_host_entry* e = fs_host_entry::first();
  while (e && std::strcmp(e->name, name) != 0) e = e->next;
  return e;
}

extern "C" int fs_host_kernel_sizes(const char* kernel, std::uint32_t* sizes) {
  const fs_host_entry* e = find(kernel);
  if (!e) return -1;
  for (std::uint32_t i = 0; i < e->args; i++) sizes[i] = e->sizes[i];
  return int(e->args);
}

static const char* refuse(const fs_host_launch_t* l, const fs_host_entry* e, char* text, std::size_t room) {
  if (!e) {
    std::snprintf(text, room, "no kernel named %s", l->kernel);
    return text;
  }
  if (l->threads != e->threads || l->threads % kWarp || l->threads > kMaxThreads) {
    std::snprintf(text, room, "%s is compiled for blocks of %u threads, launched with %u", e->name, e->threads, l->threads);
    return text;
  }
  if (l->args != e->args) {
    std::snprintf(text, room, "%s takes %u arguments, got %u", e->name, e->args, l->args);
    return text;
  }
  for (std::uint32_t i = 0; i < l->args; i++)
    if (l->sizes[i] != e->sizes[i]) {
      std::snprintf(text, room, "%s: argument %u has %u bytes, got %u", e->name, i, e->sizes[i], l->sizes[i]);
      return text;
    }
  return nullptr;
}

extern "C" int fs_host_launch(const fs_host_launch_t* launch, char* message, std::size_t room) {
  thread_local Executor executor;
  const fs_host_entry* entry = find(launch->kernel);
  if (refuse(launch, entry, message, room)) return 1;
  Executor& x = executor;
  tls = &x;
  x.entry = entry;
  x.launch = launch;
  x.failed = false;
  x.random.state = launch->seed;
  x.prepare(launch->threads);
  x.running = true;
  const std::uint64_t n = std::uint64_t(launch->grid[0]) * launch->grid[1] * launch->grid[2];
  // A step coprime to the count visits every block once, in an order the seed chooses.
  std::uint64_t step = 1, at = 0;
  if (launch->seed > 1 && n > 2) {
    auto gcd = [](std::uint64_t p, std::uint64_t q) {
      while (q) {
        const std::uint64_t r = p % q;
        p = q;
        q = r;
      }
      return p;
    };
    step = 1 + x.random.next() % (n - 1);
    while (gcd(step, n) != 1) step++;
    at = x.random.next() % n;
  }
  for (std::uint64_t i = 0; i < n && !x.failed; i++) {
    const std::uint64_t b = launch->seed == 1 ? n - 1 - i : at;
    at = (at + step) % n;
    x.block[0] = std::uint32_t(b % launch->grid[0]);
    x.block[1] = std::uint32_t(b / launch->grid[0] % launch->grid[1]);
    x.block[2] = std::uint32_t(b / launch->grid[0] / launch->grid[1]);
    x.run_block();
  }
  x.running = false;
  for (Lane& l : x.lanes) fs_context_drop(&l.context);
  if (x.failed) std::snprintf(message, room, "%s", x.message);
  return x.failed ? 1 : 0;
}
