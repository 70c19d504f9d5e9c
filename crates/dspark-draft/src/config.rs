//! Hyper-parameters of a draft model, read strictly from metadata (spec/dspark.md 5).
//!
//! Every shape-bearing key must be there; keys that a draft model does not use may be absent. The
//! ranges are those of the public loader. Must not know: tensors' contents, the target's weights.

use std::ops::RangeInclusive;

use ds4_target::source::{MetaValue, Source};
use ds4_target::{Ds4Meta, LoadError, Ratio};
use engine_core::math::Yarn;
use engine_core::mutant::mutant;
use engine_core::seams::TargetInfo;
use engine_core::{LayerId, TokenId};

use crate::error::DraftError;
use crate::names::{self, Form, Key, same};

/// The kind of a Markov head. Others exist and are refused by name (spec/dspark.md 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Markov {
    /// `U + W2 * W1[t]`.
    Vanilla {
        /// Width of `W1`'s rows.
        rank: usize,
    },
}

impl Markov {
    /// Width of `W1`'s rows.
    #[must_use]
    pub const fn rank(self) -> usize {
        match self {
            Self::Vanilla { rank } => rank,
        }
    }
}

/// What the confidence head reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConfidenceInput {
    /// The state before the output norm.
    State,
    /// That and the Markov row of the previous token.
    StateAndMarkov,
}

/// A draft model's hyper-parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftMeta {
    /// The contract the file follows.
    pub form: Form,
    /// Shapes of the stages, in the target's terms: window layers without tables.
    pub stage: Ds4Meta,
    /// Rows of a block, all of them always computed: the most candidates of a draft.
    pub block: usize,
    /// The token of every row but the first.
    pub mask: TokenId,
    /// Target layers whose outputs are the features, in the order of concatenation.
    pub capture: Vec<LayerId>,
    /// The Markov head.
    pub markov: Markov,
    /// The confidence head, if there is one.
    pub confidence: Option<ConfidenceInput>,
    /// The target it was made for, where the file says so.
    pub target_fingerprint: Option<[u8; 32]>,
}

/// Whether a draft model was made for a target. Anything but `Same` deserves a warning: a wrong pair
/// drafts badly, though never wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetMatch {
    /// The file names this target.
    Same,
    /// The file names no target.
    Unrecorded,
    /// The file names another target, or another quantisation of this one.
    Other {
        /// What the file names.
        recorded: [u8; 32],
        /// The target's.
        target: [u8; 32],
    },
}

/// Typed access to the metadata in either form, with errors that name the file's own key.
struct Keys<'a> {
    source: &'a dyn Source,
    form: Form,
}

impl Keys<'_> {
    fn bad(&self, key: &str, expected: impl ToString, got: impl ToString) -> LoadError {
        LoadError::BadKey {
            file: self.source.name().to_owned(),
            key: key.to_owned(),
            expected: expected.to_string(),
            got: got.to_string(),
        }
    }

    fn missing(&self, key: String, expected: &'static str) -> LoadError {
        LoadError::MissingKey {
            file: self.source.name().to_owned(),
            key,
            expected,
        }
    }

    /// The key in this form and its value, if the file has it.
    fn find(&self, key: Key) -> Option<(String, MetaValue)> {
        let name = self.form.key(key)?;
        let value = self.source.meta(&name)?;
        Some((name, value))
    }

    fn need(&self, key: Key, expected: &'static str) -> Result<(String, MetaValue), LoadError> {
        let name = || self.form.key(key).unwrap_or_default();
        self.find(key).ok_or_else(|| self.missing(name(), expected))
    }

    fn in_range(
        &self,
        (name, value): (String, MetaValue),
        range: RangeInclusive<i64>,
    ) -> Result<usize, LoadError> {
        match value {
            MetaValue::Int(v) if range.contains(&v) => Ok(v as usize),
            other => {
                let expected = format!("an integer in {}..={}", range.start(), range.end());
                Err(self.bad(&name, expected, other))
            }
        }
    }

    fn size(&self, key: Key, range: RangeInclusive<i64>) -> Result<usize, LoadError> {
        self.in_range(self.need(key, "an integer")?, range)
    }

    /// As `size`, for a key that may be absent.
    fn size_or(
        &self,
        key: Key,
        range: RangeInclusive<i64>,
        absent: usize,
    ) -> Result<usize, LoadError> {
        self.find(key)
            .map_or(Ok(absent), |found| self.in_range(found, range))
    }

    fn positive(&self, (name, value): (String, MetaValue)) -> Result<f32, LoadError> {
        match value {
            MetaValue::Float(v) if v.is_finite() && v > 0.0 => Ok(v as f32),
            other => Err(self.bad(&name, "a finite float above 0", other)),
        }
    }

    fn float(&self, key: Key) -> Result<f32, LoadError> {
        self.positive(self.need(key, "a float")?)
    }

    fn float_or(&self, key: Key, absent: f32) -> Result<f32, LoadError> {
        self.find(key)
            .map_or(Ok(absent), |found| self.positive(found))
    }

    /// One value for all stages, or one each.
    fn per_stage(&self, found: (String, MetaValue), n: usize) -> Result<Vec<f32>, LoadError> {
        match found {
            (name, MetaValue::Floats(v)) if v.len() >= n => v[..n]
                .iter()
                .map(|v| self.positive((name.clone(), MetaValue::Float(*v))))
                .collect(),
            (name, MetaValue::Floats(v)) => {
                Err(self.bad(&name, format!("one or at least {n} floats"), v.len()))
            }
            scalar => Ok(vec![self.positive(scalar)?; n]),
        }
    }

    /// A value that must have this size where the file has it.
    fn fixed(&self, key: Key, want: usize) -> Result<(), LoadError> {
        match self.find(key) {
            None | Some((_, MetaValue::Bool(true))) if want == 1 => Ok(()),
            None => Ok(()),
            Some((_, MetaValue::Int(v))) if v == want as i64 => Ok(()),
            Some((name, other)) => Err(self.bad(&name, want, other)),
        }
    }
}

impl DraftMeta {
    /// Reads and checks the hyper-parameters of a file in either form.
    ///
    /// # Errors
    /// `Load` with `Architecture`, `MissingKey` or `BadKey`, naming the file's own key.
    pub fn read(source: &dyn Source) -> Result<Self, DraftError> {
        let form = form_of(source)?;
        let k = Keys { source, form };
        let stage = read_stage(&k)?;
        let block = k.size(names::BLOCK_SIZE, 2..=16)?;
        let mask = k.size(names::MASK_TOKEN, 0..=stage.n_vocab as i64 - 1)? as TokenId;
        let capture = read_capture(&k)?;
        let markov = read_markov(&k)?;
        let confidence = read_confidence(&k, stage.n_embd, markov.rank())?;
        Ok(Self {
            form,
            stage,
            block,
            mask,
            capture,
            markov,
            confidence,
            target_fingerprint: read_fingerprint(&k)?,
        })
    }

    /// Values of one position's features: all captured layers together.
    #[must_use]
    pub fn feature_width(&self) -> usize {
        self.capture.len() * self.stage.n_embd
    }

    /// Inputs of the confidence head; 0 without one.
    #[must_use]
    pub fn confidence_width(&self) -> usize {
        match self.confidence {
            None => 0,
            Some(ConfidenceInput::State) => self.stage.n_embd,
            Some(ConfidenceInput::StateAndMarkov) => self.stage.n_embd + self.markov.rank(),
        }
    }

    /// Checks that the model fits a target: width, vocabulary, layers. `file`: for messages.
    ///
    /// # Errors
    /// `Target`.
    pub fn check_target(&self, file: &str, target: &TargetInfo) -> Result<TargetMatch, DraftError> {
        let agree = |what: &str, expected: String, got: usize, ok: bool| match ok {
            true => Ok(()),
            false => Err(DraftError::Target {
                file: file.to_owned(),
                what: what.to_owned(),
                expected,
                got: got.to_string(),
            }),
        };
        let (d, v) = (self.stage.n_embd, self.stage.n_vocab);
        agree(
            "embedding_length",
            target.n_embd.to_string(),
            d,
            d == target.n_embd,
        )?;
        let same = v == target.n_vocab || mutant(219);
        agree("vocab_size", target.n_vocab.to_string(), v, same)?;
        for layer in &self.capture {
            let ok = layer.index() < target.n_layer;
            let expected = format!("layers below {}", target.n_layer);
            agree("captured layers", expected, layer.index(), ok)?;
        }
        let target = target.fingerprint;
        Ok(match self.target_fingerprint {
            None => TargetMatch::Unrecorded,
            Some(recorded) if recorded == target || mutant(222) => TargetMatch::Same,
            Some(recorded) => TargetMatch::Other { recorded, target },
        })
    }
}

fn form_of(source: &dyn Source) -> Result<Form, LoadError> {
    let key = "general.architecture";
    let file = || source.name().to_owned();
    let got = match source.meta(key) {
        Some(MetaValue::Str(s)) => s,
        Some(other) => {
            return Err(LoadError::BadKey {
                file: file(),
                key: key.to_owned(),
                expected: "a string".to_owned(),
                got: other.to_string(),
            });
        }
        None => {
            return Err(LoadError::MissingKey {
                file: file(),
                key: key.to_owned(),
                expected: "a string",
            });
        }
    };
    if let Some(form) = Form::of(&got) {
        return Ok(form);
    }
    let why = if got.starts_with("deepseek41") {
        " (V4.1: other layers, compressors and captured positions)"
    } else if got.starts_with("qwen35") {
        " (a drafter for another model family)"
    } else if got == Ds4Meta::ARCH {
        " (a target, not a drafter)"
    } else {
        ""
    };
    Err(LoadError::Architecture {
        file: file(),
        expected: "deepseek4-dflash-draft or dflash",
        got: format!("{got}{why}"),
    })
}

fn read_vocab(k: &Keys<'_>) -> Result<usize, LoadError> {
    const MOST: i64 = 1_000_000;
    if k.form == Form::LlamaCpp {
        return match k.source.meta(names::TOKENS) {
            Some(MetaValue::Strs(n)) if (1..=MOST as usize).contains(&n) => Ok(n),
            Some(other) => Err(k.bad(names::TOKENS, format!("1..={MOST} strings"), other)),
            None => Err(k.missing(names::TOKENS.to_owned(), "the vocabulary")),
        };
    }
    let n = k.size(names::VOCAB_SIZE, 1..=MOST)?;
    let (key, markov) = k.need(names::MARKOV_VOCAB, "the vocabulary of the Markov head")?;
    match markov {
        MetaValue::Int(v) if v == n as i64 => Ok(n),
        other => Err(k.bad(&key, format!("{n} (vocab_size)"), other)),
    }
}

/// Shapes of the stages.
fn read_stage(k: &Keys<'_>) -> Result<Ds4Meta, LoadError> {
    let size = |name, range| k.size(same(name), range);
    let n_layer = size("block_count", 1..=64)?;
    let rope_theta = k.float(same("rope.freq_base"))?;
    // Keys of layers with compressed rows: unused here, and absent from some files.
    let compress_theta = k.float_or(same("attention.compress_rope_freq_base"), rope_theta)?;
    let clamps = k.need(same("swiglu_clamp_exp"), "a float or one per stage")?;
    let clamp_routed = k.per_stage(clamps, n_layer)?;
    let clamp_shared = match k.find(same("swiglu_clamp_shexp")) {
        Some(found) => k.per_stage(found, n_layer)?,
        None => clamp_routed.clone(),
    };
    let head_dim = size("attention.key_length", 2..=65_536)?;
    let meta = Ds4Meta {
        n_layer,
        n_embd: size("embedding_length", 1..=32_768)?,
        n_vocab: read_vocab(k)?,
        n_ctx_train: k.size_or(same("context_length"), 1..=1 << 32, 1 << 32)? as u64,
        n_head: size("attention.head_count", 1..=512)?,
        head_dim,
        n_rot: size("rope.dimension_count", 2..=head_dim as i64)?,
        q_lora: size("attention.q_lora_rank", 1..=1 << 20)?,
        o_lora: size("attention.output_lora_rank", 1..=1 << 20)?,
        o_groups: size("attention.output_group_count", 1..=512)?,
        window: size("attention.sliding_window", 1..=1 << 16)?,
        index_heads: 1,
        index_dim: head_dim,
        index_top_k: 1,
        ratios: vec![Ratio::None; n_layer],
        rope_theta: if mutant(214) {
            compress_theta
        } else {
            rope_theta
        },
        compress_theta,
        yarn: Yarn {
            factor: 1.0,
            original_context: 65_536,
            beta_fast: 32.0,
            beta_slow: 1.0,
        },
        n_expert: size("expert_count", 1..=4096)?,
        n_used: size("expert_used_count", 1..=4096)?,
        n_ff: size("expert_feed_forward_length", 1..=1 << 20)?,
        route_scale: k.float(same("expert_weights_scale"))?,
        clamp_routed,
        clamp_shared,
        n_hash: 0,
        hc_iterations: size("hyper_connection.sinkhorn_iterations", 1..=1000)? as u32,
        hc_eps: k.float(same("hyper_connection.epsilon"))?,
        rms_eps: k.float(same("attention.layer_norm_rms_epsilon"))?,
    };
    check_stage(k, &meta)?;
    Ok(meta)
}

/// Relations between keys, and keys with one possible value.
fn check_stage(k: &Keys<'_>, m: &Ds4Meta) -> Result<(), LoadError> {
    k.size(same("attention.head_count_kv"), 1..=1)?;
    k.size(same("hyper_connection.count"), 4..=4)?;
    k.size(same("expert_shared_count"), 1..=1)?;
    k.fixed(same("attention.value_length"), m.head_dim)?;
    // `hash_layer_count` is not looked at: converters copy the target's, stages have no tables.
    k.fixed(same("expert_weights_norm"), 1)?;
    // 4: sqrt(softplus).
    k.fixed(same("expert_gating_func"), 4)?;
    k.fixed(names::DSPARK_ENABLED, 1)?;
    if let Some((key, value)) = k.find(same("attention.compress_ratios")) {
        let plain = matches!(&value, MetaValue::Ints(v) if v.iter().all(|r| *r == 0));
        if !plain {
            return Err(k.bad(&key, "zeros: stages have no compressor", value));
        }
    }
    let rules = [
        (
            "rope.dimension_count",
            m.n_rot.is_multiple_of(2),
            "an even number".to_owned(),
            m.n_rot,
        ),
        (
            "attention.output_group_count",
            m.n_head.is_multiple_of(m.o_groups),
            format!("a divisor of head_count {}", m.n_head),
            m.o_groups,
        ),
        (
            "expert_used_count",
            m.n_used <= m.n_expert,
            format!("at most expert_count {}", m.n_expert),
            m.n_used,
        ),
    ];
    for (key, ok, expected, got) in rules {
        if !ok {
            return Err(k.bad(&format!("{}.{key}", k.form.arch()), expected, got));
        }
    }
    Ok(())
}

/// Captured layers, by the layer whose output they are.
fn read_capture(k: &Keys<'_>) -> Result<Vec<LayerId>, LoadError> {
    // llama.cpp names the layer whose input it is.
    let (inputs, found) = match k.form {
        Form::LlamaCpp => (true, k.need(names::CAPTURE_INPUTS, "layer numbers")?),
        Form::Native => {
            let found = k.find(names::CAPTURE);
            let found = found.or_else(|| k.find(names::CAPTURE_GENERIC));
            let missing = || k.missing(k.form.key(names::CAPTURE).unwrap_or_default(), "layers");
            (false, found.ok_or_else(missing)?)
        }
    };
    let (key, value) = found;
    let expected = "distinct layer numbers below 4096";
    let MetaValue::Ints(ids) = &value else {
        return Err(k.bad(&key, expected, value));
    };
    let least = i64::from(inputs);
    let sound = |(i, id): (usize, &i64)| (least..4096).contains(id) && !ids[..i].contains(id);
    if ids.is_empty() || !ids.iter().enumerate().all(sound) {
        return Err(k.bad(&key, expected, value));
    }
    k.fixed(names::N_CAPTURE, ids.len())?;
    let shift = if mutant(206) { 0 } else { least };
    Ok(ids.iter().map(|id| LayerId((id - shift) as u32)).collect())
}

fn read_markov(k: &Keys<'_>) -> Result<Markov, LoadError> {
    if let Some((key, value)) = k.find(names::MARKOV_TYPE) {
        let MetaValue::Str(kind) = &value else {
            return Err(k.bad(&key, "\"vanilla\"", value));
        };
        let why = match kind.as_str() {
            "vanilla" => None,
            "gated" => Some(" (a bias gated by the hidden state)"),
            "rnn" => Some(" (a recurrent head)"),
            _ => Some(""),
        };
        if let Some(why) = why {
            return Err(k.bad(&key, "\"vanilla\"", format!("{kind:?}{why}")));
        }
    }
    const RANK: RangeInclusive<i64> = 1..=32_768;
    let rank = match k.find(names::MARKOV_RANK) {
        Some(found) => k.in_range(found, RANK)?,
        None if k.form == Form::Native => k.size(names::MARKOV_RANK, RANK)?,
        None => first_dimension(k, k.form.tensor(names::MARKOV_W1))
            .filter(|rank| RANK.contains(&(*rank as i64)))
            .ok_or_else(|| {
                let key = k.form.key(names::MARKOV_RANK).unwrap_or_default();
                k.missing(key, "the rank, or a tensor markov_w1 to tell it by")
            })?,
    };
    Ok(Markov::Vanilla { rank })
}

/// Input width of a tensor, where no key tells it.
fn first_dimension(k: &Keys<'_>, tensor: &str) -> Option<usize> {
    let shape = k.source.tensor(tensor)?.shape;
    shape.first().and_then(|n| usize::try_from(*n).ok())
}

fn read_confidence(
    k: &Keys<'_>,
    n_embd: usize,
    rank: usize,
) -> Result<Option<ConfidenceInput>, LoadError> {
    let tensor = k.form.tensor(names::CONFIDENCE);
    let (key, width) = match k.form {
        Form::Native => (
            k.form.key(names::CONFIDENCE_DIM).unwrap_or_default(),
            k.size(names::CONFIDENCE_DIM, 0..=1 << 20)?,
        ),
        Form::LlamaCpp => (tensor.to_owned(), first_dimension(k, tensor).unwrap_or(0)),
    };
    let input = match width {
        0 => None,
        w if w == n_embd => Some(ConfidenceInput::State),
        w if w == n_embd + rank => Some(ConfidenceInput::StateAndMarkov),
        other => {
            let expected = format!("0, {n_embd} or {} (state and Markov row)", n_embd + rank);
            return Err(k.bad(&key, expected, other));
        }
    };
    if let Some((key, value)) = k.find(names::CONFIDENCE_ENABLED) {
        let on = matches!(value, MetaValue::Bool(true) | MetaValue::Int(1));
        let off = matches!(value, MetaValue::Bool(false) | MetaValue::Int(0));
        if !(on || off) || on != input.is_some() {
            let expected = format!("{} ({width} inputs)", input.is_some());
            return Err(k.bad(&key, expected, value));
        }
    }
    Ok(input)
}

fn read_fingerprint(k: &Keys<'_>) -> Result<Option<[u8; 32]>, LoadError> {
    let key = names::TARGET_FINGERPRINT;
    let Some(value) = k.source.meta(key) else {
        return Ok(None);
    };
    let bad = |value: &MetaValue| k.bad(key, "64 hexadecimal digits", value);
    let MetaValue::Str(text) = &value else {
        return Err(bad(&value));
    };
    let digits: Vec<u8> = text
        .chars()
        .map_while(|c| c.to_digit(16).map(|d| d as u8))
        .collect();
    if digits.len() != 64 || text.len() != 64 {
        return Err(bad(&value));
    }
    Ok(Some(std::array::from_fn(|i| {
        digits[2 * i] << 4 | digits[2 * i + 1]
    })))
}
