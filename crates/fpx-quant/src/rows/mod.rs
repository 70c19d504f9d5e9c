//! Products of weight rows with activations: the scalar definition and the fast paths.
//!
//! Apart from the codecs because these never form a dequantised weight of a block format: they
//! keep integers apart from scales, in the order of docs/adr/0001-arithmetic.md rules 2 to 4. Every
//! path gives the bits of [`dot_row_a8`] and [`dot_row_f32`], whatever the number of rows and
//! columns. Must not know: threads (callers split rows, see [`Out`]), files, models.

/// An array with one element per index, unrolled. `array::map` and closures would do, were it not
/// that a closure inside a `#[target_feature]` function is not inlined through code without it.
#[cfg(target_arch = "x86_64")]
macro_rules! each {
    (16, $i:ident => $value:expr) => {
        [
            each!(@ $i 0 $value), each!(@ $i 1 $value), each!(@ $i 2 $value), each!(@ $i 3 $value),
            each!(@ $i 4 $value), each!(@ $i 5 $value), each!(@ $i 6 $value), each!(@ $i 7 $value),
            each!(@ $i 8 $value), each!(@ $i 9 $value), each!(@ $i 10 $value),
            each!(@ $i 11 $value), each!(@ $i 12 $value), each!(@ $i 13 $value),
            each!(@ $i 14 $value), each!(@ $i 15 $value),
        ]
    };
    (8, $i:ident => $value:expr) => {
        [
            each!(@ $i 0 $value), each!(@ $i 1 $value), each!(@ $i 2 $value), each!(@ $i 3 $value),
            each!(@ $i 4 $value), each!(@ $i 5 $value), each!(@ $i 6 $value), each!(@ $i 7 $value),
        ]
    };
    (4, $i:ident => $value:expr) => {
        [each!(@ $i 0 $value), each!(@ $i 1 $value), each!(@ $i 2 $value), each!(@ $i 3 $value)]
    };
    (2, $i:ident => $value:expr) => {
        [each!(@ $i 0 $value), each!(@ $i 1 $value)]
    };
    (@ $i:ident $at:literal $value:expr) => {{
        let $i: usize = $at;
        $value
    }};
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod generic;
mod isa;
mod matmul;
mod matrix;
#[cfg(target_arch = "aarch64")]
mod neon;
mod out;
mod reference;
mod term;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

pub use isa::Isa;
pub use matmul::{matmul_a8, matmul_a8_on, matmul_f32, matmul_f32_on};
pub use matrix::Matrix;
pub use out::{Out, OutQueue};
pub use reference::{dot_row_a8, dot_row_f32};
pub use term::{Term, block_term, unpack_32};
