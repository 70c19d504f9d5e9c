//! Equality of bits.

use super::{Mismatch, same_length};

/// A type compared by its bits.
pub trait Bits: Copy {
    /// The bits, zero-extended.
    fn bits(self) -> u64;
    /// Bits in hexadecimal and the value, for a report.
    fn show(self) -> String;
}

macro_rules! bits {
    ($($t:ty: $to_bits:expr;)+) => {$(
        impl Bits for $t {
            fn bits(self) -> u64 {
                $to_bits(self) as u64
            }
            fn show(self) -> String {
                let width = 2 + 2 * size_of::<Self>();
                format!("{:#0width$x} ({self:?})", $to_bits(self))
            }
        }
    )+};
}

bits! {
    f64: f64::to_bits;
    f32: f32::to_bits;
    half::f16: half::f16::to_bits;
    half::bf16: half::bf16::to_bits;
    u8: |v| v;
    u16: |v| v;
    u32: |v| v;
    u64: |v| v;
    i8: |v| v as u8;
    i32: |v| v as u32;
}

/// Same bits, element by element. NaNs are equal only if their bits are; -0 is not +0.
///
/// # Errors
/// `Length`, `Bits` with the first difference.
pub fn exact<T: Bits>(expected: &[T], got: &[T]) -> Result<(), Mismatch> {
    same_length(expected.len(), got.len())?;
    let differ = |i: &usize| expected[*i].bits() != got[*i].bits();
    let mut indices = (0..expected.len()).filter(differ);
    match indices.next() {
        None => Ok(()),
        Some(index) => Err(Mismatch::Bits {
            index,
            expected: expected[index].show(),
            got: got[index].show(),
            count: 1 + indices.count(),
            len: expected.len(),
        }),
    }
}
