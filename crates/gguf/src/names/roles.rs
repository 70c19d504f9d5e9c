//! The table: role, name, which layers have it.
//!
//! llama.cpp itself writes the same trunk names as antirez/ds4 (its files differ in keys and in
//! the MTP block). The port that came before it named 14 tensors otherwise, and some of its
//! files lack the `.weight` suffix; that is the third dialect.

use std::fmt;

/// Who named the tensors of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// antirez/ds4 and this project: the names of the table.
    Antirez,
    /// llama.cpp since its DeepSeek V4 support: the same trunk names, no
    /// `deepseek4.vocab_size`, MTP as `blk.N.nextn.*`.
    LlamaCpp,
    /// The early llama.cpp port: names of its own for 14 tensors, keys of its own for about ten.
    EarlyPort,
}

/// Which layers have a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Once in a file, in no layer.
    Global,
    /// Every layer.
    Layer,
    /// Layers with a compressor (ratio not 0).
    Compressed,
    /// Layers with an indexer (ratio 4).
    Indexed,
    /// Layers routed by the table of token ids.
    Hashed,
    /// Layers routed by score.
    Scored,
}

/// One row of the table.
pub(super) struct Row {
    pub(super) role: Role,
    /// Name in layer N without `blk.N.`; of a global tensor the whole name.
    pub(super) name: &'static str,
    /// The same in the early port, where it differs.
    pub(super) early: Option<&'static str>,
    pub(super) suffix: &'static str,
    pub(super) presence: Presence,
}

macro_rules! roles {
    ($($(#[$doc:meta])* $role:ident: $presence:ident $name:literal $(or $early:literal)?
        $(suffix $suffix:literal)?;)*) => {
        /// A tensor of the trunk. Shapes in the comments are `ne` (contiguous first) with D =
        /// embedding, H = heads, d = head width, r = ratio, c = 2 where r is 4, else 1.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Role {$($(#[$doc])* $role),*}

        pub(super) const TABLE: &[Row] = &[$(Row {
            role: Role::$role,
            name: $name,
            early: roles!(@early $($early)?),
            suffix: roles!(@suffix $($suffix)?),
            presence: Presence::$presence,
        }),*];
    };
    (@early) => { None };
    (@early $early:literal) => { Some($early) };
    (@suffix) => { ".weight" };
    (@suffix $suffix:literal) => { $suffix };
}

roles! {
    /// `[D, vocabulary]`.
    TokenEmbd: Global "token_embd";
    /// `[D]`.
    OutputNorm: Global "output_norm";
    /// `[D, vocabulary]`.
    Output: Global "output";
    /// `[4 D, 4]`.
    OutputHcFn: Global "output_hc_fn" or "hc_head_fn";
    /// `[4]`.
    OutputHcBase: Global "output_hc_base" or "hc_head_base";
    /// `[1]`.
    OutputHcScale: Global "output_hc_scale" or "hc_head_scale";
    /// `[4 D, 24]`.
    HcAttnFn: Layer "hc_attn_fn";
    /// `[24]`.
    HcAttnBase: Layer "hc_attn_base";
    /// `[3]`.
    HcAttnScale: Layer "hc_attn_scale";
    /// `[4 D, 24]`.
    HcFfnFn: Layer "hc_ffn_fn";
    /// `[24]`.
    HcFfnBase: Layer "hc_ffn_base";
    /// `[3]`.
    HcFfnScale: Layer "hc_ffn_scale";
    /// `[D]`.
    AttnNorm: Layer "attn_norm";
    /// `[D]`.
    FfnNorm: Layer "ffn_norm";
    /// `[D, q rank]`.
    AttnQA: Layer "attn_q_a";
    /// `[q rank]`.
    AttnQANorm: Layer "attn_q_a_norm";
    /// `[q rank, H d]`.
    AttnQB: Layer "attn_q_b";
    /// `[D, d]`.
    AttnKv: Layer "attn_kv" or "attn_kv_a_mqa";
    /// `[d]`.
    AttnKvNorm: Layer "attn_kv_a_norm";
    /// `[H]`.
    AttnSinks: Layer "attn_sinks";
    /// `[H d / groups, groups * o rank]`; llama.cpp also takes `[H d / groups, o rank, groups]`.
    AttnOutputA: Layer "attn_output_a" or "attn_o_a";
    /// `[groups * o rank, D]`.
    AttnOutputB: Layer "attn_output_b" or "attn_o_b";
    /// `[D, c d]`.
    CompressorKv: Compressed "attn_compressor_kv" or "attn_compressor.wkv";
    /// `[D, c d]`.
    CompressorGate: Compressed "attn_compressor_gate" or "attn_compressor.wgate";
    /// `[c d, r]`.
    CompressorApe: Compressed "attn_compressor_ape" or "attn_compressor.ape";
    /// `[d]`.
    CompressorNorm: Compressed "attn_compressor_norm" or "attn_compressor.norm";
    /// `[q rank, index heads * index width]`.
    IndexerQB: Indexed "indexer.attn_q_b";
    /// `[D, index heads]`.
    IndexerProj: Indexed "indexer.proj";
    /// `[D, 2 * index width]`.
    IndexerCompressorKv: Indexed "indexer_compressor_kv" or "indexer.compressor.wkv";
    /// `[D, 2 * index width]`.
    IndexerCompressorGate: Indexed "indexer_compressor_gate" or "indexer.compressor.wgate";
    /// `[2 * index width, 4]`.
    IndexerCompressorApe: Indexed "indexer_compressor_ape" or "indexer.compressor.ape";
    /// `[index width]`.
    IndexerCompressorNorm: Indexed "indexer_compressor_norm" or "indexer.compressor.norm";
    /// `[D, experts]`.
    FfnGateInp: Layer "ffn_gate_inp";
    /// `[experts]`.
    ExpProbsB: Scored "exp_probs_b" suffix ".bias";
    /// `[experts used, vocabulary]`, I32.
    FfnGateTid2Eid: Hashed "ffn_gate_tid2eid";
    /// `[D, expert width, experts]`.
    FfnGateExps: Layer "ffn_gate_exps";
    /// `[D, expert width, experts]`.
    FfnUpExps: Layer "ffn_up_exps";
    /// `[expert width, D, experts]`.
    FfnDownExps: Layer "ffn_down_exps";
    /// `[D, expert width]`.
    FfnGateShexp: Layer "ffn_gate_shexp";
    /// `[D, expert width]`.
    FfnUpShexp: Layer "ffn_up_shexp";
    /// `[expert width, D]`.
    FfnDownShexp: Layer "ffn_down_shexp";
}

impl Role {
    /// Every role, in table order.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|r| r.role)
    }

    pub(super) fn row(self) -> &'static Row {
        // The table holds the variants in the order of the enum; tested.
        &TABLE[self as usize]
    }

    /// Which layers have the tensor.
    #[must_use]
    pub fn presence(self) -> Presence {
        self.row().presence
    }
}

impl fmt::Display for Role {
    /// The name without layer and suffix.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().name)
    }
}

/// Name of a tensor in a dialect. `layer` is ignored for global roles and taken as 0 where a
/// layer role has none.
#[must_use]
pub fn tensor_name(dialect: Dialect, role: Role, layer: Option<u32>) -> String {
    let row = role.row();
    let name = match dialect {
        Dialect::EarlyPort => row.early.unwrap_or(row.name),
        Dialect::Antirez | Dialect::LlamaCpp => row.name,
    };
    place(row, name, row.suffix, layer)
}

/// A name with its layer and suffix.
pub(super) fn place(row: &Row, name: &str, suffix: &str, layer: Option<u32>) -> String {
    match row.presence {
        Presence::Global => format!("{name}{suffix}"),
        _ => format!("blk.{}.{name}{suffix}", layer.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_table_stands_in_the_order_of_the_roles() {
        for (i, role) in Role::all().enumerate() {
            assert_eq!(role as usize, i);
            assert_eq!(role.row().role, role);
        }
        assert_eq!(Role::all().count(), 6 + 23 + 4 + 6 + 2);
    }

    #[test]
    fn no_name_of_any_dialect_stands_for_two_roles() {
        let mut names = HashSet::new();
        for row in TABLE {
            assert!(names.insert(row.name), "{}", row.name);
            if let Some(early) = row.early {
                assert!(names.insert(early), "{early}");
            }
        }
        assert_eq!(TABLE.iter().filter(|r| r.early.is_some()).count(), 14);
    }

    #[test]
    fn names_are_spelled_as_files_spell_them() {
        use Dialect::{Antirez, EarlyPort, LlamaCpp};
        for (dialect, role, layer, name) in [
            (Antirez, Role::TokenEmbd, None, "token_embd.weight"),
            (Antirez, Role::OutputHcFn, Some(3), "output_hc_fn.weight"),
            (Antirez, Role::ExpProbsB, Some(7), "blk.7.exp_probs_b.bias"),
            (
                LlamaCpp,
                Role::IndexerQB,
                Some(2),
                "blk.2.indexer.attn_q_b.weight",
            ),
            (
                LlamaCpp,
                Role::IndexerCompressorKv,
                Some(2),
                "blk.2.indexer_compressor_kv.weight",
            ),
            (
                EarlyPort,
                Role::IndexerCompressorKv,
                Some(2),
                "blk.2.indexer.compressor.wkv.weight",
            ),
            (
                EarlyPort,
                Role::AttnKv,
                Some(0),
                "blk.0.attn_kv_a_mqa.weight",
            ),
            (EarlyPort, Role::OutputHcBase, None, "hc_head_base.weight"),
        ] {
            assert_eq!(tensor_name(dialect, role, layer), name);
        }
    }
}
