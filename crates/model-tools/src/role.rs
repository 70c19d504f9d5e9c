//! What a tensor is for. Recipes, reports and memory plans speak of roles, not of names.
//!
//! Names: spec/ds4-architecture.md 1.4 and spec/dspark.md 5.1.

use std::fmt;

macro_rules! roles {
    ($($(#[$doc:meta])* $role:ident = $name:literal: $kind:ident [$($suffix:literal),*];)*) => {
        /// The purpose of a tensor.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Role {
            $($(#[$doc])* $role,)*
        }

        impl Role {
            /// All roles, in the order of reports.
            pub const ALL: &[Self] = &[$(Self::$role,)*];

            /// Its name in recipes and reports: `group` or `group.part`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$role => $name,)*
                }
            }

            pub(crate) const fn kind(self) -> Kind {
                match self {
                    $(Self::$role => Kind::$kind,)*
                }
            }

            /// Names after the block prefix that have this role.
            const fn suffixes(self) -> &'static [&'static str] {
                match self {
                    $(Self::$role => &[$($suffix),*],)*
                }
            }
        }
    };
}

/// What a recipe may do with a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A matrix a recipe's `*` covers.
    Matrix,
    /// A small matrix whose error costs much: F32 unless the recipe names it.
    Careful,
    /// Always F32.
    Fixed,
    /// Integers.
    Table,
}

roles! {
    /// Token embedding.
    Embed = "embed": Matrix ["token_embd.weight"];
    /// Output matrix.
    Head = "head": Matrix ["output.weight"];
    /// Query down projection.
    AttnQa = "attn.q_a": Matrix ["attn_q_a.weight"];
    /// Query up projection.
    AttnQb = "attn.q_b": Matrix ["attn_q_b.weight"];
    /// Key and value projection.
    AttnKv = "attn.kv": Matrix ["attn_kv.weight"];
    /// Grouped output down projection.
    AttnOa = "attn.o_a": Matrix ["attn_output_a.weight"];
    /// Output up projection.
    AttnOb = "attn.o_b": Matrix ["attn_output_b.weight"];
    /// Compressor keys.
    CompKv = "compressor.kv": Matrix ["attn_compressor_kv.weight"];
    /// Compressor gates.
    CompGate = "compressor.gate": Matrix ["attn_compressor_gate.weight"];
    /// Indexer queries.
    IndexQb = "indexer.q_b": Matrix ["indexer.attn_q_b.weight"];
    /// Indexer head weights.
    IndexProj = "indexer.proj": Matrix ["indexer.proj.weight"];
    /// Indexer compressor keys.
    IndexKv = "indexer.kv": Matrix ["indexer_compressor_kv.weight"];
    /// Indexer compressor gates.
    IndexGate = "indexer.gate": Matrix ["indexer_compressor_gate.weight"];
    /// Router.
    Router = "router": Careful ["ffn_gate_inp.weight"];
    /// Routed experts, gate.
    ExpertGate = "experts.gate": Matrix ["ffn_gate_exps.weight"];
    /// Routed experts, up.
    ExpertUp = "experts.up": Matrix ["ffn_up_exps.weight"];
    /// Routed experts, down.
    ExpertDown = "experts.down": Matrix ["ffn_down_exps.weight"];
    /// Shared expert, gate.
    SharedGate = "shared.gate": Matrix ["ffn_gate_shexp.weight"];
    /// Shared expert, up.
    SharedUp = "shared.up": Matrix ["ffn_up_shexp.weight"];
    /// Shared expert, down.
    SharedDown = "shared.down": Matrix ["ffn_down_shexp.weight"];
    /// Mixing matrices of the hyper-connections.
    Hc = "hc": Careful ["hc_attn_fn.weight", "hc_ffn_fn.weight", "output_hc_fn.weight"];
    /// Drafter: projection of the target's features.
    DraftFc = "draft.fc": Matrix ["dflash.fc.weight"];
    /// Drafter: Markov rows of the previous token.
    MarkovW1 = "draft.markov_w1": Matrix ["dflash.dspark.markov.w1"];
    /// Drafter: Markov output.
    MarkovW2 = "draft.markov_w2": Matrix ["dflash.dspark.markov.w2"];
    /// Drafter: confidence head.
    Confidence = "draft.confidence": Careful ["dflash.dspark.confidence.weight"];
    /// Norm weights.
    Norm = "norm": Fixed [
        "output_norm.weight", "attn_norm.weight", "ffn_norm.weight", "attn_q_a_norm.weight",
        "attn_kv_a_norm.weight", "attn_compressor_norm.weight", "indexer_compressor_norm.weight",
        "dflash.hidden_norm.weight"
    ];
    /// Attention sinks.
    Sinks = "sinks": Fixed ["attn_sinks.weight"];
    /// Position biases of compressors.
    Ape = "ape": Fixed ["attn_compressor_ape.weight", "indexer_compressor_ape.weight"];
    /// Constants of the hyper-connections.
    HcConst = "hc_const": Fixed [
        "hc_attn_base.weight", "hc_attn_scale.weight", "hc_ffn_base.weight", "hc_ffn_scale.weight",
        "output_hc_base.weight", "output_hc_scale.weight"
    ];
    /// Router and confidence biases.
    Bias = "bias": Fixed ["exp_probs_b.bias", "dflash.dspark.confidence.bias"];
    /// Expert tables of hash layers.
    Table = "table": Table ["ffn_gate_tid2eid.weight"];
}

/// A role and the block it stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The role.
    pub role: Role,
    /// The block, of tensors named `blk.N.`.
    pub block: Option<u32>,
}

impl Role {
    /// The place of a tensor of this name; `None` for a name no model here has.
    #[must_use]
    pub fn of(name: &str) -> Option<Place> {
        let (block, suffix) = match name.strip_prefix("blk.") {
            Some(rest) => {
                let (no, suffix) = rest.split_once('.')?;
                (Some(no.parse().ok()?), suffix)
            }
            None => (None, name),
        };
        let role = *Self::ALL.iter().find(|r| r.suffixes().contains(&suffix))?;
        let global = ["token_embd.", "output", "dflash."];
        let is_global = global.iter().any(|g| suffix.starts_with(g));
        (is_global == block.is_none()).then_some(Place { role, block })
    }

    /// The part of the name before the dot.
    #[must_use]
    pub fn group(self) -> &'static str {
        self.name().split_once('.').map_or(self.name(), |(g, _)| g)
    }

    /// Whether the rows are routed experts, one matrix for each.
    #[must_use]
    pub const fn is_experts(self) -> bool {
        matches!(self, Self::ExpertGate | Self::ExpertUp | Self::ExpertDown)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_roles_where_they_belong() {
        let role = |name| Role::of(name).map(|p| (p.role, p.block));
        assert_eq!(role("token_embd.weight"), Some((Role::Embed, None)));
        assert_eq!(role("output.weight"), Some((Role::Head, None)));
        assert_eq!(
            role("blk.12.attn_output_a.weight"),
            Some((Role::AttnOa, Some(12)))
        );
        assert_eq!(role("blk.2.hc_attn_fn.weight"), Some((Role::Hc, Some(2))));
        assert_eq!(role("output_hc_fn.weight"), Some((Role::Hc, None)));
        assert_eq!(
            role("dflash.dspark.markov.w2"),
            Some((Role::MarkovW2, None))
        );
        for name in [
            "blk.0.output.weight",
            "attn_q_a.weight",
            "blk.x.attn_q_a.weight",
            "blk.1.attn_q_a",
            "blk.1.",
            "",
            "mtp.0.attn_q_a.weight",
        ] {
            assert_eq!(role(name), None, "{name}");
        }
    }

    #[test]
    fn no_two_roles_share_a_name_or_a_suffix() {
        let mut names: Vec<&str> = Role::ALL.iter().map(|r| r.name()).collect();
        let mut suffixes: Vec<&str> = Role::ALL
            .iter()
            .flat_map(|r| r.suffixes())
            .copied()
            .collect();
        for list in [&mut names, &mut suffixes] {
            let n = list.len();
            list.sort_unstable();
            list.dedup();
            assert_eq!(list.len(), n);
        }
    }
}
