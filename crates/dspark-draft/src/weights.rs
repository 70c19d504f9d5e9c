//! The draft model's tensors, each bound exactly once (spec/dspark.md 5.1).
//!
//! A draft file has neither embedding nor output matrix: both are the target's. What is optional is
//! filled in with its neutral value here, so that the blocks know one shape. Must not know: state,
//! sequences, how anything is computed.

use std::collections::BTreeMap;

use ds4_target::blocks::Block;
use ds4_target::fingerprint::{Fingerprint, Kind};
use ds4_target::source::{Bytes, MetaValue, RawTensor, Source};
use ds4_target::tensor::{Binder, Tensor};
use ds4_target::weights::{HcSite, bind_attention, bind_hc, bind_moe};
use ds4_target::{Ds4Meta, LoadError};
use engine_core::mutant::mutant;
use fpx_quant::Format;

use crate::config::{ConfidenceInput, DraftMeta, Markov};
use crate::error::DraftError;
use crate::names::{self, Form};

/// What a backbone needs.
#[derive(Clone, Debug)]
pub struct BackboneWeights {
    /// `[n_embd, captured layers * n_embd]`.
    pub fc: Tensor,
    /// `[n_embd]`: norm of the projected features, for all stages.
    pub hidden_norm: Vec<f32>,
    /// The stages, in order.
    pub stages: Vec<Block>,
    /// Merge of the streams after the last stage.
    pub hc_head: HcSite,
    /// `[n_embd]`: norm before the tied head.
    pub output_norm: Vec<f32>,
}

/// What the heads beside the target need.
#[derive(Clone, Debug)]
pub struct HeadWeights {
    /// `[n_vocab, rank]`.
    pub w1: Tensor,
    /// `[n_vocab, rank]`.
    pub w2: Tensor,
    /// The confidence head, if there is one.
    pub confidence: Option<ConfidenceHead>,
}

/// A linear map to the log-odds of acceptance.
#[derive(Clone, Debug)]
pub struct ConfidenceHead {
    /// `[1, DraftMeta::confidence_width]`.
    pub weight: Tensor,
    /// 0 where the file has none.
    pub bias: f32,
}

/// What became of a file's tensors: `bound + ignored` of `in_file`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorReport {
    /// Tensors of the file.
    pub in_file: usize,
    /// Bound, each once.
    pub bound: usize,
    /// Known and unused.
    pub ignored: Vec<String>,
    /// Optional tensors the file does not have.
    pub absent: Vec<String>,
}

/// A loaded draft model, shared by backbone and heads. Its tensors are mapped, not read: a process
/// that uses one half never touches the other.
#[derive(Clone, Debug)]
pub struct DraftModel {
    /// The file, for messages.
    pub file: String,
    /// Hyper-parameters.
    pub meta: DraftMeta,
    /// The backbone's half.
    pub backbone: BackboneWeights,
    /// The heads' half.
    pub heads: HeadWeights,
    /// Which tensors were bound.
    pub tensors: TensorReport,
    /// Digest of hyper-parameters, tensor table and samples of every tensor; what saved rows must
    /// match.
    pub fingerprint: [u8; 32],
}

impl DraftModel {
    /// Reads and binds a draft model in either form.
    ///
    /// # Errors
    /// Any [`DraftError`].
    pub fn load(source: &dyn Source) -> Result<Self, DraftError> {
        let meta = DraftMeta::read(source)?;
        refuse_stray(source)?;
        let filled = Filled::new(source, &meta);
        let mut b = Binder::new(&filled, wanted(source));
        let backbone = bind_backbone(&mut b, &meta)?;
        let heads = bind_heads(&mut b, &filled, &meta)?;
        let bound = b.finish(|name| is_ignored(name) || mutant(204))?;
        let names = source.tensor_names();
        let tensors = TensorReport {
            in_file: names.len(),
            bound: bound - filled.fill.len(),
            ignored: names.into_iter().filter(|n| is_ignored(n)).collect(),
            absent: filled.fill.into_keys().collect(),
        };
        Ok(Self {
            file: source.name().to_owned(),
            fingerprint: fingerprint(source, &meta),
            meta,
            backbone,
            heads,
            tensors,
        })
    }
}

fn bind_backbone(b: &mut Binder<'_>, meta: &DraftMeta) -> Result<BackboneWeights, LoadError> {
    let (m, form) = (&meta.stage, meta.form);
    let fc = b.matrix(form.tensor(names::FC), &[meta.feature_width(), m.n_embd])?;
    let hidden_norm = b.floats(form.tensor(names::HIDDEN_NORM), &[m.n_embd])?;
    let stages = (0..m.n_layer)
        .map(|stage| bind_stage(b, m, stage))
        .collect::<Result<_, _>>()?;
    Ok(BackboneWeights {
        fc,
        hidden_norm,
        stages,
        hc_head: bind_hc(b, names::OUTPUT_HC, m.n_embd, 4, 1)?,
        output_norm: b.floats(form.tensor(names::OUTPUT_NORM), &[m.n_embd])?,
    })
}

fn bind_stage(b: &mut Binder<'_>, m: &Ds4Meta, stage: usize) -> Result<Block, LoadError> {
    let blk = format!("blk.{stage}.");
    Ok(Block {
        hc_attn: bind_hc(b, &format!("{blk}hc_attn"), m.n_embd, 24, 3)?,
        attn: bind_attention(b, m, &blk)?,
        hc_ffn: bind_hc(b, &format!("{blk}hc_ffn"), m.n_embd, 24, 3)?,
        moe: bind_moe(b, m, &blk, stage)?,
    })
}

fn bind_heads(
    b: &mut Binder<'_>,
    source: &dyn Source,
    meta: &DraftMeta,
) -> Result<HeadWeights, LoadError> {
    let (n_vocab, rank, form) = (meta.stage.n_vocab, meta.markov.rank(), meta.form);
    let w1 = b.matrix(form.tensor(names::MARKOV_W1), &[rank, n_vocab])?;
    let w2 = b.matrix(form.tensor(names::MARKOV_W2), &[rank, n_vocab])?;
    let confidence = match meta.confidence_width() {
        0 => None,
        width => {
            let weight = b.matrix(form.tensor(names::CONFIDENCE), &[width, 1])?;
            let bias = form.tensor(names::CONFIDENCE_BIAS);
            let bias = match source.tensor(bias) {
                Some(_) => b.floats(bias, &[1])?[0],
                None => 0.0,
            };
            Some(ConfidenceHead { weight, bias })
        }
    };
    Ok(HeadWeights { w1, w2, confidence })
}

/// Tensors to be bound, for messages.
fn wanted(source: &dyn Source) -> usize {
    let names = source.tensor_names();
    names.iter().filter(|name| !is_ignored(name)).count()
}

fn is_ignored(name: &str) -> bool {
    names::of_stage(name).is_some_and(|(_, rest)| names::IGNORED.contains(&rest))
}

/// A file with a vocabulary of its own is a whole model; loading one would eat the device's memory.
fn refuse_stray(source: &dyn Source) -> Result<(), DraftError> {
    for tensor in source.tensor_names() {
        let stray = names::REFUSED
            .iter()
            .find(|(prefix, _)| tensor.starts_with(prefix));
        if let Some((_, why)) = stray.filter(|_| !mutant(216)) {
            let file = source.name().to_owned();
            return Err(DraftError::Stray { file, tensor, why });
        }
    }
    Ok(())
}

/// A source with the optional tensors it lacks: a sink that takes no weight, a selection bias of 0.
struct Filled<'a> {
    inner: &'a dyn Source,
    fill: BTreeMap<String, RawTensor>,
}

impl<'a> Filled<'a> {
    fn new(inner: &'a dyn Source, meta: &DraftMeta) -> Self {
        // Far below every score, and finite: exp(sink - max) is exactly 0.
        const NO_SINK: f32 = f32::MIN;
        let mut fill = BTreeMap::new();
        for stage in 0..meta.stage.n_layer {
            let mut put = |suffix: &str, n: usize, value: f32| {
                let name = format!("blk.{stage}.{suffix}");
                if inner.tensor(&name).is_none() {
                    let bytes = std::iter::repeat_n(value.to_le_bytes(), n).flatten();
                    let raw = RawTensor {
                        shape: vec![n as u64],
                        format: Format::F32,
                        bytes: Bytes::from_vec(bytes.collect()),
                    };
                    fill.insert(name, raw);
                }
            };
            put("attn_sinks.weight", meta.stage.n_head, NO_SINK);
            put("exp_probs_b.bias", meta.stage.n_expert, 0.0);
        }
        Self { inner, fill }
    }
}

impl Source for Filled<'_> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn meta(&self, key: &str) -> Option<MetaValue> {
        self.inner.meta(key)
    }

    fn tensor(&self, name: &str) -> Option<RawTensor> {
        self.inner
            .tensor(name)
            .or_else(|| self.fill.get(name).cloned())
    }

    fn tensor_names(&self) -> Vec<String> {
        self.inner.tensor_names()
    }
}

/// The target's layout over this model's hyper-parameters (`docs/adr/0008-fingerprints.md`). The target
/// that the file names is no part of it.
fn fingerprint(source: &dyn Source, meta: &DraftMeta) -> [u8; 32] {
    let DraftMeta {
        form,
        stage,
        block,
        mask,
        capture,
        markov: Markov::Vanilla { rank },
        confidence,
        target_fingerprint: _,
    } = meta;
    let mut print = Fingerprint::new(Kind::Draft);
    print.int(match form {
        Form::Native => 0,
        Form::LlamaCpp => 1,
    });
    print.meta(stage).int(*block as u64).int(u64::from(*mask));
    print.int(capture.len() as u64);
    for layer in capture {
        print.int(u64::from(layer.0));
    }
    print.text("vanilla").int(*rank as u64);
    print.int(match confidence {
        None => 0,
        Some(ConfidenceInput::State) => 1,
        Some(ConfidenceInput::StateAndMarkov) => 2,
    });
    print.tensors(source).finish()
}
