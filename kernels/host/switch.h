// Switching between stacks. Own assembly where the calling convention is known (about 2 ns, against
// two system calls a switch for swapcontext), ucontext elsewhere.
#pragma once
#include <cstddef>

// A suspended computation. Zero it before fs_context_make.
struct fs_context {
  void* sp;
  void* fallback;
};

// Makes `c` start in entry() on the given stack at its first switch. entry must not return.
void fs_context_make(fs_context* c, void* stack, std::size_t bytes, void (*entry)());
// Suspends into `from`, resumes `to`.
void fs_context_switch(fs_context* from, fs_context* to);
// Frees what fs_context_make took (not the stack).
void fs_context_drop(fs_context* c);
