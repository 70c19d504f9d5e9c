//! The weights on a device: where each tensor stands and in which order its bytes are.
//!
//! Matrices of blocks stand in tile order (`launch::tiled`), floats and the embedding table in file order.
//! A format without a kernel is refused here, by tensor and type.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use ds4_kernels::KernelError;
use ds4_kernels::cpu::synth::Made;
use ds4_kernels::launch::tiled::Stack;
use fpx_quant::Format;

use super::arena::{Arena, Layout, Slot};
use super::blocks::BlockParts;
use crate::blocks::Block;
use crate::error::LoadError;
use crate::meta::{Ds4Meta, Ratio};
use crate::tensor::Tensor;
use crate::weights::{self as host, Routing as HostRouting};

/// A matrix, or a stack of equal ones.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    pub(crate) name: Arc<str>,
    pub(crate) format: Format,
    /// Rows of one matrix.
    pub(crate) rows: usize,
    pub(crate) k: usize,
    /// Tile order; `None`: file order.
    pub(crate) tiles: Option<Stack>,
    pub(crate) slot: Slot,
    /// Bytes in the file: what tile order pads is not counted as read, so that devices compare.
    pub(crate) bytes: u64,
}

/// A hyper-connection site.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) mix: Matrix,
    pub(crate) base: Slot,
    pub(crate) scale: Slot,
}

#[derive(Clone, Debug)]
pub(crate) struct Compressor {
    pub(crate) key: Matrix,
    pub(crate) gate: Matrix,
    pub(crate) ape: Slot,
    pub(crate) norm: Slot,
}

#[derive(Clone, Debug)]
pub(crate) struct Indexer {
    pub(crate) q_b: Matrix,
    pub(crate) proj: Matrix,
    pub(crate) compressor: Compressor,
}

#[derive(Clone, Debug)]
pub(crate) struct Attention {
    pub(crate) norm: Slot,
    pub(crate) q_a: Matrix,
    pub(crate) q_a_norm: Slot,
    pub(crate) q_b: Matrix,
    pub(crate) kv: Matrix,
    pub(crate) kv_norm: Slot,
    pub(crate) sinks: Slot,
    /// A matrix a group of heads.
    pub(crate) o_a: Matrix,
    pub(crate) o_b: Matrix,
}

impl Attention {
    /// Whether a matrix that every layer has takes the sublayer's input in blocks.
    pub(crate) fn reads_blocks(&self) -> bool {
        self.q_a.tiles.is_some() || self.kv.tiles.is_some()
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Routing {
    TopK(Slot),
    Table(Slot),
}

#[derive(Clone, Debug)]
pub(crate) struct Moe {
    pub(crate) norm: Slot,
    pub(crate) router: Matrix,
    pub(crate) routing: Routing,
    /// A matrix an expert.
    pub(crate) gate: Matrix,
    pub(crate) up: Matrix,
    pub(crate) down: Matrix,
    pub(crate) shared_gate: Matrix,
    pub(crate) shared_up: Matrix,
    pub(crate) shared_down: Matrix,
    pub(crate) clamp_routed: f32,
    pub(crate) clamp_shared: f32,
}

impl Moe {
    /// Whether an expert takes the sublayer's input in blocks.
    pub(crate) fn reads_blocks(&self) -> bool {
        [&self.gate, &self.shared_gate]
            .iter()
            .any(|w| w.tiles.is_some())
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) ratio: Ratio,
    pub(crate) hc_attn: Site,
    pub(crate) attn: Attention,
    pub(crate) compressor: Option<Compressor>,
    pub(crate) indexer: Option<Indexer>,
    pub(crate) hc_ffn: Site,
    pub(crate) moe: Moe,
}

/// Consecutive layers, and what stands before the first and behind the last of the model.
#[derive(Clone, Debug)]
pub(crate) struct Weights {
    /// Number of the first layer.
    pub(crate) first: usize,
    pub(crate) layers: Vec<Layer>,
    /// Where the model begins. In file order: rows by token.
    pub(crate) embed: Option<Matrix>,
    /// Where it ends.
    pub(crate) tail: Option<Tail>,
}

impl Weights {
    /// The numbers of the layers.
    pub(crate) fn numbers(&self) -> Range<usize> {
        self.first..self.first + self.layers.len()
    }
}

/// What stands behind the last layer.
#[derive(Clone, Debug)]
pub(crate) struct Tail {
    pub(crate) output_norm: Slot,
    pub(crate) head: Matrix,
    pub(crate) hc_head: Site,
}

/// Blocks of window layers, what makes their context rows, and the merge behind them.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    pub(crate) projection: Matrix,
    pub(crate) projection_norm: Slot,
    pub(crate) layers: Vec<Layer>,
    pub(crate) hc_head: Site,
    pub(crate) output_norm: Slot,
}

/// What is uploaded into a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What<'a> {
    /// A tensor's bytes as they are.
    File(&'a Tensor),
    /// A tensor's matrices, put into tile order there.
    Tiles(&'a Tensor, Stack),
    Floats(&'a [f32]),
    Words(&'a [u32]),
}

impl What<'_> {
    /// Bytes in the order of the file.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::File(tensor) | Self::Tiles(tensor, _) => tensor.stored().len(),
            Self::Floats(values) => size_of_val(*values),
            Self::Words(values) => size_of_val(*values),
        }
    }

    /// What the bytes are made by, if a device can make them.
    pub(crate) fn made(&self) -> Option<&Made> {
        match self {
            Self::File(tensor) | Self::Tiles(tensor, _) => tensor.stored().made(),
            Self::Floats(_) | Self::Words(_) => None,
        }
    }

    /// A part of the bytes in the order of the file.
    pub(crate) fn part(&self, range: Range<usize>) -> Cow<'_, [u8]> {
        match self {
            Self::File(tensor) | Self::Tiles(tensor, _) => tensor.stored().part(range),
            Self::Floats(values) => Cow::Borrowed(&bytemuck::cast_slice(values)[range]),
            Self::Words(values) => Cow::Borrowed(&bytemuck::cast_slice(values)[range]),
        }
    }
}

/// Places every tensor of a model, without touching a device.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) layout: Layout,
    pub(crate) items: Vec<(Slot, What<'a>)>,
}

impl<'a> Plan<'a> {
    /// The places of the weights of some layers, with the embedding table before the model's first and the output
    /// matrix behind its last.
    ///
    /// # Errors
    /// `NoKernel`, `Kernel`.
    pub(crate) fn of(
        m: &Ds4Meta,
        w: &'a host::Weights,
        layers: &Range<usize>,
    ) -> Result<(Self, Weights), LoadError> {
        let mut plan = Self {
            layout: Layout::new(Arena::Weights),
            items: Vec::new(),
        };
        let p = &mut plan;
        let (begins, ends) = (layers.start == 0, layers.end == w.layers.len());
        let weights = Weights {
            first: layers.start,
            embed: begins.then(|| p.table(&w.embed)).transpose()?,
            tail: ends.then(|| p.tail(w)).transpose()?,
            layers: w.layers[layers.clone()]
                .iter()
                .map(|l| p.layer(m, l))
                .collect::<Result<_, _>>()?,
        };
        Ok((plan, weights))
    }

    fn tail(&mut self, w: &'a host::Weights) -> Result<Tail, LoadError> {
        Ok(Tail {
            output_norm: self.floats(&w.output_norm)?,
            head: self.matrix(&w.head, 1)?,
            hc_head: self.site(&w.hc_head)?,
        })
    }

    /// Bytes of everything that is uploaded, as it stands there.
    pub(crate) fn bytes(&self) -> u64 {
        self.items.iter().map(|(slot, _)| slot.len).sum()
    }

    /// The places of blocks and of what stands around them.
    ///
    /// # Errors
    /// `NoKernel`, `Kernel`.
    pub(crate) fn of_blocks(
        m: &Ds4Meta,
        parts: &BlockParts<'a>,
    ) -> Result<(Self, Blocks), LoadError> {
        let mut plan = Self {
            layout: Layout::new(Arena::Weights),
            items: Vec::new(),
        };
        let p = &mut plan;
        let blocks = Blocks {
            projection: p.matrix(parts.projection, 1)?,
            projection_norm: p.floats(parts.projection_norm)?,
            hc_head: p.site(parts.hc_head)?,
            output_norm: p.floats(parts.output_norm)?,
            layers: parts
                .blocks
                .iter()
                .map(|b| p.block(m, b))
                .collect::<Result<_, _>>()?,
        };
        Ok((plan, blocks))
    }

    fn block(&mut self, m: &Ds4Meta, b: &'a Block) -> Result<Layer, LoadError> {
        Ok(Layer {
            ratio: Ratio::None,
            hc_attn: self.site(&b.hc_attn)?,
            attn: self.attention(m, &b.attn)?,
            compressor: None,
            indexer: None,
            hc_ffn: self.site(&b.hc_ffn)?,
            moe: self.moe(m, &b.moe)?,
        })
    }

    /// Bytes of the largest single matrix in file order: what a load needs room for on the device.
    pub(crate) fn largest_matrix(&self) -> u64 {
        let raw = |what: &What<'_>| match what {
            What::Tiles(t, s) => (t.stored().len() / s.matrices) as u64,
            _ => 0,
        };
        self.items.iter().map(|(_, w)| raw(w)).max().unwrap_or(0)
    }

    fn floats(&mut self, values: &'a [f32]) -> Result<Slot, LoadError> {
        let slot = self.layout.take(&[values.len(), 4])?;
        self.items.push((slot, What::Floats(values)));
        Ok(slot)
    }

    /// A table of rows by token.
    pub(crate) fn table(&mut self, t: &'a Tensor) -> Result<Matrix, LoadError> {
        ds4_kernels::launch::head::embed(t.format, t.rows, t.k, 1, 4)
            .map_err(|e| no_kernel(t, e))?;
        self.file(t, 1)
    }

    fn file(&mut self, t: &'a Tensor, matrices: usize) -> Result<Matrix, LoadError> {
        let slot = self.layout.take(&[t.stored().len()])?;
        self.items.push((slot, What::File(t)));
        Ok(Matrix {
            name: Arc::clone(&t.name),
            format: t.format,
            rows: t.rows / matrices,
            k: t.k,
            tiles: None,
            slot,
            bytes: t.stored().len() as u64,
        })
    }

    /// `matrices` matrices of a tensor; floats stand in file order.
    pub(crate) fn matrix(&mut self, t: &'a Tensor, matrices: usize) -> Result<Matrix, LoadError> {
        if t.format.is_float() {
            return self.file(t, matrices);
        }
        self.tiles(t, matrices)
    }

    fn tiles(&mut self, t: &'a Tensor, matrices: usize) -> Result<Matrix, LoadError> {
        let stack = Stack {
            format: t.format,
            matrices,
            rows: t.rows / matrices,
            k: t.k,
        };
        let bytes = stack.packed_bytes().map_err(|e| no_kernel(t, e))?;
        let slot = self
            .layout
            .take(&[usize::try_from(bytes).unwrap_or(usize::MAX)])?;
        self.items.push((slot, What::Tiles(t, stack)));
        Ok(Matrix {
            name: Arc::clone(&t.name),
            format: t.format,
            rows: stack.rows,
            k: t.k,
            tiles: Some(stack),
            slot,
            bytes: t.stored().len() as u64,
        })
    }

    fn site(&mut self, site: &'a host::HcSite) -> Result<Site, LoadError> {
        Ok(Site {
            mix: self.matrix(&site.mix, 1)?,
            base: self.floats(&site.base)?,
            scale: self.floats(&site.scale)?,
        })
    }

    fn compressor(&mut self, c: &'a host::Compressor) -> Result<Compressor, LoadError> {
        Ok(Compressor {
            key: self.matrix(&c.key, 1)?,
            gate: self.matrix(&c.gate, 1)?,
            ape: self.floats(&c.ape)?,
            norm: self.floats(&c.norm)?,
        })
    }

    fn attention(&mut self, m: &Ds4Meta, a: &'a host::Attention) -> Result<Attention, LoadError> {
        Ok(Attention {
            norm: self.floats(&a.norm)?,
            q_a: self.matrix(&a.q_a, 1)?,
            q_a_norm: self.floats(&a.q_a_norm)?,
            q_b: self.matrix(&a.q_b, 1)?,
            kv: self.matrix(&a.kv, 1)?,
            kv_norm: self.floats(&a.kv_norm)?,
            sinks: self.floats(&a.sinks)?,
            o_a: self.matrix(&a.o_a, m.o_groups)?,
            o_b: self.matrix(&a.o_b, 1)?,
        })
    }

    fn moe(&mut self, m: &Ds4Meta, w: &'a host::Moe) -> Result<Moe, LoadError> {
        let routing = match &w.routing {
            HostRouting::TopK(bias) => Routing::TopK(self.floats(bias)?),
            HostRouting::Table(table) => {
                let slot = self.layout.take(&[table.len(), 4])?;
                self.items.push((slot, What::Words(table)));
                Routing::Table(slot)
            }
        };
        Ok(Moe {
            norm: self.floats(&w.norm)?,
            router: self.matrix(&w.router, 1)?,
            routing,
            gate: self.tiles(&w.gate, m.n_expert)?,
            up: self.tiles(&w.up, m.n_expert)?,
            down: self.tiles(&w.down, m.n_expert)?,
            shared_gate: self.matrix(&w.shared_gate, 1)?,
            shared_up: self.matrix(&w.shared_up, 1)?,
            shared_down: self.matrix(&w.shared_down, 1)?,
            clamp_routed: w.clamp_routed,
            clamp_shared: w.clamp_shared,
        })
    }

    fn layer(&mut self, m: &Ds4Meta, l: &'a host::Layer) -> Result<Layer, LoadError> {
        let compressor = l.compressor.as_ref().map(|c| self.compressor(c));
        let compressor = compressor.transpose()?;
        let indexer = match &l.indexer {
            None => None,
            Some(i) => Some(Indexer {
                q_b: self.matrix(&i.q_b, 1)?,
                proj: self.matrix(&i.proj, 1)?,
                compressor: self.compressor(&i.compressor)?,
            }),
        };
        Ok(Layer {
            ratio: l.ratio,
            hc_attn: self.site(&l.hc_attn)?,
            attn: self.attention(m, &l.attn)?,
            compressor,
            indexer,
            hc_ffn: self.site(&l.hc_ffn)?,
            moe: self.moe(m, &l.moe)?,
        })
    }
}

fn no_kernel(t: &Tensor, why: KernelError) -> LoadError {
    LoadError::NoKernel {
        tensor: t.name.to_string(),
        got: t.format.to_string(),
        why: why.to_string(),
    }
}
