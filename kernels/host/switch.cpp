// Stack switching; switch.h says why.
#include "switch.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__ELF__)
extern "C" void fs_stack_switch(void** save, void* load);
// Callee-saved registers of the System V convention; everything else is dead across a call.
asm(R"(
.text
.p2align 4
.hidden fs_stack_switch
.globl fs_stack_switch
.type fs_stack_switch, @function
fs_stack_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size fs_stack_switch, .-fs_stack_switch
)");

void fs_context_make(fs_context* c, void* stack, std::size_t bytes, void (*entry)()) {
  auto top = (reinterpret_cast<std::uintptr_t>(stack) + bytes) & ~std::uintptr_t(15);
  // Six registers, the address to return to, and a slot so that entry() sees the stack as after a call.
  auto* frame = reinterpret_cast<std::uintptr_t*>(top) - 8;
  std::memset(frame, 0, 8 * sizeof *frame);
  frame[6] = reinterpret_cast<std::uintptr_t>(entry);
  c->sp = frame;
}
void fs_context_switch(fs_context* from, fs_context* to) { fs_stack_switch(&from->sp, to->sp); }
void fs_context_drop(fs_context*) {}

#elif defined(__aarch64__) && defined(__ELF__)
extern "C" void fs_stack_switch(void** save, void* load);
asm(R"(
.text
.p2align 4
.hidden fs_stack_switch
.globl fs_stack_switch
.type fs_stack_switch, %function
fs_stack_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size fs_stack_switch, .-fs_stack_switch
)");

void fs_context_make(fs_context* c, void* stack, std::size_t bytes, void (*entry)()) {
  auto top = (reinterpret_cast<std::uintptr_t>(stack) + bytes) & ~std::uintptr_t(15);
  auto* frame = reinterpret_cast<std::uintptr_t*>(top) - 20;
  std::memset(frame, 0, 20 * sizeof *frame);
  frame[11] = reinterpret_cast<std::uintptr_t>(entry);  // x30
  c->sp = frame;
}
void fs_context_switch(fs_context* from, fs_context* to) { fs_stack_switch(&from->sp, to->sp); }
void fs_context_drop(fs_context*) {}

#else
#include <ucontext.h>

static ucontext_t* of(fs_context* c) {
  if (!c->fallback) c->fallback = new ucontext_t;
  return static_cast<ucontext_t*>(c->fallback);
}
void fs_context_make(fs_context* c, void* stack, std::size_t bytes, void (*entry)()) {
  ucontext_t* u = of(c);
  getcontext(u);
  u->uc_stack.ss_sp = stack;
  u->uc_stack.ss_size = bytes;
  u->uc_link = nullptr;
  makecontext(u, entry, 0);
}
void fs_context_switch(fs_context* from, fs_context* to) { swapcontext(of(from), of(to)); }
void fs_context_drop(fs_context* c) {
  delete static_cast<ucontext_t*>(c->fallback);
  c->fallback = nullptr;
}
#endif
