//! Which formats a made-up model's matrices have.

use std::fmt;
use std::str::FromStr;

use fpx_quant::{Format, Fp2Dialect, Fp6Endpoint};
use gguf::names::Role;

/// Formats by name. Those of floats are no formats of experts.
const FORMATS: [(&str, Format); 14] = [
    ("fp2", Format::Fp2(Fp2Dialect::Signed)),
    ("fp3", Format::Fp3),
    ("fp4", Format::Fp4),
    ("fp4f", Format::Fp4Fast),
    ("fp6", Format::Fp6(Fp6Endpoint::Zero)),
    ("fp8", Format::Fp8),
    ("q2_k", Format::Q2K),
    ("q4_k", Format::Q4K),
    ("q8_0", Format::Q8_0),
    ("iq2_xxs", Format::Iq2Xxs),
    ("mxfp4", Format::Mxfp4),
    ("f16", Format::F16),
    ("bf16", Format::BF16),
    ("f32", Format::F32),
];

/// Formats of the matrices: as text `GATE_UP-DOWN-REST`. What is neither an expert nor one of `rest` is stored as in the
/// released mixes: F16 matrices, F32 vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Gate and up of the routed experts.
    pub gate_up: Format,
    /// Down of the routed experts.
    pub down: Format,
    /// Attention's projections, the shared expert, the output matrix.
    pub rest: Format,
}

impl Default for Recipe {
    /// `fp2-fp3-fp4f`, the mix that the project's records are about.
    fn default() -> Self {
        Self {
            gate_up: Format::Fp2(Fp2Dialect::Signed),
            down: Format::Fp3,
            rest: Format::Fp4Fast,
        }
    }
}

impl Recipe {
    /// The format of a role's tensors.
    pub(super) const fn format(&self, role: Role) -> Format {
        match role {
            Role::FfnGateExps | Role::FfnUpExps => self.gate_up,
            Role::FfnDownExps => self.down,
            Role::Output
            | Role::AttnQA
            | Role::AttnQB
            | Role::AttnKv
            | Role::AttnOutputA
            | Role::AttnOutputB
            | Role::FfnGateShexp
            | Role::FfnUpShexp
            | Role::FfnDownShexp => self.rest,
            Role::FfnGateTid2Eid => Format::I32,
            Role::TokenEmbd
            | Role::OutputHcFn
            | Role::HcAttnFn
            | Role::HcFfnFn
            | Role::CompressorKv
            | Role::CompressorGate
            | Role::CompressorApe
            | Role::IndexerQB
            | Role::IndexerProj
            | Role::IndexerCompressorKv
            | Role::IndexerCompressorGate
            | Role::IndexerCompressorApe
            | Role::FfnGateInp => Format::F16,
            _ => Format::F32,
        }
    }
}

impl FromStr for Recipe {
    /// What may stand there.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let find = |word: &str| {
            let found = FORMATS.iter().find(|(name, _)| *name == word);
            found.map(|(_, format)| *format)
        };
        let formats: Option<Vec<Format>> = text.split('-').map(find).collect();
        match formats.as_deref() {
            Some([gate_up, down, rest]) if !gate_up.is_float() && !down.is_float() => Ok(Self {
                gate_up: *gate_up,
                down: *down,
                rest: *rest,
            }),
            _ => {
                let names = |float: bool| {
                    let of = FORMATS.iter().filter(|(_, f)| f.is_float() == float);
                    of.map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
                };
                let (blocks, floats) = (names(false), names(true));
                let form = "formats GATE_UP-DOWN-REST, as fp2-fp3-fp4f";
                Err(format!("{form}, of {blocks}, the last one also {floats}"))
            }
        }
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |format: Format| {
            let found = FORMATS.iter().find(|(_, known)| *known == format);
            found.map_or_else(|| format.to_string(), |(name, _)| (*name).to_owned())
        };
        let [gate_up, down, rest] = [self.gate_up, self.down, self.rest].map(name);
        write!(f, "{gate_up}-{down}-{rest}")
    }
}
