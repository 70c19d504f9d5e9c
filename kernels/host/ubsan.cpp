// The part of UBSan's runtime that the kernels' host build calls (both compilers, aborting form):
// undefined behaviour in a kernel ends the launch with its place instead of the process.
//
// Every handler's first argument starts with {const char* file; u32 line; u32 column}.
#include "exec.h"

namespace {
struct Place {
  const char* file;
  std::uint32_t line, column;
};
[[noreturn]] void report(const char* what, const void* data) {
  const auto* p = static_cast<const Place*>(data);
  fs_host_fail("undefined behaviour: %s at %s:%u:%u", what, p->file ? p->file : "?", p->line, p->column);
}
}  // namespace

#define HANDLER(name, what) \
  extern "C" [[noreturn]] void __ubsan_handle_##name##_abort(void* data, ...) { report(what, data); }

HANDLER(add_overflow, "signed addition overflows")
HANDLER(sub_overflow, "signed subtraction overflows")
HANDLER(mul_overflow, "signed multiplication overflows")
HANDLER(negate_overflow, "negation overflows")
HANDLER(divrem_overflow, "division by zero or overflow")
HANDLER(shift_out_of_bounds, "shift out of range")
HANDLER(out_of_bounds, "index out of bounds")
HANDLER(type_mismatch_v1, "null or misaligned access")
HANDLER(alignment_assumption, "misaligned pointer")
HANDLER(pointer_overflow, "pointer arithmetic overflows")
HANDLER(load_invalid_value, "invalid bool or enum")
HANDLER(float_cast_overflow, "float does not fit the integer")
HANDLER(vla_bound_not_positive, "array of no elements")
HANDLER(nonnull_arg, "null argument")
HANDLER(nonnull_return_v1, "null result")
HANDLER(nullability_arg, "null argument")
HANDLER(nullability_return_v1, "null result")
HANDLER(invalid_builtin, "invalid builtin argument")
HANDLER(function_type_mismatch, "call through a wrong function type")
HANDLER(implicit_conversion, "value lost in a conversion")

extern "C" [[noreturn]] void __ubsan_handle_builtin_unreachable(void* data) { report("unreachable reached", data); }
extern "C" [[noreturn]] void __ubsan_handle_missing_return(void* data) { report("missing return", data); }
