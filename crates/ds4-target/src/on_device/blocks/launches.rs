//! The launches of blocks: rows through all of them, features into their stores.

use device::driver::Driver;
use ds4_kernels::KernelError;
use ds4_kernels::launch::rows::{self, Row, Tokens};
use ds4_kernels::launch::{hc, norm};
use fpx_quant::Format;

use super::sent::{SentFeatures, Slots};
use crate::meta::Ds4Meta;
use crate::on_device::arena::Slot;
use crate::on_device::gpu::Gpu;
use crate::on_device::inputs::Inputs;
use crate::on_device::layers::{KeysFrom, Pass, Streams};
use crate::on_device::products::Input;
use crate::on_device::scratch::Scratch;
use crate::on_device::state::State;
use crate::on_device::weights::Blocks;

/// A pass whose lists the caller wrote.
pub(super) fn pass<'a, R: Driver>(
    gpu: &'a mut Gpu<R>,
    meta: &'a Ds4Meta,
    state: &'a State,
    scratch: &'a Scratch,
    inputs: &'a Inputs,
) -> Pass<'a, R> {
    Pass {
        gpu,
        meta,
        state,
        scratch,
        inputs,
        bound: meta.window,
        kv_sim: false,
        streams: Streams::default(),
        lists: KeysFrom::Caller,
    }
}

/// All blocks over rows, and the merge behind them.
pub(super) fn stages<R: Driver>(
    pass: &mut Pass<'_, R>,
    w: &Blocks,
    slots: &Slots,
    rows: Slot,
) -> Result<(), KernelError> {
    let (n, d) = (pass.inputs.n, pass.meta.n_embd);
    pass.enter(Format::F32, n, rows)?;
    for (at, layer) in w.layers.iter().enumerate() {
        pass.layer(at, layer)?;
    }
    let mut x = pass.merged()?;
    let site = &w.hc_head;
    pass.gpu.product(&site.mix, &mut x, slots.head_m)?;
    let beside = hc::Beside { u: true, a8: false };
    let call = hc::head(&pass.site(n), beside)?;
    let row = 4 * hc::STREAMS;
    let (m, mix) = (slots.head_m.rows(0, n, row), slots.head_mix.rows(0, n, row));
    let [before, after] = [0, n].map(|first| slots.out.rows(first, n, 4 * d));
    let given = [
        x.rows.x,
        m,
        site.base,
        site.scale,
        w.output_norm,
        mix,
        before,
        after,
    ];
    pass.gpu.put(&call, &given)
}

/// Features to context inputs, and those to key rows of every block.
pub(super) fn context_rows<R: Driver>(
    gpu: &mut Gpu<R>,
    m: &Ds4Meta,
    w: &Blocks,
    state: &State,
    slots: &Slots,
    sent: &SentFeatures,
    n: usize,
) -> Result<(), KernelError> {
    let (width, d) = (w.projection.k, m.n_embd);
    let blocks = w.projection.tiles.is_some();
    let mut features = Input::made(slots.features, n, blocks);
    let call = norm::rms(n, width, false, blocks, m.rms_eps)?;
    let mut given = vec![sent.features, features.rows.x];
    given.extend(features.block_slots());
    gpu.put(&call, &given)?;
    gpu.product(&w.projection, &mut features, slots.raw)?;
    let blocks = w.layers.iter().any(|l| l.attn.kv.tiles.is_some());
    let mut context = Input::made(slots.context, n, blocks);
    let call = norm::rms(n, d, true, blocks, m.rms_eps)?;
    let raw = slots.raw.rows(0, n, 4 * d);
    let mut given = vec![raw, w.projection_norm, context.rows.x];
    given.extend(context.block_slots());
    gpu.put(&call, &given)?;
    let row = Row {
        dim: m.head_dim,
        n_rot: m.n_rot,
    };
    let tokens = Tokens {
        n,
        heads: 0,
        rows: state.ring,
        packed: false,
        index: None,
    };
    let call = rows::heads_and_keys(&row, &tokens, m.rms_eps)?;
    for (layer, state) in w.layers.iter().zip(&state.layers) {
        gpu.product(&layer.attn.kv, &mut context, slots.kv)?;
        let kv = slots.kv.rows(0, n, 4 * m.head_dim);
        let none = kv.part(0, 0);
        let norm = layer.attn.kv_norm;
        gpu.put(
            &call,
            &[none, kv, norm, sent.angles, sent.places, state.raw],
        )?;
    }
    Ok(())
}
