//! Cases of `synth_fill`.

use fpx_quant::{Format, Fp2Dialect, Fp6Endpoint};

use super::{Depth, Outcome, Runner, compare_bytes};
use crate::KernelError;
use crate::cpu::synth::{Field, Made, key};
use crate::launch::synth;

/// The formats of recipes: fields of every place and length.
const FORMATS: [Format; 14] = [
    Format::F32,
    Format::F16,
    Format::BF16,
    Format::Q8_0,
    Format::Mxfp4,
    Format::Q4K,
    Format::Q2K,
    Format::Iq2Xxs,
    Format::Fp2(Fp2Dialect::Signed),
    Format::Fp3,
    Format::Fp4,
    Format::Fp4Fast,
    Format::Fp6(Fp6Endpoint::Zero),
    Format::Fp8,
];

/// Starts and lengths: whole words, tails, starts within a word and within a block, places past 2^32.
const QUICK: [(u64, usize); 5] = [
    (0, 4096),
    (0, 5),
    (8, 2051),
    (17 * 3, 1000),
    ((1 << 40) + 3, 2049),
];

/// Every format at places of every kind; in full also a part of a large tensor.
///
/// # Errors
/// A failed launch.
pub fn run<R: Runner>(runner: &mut R, depth: Depth) -> Result<Vec<Outcome>, KernelError> {
    let mut places = QUICK.to_vec();
    if depth == Depth::Full {
        places.extend([(0, 64 << 20), (0x0000_0123_4567_89ab, 10_000_001)]);
    }
    let mut outcomes = Vec::new();
    let fields = FORMATS
        .iter()
        .filter_map(|f| Some((f.to_string(), Field::of(*f)?)));
    for (name, field) in fields.chain([("small f32".to_owned(), Field::SMALL)]) {
        let made = Made::new(key(7, &name), field);
        for (first, len) in &places {
            let mut want = vec![0; *len];
            made.fill(*first, &mut want);
            let out = runner.poisoned(*len)?;
            runner.launch(&synth::fill(&made, *first, *len as u64)?, &[out])?;
            let what = format!("synth_fill {name} {len} at {first}");
            outcomes.push(compare_bytes(what, &want, &runner.read(out)?));
            runner.reset();
        }
    }
    Ok(outcomes)
}
