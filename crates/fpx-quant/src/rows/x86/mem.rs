//! Loads and stores through references to arrays: unaligned, never past the array.

use std::arch::x86_64::*;

/// Asks for the cache line some bytes after the start of a block.
#[inline(always)]
pub(crate) fn prefetch(block: &[u8], ahead: usize) {
    let line = block.as_ptr().wrapping_add(ahead).cast();
    // SAFETY: a prefetch reads nothing and never faults, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line) }
}

/// Loads 8 floats.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn load_f32x8(from: &[f32; 8]) -> __m256 {
    // SAFETY: the reference covers the 32 bytes read; the instruction needs no alignment.
    unsafe { _mm256_loadu_ps(from.as_ptr()) }
}

/// Stores 8 floats.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn store_f32x8(to: &mut [f32; 8], value: __m256) {
    // SAFETY: the exclusive reference covers the 32 bytes written; no alignment is needed.
    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), value) }
}

/// Loads 8 bytes into the lower half.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn load_u8x8(from: &[u8; 8]) -> __m128i {
    // SAFETY: the reference covers the 8 bytes read; the instruction needs no alignment.
    unsafe { _mm_loadl_epi64(from.as_ptr().cast()) }
}

/// Loads 16 bytes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn load_u8x16(from: &[u8; 16]) -> __m128i {
    // SAFETY: the reference covers the 16 bytes read; the instruction needs no alignment.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

/// Loads 32 bytes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn load_u8x32(from: &[u8; 32]) -> __m256i {
    // SAFETY: the reference covers the 32 bytes read; the instruction needs no alignment.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

/// Stores 32 bytes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn store_u8x32(to: &mut [u8; 32], value: __m256i) {
    // SAFETY: the exclusive reference covers the 32 bytes written; no alignment is needed.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), value) }
}

/// Stores 32 signed bytes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn store_i8x32(to: &mut [i8; 32], value: __m256i) {
    // SAFETY: the exclusive reference covers the 32 bytes written; no alignment is needed.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), value) }
}

/// Loads 16 floats.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn load_f32x16(from: &[f32; 16]) -> __m512 {
    // SAFETY: the reference covers the 64 bytes read; the instruction needs no alignment.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}

/// Stores 16 floats.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn store_f32x16(to: &mut [f32; 16], value: __m512) {
    // SAFETY: the exclusive reference covers the 64 bytes written; no alignment is needed.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), value) }
}

/// Loads 64 bytes.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn load_u8x64(from: &[u8; 64]) -> __m512i {
    // SAFETY: the reference covers the 64 bytes read; the instruction needs no alignment.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

/// Stores 64 bytes.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn store_u8x64(to: &mut [u8; 64], value: __m512i) {
    // SAFETY: the exclusive reference covers the 64 bytes written; no alignment is needed.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), value) }
}
