//! The digest that says "this model": of a target for saved states and drafters, of a draft model for
//! its saved rows. The bytes under it are fixed (`docs/adr/0008-fingerprints.md`), so that a digest that
//! was written down stays true whatever becomes of the types here.
//!
//! Must not know: what a fingerprint is compared with.

use engine_core::math::Yarn;
use engine_core::mutant::mutant;

use crate::meta::{Ds4Meta, Ratio};
use crate::source::Source;

/// Of this layout. A digest that is kept outside a process is kept with it.
pub const VERSION: u8 = 1;

/// Bytes of each tensor's head and tail that enter the digest.
const SAMPLE: usize = 4096;

/// What the digest is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A target.
    Target,
    /// A draft model.
    Draft,
}

/// A digest being made. Integers are u64, little endian; floats f32 by their bits; texts and lists come
/// after their length.
#[derive(Clone, Debug)]
pub struct Fingerprint(blake3::Hasher);

impl Fingerprint {
    /// Starts with `4SPKFPR`, [`VERSION`] and the kind.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        let mut this = Self(blake3::Hasher::new());
        this.0.update(b"4SPKFPR");
        let kind = match kind {
            Kind::Target => b'T',
            Kind::Draft => b'D',
        };
        this.0.update(&[VERSION, kind]);
        this
    }

    /// An integer.
    pub fn int(&mut self, value: u64) -> &mut Self {
        self.0.update(&value.to_le_bytes());
        self
    }

    /// A float.
    pub fn float(&mut self, value: f32) -> &mut Self {
        self.0.update(&value.to_bits().to_le_bytes());
        self
    }

    /// A text.
    pub fn text(&mut self, value: &str) -> &mut Self {
        self.int(value.len() as u64).0.update(value.as_bytes());
        self
    }

    fn floats(&mut self, values: &[f32]) -> &mut Self {
        self.int(values.len() as u64);
        for value in values {
            self.float(*value);
        }
        self
    }

    /// The hyper-parameters, in the order of their declaration.
    pub fn meta(&mut self, meta: &Ds4Meta) -> &mut Self {
        // By name, so that a new one cannot be forgotten.
        let Ds4Meta {
            n_layer,
            n_embd,
            n_vocab,
            n_ctx_train,
            n_head,
            head_dim,
            n_rot,
            q_lora,
            o_lora,
            o_groups,
            window,
            index_heads,
            index_dim,
            index_top_k,
            ratios,
            rope_theta,
            compress_theta,
            yarn,
            n_expert,
            n_used,
            n_ff,
            route_scale,
            clamp_routed,
            clamp_shared,
            n_hash,
            hc_iterations,
            hc_eps,
            rms_eps,
        } = meta;
        for size in [n_layer, n_embd, n_vocab] {
            self.int(*size as u64);
        }
        self.int(*n_ctx_train);
        let sizes = [n_head, head_dim, n_rot, q_lora, o_lora, o_groups, window];
        for size in sizes
            .into_iter()
            .chain([index_heads, index_dim, index_top_k])
        {
            self.int(*size as u64);
        }
        self.int(ratios.len() as u64);
        for ratio in ratios {
            // Told apart by more than their tokens: a heavy layer of ratio 4 is no sparse one.
            self.int(match ratio {
                Ratio::None => 0,
                Ratio::Sparse => 1,
                Ratio::Heavy(tokens) => 1 << 32 | u64::from(*tokens),
            });
        }
        self.float(*rope_theta).float(*compress_theta);
        let Yarn {
            factor,
            original_context,
            beta_fast,
            beta_slow,
        } = yarn;
        self.float(*factor).int(u64::from(*original_context));
        self.float(*beta_fast).float(*beta_slow);
        for size in [n_expert, n_used, n_ff] {
            self.int(*size as u64);
        }
        self.float(*route_scale);
        self.floats(clamp_routed).floats(clamp_shared);
        self.int(*n_hash as u64).int(u64::from(*hc_iterations));
        self.float(*hc_eps).float(*rms_eps)
    }

    /// All tensors, by the order of their names' bytes: name, shape, name of the format, length, the
    /// first and the last 4 KiB.
    pub fn tensors(&mut self, source: &dyn Source) -> &mut Self {
        let mut names = source.tensor_names();
        names.sort();
        for name in names {
            let Some(t) = source.tensor(&name) else {
                continue;
            };
            self.text(&name).int(t.shape.len() as u64);
            for n in &t.shape {
                self.int(*n);
            }
            let len = t.bytes.len();
            self.text(&t.format.to_string()).int(len as u64);
            self.0.update(&t.bytes.part(0..len.min(SAMPLE)));
            self.0
                .update(&t.bytes.part(len.saturating_sub(SAMPLE)..len));
        }
        self
    }

    /// The digest.
    #[must_use]
    pub fn finish(&self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}

/// The fingerprint of a target.
pub(crate) fn of_target(source: &dyn Source, meta: &Ds4Meta) -> [u8; 32] {
    let mut print = Fingerprint::new(Kind::Target);
    print.meta(meta).tensors(source).finish()
}

/// A target's fingerprint as files record it: the version of the layout, a colon, 64 hexadecimal
/// digits.
#[must_use]
pub fn to_mark(fingerprint: &[u8; 32]) -> String {
    let hex: String = fingerprint.iter().map(|b| format!("{b:02x}")).collect();
    format!("{VERSION}:{hex}")
}

/// What a recorded fingerprint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Of this layout.
    Known([u8; 32]),
    /// Of an older or newer layout: it cannot be compared.
    OtherVersion,
    /// No fingerprint.
    Unreadable,
}

/// Reads what [`to_mark`] wrote. 64 bare digits are the layout before the first version.
#[must_use]
pub fn from_mark(text: &str) -> Mark {
    let (version, hex) = match text.split_once(':') {
        Some((version, hex)) => (version.parse::<u32>().ok(), hex),
        None => (Some(0), text),
    };
    let digits: Option<Vec<u8>> = hex
        .chars()
        .map(|c| c.to_digit(16).map(|d| d as u8))
        .collect();
    match (version, digits) {
        (Some(version), Some(d)) if d.len() == 64 => {
            if version == u32::from(VERSION) || mutant(261) {
                Mark::Known(std::array::from_fn(|i| d[2 * i] << 4 | d[2 * i + 1]))
            } else {
                Mark::OtherVersion
            }
        }
        _ => Mark::Unreadable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_under_the_digest_are_the_documented_ones() {
        let mut print = Fingerprint::new(Kind::Draft);
        print.int(5).float(-2.0).text("ab");
        let mut bytes = b"4SPKFPR\x01D".to_vec();
        bytes.extend([5, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([0, 0, 0, 0xc0]);
        bytes.extend([2, 0, 0, 0, 0, 0, 0, 0, b'a', b'b']);
        assert_eq!(print.finish(), *blake3::hash(&bytes).as_bytes());
    }

    #[test]
    fn marks_are_read_as_written_and_others_are_told_apart() {
        let print: [u8; 32] = std::array::from_fn(|i| 200 - i as u8);
        let mark = to_mark(&print);
        assert_eq!(mark.len(), 66);
        assert_eq!(from_mark(&mark), Mark::Known(print));
        let bare = &mark[2..];
        assert_eq!(from_mark(bare), Mark::OtherVersion, "before versions");
        assert_eq!(from_mark(&format!("7:{bare}")), Mark::OtherVersion);
        for bad in ["", "12", "1:", "x:00", &"0".repeat(65), &"g".repeat(64)] {
            assert_eq!(from_mark(bad), Mark::Unreadable, "{bad}");
        }
    }
}
