//! The layers as launches, in the order of `CpuTarget`. Every shape follows from the number of tokens and from
//! `bound`; positions, tokens and places are read from the inputs on the device.

mod attention;
mod head;
mod moe;
mod streams;

use device::driver::Driver;
use ds4_kernels::KernelError;
use ds4_kernels::launch::{hc, head as token};

use fpx_quant::Format;

use super::arena::Slot;
use super::gpu::Gpu;
use super::inputs::Inputs;
use super::products::Input;
use super::scratch::Scratch;
use super::state::State;
use super::weights::{Layer, Weights};
use crate::meta::{Ds4Meta, Ratio};
pub(crate) use streams::Streams;

/// A part of a pass.
#[derive(Debug)]
pub(crate) struct Pass<'a, R: Driver> {
    pub(crate) gpu: &'a mut Gpu<R>,
    pub(crate) meta: &'a Ds4Meta,
    pub(crate) state: &'a State,
    pub(crate) scratch: &'a Scratch,
    pub(crate) inputs: &'a Inputs,
    /// Every position is below it: bounds key lists and scores.
    pub(crate) bound: usize,
    pub(crate) kv_sim: bool,
    /// Where the streams stand; a pass begins with the default.
    pub(crate) streams: Streams,
    /// Who says which rows a token reads.
    pub(crate) lists: KeysFrom,
}

/// Where the key lists of a pass come from.
#[derive(Debug)]
pub(crate) enum KeysFrom {
    /// Positions and scores. Kinds of layers whose lists stand for the rest of the pass; a pass begins with none.
    Positions(Vec<Ratio>),
    /// The caller: they stand in the scratch, for all tokens.
    Caller,
}

/// A span's tokens and the layers it wants to see.
#[derive(Clone, Debug)]
pub(crate) struct Tapped {
    pub(crate) tokens: std::ops::Range<usize>,
    /// `[tokens, layers, d]` f32.
    pub(crate) out: Slot,
    /// Layers in the order of their features.
    pub(crate) layers: Vec<usize>,
}

impl<R: Driver> Pass<'_, R> {
    pub(super) fn n(&self) -> usize {
        self.inputs.n
    }

    /// Embedding where the model begins, the layers, features. Where others follow elsewhere, the streams stand in the
    /// scratch's `x` afterwards; where others came before, they do so now.
    ///
    /// # Errors
    /// `Shape`, `Device`.
    pub(crate) fn layers(&mut self, w: &Weights, tapped: &[Tapped]) -> Result<(), KernelError> {
        if let Some(e) = &w.embed {
            self.enter(e.format, e.rows, e.slot)?;
        }
        for (at, layer) in w.layers.iter().enumerate() {
            self.layer(at, layer)?;
            for t in tapped {
                self.tap(w.first + at, t)?;
            }
        }
        match w.tail {
            Some(_) => self.settle(),
            None => self.leave_stage(),
        }
    }

    /// Every token's four streams are its row of a table.
    ///
    /// # Errors
    /// `Format`, `Shape`, `Device`.
    pub(crate) fn enter(
        &mut self,
        format: Format,
        rows: usize,
        table: Slot,
    ) -> Result<(), KernelError> {
        let (n, d) = (self.n(), self.meta.n_embd);
        let call = token::embed(format, rows, d, n, hc::STREAMS)?;
        let x = Input::new(self.scratch.x, n).rows.x;
        self.gpu.put(&call, &[table, self.inputs.tokens, x])
    }

    /// One layer; `at`: its place among those here.
    ///
    /// # Errors
    /// `Shape`, `Device`.
    pub(crate) fn layer(&mut self, at: usize, layer: &Layer) -> Result<(), KernelError> {
        let blocks = layer.attn.reads_blocks();
        let mut h = self.pre(&layer.hc_attn, layer.attn.norm, blocks)?;
        self.attention(at, layer, &mut h)?;
        self.leave(0);
        let blocks = layer.moe.reads_blocks();
        let mut h = self.pre(&layer.hc_ffn, layer.moe.norm, blocks)?;
        self.experts(at, &layer.moe, &mut h)?;
        self.leave(self.meta.n_used);
        Ok(())
    }

    /// The mean of the streams after layer `at` for a span that wants it.
    fn tap(&mut self, at: usize, t: &Tapped) -> Result<(), KernelError> {
        let d = self.meta.n_embd;
        for place in (0..t.layers.len()).filter(|p| t.layers[*p] == at) {
            self.settle()?;
            let call = hc::tap(t.tokens.len(), d, t.layers.len(), place)?;
            let x = self.stream_rows().part(t.tokens.start, t.tokens.len()).x;
            self.gpu.put(&call, &[x, t.out])?;
        }
        Ok(())
    }
}
