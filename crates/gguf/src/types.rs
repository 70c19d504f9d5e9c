//! From a type id to a `Format`: which ids are read, which need a dialect, which are refused.
//!
//! Separate because ids collide between forks (spec/fpx-formats.md 8) and nothing in a tensor
//! header tells the meanings apart: the rule is to be told or to refuse, never to guess. Must not
//! know: tensor data. Block geometry of ggml's types: ggml-common.h of ggml 0.26.0.

use fpx_quant::{Format, Fp2Dialect, Fp6Endpoint};

use crate::error::ErrorKind;
use crate::metadata::Metadata;
use crate::value::{Array, Value};

/// Key in which our writer records what id 107 means in a file.
pub const FP2_KEY: &str = "fourspark.fp2_dialect";
/// Key in which our writer records what code 32 of id 102 means in a file.
pub const FP6_KEY: &str = "fourspark.fp6_endpoint";
/// Codebooks of MIX tensors, dense.
pub const DMIX_KEY: &str = "geoquant.dmix2.sidecar";
/// Codebooks of MIX experts (id 105 only).
pub const P4MIX_KEY: &str = "deepseek4.p4mix.sidecar";

/// Meanings of ambiguous ids, chosen by the user (from where the file came from).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialects {
    /// What id 107 means.
    pub fp2: Option<Fp2Dialect>,
    /// What code 32 of id 102 means.
    pub fp6: Option<Fp6Endpoint>,
}

const FP2_NAMES: [(Fp2Dialect, &str); 4] = [
    (Fp2Dialect::Signed, "signed"),
    (Fp2Dialect::SignedNeg, "signed_neg"),
    (Fp2Dialect::Affine, "affine"),
    (Fp2Dialect::S40, "s40"),
];
const FP2_CHOICES: &str = "signed (-1, 0, +1, +2), signed_neg (the same with a sign bit in the \
    scale), affine (code * scale - offset), s40 (-4, -1, +1, +4)";

const FP6_NAMES: [(Fp6Endpoint, &str); 2] =
    [(Fp6Endpoint::Zero, "zero"), (Fp6Endpoint::Neg32, "neg32")];
const FP6_CHOICES: &str =
    "zero (code 32 is 0: sign-magnitude writers), neg32 (code 32 is -32: forks)";

/// Name of a dialect, as in [`FP2_KEY`] and on command lines.
#[must_use]
pub fn fp2_name(dialect: Fp2Dialect) -> &'static str {
    FP2_NAMES
        .iter()
        .find(|(d, _)| *d == dialect)
        .map_or("", |(_, n)| n)
}

/// The dialect of a name.
#[must_use]
pub fn fp2_from_name(name: &str) -> Option<Fp2Dialect> {
    FP2_NAMES.iter().find(|(_, n)| *n == name).map(|(d, _)| *d)
}

/// Name of an endpoint, as in [`FP6_KEY`] and on command lines.
#[must_use]
pub fn fp6_name(endpoint: Fp6Endpoint) -> &'static str {
    FP6_NAMES
        .iter()
        .find(|(e, _)| *e == endpoint)
        .map_or("", |(_, n)| n)
}

/// The endpoint of a name.
#[must_use]
pub fn fp6_from_name(name: &str) -> Option<Fp6Endpoint> {
    FP6_NAMES.iter().find(|(_, n)| *n == name).map(|(e, _)| *e)
}

/// ggml types without a native format: id, name, elements and bytes of a block.
const GGML: &[(u32, &str, u32, u32)] = &[
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (9, "Q8_1", 32, 36),
    (11, "Q3_K", 256, 110),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
    // A fork has its TQ3_0 here, with other sizes: then the extents do not tile and the file is
    // refused for that.
    (42, "Q2_0", 64, 18),
];

/// Formats with an id of their own and one meaning.
const NATIVE: &[Format] = &[
    Format::F32,
    Format::F16,
    Format::Q8_0,
    Format::Q2K,
    Format::Q4K,
    Format::Iq2Xxs,
    Format::I32,
    Format::BF16,
    Format::Mxfp4,
    Format::Fp4,
    Format::Fp4Fast,
    Format::Fp8,
    Format::Fp3,
    Format::Fp2(Fp2Dialect::S40),
];

/// Ids that have a name and are refused.
const REFUSED: &[(u32, &str)] = &[
    (4, "Q4_2 was removed from ggml"),
    (5, "Q4_3 was removed from ggml"),
    (31, "Q4_0_4_4 was removed from GGUF files; use Q4_0"),
    (32, "Q4_0_4_8 was removed from GGUF files; use Q4_0"),
    (33, "Q4_0_8_8 was removed from GGUF files; use Q4_0"),
    (36, "IQ4_NL_4_4 was removed from GGUF files; use IQ4_NL"),
    (37, "IQ4_NL_4_8 was removed from GGUF files; use IQ4_NL"),
    (38, "IQ4_NL_8_8 was removed from GGUF files; use IQ4_NL"),
    (
        108,
        "Q4_0_ROCMI4 of some forks, the S40 form of ROCmFP2 of another; neither is read under this id",
    ),
    (109, "Q5_0_ROCMFPX of one fork; not read"),
    (110, "Q7_0_ROCMFPX of one fork; not read"),
];

const MIX3_REFUSAL: &str = "either ROCMFP3_MIX (whose codebooks would be in geoquant.dmix2.sidecar \
    or deepseek4.p4mix.sidecar, both absent) or the TurboQuant cache type TURBO3_0; neither can be \
    decoded from the tensor alone";
const MIX2_REFUSAL: &str = "either ROCMFP2_MIX (whose codebooks would be in geoquant.dmix2.sidecar, \
    absent, or in a GUMIXs1 file beside the model, not read) or the TurboQuant cache type TURBO4_0; \
    neither can be decoded from the tensor alone";

/// Name of the type of a `Format::Ggml`, for reports.
#[must_use]
pub fn ggml_name(id: u32) -> Option<&'static str> {
    GGML.iter().find(|t| t.0 == id).map(|t| t.1)
}

/// The format of a ggml type without a native one.
#[must_use]
pub fn ggml_format(id: u32) -> Option<Format> {
    GGML.iter()
        .find(|t| t.0 == id)
        .map(|&(id, _, block, bytes)| Format::Ggml { id, block, bytes })
}

/// Every id this build reads, with its name: the end of a refusal.
fn known_ids() -> String {
    let mut ids: Vec<(u32, &str)> = NATIVE.iter().map(|f| (f.ggml_id(), f.name())).collect();
    ids.extend(GGML.iter().map(|t| (t.0, t.1)));
    ids.extend([
        (102, "ROCMFP6"),
        (107, "ROCMFP2"),
        (105, "ROCMFP3_MIX"),
        (106, "ROCMFP2_MIX"),
    ]);
    ids.sort_unstable();
    let named: Vec<String> = ids
        .iter()
        .map(|(id, name)| format!("{id} {name}"))
        .collect();
    named.join(", ")
}

/// What a file and its user say about ambiguous ids.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resolver {
    dialects: Dialects,
    dmix: bool,
    p4mix: bool,
}

impl Resolver {
    /// Merges the user's choice with the file's own marks.
    pub(crate) fn new(asked: Dialects, metadata: &Metadata) -> Result<Self, ErrorKind> {
        let fp2 = mark(metadata, FP2_KEY, FP2_CHOICES, fp2_from_name)?;
        let fp6 = mark(metadata, FP6_KEY, FP6_CHOICES, fp6_from_name)?;
        let is_bytes =
            |key| matches!(metadata.get(key), Some(Value::Array(Array::U8(v))) if !v.is_empty());
        Ok(Self {
            dialects: Dialects {
                fp2: agree(asked.fp2, fp2, FP2_KEY, fp2_name)?,
                fp6: agree(asked.fp6, fp6, FP6_KEY, fp6_name)?,
            },
            dmix: is_bytes(DMIX_KEY),
            p4mix: is_bytes(P4MIX_KEY),
        })
    }

    /// The format of a tensor's type id.
    pub(crate) fn format(&self, id: u32, tensor: &str) -> Result<Format, ErrorKind> {
        let no_dialect = |key, choices| ErrorKind::NoDialect {
            tensor: tensor.to_owned(),
            id,
            key,
            choices,
        };
        let refused = |why| ErrorKind::RefusedType {
            tensor: tensor.to_owned(),
            id,
            why,
        };
        match id {
            102 => match self.dialects.fp6 {
                Some(endpoint) => Ok(Format::Fp6(endpoint)),
                None => Err(no_dialect(FP6_KEY, FP6_CHOICES)),
            },
            105 if self.dmix || self.p4mix => Ok(Format::Mix3),
            105 => Err(refused(MIX3_REFUSAL)),
            106 if self.dmix => Ok(Format::Mix2),
            106 => Err(refused(MIX2_REFUSAL)),
            107 => match self.dialects.fp2 {
                Some(dialect) => Ok(Format::Fp2(dialect)),
                None => Err(no_dialect(FP2_KEY, FP2_CHOICES)),
            },
            _ => plain(id).ok_or_else(|| match REFUSED.iter().find(|r| r.0 == id) {
                Some(&(_, why)) => refused(why),
                None => ErrorKind::UnknownType {
                    tensor: tensor.to_owned(),
                    id,
                    known: known_ids(),
                },
            }),
        }
    }
}

/// The format of an id with one meaning.
fn plain(id: u32) -> Option<Format> {
    let native = NATIVE.iter().find(|f| f.ggml_id() == id).copied();
    native.or_else(|| ggml_format(id))
}

/// A mark of our writer, checked.
fn mark<T>(
    metadata: &Metadata,
    key: &'static str,
    choices: &'static str,
    parse: fn(&str) -> Option<T>,
) -> Result<Option<T>, ErrorKind> {
    match metadata.get(key) {
        None => Ok(None),
        Some(Value::Str(name)) => match parse(name) {
            Some(x) => Ok(Some(x)),
            None => Err(ErrorKind::KeyValue {
                key: key.to_owned(),
                expected: choices.to_owned(),
                got: name.clone(),
            }),
        },
        Some(other) => Err(ErrorKind::KeyType {
            key: key.to_owned(),
            expected: "str",
            got: other.describe(),
        }),
    }
}

fn agree<T: Copy + PartialEq>(
    asked: Option<T>,
    marked: Option<T>,
    key: &'static str,
    name: fn(T) -> &'static str,
) -> Result<Option<T>, ErrorKind> {
    match (asked, marked) {
        (Some(a), Some(m)) if a != m => Err(ErrorKind::DialectConflict {
            key,
            expected: name(a),
            got: name(m),
        }),
        _ => Ok(asked.or(marked)),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn resolver(asked: Dialects, keys: &[(&str, Value)]) -> Result<Resolver, ErrorKind> {
        let mut m = Metadata::new(Path::new("m.gguf"));
        for (k, v) in keys {
            m.push((*k).to_owned(), v.clone()).unwrap();
        }
        Resolver::new(asked, &m)
    }

    fn bare() -> Resolver {
        resolver(Dialects::default(), &[]).unwrap()
    }

    #[test]
    fn every_native_format_comes_back_from_its_id() {
        for &format in NATIVE {
            assert_eq!(bare().format(format.ggml_id(), "t").unwrap(), format);
        }
    }

    #[test]
    fn no_id_stands_in_two_tables() {
        let mut ids: Vec<u32> = NATIVE.iter().map(|f| f.ggml_id()).collect();
        ids.extend(GGML.iter().map(|t| t.0));
        ids.extend(REFUSED.iter().map(|r| r.0));
        ids.extend([102, 105, 106, 107]);
        let n = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), n);
        // ggml's ids 0 to 42 are all decided.
        assert_eq!(ids.iter().filter(|&&id| id <= 42).count(), 43);
    }

    #[test]
    fn id_107_without_a_dialect_is_refused_naming_all_four() {
        let error = bare()
            .format(107, "blk.3.ffn_down_exps.weight")
            .unwrap_err();
        assert!(matches!(error, ErrorKind::NoDialect { id: 107, .. }));
        let text = error.to_string();
        for (_, name) in FP2_NAMES {
            assert!(text.contains(name), "{text}");
        }
        assert!(text.contains("blk.3.ffn_down_exps.weight"));
    }

    #[test]
    fn a_choice_or_a_mark_decides_and_a_conflict_is_refused() {
        for (dialect, name) in FP2_NAMES {
            let asked = Dialects {
                fp2: Some(dialect),
                fp6: None,
            };
            let by_user = resolver(asked, &[]).unwrap();
            assert_eq!(by_user.format(107, "t").unwrap(), Format::Fp2(dialect));
            let by_file = resolver(Dialects::default(), &[(FP2_KEY, name.into())]).unwrap();
            assert_eq!(by_file.format(107, "t").unwrap(), Format::Fp2(dialect));
        }
        let asked = Dialects {
            fp2: Some(Fp2Dialect::Affine),
            fp6: None,
        };
        let conflict = resolver(asked, &[(FP2_KEY, "signed".into())]).unwrap_err();
        assert!(matches!(
            conflict,
            ErrorKind::DialectConflict {
                expected: "affine",
                got: "signed",
                ..
            }
        ));
        let odd = resolver(Dialects::default(), &[(FP2_KEY, "mord".into())]).unwrap_err();
        assert!(matches!(odd, ErrorKind::KeyValue { .. }));
    }

    #[test]
    fn id_102_needs_its_endpoint() {
        let error = bare().format(102, "t").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("zero") && text.contains("neg32"), "{text}");
        for (endpoint, name) in FP6_NAMES {
            let by_file = resolver(Dialects::default(), &[(FP6_KEY, name.into())]).unwrap();
            assert_eq!(by_file.format(102, "t").unwrap(), Format::Fp6(endpoint));
        }
    }

    #[test]
    fn mix_needs_its_codebooks() {
        for id in [105, 106] {
            let error = bare().format(id, "t").unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, ErrorKind::RefusedType { .. }));
            assert!(
                text.contains("TurboQuant") && text.contains("MIX"),
                "{text}"
            );
        }
        let books: Value = vec![1u8, 2].into();
        let dense = resolver(Dialects::default(), &[(DMIX_KEY, books.clone())]).unwrap();
        assert_eq!(dense.format(105, "t").unwrap(), Format::Mix3);
        assert_eq!(dense.format(106, "t").unwrap(), Format::Mix2);
        let experts = resolver(Dialects::default(), &[(P4MIX_KEY, books)]).unwrap();
        assert_eq!(experts.format(105, "t").unwrap(), Format::Mix3);
        assert!(experts.format(106, "t").is_err());
    }

    #[test]
    fn named_and_unknown_ids_are_refused_apart() {
        for id in [4, 31, 38, 108, 109, 110] {
            let error = bare().format(id, "t").unwrap_err();
            assert!(
                matches!(error, ErrorKind::RefusedType { .. }),
                "{id}: {error}"
            );
        }
        for id in [43, 99, 112, 255, u32::MAX] {
            let error = bare().format(id, "t").unwrap_err();
            assert!(
                matches!(error, ErrorKind::UnknownType { .. }),
                "{id}: {error}"
            );
            let text = error.to_string();
            assert!(
                text.contains("8 Q8_0") && text.contains("104 ROCMFP3"),
                "{text}"
            );
        }
    }
}
