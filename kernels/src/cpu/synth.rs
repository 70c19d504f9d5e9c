//! Made-up weights (label synth): every byte of a tensor follows from a seed, the tensor's name, its format and the
//! byte's place, so that any byte can be made without the others, by any number of threads, here and on a device.
//!
//! The definition, in integers modulo 2^64, with S = 0x9e3779b97f4a7c15 and `mix` the finaliser of SplitMix64:
//!
//! - key of a tensor: k = mix(seed + S), then k = mix((k xor b) + S) for each byte b of its name;
//! - word n of it: mix(k + S * (n + 1)), SplitMix64's output n from state k;
//! - byte i of it: byte i mod 8, least significant first, of word i / 8;
//! - in every block of the format the bytes of one field (the scales, or a whole float) read as a little-endian number v
//!   become (v and `keep`) or `set` ([`Field::of`]): scales in a narrow range, so that values are a weight's usual size.
//!
//! A table of experts by token has a rule of its own ([`ids`]). `gpu/synth.cu` is the same for devices. The bytes stand in
//! fingerprints and records: a change of anything here makes other models of the same names.
//! Must not know: models, roles, recipes.

use fpx_quant::{Format, Fp2Dialect};

/// 2^64 divided by the golden ratio, made odd: the step of the counter.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of SplitMix64 (Stafford's variant 13).
#[inline(always)]
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The key of a tensor.
#[must_use]
pub fn key(seed: u64, name: &str) -> u64 {
    let step = |k: u64, b: u8| mix((k ^ u64::from(b)).wrapping_add(STEP));
    name.bytes().fold(mix(seed.wrapping_add(STEP)), step)
}

/// Word `n` of a tensor.
#[inline(always)]
#[must_use]
pub const fn word(key: u64, n: u64) -> u64 {
    mix(key.wrapping_add(STEP.wrapping_mul(n.wrapping_add(1))))
}

/// The field of a block that is not left to chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Bytes of a block.
    pub(crate) block: u32,
    /// Where in a block the field begins.
    pub(crate) at: u32,
    /// Its bytes, 1 to 4.
    pub(crate) len: u32,
    /// Bits that stay random.
    pub(crate) keep: u32,
    /// Bits that are set.
    pub(crate) set: u32,
}

impl Field {
    /// f32 from 1/16 to 1/8, for biases that must not decide alone.
    pub const SMALL: Self = Self::new(4, 0, 4, 0x007f_ffff, 0x3d80_0000);

    const fn new(block: u32, at: u32, len: u32, keep: u32, set: u32) -> Self {
        Self {
            block,
            at,
            len,
            keep,
            set,
        }
    }

    /// The field of a format; `None` for one whose blocks cannot be made up (integers, codebooks outside of the tensor,
    /// types of ggml's own).
    ///
    /// F32 is 0.5 to 1 (norms, factors); F16 and BF16 are of either sign, 1/64 to 1/32. Scales are chosen so that the root
    /// mean square of decoded weights is a few hundredths (`every_format_decodes_to_weights_of_a_usual_size`).
    #[must_use]
    pub const fn of(format: Format) -> Option<Self> {
        Some(match format {
            Format::F32 => Self::new(4, 0, 4, 0x007f_ffff, 0x3f00_0000),
            Format::F16 => Self::new(2, 0, 2, 0x83ff, 0x2400),
            Format::BF16 => Self::new(2, 0, 2, 0x807f, 0x3c80),
            // f16 scale in front, 2^-11 to 2^-10.
            Format::Q8_0 => Self::new(34, 0, 2, 0x03ff, 0x1000),
            // e8m0 in front, 2^-7 or 2^-6.
            Format::Mxfp4 => Self::new(17, 0, 1, 0x01, 0x78),
            // d 2^-13 and dmin 2^-10 up to twice that: offsets that undo the mean of the codes.
            Format::Q4K => Self::new(144, 0, 4, 0x03ff_03ff, 0x1400_0800),
            // d and dmin, 2^-9 to 2^-8.
            Format::Q2K => Self::new(84, 80, 4, 0x03ff_03ff, 0x1800_1800),
            // f16 scale in front, 2^-11 to 2^-10.
            Format::Iq2Xxs => Self::new(66, 0, 2, 0x03ff, 0x1000),
            // The other formats have UE4M3 scales behind the codes: 0x08 is 2^-7, 0x10 2^-6, 0x18 2^-5, n below 8 is n / 1024.
            Format::Fp2(Fp2Dialect::S40) => Self::new(10, 8, 2, 0x0707, 0x1010),
            Format::Fp2(_) => Self::new(10, 8, 2, 0x0707, 0x1818),
            Format::Fp3 => Self::new(14, 12, 2, 0x0707, 0x1010),
            Format::Fp4 => Self::new(18, 16, 2, 0x0707, 0x0808),
            Format::Fp4Fast => Self::new(17, 16, 1, 0x07, 0x08),
            Format::Fp6(_) => Self::new(26, 24, 2, 0x0101, 0x0202),
            Format::Fp8 => Self::new(33, 32, 1, 0x00, 0x01),
            Format::I32 | Format::Mix3 | Format::Mix2 | Format::Ggml { .. } => return None,
        })
    }
}

/// The bytes of a tensor, none of them made yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    pub(crate) key: u64,
    pub(crate) field: Field,
}

impl Made {
    /// The bytes of the tensor with a key.
    #[must_use]
    pub const fn new(key: u64, field: Field) -> Self {
        Self { key, field }
    }

    /// Makes the bytes from place `first` on.
    pub fn fill(&self, first: u64, out: &mut [u8]) {
        let (head, rest) = out.split_at_mut(out.len().min((first.wrapping_neg() % 8) as usize));
        let lead = word(self.key, first / 8).to_le_bytes();
        head.copy_from_slice(&lead[(first % 8) as usize..][..head.len()]);
        let n = first.div_ceil(8);
        let (words, tail) = rest.as_chunks_mut::<8>();
        for (n, out) in (n..).zip(words.iter_mut()) {
            *out = word(self.key, n).to_le_bytes();
        }
        let last = word(self.key, n + words.len() as u64).to_le_bytes();
        tail.copy_from_slice(&last[..tail.len()]);
        self.settle(first, out);
    }

    /// Sets the fields of random bytes that stand from place `first` on.
    fn settle(&self, first: u64, out: &mut [u8]) {
        let f = &self.field;
        let (keep, set) = (f.keep.to_le_bytes(), f.set.to_le_bytes());
        // The first block may have begun before.
        let behind = (first % u64::from(f.block)) as usize;
        let (block, len) = (f.block as usize, f.len as usize);
        for start in (f.at as usize..behind + out.len()).step_by(block) {
            for j in 0..len {
                let here = (start + j).checked_sub(behind);
                if let Some(byte) = here.and_then(|i| out.get_mut(i)) {
                    *byte = *byte & keep[j] | set[j];
                }
            }
        }
    }
}

/// A table of experts by token, `[tokens, used]`: `used` different ones of `experts` each. Word w of a token gives the first,
/// w mod `experts`, and how far apart they lie, 1 + (w / 2^32) mod ((`experts` - 1) / (`used` - 1)).
///
/// # Panics
/// With more `used` than `experts`, or none.
#[must_use]
pub fn ids(key: u64, experts: u32, used: u32, tokens: usize) -> Vec<u32> {
    assert!(0 < used && used <= experts, "{used} of {experts} experts");
    let spread = u64::from((experts - 1) / (used - 1).max(1)).max(1);
    let of = |token: u64| {
        let w = word(key, token);
        let (start, step) = (w % u64::from(experts), 1 + (w >> 32) % spread);
        // Both terms are below 2^32.
        (0..u64::from(used)).map(move |slot| ((start + slot * step) % u64::from(experts)) as u32)
    };
    (0..tokens as u64).flat_map(of).collect()
}

#[cfg(test)]
#[path = "synth/tests.rs"]
mod tests;
