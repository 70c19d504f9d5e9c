//! CPU operations: the definition of every op's bits, compiled twice (baseline and AVX2 + FMA) from
//! the same safe source, so that the fast build cannot differ. GPU kernels are checked against these.
//!
//! Must not know: layers, sequences, files, threads. Slices in, slices out. Shapes are slowest
//! dimension first, f32 unless said.

/// Defines `fn name(args)` that runs `imp(args)` compiled for the best instruction set found at run
/// time. `imp` must be `#[inline(always)]`. The bits are the same: Rust neither contracts nor
/// reorders floating point, whatever the target features.
///
/// With `avx2: fast`, `fast` (a `#[target_feature]` function written for AVX2) runs instead where it can;
/// a test must hold the two against each other.
macro_rules! dispatch {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $imp:path, avx2: $fast:path) => {
        $(#[$meta])*
        #[inline]
        $vis fn $name($($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            if engine_core::math::simd_level() >= engine_core::math::Level::Avx2 {
                // SAFETY: `simd_level` answers `Avx2` only after the processor reported avx2, fma and
                // f16c, the only features `fast` is compiled for.
                return unsafe { $fast($($arg),*) };
            }
            $imp($($arg),*)
        }
    };
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $imp:path) => {
        $(#[$meta])*
        #[inline]
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn avx2($($arg: $ty),*) $(-> $ret)? { $imp($($arg),*) }
                if engine_core::math::simd_level() >= engine_core::math::Level::Avx2 {
                    // SAFETY: `simd_level` answers `Avx2` only after the processor reported avx2,
                    // fma and f16c, the only features `avx2` is compiled for.
                    return unsafe { avx2($($arg),*) };
                }
            }
            $imp($($arg),*)
        }
    };
}

mod attend;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod compress;
mod expert;
mod hc;
mod index;
mod norm;
mod rope;
mod round;
mod route;
mod select;
pub mod synth;

pub use attend::{AttendScratch, KEY_CHUNK, attend};
pub use compress::{Entry, pool_row};
pub use expert::{add_rows, swiglu};
pub use hc::{HcMix, HcParams, N_HC, hc_collapse, hc_head_weights, hc_mix, hc_post, hc_tap};
pub use index::{
    INDEX_TILE, IndexTile, index_score_tile, index_scores_f32, quantise_index_heads,
    unpack_index_tile,
};
pub use norm::{rms_factor, rms_norm, rms_unit, scale_in_place};
pub use rope::{Turn, rotate};
pub use round::{
    INDEX_BLOCK, KV_BLOCK, e4m3_decode, e4m3_encode, fp4_sim, fp8_scale_exponent, fp8_sim,
    hadamard, index_row_bytes, kv_row_bytes, pack_index_row, pack_kv_row, round_bf16,
    unpack_index_row, unpack_kv_row,
};
pub use route::{Route, route_hash, route_top_k};
pub use select::{argmax, top_k};
