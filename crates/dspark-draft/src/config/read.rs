//! From keys to hyper-parameters, one part after another.

use std::ops::RangeInclusive;

use ds4_target::fingerprint::{Mark, VERSION, from_mark};
use ds4_target::source::{MetaValue, Source};
use ds4_target::{Ds4Meta, LoadError, Ratio};
use engine_core::LayerId;
use engine_core::math::Yarn;
use engine_core::mutant::mutant;

use super::keys::Keys;
use super::{ConfidenceInput, Markov};
use crate::names::{self, Form, same};

pub(super) fn form_of(source: &dyn Source) -> Result<Form, LoadError> {
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
pub(super) fn stage(k: &Keys<'_>) -> Result<Ds4Meta, LoadError> {
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
        window: size("attention.sliding_window", 1..=8192)?,
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
pub(super) fn capture(k: &Keys<'_>) -> Result<Vec<LayerId>, LoadError> {
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

pub(super) fn markov(k: &Keys<'_>) -> Result<Markov, LoadError> {
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

pub(super) fn confidence(
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

pub(super) fn fingerprint(k: &Keys<'_>) -> Result<Option<[u8; 32]>, LoadError> {
    let key = names::TARGET_FINGERPRINT;
    let Some(value) = k.source.meta(key) else {
        return Ok(None);
    };
    let text = match &value {
        MetaValue::Str(text) => text.as_str(),
        _ => "",
    };
    match from_mark(text) {
        Mark::Known(print) => Ok(Some(print)),
        Mark::OtherVersion => {
            let expected = format!(
                "a mark of version {VERSION} (`fourspark mark` writes it: the mark is another \
                 version's, the drafter itself is as good as it was)"
            );
            Err(k.bad(key, expected, value))
        }
        Mark::Unreadable => {
            let expected = format!("{VERSION}: and 64 hexadecimal digits");
            Err(k.bad(key, expected, value))
        }
    }
}
