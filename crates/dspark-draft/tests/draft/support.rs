//! Fixtures as sources in memory, and short ways to run target and drafter.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use ds4_target::pool::Pool;
use ds4_target::source::{Bytes, MetaValue, RawTensor, Source};
use ds4_target::{CpuTarget, Model, Options};
use dspark_draft::backbone::{self, LocalBackbone};
use dspark_draft::drafter::DsparkDrafter;
use dspark_draft::weights::DraftModel;
use engine_core::seams::{Ask, Backbone, DraftRows, Target};
use engine_core::{Epoch, Out, Pos, SeqId, Span, Tap, TokenId, Want};
use fpx_quant::{EncodeMode, Format, encode_rows};
use testkit::fixture::{DraftFixture, Fixture, Kind, Meta, metadata};
use testkit::oracle::draft::{OracleDraft, features};
use testkit::oracle::{Mat, OracleModel, RunOptions, Tensor};

pub(crate) const NATIVE: &str = "deepseek4-dflash-draft";

/// A model in memory: metadata and tensors, matrices encoded as `format` (vectors stay F32).
#[derive(Clone)]
pub(crate) struct Memory {
    pub(crate) meta: BTreeMap<String, MetaValue>,
    pub(crate) tensors: BTreeMap<String, Tensor>,
    pub(crate) format: Format,
}

fn widen(meta: &Meta) -> MetaValue {
    match meta.clone() {
        Meta::U32(v) => MetaValue::Int(i64::from(v)),
        Meta::F32(v) => MetaValue::Float(f64::from(v)),
        Meta::Bool(v) => MetaValue::Bool(v),
        Meta::Str(v) => MetaValue::Str(v),
        Meta::I32s(v) => MetaValue::Ints(v.into_iter().map(i64::from).collect()),
        Meta::F32s(v) => MetaValue::Floats(v.into_iter().map(f64::from).collect()),
        Meta::Strs(v) => MetaValue::Strs(v.len()),
    }
}

impl Memory {
    pub(crate) fn new(meta: &[(String, Meta)], tensors: BTreeMap<String, Tensor>) -> Self {
        Self {
            meta: meta.iter().map(|(k, v)| (k.clone(), widen(v))).collect(),
            tensors,
            format: Format::F32,
        }
    }

    pub(crate) fn target(model: &OracleModel) -> Self {
        Self::new(&metadata(&model.config), model.tensors.clone())
    }

    pub(crate) fn draft(draft: &OracleDraft) -> Self {
        let meta = testkit::fixture::draft_metadata(&draft.config);
        Self::new(&meta, draft.model.tensors.clone())
    }

    /// With another value, `None` to remove it. `key`: without the prefix of the native form, or
    /// whole when it has none.
    pub(crate) fn with(mut self, key: &str, value: Option<MetaValue>) -> Self {
        let own = format!("{NATIVE}.{key}");
        let key = if self.meta.contains_key(&own) || !self.meta.contains_key(key) {
            own
        } else {
            key.to_owned()
        };
        match value {
            Some(value) => drop(self.meta.insert(key, value)),
            None => drop(self.meta.remove(&key)),
        }
        self
    }

    /// With one more tensor of zeros.
    pub(crate) fn plus(mut self, name: &str, shape: &[usize]) -> Self {
        let data = vec![0.0; shape.iter().product()];
        let shape = shape.to_vec();
        self.tensors.insert(name.to_owned(), Tensor { shape, data });
        self
    }

    pub(crate) fn minus(mut self, name: &str) -> Self {
        self.tensors.remove(name).unwrap();
        self
    }
}

impl Source for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    fn meta(&self, key: &str) -> Option<MetaValue> {
        self.meta.get(key).cloned()
    }

    fn tensor(&self, name: &str) -> Option<RawTensor> {
        let t = self.tensors.get(name)?;
        let shape = t.shape.iter().rev().map(|d| *d as u64).collect();
        let table = name.ends_with("tid2eid.weight");
        let (format, bytes) = if table {
            let ids = t.data.iter().flat_map(|v| (*v as i32).to_le_bytes());
            (Format::I32, ids.collect())
        } else {
            let small = t.shape.len() == 1 || !t.cols().is_multiple_of(32);
            let format = if small { Format::F32 } else { self.format };
            let k = t.cols();
            let mut bytes = vec![0; format.matrix_bytes(t.data.len() / k, k).unwrap()];
            encode_rows(format, &t.data, k, None, EncodeMode::Fast, &mut bytes).unwrap();
            (format, bytes)
        };
        Some(RawTensor {
            shape,
            format,
            bytes: Bytes::from_vec(bytes),
        })
    }

    fn tensor_names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }
}

/// A random pair, with a run of the target in f64.
pub(crate) struct Toy {
    pub(crate) target: Fixture,
    pub(crate) draft: DraftFixture,
    pub(crate) tokens: Vec<u32>,
    /// `[tokens, layers * n_embd]`, f64 and f32 of the same values.
    pub(crate) exact: Mat,
    pub(crate) features: Vec<f32>,
    pub(crate) model: Arc<Model>,
    pub(crate) draft_model: Arc<DraftModel>,
}

pub(crate) fn toy() -> &'static Toy {
    static TOY: OnceLock<Toy> = OnceLock::new();
    TOY.get_or_init(|| {
        let (target, tokens) = Fixture::clear(Kind::T0i).unwrap();
        let draft = DraftFixture::new(Kind::T0i, 1).unwrap();
        let dump = target
            .model
            .forward(&tokens, &RunOptions::default())
            .unwrap();
        let mut exact = features(&dump, &draft.oracle.config.capture);
        let rounded: Vec<f32> = exact.data.iter().map(|v| *v as f32).collect();
        exact.data = rounded.iter().copied().map(f64::from).collect();
        let model = Arc::new(Model::load(&Memory::target(&target.model)).unwrap());
        let draft_model = Arc::new(DraftModel::load(&Memory::draft(&draft.oracle)).unwrap());
        Toy {
            target,
            draft,
            tokens,
            exact,
            features: rounded,
            model,
            draft_model,
        }
    })
}

impl Toy {
    /// Values of one feature row.
    pub(crate) fn width(&self) -> usize {
        self.draft_model.meta.feature_width()
    }

    /// Features of positions `range`.
    pub(crate) fn rows(&self, range: std::ops::Range<usize>) -> &[f32] {
        &self.features[range.start * self.width()..range.end * self.width()]
    }

    /// Features of the first `n` positions in f64.
    pub(crate) fn exact(&self, n: usize) -> Mat {
        self.exact.gather(0..n)
    }

    /// Embedded block of a seed: `[block, n_embd]`.
    pub(crate) fn block(&self, seed: TokenId) -> Vec<f32> {
        let c = &self.draft.oracle.config;
        let embed = self.target.model.tensor("token_embd.weight").unwrap();
        let ids = std::iter::once(seed).chain(std::iter::repeat_n(c.mask, c.block - 1));
        ids.flat_map(|id| embed.row(id as usize).to_vec()).collect()
    }

    pub(crate) fn cpu_target(&self) -> CpuTarget {
        CpuTarget::new(Arc::clone(&self.model), options()).unwrap()
    }

    pub(crate) fn backbone(&self) -> LocalBackbone {
        backbone_of(&self.draft_model)
    }

    pub(crate) fn drafter(&self, target: &CpuTarget) -> DsparkDrafter<LocalBackbone> {
        let (model, pool) = (Arc::clone(&self.draft_model), Arc::clone(target.pool()));
        DsparkDrafter::new(model, self.backbone(), target.info(), pool).unwrap()
    }
}

pub(crate) fn options() -> Options {
    Options {
        n_ctx: 1024,
        span_max: 1024,
        n_seq_max: 8,
        kv_sim: false,
        threads: 2,
        ..Options::default()
    }
}

pub(crate) fn backbone_of(model: &Arc<DraftModel>) -> LocalBackbone {
    let options = backbone::Options {
        n_seq_max: 8,
        ..backbone::Options::default()
    };
    LocalBackbone::new(Arc::clone(model), Arc::new(Pool::new(2)), options).unwrap()
}

/// The toy drafter with matrices of int8 blocks: activations are quantised.
pub(crate) fn quantised() -> Arc<DraftModel> {
    static MODEL: OnceLock<Arc<DraftModel>> = OnceLock::new();
    let load = || {
        let mut memory = Memory::draft(&toy().draft.oracle);
        memory.format = Format::Q8_0;
        Arc::new(DraftModel::load(&memory).unwrap())
    };
    Arc::clone(MODEL.get_or_init(load))
}

pub(crate) fn mat(values: &[f32], cols: usize) -> Mat {
    Mat {
        rows: values.len() / cols,
        cols,
        data: values.iter().copied().map(f64::from).collect(),
    }
}

pub(crate) fn ask(seq: u32, pos: usize, seed: TokenId, depth: u32) -> Ask {
    Ask {
        seq: SeqId(seq),
        epoch: Epoch(0),
        pos: pos as Pos,
        ahead: 0,
        seed,
        depth,
    }
}

/// One block of one sequence, all its rows.
pub(crate) fn run(b: &mut impl Backbone, seq: u32, pos: usize, block: &[f32]) -> DraftRows {
    let ticket = b.submit(&[ask(seq, pos, 0, 16)], block).unwrap();
    b.poll(ticket, None).unwrap()
}

pub(crate) fn observe(b: &mut impl Backbone, seq: u32, pos: usize, rows: &[f32]) {
    b.observe(SeqId(seq), pos as Pos, rows).unwrap();
}

/// What a pass over one span answers.
pub(crate) struct Pass {
    pub(crate) logits: Vec<f32>,
    pub(crate) features: Vec<f32>,
}

/// Runs a span without committing it.
pub(crate) fn pass(t: &mut CpuTarget, seq: SeqId, tokens: &[TokenId], tap: &Tap) -> Pass {
    let span = Span {
        seq,
        pos: t.pos(seq).unwrap(),
        range: 0..tokens.len(),
        out: Out::All,
        want: Want::Logits,
        tap: tap.clone(),
    };
    let ticket = t.submit(tokens, &[span]).unwrap();
    let rows = t.wait(ticket, None).unwrap();
    Pass {
        logits: rows.logits.clone(),
        features: rows.features.clone(),
    }
}

/// Bits of a list of floats.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}
