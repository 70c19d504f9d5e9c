//! Which vector instructions the CPU kernels may use. The same bits with each; for comparisons, and to
//! take a broken kernel out of the way.

use engine_core::math::{Ceiling, set_ceiling};
use fpx_quant::Isa;

use crate::error::Error;

/// Names of the sets, as the switch `cpu.isa` takes them.
pub const NAMES: [&str; 4] = ["auto", "baseline", "avx2", "avx512"];

/// The sets this processor has, by name, narrowest first.
#[must_use]
pub fn available() -> Vec<&'static str> {
    let mut names = vec!["baseline"];
    names.extend(Isa::Avx2.available().then_some("avx2"));
    names.extend(Isa::Avx512.available().then_some("avx512"));
    names
}

/// Lets the kernels of this process use instructions up to a set; `auto` for all there is.
///
/// # Errors
/// `NoSuchIsa` if there is no such set here: nothing narrower is taken in its place.
pub fn limit(name: &str) -> Result<(), Error> {
    let ceiling = match name {
        "auto" => Ceiling::Widest,
        "baseline" => Ceiling::Baseline,
        "avx2" if Isa::Avx2.available() => Ceiling::Avx2,
        "avx512" if Isa::Avx512.available() => Ceiling::Widest,
        _ => {
            return Err(Error::NoSuchIsa {
                got: name.to_owned(),
                expected: available(),
            });
        }
    };
    set_ceiling(ceiling);
    Ok(())
}
