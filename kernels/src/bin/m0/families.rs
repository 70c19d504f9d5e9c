//! Times of the families beside the FP4_FAST products, at the shapes of the Flash model. A time is that of
//! [`super::bench`]: graph replays over several sets of buffers, so that weights and stores do not stay in
//! the L2.
//!
//! Inputs that steer a kernel (key lists, units of work, plans) are made here; other buffers hold random
//! bits with harmless exponents.

use device::driver::Driver;
use ds4_kernels::KernelError;
use ds4_kernels::cases::{self, Runner};
use ds4_kernels::cpu::{index_row_bytes, kv_row_bytes};
use ds4_kernels::launch::compress::{Kind, Pass, Spot};
use ds4_kernels::launch::experts::{self, Experts};
use ds4_kernels::launch::head::{PARTS, PLAN_BYTES, Plan};
use ds4_kernels::launch::index::{COMPRESSED, Lists, Place, Scores};
use ds4_kernels::launch::rows::Row;
use ds4_kernels::launch::tiled::{Stack, Work};
use ds4_kernels::launch::{
    Arg, Call, attend, bench as bench_call, compress, dense, hc, head, index, norm, route, rows,
    tiled,
};
use fpx_quant::{Format, Fp2Dialect};

use crate::bench::{REPLAYS, note, timing};
use crate::prompt;
use crate::report::{Family, Report};
use crate::rig::{Buffer, Rig};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

pub(crate) const D: usize = 4096;
pub(crate) const HEADS: usize = 64;
pub(crate) const DIM: usize = 512;
pub(crate) const ROT: usize = 64;
pub(crate) const FF: usize = 2048;
pub(crate) const EXPERTS: usize = 256;
pub(crate) const USED: usize = 6;
const VOCABULARY: usize = 129_280;
/// Bytes that the sets of buffers fill together; the L2 holds 60 MB.
const ROTATE: u64 = 400_000_000;

/// Buffers from this size on are shared by all sets: stacks of experts, of which launches visit parts.
const SHARED: u64 = 200_000_000;
/// Most sets.
const SETS: usize = 48;

/// One launch to time.
pub(crate) struct Item {
    name: String,
    call: Call,
    /// Contents of the buffers that steer, by buffer: one of them a set, in turn. Others are random.
    given: Vec<Vec<Vec<u8>>>,
    /// Bytes that the launch must move, if its buffers do not tell: lists visit parts of stores.
    bytes: Option<u64>,
}

impl Item {
    pub(crate) fn new(name: impl Into<String>, call: Call) -> Self {
        Self {
            name: name.into(),
            call,
            given: Vec::new(),
            bytes: None,
        }
    }

    /// Contents of buffer `at`, in turn.
    fn give_each(mut self, at: usize, contents: Vec<Vec<u8>>) -> Self {
        self.given.resize(self.given.len().max(at + 1), Vec::new());
        self.given[at] = contents;
        self
    }

    pub(crate) fn give(self, at: usize, bytes: Vec<u8>) -> Self {
        self.give_each(at, vec![bytes])
    }

    pub(crate) fn moving(mut self, bytes: usize) -> Self {
        self.bytes = Some(bytes as u64);
        self
    }

    /// Bytes of the launch's buffers in order.
    fn sizes(&self) -> Vec<u64> {
        let size = |a: &Arg| match a {
            Arg::Read(bytes) | Arg::Write(bytes) => Some(*bytes),
            _ => None,
        };
        self.call.args().iter().filter_map(size).collect()
    }

    /// How many sets: as many as fill [`ROTATE`].
    fn sets(&self) -> usize {
        let own: u64 = self.sizes().iter().filter(|s| **s < SHARED).sum();
        let large = self.sizes().iter().any(|s| *s >= SHARED);
        if large && self.given.is_empty() {
            return 1;
        }
        (ROTATE / own.max(1)).clamp(2, SETS as u64) as usize
    }

    /// Set `index`; large buffers are those of `first`.
    fn set(
        &self,
        gpu: &mut Rig<impl Driver>,
        index: usize,
        first: Option<&[Buffer]>,
    ) -> Result<Vec<Buffer>> {
        let mut buffers = Vec::new();
        for (at, size) in self.sizes().into_iter().enumerate() {
            let given = self.given.get(at).filter(|g| !g.is_empty());
            if let Some(contents) = given {
                buffers.push(gpu.load(&contents[index % contents.len()], 0)?);
            } else if let Some(first) = first.filter(|_| size >= SHARED) {
                buffers.push(first[at]);
            } else {
                let buffer = gpu.raw((size as usize).next_multiple_of(bench_call::FILL_UNIT))?;
                // As f32: 0.5 to 0.75 of either sign; as halves and as scale bytes finite.
                let seed = (index * 101 + at) as u32;
                let fill = bench_call::fill(buffer.len(), seed, 0x803f_3f3f, 0x3f00_2020)?;
                gpu.submit(&fill, &[buffer])?;
                buffers.push(buffer);
            }
        }
        Ok(buffers)
    }

    fn run(&self, gpu: &mut Rig<impl Driver>, report: &mut Report) -> Result<()> {
        let mut sets: Vec<Vec<Buffer>> = Vec::new();
        for index in 0..self.sets() {
            let set = self.set(gpu, index, sets.first().map(Vec::as_slice))?;
            sets.push(set);
        }
        gpu.wait()?;
        note(gpu, report, &self.call)?;
        let ms = gpu.time(REPLAYS, |g| {
            sets.iter().try_for_each(|set| g.submit(&self.call, set))
        })?;
        report.families.push(Family {
            kernel: self.call.kernel,
            bytes: self.bytes.unwrap_or_else(|| self.sizes().iter().sum()),
            timing: timing(self.name.clone(), ms, sets.len()),
        });
        gpu.reset();
        Ok(())
    }
}

/// Those whose names hold `only`.
pub(crate) fn run(
    gpu: &mut Rig<impl Driver>,
    only: &str,
    report: &mut Report,
    out: &mut impl std::io::Write,
) -> Result<()> {
    let lists = [
        matrices()?,
        small()?,
        attention()?,
        experts()?,
        tokens()?,
        prompt::items()?,
    ];
    let wanted = |item: &Item| item.name.contains(only);
    for item in lists.into_iter().flatten().filter(wanted) {
        item.run(gpu, report)?;
    }
    writeln!(
        out,
        "measured {} launches of other families",
        report.families.len()
    )?;
    Ok(())
}

/// dense: hyper-connections, router, compressors, indexer, and a float head.
fn matrices() -> Result<Vec<Item>> {
    let shapes = [
        ("mixing dots", 24, 4 * D),
        ("router", EXPERTS, D),
        ("compressor", 1024, D),
        ("indexer queries", 8192, 1024),
        ("head", VOCABULARY, D),
    ];
    let mut items = Vec::new();
    for (name, m, k) in shapes {
        for cols in [1, 4, 8] {
            let call = dense::product(Format::F16, m, k, cols)?;
            items.push(Item::new(format!("{name} F16 {m}x{k} by {cols}"), call));
        }
    }
    Ok(items)
}

/// What touches a token's rows only.
fn small() -> Result<Vec<Item>> {
    let mut items = Vec::new();
    for n in [1usize, 8] {
        let site = hc::Site {
            n,
            d: D,
            iterations: 20,
            rms_eps: 1e-6,
            eps: 1e-6,
        };
        let (key, head) = (
            Row {
                dim: DIM,
                n_rot: ROT,
            },
            Row {
                dim: 128,
                n_rot: ROT,
            },
        );
        let beside = |u| hc::Beside { u, a8: true };
        let mut push = |name: &str, call| items.push(Item::new(format!("{name}, {n} rows"), call));
        push("hc_pre", hc::pre(&site, hc::Dots::Whole, beside(false))?);
        if n <= hc::FEW {
            let call = hc::pre(&site, hc::Dots::Segments, beside(false))?;
            push("hc_pre of segments", call);
            let call = hc::pre_open(&site, hc::Dots::Segments, beside(false))?;
            push("hc_pre of segments, left open", call);
            for (what, after) in [
                ("", None),
                (" after a block", Some(0)),
                (" after slots", Some(USED)),
            ] {
                push(
                    &format!("hc_dots{what}"),
                    hc::dots(Format::F16, n, D, after)?,
                );
            }
        }
        push("hc_head", hc::head(&site, beside(true))?);
        push("hc_post", hc::post(n, D, 0)?);
        push("hc_post with slots", hc::post(n, D, USED)?);
        push("rms_norm 1024", norm::rms(n, 1024, true, true, 1e-6)?);
        items.extend(compressed(n, key, head)?);
        items.extend(stored_and_routed(n, &key)?);
    }
    Ok(items)
}

/// Rows of compressors at a window's end.
fn compressed(n: usize, key: Row, head: Row) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    let span = |row, ratio, overlap, ring| Pass {
        row,
        ratio,
        overlap,
        ring,
        tokens: n,
        sequences: 1,
        eps: 1e-6,
    };
    let spots: Vec<u8> = (4095..4095 + n as u32)
        .flat_map(|pos| {
            Spot {
                pos,
                first: 4095,
                end: 4095 + n as u32,
                sequence: 0,
            }
            .bytes()
        })
        .collect();
    for (name, call) in [
        (
            "compress_kv ratio 4",
            compress::rows(&span(key, 4, 2, 16), Kind::Kv, 2048)?,
        ),
        (
            "compress_index ratio 4",
            compress::rows(&span(head, 4, 2, 16), Kind::Index, 2048)?,
        ),
        (
            "compress_kv ratio 128",
            compress::rows(&span(key, 128, 1, 256), Kind::Kv, 64)?,
        ),
    ] {
        items.push(Item::new(format!("{name}, {n} rows"), call).give(7, spots.clone()));
    }
    let call = compress::keep(&span(key, 4, 2, 16))?;
    items.push(Item::new(format!("compress_keep, {n} rows"), call).give(3, spots));
    Ok(items)
}

/// Key rows into a ring, and routes.
fn stored_and_routed(n: usize, key: &Row) -> Result<Vec<Item>> {
    let ring: Vec<u32> = (0..n as u32).collect();
    let slots = cases::u32_bytes(&ring);
    let mut items = Vec::new();
    let tokens = rows::Tokens {
        n,
        heads: HEADS,
        rows: 256,
        packed: true,
        index: Some((HEADS, 128)),
    };
    let open = hc::Open {
        iterations: 20,
        eps: 1e-6,
    };
    let beside = [("", None), (" beside an open site", Some(&open))];
    let moved = n * (DIM * 4 + kv_row_bytes(DIM, ROT) + HEADS * (8 * DIM + 5 * 128));
    for (what, open) in beside {
        let call = rows::heads_and_keys_beside(key, &tokens, 1e-6, open)?;
        let item = Item::new(format!("heads and keys{what}, {n} rows"), call);
        items.push(item.give(4, slots.clone()).moving(moved));
    }
    let s = route::Shape {
        n,
        experts: EXPERTS,
        used: USED,
        scale: 1.5,
        counted: true,
        units: match n {
            1 => route::Units::Slots,
            2..=route::PLANNED => route::Units::Planned(experts::WIDE),
            _ => route::Units::Later,
        },
    };
    for (what, open) in beside {
        let call = route::top_k_beside(&s, open)?;
        items.push(Item::new(format!("route_top_k{what}, {n} rows"), call));
    }
    let chosen: Vec<u32> = (0..n * USED).map(|s| (s * 37 % EXPERTS) as u32).collect();
    let call = route::plan(n * USED, tiled::WIDE)?;
    let item = Item::new(format!("route_plan, {n} rows"), call);
    items.push(item.give(0, cases::u32_bytes(&chosen)));
    Ok(items)
}

/// Scores, lists and attention of a sparse layer at 8K and 32K tokens.
fn attention() -> Result<Vec<Item>> {
    const TOP_K: usize = 512;
    let mut items = Vec::new();
    for (n, context) in [(1usize, 8192usize), (4, 8192), (8, 8192), (1, 32_768)] {
        let seen = context / 4;
        let s = Scores {
            n,
            heads: HEADS,
            dim: index::DIM,
            rows: seen,
            stride: seen,
            skip: TOP_K,
            factor: 0.01,
        };
        let visible = cases::u32_bytes(&vec![seen as u32; n]);
        let name = |what: &str| format!("{what}, {n} positions of {context}");
        items.push(
            Item::new(name("index_scores"), index::packed(&s)?)
                .give(4, visible)
                .give(5, cases::u32_bytes(&vec![0; n]))
                .moving(seen * index_row_bytes(index::DIM)),
        );
        let places: Vec<u8> = (0..n)
            .flat_map(|i| {
                Place {
                    pos: (context - 1 - i) as u32,
                    ..Place::default()
                }
                .bytes()
            })
            .collect();
        let mut lists = Lists {
            n,
            last: context - 1,
            window: 128,
            mask: 255,
            ratio: 4,
            top_k: Some(TOP_K),
            score_stride: seen,
            stride: 0,
            flag: COMPRESSED,
        };
        lists.stride = lists.longest();
        items.push(
            Item::new(name("key_lists"), index::lists(&lists)?)
                .give(0, places)
                .moving(n * seen * 4),
        );
        items.extend(attend_items(n, lists.stride, seen, &name("attend"))?);
    }
    Ok(items)
}

fn attend_items(n: usize, keys: usize, comp: usize, name: &str) -> Result<Vec<Item>> {
    let shape = attend::Shape {
        positions: n,
        heads: HEADS,
        dim: DIM,
        rows: 256,
        stride: keys,
    };
    // The window, then compressed rows all over the store.
    let list = |p: usize| {
        (0..keys).map(move |j| match j {
            0..128 => j as u32,
            _ => COMPRESSED | ((j * 7919 + p * 31) % comp) as u32,
        })
    };
    let words: Vec<u32> = (0..n).flat_map(list).collect();
    let counts = cases::u32_bytes(&vec![keys as u32; n]);
    let output = attend::Output {
        n_rot: ROT,
        floats: false,
        a8: true,
    };
    let call = attend::chunks_packed(&shape, ROT, comp, 0.044)?;
    let chunk = Item::new(format!("{name}: chunks"), call)
        .give(3, cases::u32_bytes(&words))
        .give(4, counts.clone())
        .moving(n * keys * kv_row_bytes(DIM, ROT));
    let merge =
        Item::new(format!("{name}: merge"), attend::merge(&shape, &output)?).give(4, counts);
    Ok(vec![chunk, merge])
}

/// Experts of one layer by format, and the products of the same formats alone.
fn experts() -> Result<Vec<Item>> {
    let mut items = Vec::new();
    let formats = [
        Format::Fp2(Fp2Dialect::Signed),
        Format::Fp3,
        Format::Fp4Fast,
        Format::Mxfp4,
        Format::Q8_0,
        Format::Q4K,
        Format::Q2K,
        Format::Iq2Xxs,
    ];
    for format in &formats[..3] {
        items.extend(with_shared(*format)?);
    }
    for format in formats {
        let stack = |rows, k| Stack {
            format,
            matrices: EXPERTS,
            rows,
            k,
        };
        let (wide, down) = (stack(FF, D), stack(D, FF));
        let one = wide.packed_bytes()? as usize / EXPERTS;
        for n in [1usize, 2, 4, 8] {
            let slots = n * USED;
            // Distinct experts, others in every set: what random routing is close to.
            let of_set = |set: u32| {
                let unit = |s: u32| [(s * 5 + set * 7) % EXPERTS as u32, s, 1, 0];
                cases::u32_bytes(&(0..slots as u32).flat_map(unit).collect::<Vec<u32>>())
            };
            let units: Vec<Vec<u8>> = (0..SETS as u32).map(of_set).collect();
            let work = |per| Work {
                slots,
                per,
                wide: 1,
                ordered: false,
            };
            let call = tiled::gate_up(&wide, &work(USED), true, false, 10.0)?;
            let name = format!("{format} gate and up of {slots} experts");
            items.push(
                Item::new(name, call)
                    .give_each(4, units.clone())
                    .moving(2 * slots * one),
            );
            let call = tiled::gemv(&down, &work(1))?;
            let name = format!("{format} down of {slots} experts");
            items.push(
                Item::new(name, call)
                    .give_each(3, units)
                    .moving(slots * one),
            );
        }
        for cols in [1, 4] {
            let w = Stack {
                format,
                matrices: 1,
                rows: D,
                k: D,
            };
            let call = tiled::gemv(&w, &Work::plain(cols))?;
            items.push(Item::new(format!("{format} {D}x{D} by {cols}"), call));
        }
    }
    Ok(items)
}

/// Routed experts of a few tokens with the shared one: gate and up of a format, down of ROCmFP3 with ROCmFP2 as models have
/// it, else of the format. All experts different, or each one of two slots.
fn with_shared(format: Format) -> Result<Vec<Item>> {
    let down = match format {
        Format::Fp2(_) => Format::Fp3,
        other => other,
    };
    let mut items = Vec::new();
    for (tokens, each) in [(1usize, 1), (2, 1), (4, 1), (6, 1), (8, 1), (2, 2), (6, 2)] {
        let slots = tokens * USED;
        let both = |format, rows, k| Experts {
            routed: Stack {
                format,
                matrices: EXPERTS,
                rows,
                k,
            },
            shared: Stack {
                format: Format::Fp4Fast,
                matrices: 1,
                rows,
                k,
            },
            tokens,
            used: USED,
            staged: true,
        };
        let bytes = |w: &Experts| {
            let one = w.routed.packed_bytes()? as usize / EXPERTS;
            Ok::<_, KernelError>(slots / each * one + w.shared.packed_bytes()? as usize)
        };
        let of_set = |set: u32| {
            let wide = each as u32;
            let unit = |s: u32| [(s * 5 + set * 7) % EXPERTS as u32, s * wide, wide, 0];
            let mut words: Vec<u32> = (0..(slots / each) as u32).flat_map(unit).collect();
            words.resize(4 * slots, 0);
            cases::u32_bytes(&words)
        };
        let units: Vec<Vec<u8>> = (0..SETS as u32).map(of_set).collect();
        let order = cases::u32_bytes(&(0..slots as u32).collect::<Vec<u32>>());
        let (up, down) = (both(format, FF, D), both(down, D, FF));
        let lists = |item: Item, at: usize| {
            let item = item.give_each(at, units.clone());
            match tokens {
                1 => item,
                _ => item.give(at + 1, order.clone()),
            }
        };
        let pairs = ["", " in pairs"][each - 1];
        let what = format!("experts of {tokens} tokens{pairs} with the shared one");
        let call = experts::gate_up(&up, [10.0; 2])?;
        let item = Item::new(format!("{} gate and up, {what}", up.routed.format), call);
        items.push(lists(item, 4).moving(2 * bytes(&up)?));
        let call = experts::down(&down)?;
        let item = Item::new(format!("{} down, {what}", down.routed.format), call);
        items.push(lists(item, 3).moving(bytes(&down)?));
    }
    Ok(items)
}

/// Rows by token, and draws.
fn tokens() -> Result<Vec<Item>> {
    let mut items = Vec::new();
    for n in [1usize, 8] {
        let ids: Vec<u32> = (0..n).map(|i| (i * 7919 % VOCABULARY) as u32).collect();
        let call = head::embed(Format::F16, VOCABULARY, D, n, hc::STREAMS)?;
        let item = Item::new(format!("embed F16, {n} rows of four streams"), call);
        items.push(
            item.give(1, cases::u32_bytes(&ids))
                .moving(n * D * (2 + 16)),
        );
        let plans = |top_p| {
            let plan = Plan {
                noise: 7,
                temperature: 1.0,
                top_p,
                ..Plan::default()
            };
            (0..n).flat_map(|_| plan.bytes()).collect::<Vec<u8>>()
        };
        let logits = n * VOCABULARY * 4;
        let call = head::part(n, VOCABULARY, false)?;
        let item = Item::new(format!("draw_part with noise, {n} rows"), call);
        items.push(item.give(1, plans(1.0)).moving(logits));
        items.push(
            Item::new(
                format!("argmax (draw_part), {n} rows"),
                head::part(n, VOCABULARY, false)?,
            )
            .give(1, vec![0; n * PLAN_BYTES])
            .moving(logits),
        );
        items.push(Item::new(
            format!("draw_merge, {n} rows of {PARTS}"),
            head::merge(n)?,
        ));
        let call = head::filtered(n, VOCABULARY, false)?;
        let item = Item::new(format!("draw_filtered, top-p 0.9, {n} rows"), call);
        items.push(item.give(1, plans(0.9)).moving(2 * logits));
    }
    Ok(items)
}
