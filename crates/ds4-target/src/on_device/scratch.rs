//! What a pass writes on its way: one slot a buffer, for the most tokens of a part. Attention and the head take
//! theirs in slices, so that long contexts and vocabularies do not multiply with the tokens.

use ds4_kernels::KernelError;
use ds4_kernels::launch::a8::META_BYTES;
use ds4_kernels::launch::attend::{self, CHUNK};
use ds4_kernels::launch::hc::{FEW, SITE, segments};
use ds4_kernels::launch::head::PARTS;
use ds4_kernels::launch::route::UNIT_BYTES;

use super::arena::{Arena, Layout, Slot};
use super::inputs::{Inputs, kinds};
use super::products::Rows;
use crate::meta::{Ds4Meta, Ratio};
use crate::target::Options;

/// Bytes that the partial sums of attention may take.
const PARTIALS: usize = 64 << 20;
/// Rows of logits at a time.
const HEAD_ROWS: usize = 16;
/// Most layers that a span may tap.
pub(crate) const TAPS: usize = 8;

/// Sizes that follow from model and options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Most tokens of a part of a pass.
    pub(crate) tokens: usize,
    /// Positions whose attention runs at a time.
    pub(crate) positions: usize,
    /// Values of their partial sums, for a chunk and head.
    pub(crate) values: usize,
    /// Rows of logits at a time.
    pub(crate) head: usize,
}

/// The longest key list of a kind of layer for queries below `bound`, in whole chunks.
pub(crate) fn list_stride(m: &Ds4Meta, ratio: Ratio, bound: usize) -> usize {
    let rows = ratio.tokens().map_or(0, |r| bound / r as usize);
    let rows = match ratio {
        Ratio::Sparse => rows.min(m.index_top_k),
        _ => rows,
    };
    (bound.min(m.window) + rows).next_multiple_of(CHUNK)
}

impl Sizes {
    pub(crate) fn new(m: &Ds4Meta, o: &Options) -> Self {
        let verify = o.n_seq_max.saturating_mul(o.verify_max);
        let tokens = o.span_max.max(verify.min(o.span_max.max(512)));
        let (positions, values) = Self::attention(m, o, tokens);
        Self {
            tokens,
            positions,
            values,
            head: HEAD_ROWS.min(tokens),
        }
    }

    /// Positions at a time, and the values that they need: more of them fit where each needs less, but a last
    /// few may be left that need as much as ever.
    fn attention(m: &Ds4Meta, o: &Options, tokens: usize) -> (usize, usize) {
        let heads = Self::longest(m, o.n_ctx) / CHUNK * m.n_head;
        let fit = |entries: usize| (PARTIALS / (heads * (entries + 2) * 4).max(1)).clamp(1, tokens);
        let many = |positions| o.kv_sim && attend::many(positions, m.head_dim, m.n_rot);
        let [wide, few] = [true, false].map(|many| fit(attend::entries(many, m.head_dim)));
        if !many(wide) {
            return (few, few * m.head_dim);
        }
        let left = (1..=wide).take_while(|p| !many(*p)).last().unwrap_or(0);
        (wide, (wide * CHUNK).max(left * m.head_dim))
    }

    fn longest(m: &Ds4Meta, n_ctx: usize) -> usize {
        let strides = m.ratios.iter().map(|r| list_stride(m, *r, n_ctx));
        strides.max().unwrap_or(CHUNK)
    }
}

/// The buffers. `n` tokens, `s` slots of experts (`n * used`), `p` positions, `h` rows of the head.
#[derive(Clone, Debug)]
pub(crate) struct Scratch {
    pub(crate) sizes: Sizes,
    pub(crate) layout: Layout,
    /// Room for [`Inputs`].
    pub(crate) inputs: Slot,
    /// `[n, 4, d]` streams, and their blocks.
    pub(crate) x: Rows,
    /// The same of few tokens: dots that merge a sublayer read one and write the other. The blocks are `x`'s.
    pub(crate) x_other: Rows,
    /// `[n, 24]` dots and weights of a site; `[n, segments, 25]` dots in segments.
    pub(crate) m: Slot,
    pub(crate) m_part: Slot,
    pub(crate) mix: Slot,
    /// `[n, d]` normed input, and output of a sublayer (of the shared expert).
    pub(crate) h: Rows,
    pub(crate) block: Slot,
    /// `[n, q_lora]` before and after the norm.
    pub(crate) qa: Slot,
    pub(crate) qr: Rows,
    /// `[n, heads, head_dim]`.
    pub(crate) q: Slot,
    /// `[n, head_dim]`.
    pub(crate) kv: Slot,
    /// Key and gate, `[n, wide]` each, of both compressors.
    pub(crate) comp: [Slot; 2],
    pub(crate) index: [Slot; 2],
    /// Indexer: `[n, heads]` weights, `[n, heads, dim]` queries, codes, `[n, heads, dim / 32]` scales.
    pub(crate) iw: Slot,
    pub(crate) iq: Slot,
    pub(crate) iq_twice: Slot,
    pub(crate) iq_scale: Slot,
    /// `[p, rows]` scores, lists of every kind of layer, `[p, chunks, heads]` peaks and sums, and
    /// `[p, chunks, heads, dim]` values or, of many positions, `[p, chunks, 128, heads]` weights.
    pub(crate) scores: Slot,
    pub(crate) lists: Vec<KeyLists>,
    pub(crate) peaks: Slot,
    pub(crate) sums: Slot,
    pub(crate) values: Slot,
    /// `[n, heads, head_dim]` attention output; `[n, groups * o_lora]`.
    pub(crate) o: Rows,
    pub(crate) low: Rows,
    /// `[n, experts]`; `[s]` chosen experts and weights; `[experts]` u64 counts, kept.
    pub(crate) logits: Slot,
    pub(crate) chosen: Slot,
    pub(crate) weights: Slot,
    pub(crate) routed: Slot,
    /// `[n_layer]` u64: experts visited in all passes.
    pub(crate) visits: Slot,
    /// `[s]` of 16 bytes, `[s]` u32.
    pub(crate) units: Slot,
    pub(crate) order: Slot,
    /// `[s, ff]` gate and up where they are not fused, activation; `[s, d]`.
    pub(crate) gate: Slot,
    pub(crate) up: Slot,
    pub(crate) act: Rows,
    pub(crate) y: Slot,
    /// `[n, ff]` of the shared expert.
    pub(crate) shared: Rows,
    /// `[h, 4, d]`, `[h, 4]` twice, `[h, d]`, `[h, n_vocab]`.
    pub(crate) gathered: Rows,
    pub(crate) head_m: Slot,
    pub(crate) head_mix: Slot,
    pub(crate) hidden: Rows,
    pub(crate) out: Slot,
    /// Draws: `[h, parts]` u64, `[h, n_vocab]` f32, `[h]` u32.
    pub(crate) best: Slot,
    pub(crate) filtered: Slot,
    pub(crate) drawn: Slot,
    /// `[n, TAPS, d]`.
    pub(crate) features: Slot,
}

/// The key lists of one kind of layer: layers of a kind have the same ones, unless scores choose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyLists {
    pub(crate) ratio: Ratio,
    /// `[p, keys]` u32.
    pub(crate) keys: Slot,
    /// `[p]` u32: lengths.
    pub(crate) counts: Slot,
}

impl KeyLists {
    fn of(l: &mut Layout, m: &Ds4Meta, n_ctx: usize, p: usize) -> Result<Vec<Self>, KernelError> {
        let kinds = kinds(m).into_iter().map(|ratio| {
            Ok(Self {
                ratio,
                keys: l.take(&[p, list_stride(m, ratio, n_ctx), 4])?,
                counts: l.take(&[p, 4])?,
            })
        });
        kinds.collect()
    }
}

/// f32 rows with room for their blocks.
pub(crate) fn rows(l: &mut Layout, n: usize, k: usize) -> Result<Rows, KernelError> {
    Ok(Rows {
        x: l.take(&[n, k, 4])?,
        q: l.take(&[n, k])?,
        meta: l.take(&[n, k.div_ceil(32), META_BYTES])?,
        k,
    })
}

impl Scratch {
    /// Buffers for a model.
    ///
    /// # Errors
    /// `Shape` if the sizes overflow.
    pub(crate) fn new(m: &Ds4Meta, o: &Options) -> Result<Self, KernelError> {
        Self::of(m, Sizes::new(m, o), o.n_ctx)
    }

    /// Buffers for layers that are not the model's last: without room for rows of logits.
    ///
    /// # Errors
    /// `Shape` if the sizes overflow.
    pub(crate) fn without_head(m: &Ds4Meta, o: &Options) -> Result<Self, KernelError> {
        let sizes = Sizes {
            head: 0,
            ..Sizes::new(m, o)
        };
        Self::of(m, sizes, o.n_ctx)
    }

    fn of(m: &Ds4Meta, sizes: Sizes, n_ctx: usize) -> Result<Self, KernelError> {
        let (n, p, h, d) = (sizes.tokens, sizes.positions, sizes.head, m.n_embd);
        let (s, ff, heads) = (n * m.n_used, m.n_ff, m.n_head * m.head_dim);
        let (iheads, idim) = (m.index_heads, m.index_dim);
        let stride = Sizes::longest(m, n_ctx);
        let parts = stride / CHUNK * m.n_head;
        let partial = p * parts;
        let mut layout = Layout::new(Arena::Scratch);
        let l = &mut layout;
        let block = Inputs::new(l.take(&[0])?, m, n).block;
        let two = |l: &mut Layout, w: usize| {
            Ok::<_, KernelError>([l.take(&[n, w, 4])?, l.take(&[n, w, 4])?])
        };
        let inputs = l.take(&[block.len as usize])?;
        let (x, few) = (rows(l, n, 4 * d)?, n.min(FEW));
        Ok(Self {
            sizes,
            inputs,
            x,
            x_other: Rows {
                x: l.take(&[few, 4 * d, 4])?,
                ..x
            },
            m: l.take(&[n, SITE, 4])?,
            m_part: l.take(&[n, segments(d), SITE + 1, 4])?,
            mix: l.take(&[n, SITE, 4])?,
            h: rows(l, n, d)?,
            block: l.take(&[n, d, 4])?,
            qa: l.take(&[n, m.q_lora, 4])?,
            qr: rows(l, n, m.q_lora)?,
            q: l.take(&[n, heads, 4])?,
            kv: l.take(&[n, m.head_dim, 4])?,
            comp: two(l, 2 * m.head_dim)?,
            index: two(l, 2 * idim)?,
            iw: l.take(&[n, iheads, 4])?,
            iq: l.take(&[n, iheads * idim, 4])?,
            iq_twice: l.take(&[n, iheads * idim])?,
            iq_scale: l.take(&[n, iheads * idim.div_ceil(32), 4])?,
            scores: l.take(&[p, (n_ctx / 4).max(1), 4])?,
            lists: KeyLists::of(l, m, n_ctx, p)?,
            peaks: l.take(&[partial, 4])?,
            sums: l.take(&[partial, 4])?,
            values: l.take(&[parts, sizes.values, 4])?,
            o: rows(l, n, heads)?,
            low: rows(l, n, m.o_groups * m.o_lora)?,
            logits: l.take(&[n, m.n_expert, 4])?,
            chosen: l.take(&[s, 4])?,
            weights: l.take(&[s, 4])?,
            routed: l.take(&[m.n_expert, 8])?,
            visits: l.take(&[m.n_layer, 8])?,
            units: l.take(&[s, UNIT_BYTES])?,
            order: l.take(&[s, 4])?,
            gate: l.take(&[s.max(n), ff, 4])?,
            up: l.take(&[s.max(n), ff, 4])?,
            act: rows(l, s, ff)?,
            y: l.take(&[s, d, 4])?,
            shared: rows(l, n, ff)?,
            gathered: rows(l, h, 4 * d)?,
            head_m: l.take(&[h, 4, 4])?,
            head_mix: l.take(&[h, 4, 4])?,
            hidden: rows(l, h, d)?,
            out: l.take(&[h, m.n_vocab, 4])?,
            best: l.take(&[h, PARTS, 8])?,
            filtered: l.take(&[h, m.n_vocab, 4])?,
            drawn: l.take(&[h, 4])?,
            features: l.take(&[n, TAPS, d, 4])?,
            layout,
        })
    }

    /// Bytes a staging slot must hold.
    pub(crate) fn staging(&self) -> u64 {
        const LEAST: u64 = 16 << 20;
        self.inputs.len.max(self.out.len).max(LEAST)
    }
}
