//! All weights of the model, bound to their places (spec/ds4-architecture.md 1.4).

use engine_core::mutant::mutant;
use fpx_quant::Format;

use crate::error::LoadError;
use crate::meta::{Ds4Meta, Ratio};
use crate::source::Source;
use crate::tensor::{Binder, Tensor};

/// A hyper-connection site: the mixing matrix and its constants.
#[derive(Clone, Debug)]
pub struct HcSite {
    /// `[24, 4 * n_embd]` (`[4, ..]` for the final head).
    pub mix: Tensor,
    /// `[24]` or `[4]`.
    pub base: Vec<f32>,
    /// `[3]` or `[1]`.
    pub scale: Vec<f32>,
}

/// A compressor: keys and gates of `c * width` channels, c = 2 for the overlapping ratio.
#[derive(Clone, Debug)]
pub struct Compressor {
    /// `[c * width, n_embd]`.
    pub key: Tensor,
    /// `[c * width, n_embd]`.
    pub gate: Tensor,
    /// `[r, c * width]`: added to the gate by position mod r.
    pub ape: Vec<f32>,
    /// `[width]`.
    pub norm: Vec<f32>,
}

/// The indexer of a sparse layer.
#[derive(Clone, Debug)]
pub struct Indexer {
    /// `[heads * dim, q_lora]`.
    pub q_b: Tensor,
    /// `[heads, n_embd]`.
    pub proj: Tensor,
    /// Width `dim`.
    pub compressor: Compressor,
}

/// How a layer routes.
#[derive(Clone, Debug)]
pub enum Routing {
    /// By score + bias, `[n_expert]`.
    TopK(Vec<f32>),
    /// By table, `[n_vocab, n_used]`.
    Table(Vec<u32>),
}

/// Attention weights of a layer, usable by a drafter's layers too.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Attention {
    pub norm: Vec<f32>,
    /// `[q_lora, n_embd]`.
    pub q_a: Tensor,
    pub q_a_norm: Vec<f32>,
    /// `[n_head * head_dim, q_lora]`.
    pub q_b: Tensor,
    /// `[head_dim, n_embd]`.
    pub kv: Tensor,
    pub kv_norm: Vec<f32>,
    /// `[n_head]`.
    pub sinks: Vec<f32>,
    /// `[o_groups * o_lora, group_dim]`, group g's rows first to last.
    pub o_a: Tensor,
    /// `[n_embd, o_groups * o_lora]`.
    pub o_b: Tensor,
}

/// Mixture-of-experts weights of a layer.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Moe {
    pub norm: Vec<f32>,
    /// `[n_expert, n_embd]`.
    pub router: Tensor,
    pub routing: Routing,
    /// `[n_expert * n_ff, n_embd]`.
    pub gate: Tensor,
    pub up: Tensor,
    /// `[n_expert * n_embd, n_ff]`.
    pub down: Tensor,
    /// Shared expert, `[n_ff, n_embd]`.
    pub shared_gate: Tensor,
    pub shared_up: Tensor,
    /// `[n_embd, n_ff]`.
    pub shared_down: Tensor,
    pub clamp_routed: f32,
    pub clamp_shared: f32,
}

/// One layer.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Layer {
    pub ratio: Ratio,
    pub hc_attn: HcSite,
    pub attn: Attention,
    pub compressor: Option<Compressor>,
    pub indexer: Option<Indexer>,
    pub hc_ffn: HcSite,
    pub moe: Moe,
}

/// The whole target.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Weights {
    pub layers: Vec<Layer>,
    /// `[n_vocab, n_embd]`.
    pub embed: Tensor,
    pub output_norm: Vec<f32>,
    /// `[n_vocab, n_embd]`.
    pub head: Tensor,
    pub hc_head: HcSite,
    /// Tensors bound.
    pub n_tensors: usize,
}

impl Weights {
    /// Binds every tensor the metadata calls for, exactly once.
    ///
    /// # Errors
    /// `MissingTensor`, `UnknownTensors`, `Shape`, `Format`, `Value`.
    pub fn bind(source: &dyn Source, m: &Ds4Meta) -> Result<Self, LoadError> {
        let mut b = Binder::new(source, wanted(m));
        let n = m.n_embd;
        let embed = b.matrix("token_embd.weight", &[n, m.n_vocab])?;
        let output_norm = b.floats("output_norm.weight", &[n])?;
        let head = b.matrix("output.weight", &[n, m.n_vocab])?;
        let hc_head = bind_hc(&mut b, "output_hc", n, 4, 1)?;
        let layers = (0..m.n_layer)
            .map(|l| bind_layer(&mut b, m, l))
            .collect::<Result<_, _>>()?;
        let ignored = |name: &str| is_mtp(name, source, m.n_layer);
        let n_tensors = b.finish(ignored)?;
        Ok(Self {
            layers,
            embed,
            output_norm,
            head,
            hc_head,
            n_tensors,
        })
    }
}

impl Weights {
    /// All matrices; vectors and routing tables were decoded when they were bound.
    pub(crate) fn tensors(&self) -> Vec<&Tensor> {
        let mut all = vec![&self.embed, &self.head, &self.hc_head.mix];
        for l in &self.layers {
            let (a, m) = (&l.attn, &l.moe);
            all.extend([&l.hc_attn.mix, &l.hc_ffn.mix]);
            all.extend([&a.q_a, &a.q_b, &a.kv, &a.o_a, &a.o_b]);
            all.extend([&m.router, &m.gate, &m.up, &m.down]);
            all.extend([&m.shared_gate, &m.shared_up, &m.shared_down]);
            let indexer = l.indexer.as_ref();
            all.extend(indexer.iter().flat_map(|i| [&i.q_b, &i.proj]));
            let compressors = [l.compressor.as_ref(), indexer.map(|i| &i.compressor)];
            let compressors = compressors.into_iter().flatten();
            all.extend(compressors.flat_map(|c| [&c.key, &c.gate]));
        }
        all
    }
}

/// Whether a tensor belongs to an MTP block, which the target ignores (ruling D22): its own prefix,
/// or the block after the last layer if that holds MTP tensors. A plain extra block is unknown.
fn is_mtp(name: &str, source: &dyn Source, n_layer: usize) -> bool {
    name.starts_with("mtp.")
        || (name.starts_with(&format!("blk.{n_layer}.")) && crate::meta::has_nextn(source, n_layer))
}

/// Tensors of a model with these hyper-parameters: 6 global, 24 a layer, 4 a compressor, 6 more an
/// indexer; a router bias or a table each.
fn wanted(m: &Ds4Meta) -> usize {
    let per_layer = |r: &Ratio| match r {
        Ratio::None => 24,
        Ratio::Sparse => 24 + 4 + 6,
        Ratio::Heavy(_) => 24 + 4,
    };
    6 + m.ratios.iter().map(per_layer).sum::<usize>()
}

/// Binds `PREFIX_fn`, `_base`, `_scale` with `rows` mixing rows.
///
/// # Errors
/// As [`Binder::matrix`].
pub fn bind_hc(
    b: &mut Binder<'_>,
    prefix: &str,
    n_embd: usize,
    rows: usize,
    scales: usize,
) -> Result<HcSite, LoadError> {
    Ok(HcSite {
        mix: b.matrix(&format!("{prefix}_fn.weight"), &[4 * n_embd, rows])?,
        base: b.floats(&format!("{prefix}_base.weight"), &[rows])?,
        scale: b.floats(&format!("{prefix}_scale.weight"), &[scales])?,
    })
}

fn bind_layer(b: &mut Binder<'_>, m: &Ds4Meta, l: usize) -> Result<Layer, LoadError> {
    let ratio = m.ratios[l];
    let blk = format!("blk.{l}.");
    let compressor = match ratio {
        Ratio::None => None,
        _ => Some(bind_compressor(
            b,
            &format!("{blk}attn_compressor"),
            m.n_embd,
            m.head_dim,
            ratio,
        )?),
    };
    let indexer = if ratio == Ratio::Sparse {
        let width = m.index_heads * m.index_dim;
        Some(Indexer {
            q_b: b.matrix(&format!("{blk}indexer.attn_q_b.weight"), &[m.q_lora, width])?,
            proj: b.matrix(
                &format!("{blk}indexer.proj.weight"),
                &[m.n_embd, m.index_heads],
            )?,
            compressor: bind_compressor(
                b,
                &format!("{blk}indexer_compressor"),
                m.n_embd,
                m.index_dim,
                ratio,
            )?,
        })
    } else {
        None
    };
    Ok(Layer {
        ratio,
        hc_attn: bind_hc(b, &format!("{blk}hc_attn"), m.n_embd, 24, 3)?,
        attn: bind_attention(b, m, &blk)?,
        compressor,
        indexer,
        hc_ffn: bind_hc(b, &format!("{blk}hc_ffn"), m.n_embd, 24, 3)?,
        moe: bind_moe(b, m, &blk, l)?,
    })
}

fn bind_compressor(
    b: &mut Binder<'_>,
    prefix: &str,
    n_embd: usize,
    width: usize,
    ratio: Ratio,
) -> Result<Compressor, LoadError> {
    let r = ratio.tokens().unwrap_or(1) as usize;
    let wide = if ratio == Ratio::Sparse {
        2 * width
    } else {
        width
    };
    Ok(Compressor {
        key: b.matrix(&format!("{prefix}_kv.weight"), &[n_embd, wide])?,
        gate: b.matrix(&format!("{prefix}_gate.weight"), &[n_embd, wide])?,
        ape: b.floats(&format!("{prefix}_ape.weight"), &[wide, r])?,
        norm: b.floats(&format!("{prefix}_norm.weight"), &[width])?,
    })
}

/// Binds the attention of block `blk` (`"blk.N."`).
///
/// # Errors
/// As [`Binder::matrix`].
pub fn bind_attention(b: &mut Binder<'_>, m: &Ds4Meta, blk: &str) -> Result<Attention, LoadError> {
    let (heads, low) = (m.n_head * m.head_dim, m.o_groups * m.o_lora);
    let name = |s: &str| format!("{blk}{s}.weight");
    Ok(Attention {
        norm: b.floats(&name("attn_norm"), &[m.n_embd])?,
        q_a: b.matrix(&name("attn_q_a"), &[m.n_embd, m.q_lora])?,
        q_a_norm: b.floats(&name("attn_q_a_norm"), &[m.q_lora])?,
        q_b: b.matrix(&name("attn_q_b"), &[m.q_lora, heads])?,
        kv: b.matrix(&name("attn_kv"), &[m.n_embd, m.head_dim])?,
        kv_norm: b.floats(&name("attn_kv_a_norm"), &[m.head_dim])?,
        sinks: b.floats(&name("attn_sinks"), &[m.n_head])?,
        o_a: b.matrix(&name("attn_output_a"), &[heads / m.o_groups, low])?,
        o_b: b.matrix(&name("attn_output_b"), &[low, m.n_embd])?,
    })
}

/// Binds the experts of block `blk`; layer `l` decides between table and score routing.
///
/// # Errors
/// As [`Binder::matrix`], and `Format` for a router of less than 8 bits.
pub fn bind_moe(b: &mut Binder<'_>, m: &Ds4Meta, blk: &str, l: usize) -> Result<Moe, LoadError> {
    let (n, ff, e) = (m.n_embd, m.n_ff, m.n_expert);
    let name = |s: &str| format!("{blk}{s}.weight");
    let router = b.matrix(&name("ffn_gate_inp"), &[n, e])?;
    if bits_per_weight(router.format) < 8.0 && !mutant(32) {
        let expected = "at least 8 bits a weight (selection margins are small)".to_owned();
        return Err(b.bad_format(&router.name, expected, router.format));
    }
    let routing = if l < m.n_hash {
        Routing::Table(b.ids(&name("ffn_gate_tid2eid"), &[m.n_used, m.n_vocab], e)?)
    } else {
        Routing::TopK(b.floats(&format!("{blk}exp_probs_b.bias"), &[e])?)
    };
    Ok(Moe {
        norm: b.floats(&name("ffn_norm"), &[n])?,
        router,
        routing,
        gate: b.matrix(&name("ffn_gate_exps"), &[n, ff, e])?,
        up: b.matrix(&name("ffn_up_exps"), &[n, ff, e])?,
        down: b.matrix(&name("ffn_down_exps"), &[ff, n, e])?,
        shared_gate: b.matrix(&name("ffn_gate_shexp"), &[n, ff])?,
        shared_up: b.matrix(&name("ffn_up_shexp"), &[n, ff])?,
        shared_down: b.matrix(&name("ffn_down_shexp"), &[ff, n])?,
        clamp_routed: m.clamp_routed[l],
        clamp_shared: m.clamp_shared[l],
    })
}

fn bits_per_weight(format: Format) -> f64 {
    8.0 * format.block_bytes() as f64 / format.block_elems() as f64
}
