// Elements of packed rows of keys (fs_rows.h), several at a time: e4m3 codes with an exponent for 64 of them, and a
// bf16 tail.
#pragma once
#include "fourspark.h"
#include "fs_rows.h"

// Where fields of e4m3 lie in an f32, 2^-120 of their value; `top` has the code in its highest byte.
FS_DEVICE float packed_fields(u32 top) { return fs_f32((u32)((i32)top >> 4) & 0x87f00000u); }
// Both products are exact, or overflow as the reference's do. NaN codes give a number: packed_nan.
FS_DEVICE float packed_value(u32 top, float scale) { return fs_mul(fs_mul(packed_fields(top), 1.329227995784916e36f), scale); }

// Bit 7 of a byte becomes set where the code is NaN.
FS_DEVICE u32 packed_nan(u32 codes) { return (codes & 0x7f7f7f7fu) + 0x01010101u; }

// The scale of a block from its exponent byte.
FS_DEVICE float packed_scale(u32 byte) { return fs_f32(byte << 23); }
