//! Keys and tensor names of the two public forms of a draft file (spec/dspark.md 5.1, 5.2).
//!
//! Separate so that no other module holds a name, and a third form is one more column. Stages have
//! the target's block names in both forms. Must not know: what a key means.

/// Which converter's contract a file follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Architecture `deepseek4-dflash-draft`.
    Native,
    /// Architecture `dflash`, as llama.cpp writes it.
    LlamaCpp,
}

/// Where a form keeps a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Below the architecture's prefix.
    Own(&'static str),
    /// Under exactly this key.
    File(&'static str),
    /// Nowhere: it follows from something else.
    Nowhere,
}

/// A key in both forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    native: Place,
    llama_cpp: Place,
}

/// A tensor in both forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorName {
    native: &'static str,
    llama_cpp: &'static str,
}

impl Form {
    /// Both forms.
    pub const ALL: [Self; 2] = [Self::Native, Self::LlamaCpp];

    /// `general.architecture`, and the prefix of the form's keys.
    #[must_use]
    pub const fn arch(self) -> &'static str {
        match self {
            Self::Native => "deepseek4-dflash-draft",
            Self::LlamaCpp => "dflash",
        }
    }

    /// The form with this architecture.
    #[must_use]
    pub fn of(arch: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|form| form.arch() == arch)
    }

    /// The full key, if the form has one.
    #[must_use]
    pub fn key(self, key: Key) -> Option<String> {
        let place = match self {
            Self::Native => key.native,
            Self::LlamaCpp => key.llama_cpp,
        };
        match place {
            Place::Own(suffix) => Some(format!("{}.{suffix}", self.arch())),
            Place::File(name) => Some(name.to_owned()),
            Place::Nowhere => None,
        }
    }

    /// The tensor's name.
    #[must_use]
    pub const fn tensor(self, name: TensorName) -> &'static str {
        match self {
            Self::Native => name.native,
            Self::LlamaCpp => name.llama_cpp,
        }
    }
}

/// A key with the same suffix in both forms.
#[must_use]
pub const fn same(suffix: &'static str) -> Key {
    Key {
        native: Place::Own(suffix),
        llama_cpp: Place::Own(suffix),
    }
}

const fn key(native: &'static str, llama_cpp: Place) -> Key {
    Key {
        native: Place::Own(native),
        llama_cpp,
    }
}

/// Vocabulary size; llama.cpp's files have the tokens themselves.
pub const VOCAB_SIZE: Key = key("vocab_size", Place::Nowhere);
/// Vocabulary size of the Markov head.
pub const MARKOV_VOCAB: Key = key("dflash.dspark.vocab_size", Place::Nowhere);
/// The tokens.
pub const TOKENS: &str = "tokenizer.ggml.tokens";
/// Rows of a block.
pub const BLOCK_SIZE: Key = key("dflash.block_size", Place::Own("block_size"));
/// The token of the rows to be predicted.
pub const MASK_TOKEN: Key = key(
    "dflash.mask_token_id",
    Place::File("tokenizer.ggml.mask_token_id"),
);
/// How many target layers are captured.
pub const N_CAPTURE: Key = key("dflash.n_target_layers", Place::Nowhere);
/// Layers whose outputs are captured.
pub const CAPTURE: Key = key("dflash.capture_layer_ids", Place::Nowhere);
/// The same from the generic converter.
pub const CAPTURE_GENERIC: Key = key("dflash.target_layer_ids", Place::Nowhere);
/// Layers whose *inputs* are captured: one more than [`CAPTURE`].
pub const CAPTURE_INPUTS: Key = Key {
    native: Place::Nowhere,
    llama_cpp: Place::Own("target_layers"),
};
/// Whether the DSpark heads are there.
pub const DSPARK_ENABLED: Key = key("dflash.dspark.enabled", Place::Nowhere);
/// Rank of the Markov head; follows from its tensors in llama.cpp's files.
pub const MARKOV_RANK: Key = key("dflash.dspark.markov_rank", Place::Own("markov_rank"));
/// Kind of the Markov head; absent means vanilla.
pub const MARKOV_TYPE: Key = key(
    "dflash.dspark.markov_head_type",
    Place::Own("markov_head_type"),
);
/// Inputs of the confidence head, 0 without one; follows from its tensor in llama.cpp's files.
pub const CONFIDENCE_DIM: Key = key("dflash.dspark.confidence_dim", Place::Nowhere);
/// Whether there is a confidence head.
pub const CONFIDENCE_ENABLED: Key = key(
    "dflash.dspark.confidence.enabled",
    Place::Own("enable_confidence_head"),
);
/// Fingerprint of the target a drafter was made for, 64 hexadecimal digits; this project's own.
pub const TARGET_FINGERPRINT: &str = "fourspark.target_fingerprint";

const fn tensor(native: &'static str, llama_cpp: &'static str) -> TensorName {
    TensorName { native, llama_cpp }
}

/// Projection of the captured features.
pub const FC: TensorName = tensor("dflash.fc.weight", "fc.weight");
/// Norm of the projected features.
pub const HIDDEN_NORM: TensorName = tensor("dflash.hidden_norm.weight", "enc.output_norm.weight");
/// Markov embedding.
pub const MARKOV_W1: TensorName = tensor("dflash.dspark.markov.w1", "markov_w1.weight");
/// Markov projection.
pub const MARKOV_W2: TensorName = tensor("dflash.dspark.markov.w2", "markov_w2.weight");
/// Confidence head.
pub const CONFIDENCE: TensorName = tensor("dflash.dspark.confidence.weight", "conf_proj.weight");
/// Its bias, optional.
pub const CONFIDENCE_BIAS: TensorName = tensor("dflash.dspark.confidence.bias", "conf_proj.bias");
/// Norm before the tied head.
pub const OUTPUT_NORM: TensorName = tensor("output_norm.weight", "output_norm.weight");
/// Prefix of the merge of the streams, both forms.
pub const OUTPUT_HC: &str = "output_hc";

/// Parts of a stage that some checkpoints carry and no draft model uses: tables of hash routing and
/// the router bias of a vision variant. After `blk.N.`.
pub const IGNORED: &[&str] = &[
    "ffn_gate_tid2eid.weight",
    "exp_probs_b.bias_vl",
    "exp_probs_b_vl.bias",
    "ffn_gate_inp.bias_vl",
];

/// Tensors of a whole model: a draft file with one would load the vocabulary twice. Prefix and why.
pub const REFUSED: &[(&str, &str)] = &[
    ("token_embd.", "the embedding is the target's"),
    ("output.", "the output matrix is the target's"),
];

/// `M.REST` of `blk.M.REST`.
#[must_use]
pub fn of_stage(name: &str) -> Option<(usize, &str)> {
    let (stage, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((stage.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_told_by_their_architecture() {
        assert_eq!(Form::of("deepseek4-dflash-draft"), Some(Form::Native));
        assert_eq!(Form::of("dflash"), Some(Form::LlamaCpp));
        for other in [
            "deepseek4",
            "deepseek41-dflash-draft",
            "qwen35-dflash-draft",
        ] {
            assert_eq!(Form::of(other), None);
        }
    }

    #[test]
    fn keys_have_their_own_place_in_each_form() {
        let both = |k| Form::ALL.map(|f| f.key(k));
        let own = |a: &str, b: &str| [Some(a.to_owned()), Some(b.to_owned())];
        assert_eq!(
            both(same("expert_count")),
            own("deepseek4-dflash-draft.expert_count", "dflash.expert_count")
        );
        assert_eq!(
            both(MASK_TOKEN),
            own(
                "deepseek4-dflash-draft.dflash.mask_token_id",
                "tokenizer.ggml.mask_token_id"
            )
        );
        assert_eq!(Form::Native.key(CAPTURE_INPUTS), None);
        assert_eq!(Form::LlamaCpp.key(CAPTURE), None);
    }

    #[test]
    fn stages_are_numbered() {
        assert_eq!(
            of_stage("blk.12.attn_kv.weight"),
            Some((12, "attn_kv.weight"))
        );
        assert_eq!(of_stage("blk.x.attn_kv.weight"), None);
        assert_eq!(of_stage("output_norm.weight"), None);
    }
}
