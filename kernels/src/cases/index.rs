//! Cases of `index.cu` and `select.cu`: scores, key lists, and lists that go on to attention.

use super::reference::Activations;
use super::rows::{Angles, index_heads, pack};
use super::{
    Depth, Noise, Outcome, Runner, compare_bytes, compare_f32, f32_bytes, to_f32, u32_bytes,
};
use crate::KernelError;
use crate::cpu::{
    AttendScratch, INDEX_BLOCK, INDEX_TILE, IndexTile, Turn, attend, index_row_bytes,
    index_score_tile, index_scores_f32, kv_row_bytes, pack_index_row, quantise_index_heads,
    scale_in_place, top_k, unpack_index_tile, unpack_kv_row,
};
use crate::launch::a8::META_BYTES;
use crate::launch::attend::CHUNK;
use crate::launch::attend::{Output, Shape, chunks_packed, many_values, many_weights, merge};
use crate::launch::index::{self, COMPRESSED, DIM, Lists, Place, Scores};

/// Positions around the first that needs scores; lists with ties, wraps and stretches; lists into
/// attention.
///
/// # Errors
/// A failed launch.
pub fn run<R: Runner>(runner: &mut R, depth: Depth) -> Result<Vec<Outcome>, KernelError> {
    let mut scores = vec![(3, 5, 140), (1, 64, 300), (2, 2, 7), (10, 9, 150)];
    let mut selections = vec![(3, 40, 16), (2, 1000, 512), (1, 513, 512), (4, 9, 1)];
    let mut flows = vec![(3, 8, 200, 16), (1, 8, 40, 5), (2, 16, 150, 130)];
    if depth == Depth::Full {
        scores.extend([(8, 64, 8192), (1, 64, 70_000)]);
        selections.extend([(8, 8192, 512), (2, 100_000, 1024)]);
        flows.extend([
            (1, 64, 2100, 512),
            (8, 64, 4000, 512),
            (9, 64, 600, 300),
            (2, 72, 300, 44),
        ]);
    }
    let mut outcomes = Vec::new();
    for (n, heads, rows) in scores {
        outcomes.extend(scored(runner, n, heads, rows)?);
        runner.reset();
    }
    for (n, rows, k) in selections {
        outcomes.extend(selected(runner, n, rows, k)?);
        runner.reset();
    }
    for (n, heads, rows, k) in flows {
        outcomes.extend(flow(runner, n, heads, rows, k)?);
        runner.reset();
    }
    Ok(outcomes)
}

/// Rows of another sequence before those that are scored.
const FIRST: usize = 2;

/// Inputs of a scoring step.
struct Case {
    s: Scores,
    visible: Vec<usize>,
    q: Vec<f32>,
    w: Vec<f32>,
    keys: Vec<f32>,
    packed: Vec<u8>,
}

impl Case {
    /// The last position sees all rows, the first of several is skipped. Every second one's rows begin one later.
    fn new(n: usize, heads: usize, rows: usize) -> Self {
        let mut noise = Noise::new((n * 1000 + rows) as u64);
        let (q, keys) = (
            noise.activations(n * heads, DIM),
            noise.activations(rows, DIM),
        );
        let w: Vec<f32> = (0..n * heads).map(|_| noise.value()).collect();
        let visible: Vec<usize> = (0..n)
            .map(|i| (rows - (n - 1 - i) * rows / (n + 1)).min(rows - i % 2))
            .collect();
        let size = index_row_bytes(DIM);
        let mut packed = vec![0xffu8; (FIRST + rows) * size];
        let mine = packed[FIRST * size..].chunks_mut(size);
        for (row, out) in keys.chunks(DIM).zip(mine) {
            pack_index_row(row, 1, out);
        }
        let s = Scores {
            n,
            heads,
            dim: DIM,
            rows: FIRST + rows,
            stride: rows + 3,
            skip: if n > 1 { visible[0] } else { 0 },
            factor: (1.0 / ((DIM * heads) as f64).sqrt()) as f32,
        };
        Self {
            s,
            visible,
            q,
            w,
            keys,
            packed,
        }
    }

    /// The scores of position `i`.
    fn want(&self, i: usize, of_packed: bool) -> Vec<f32> {
        let (heads, v) = (self.s.heads, self.visible[i]);
        let q = &self.q[i * heads * DIM..][..heads * DIM];
        let mut w = self.w[i * heads..][..heads].to_vec();
        scale_in_place(&mut w, self.s.factor);
        let mut want = vec![0f32; v];
        let keys = &self.keys[i % 2 * DIM..][..v * DIM];
        if of_packed {
            tile_scores(q, &w, keys, &mut want);
        } else {
            index_scores_f32(q, &w, keys, &mut want);
        }
        want
    }

    /// Compares the scores that must be there, and that the others stayed as they were.
    fn compare(&self, name: &str, got: &[f32], of_packed: bool) -> [Outcome; 2] {
        let (mut want, mut scored, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        for (i, row) in got.chunks(self.s.stride).enumerate() {
            let v = match self.visible[i] {
                v if v <= self.s.skip => 0,
                v => v,
            };
            if v > 0 {
                want.extend(self.want(i, of_packed));
            }
            scored.extend_from_slice(&row[..v]);
            rest.extend_from_slice(&row[v..]);
        }
        let poison = vec![0xff; rest.len() * 4];
        [
            compare_f32(name, &want, &scored),
            compare_bytes(format!("{name}: the rest"), &poison, &f32_bytes(&rest)),
        ]
    }
}

/// Scores of rounded rows, tile by tile.
fn tile_scores(q: &[f32], w: &[f32], keys: &[f32], scores: &mut [f32]) {
    let (mut twice, mut scale) = (vec![0i8; q.len()], vec![0f32; q.len() / INDEX_BLOCK]);
    quantise_index_heads(q, &mut twice, &mut scale);
    let mut tile = IndexTile::default();
    for (keys, scores) in keys
        .chunks(INDEX_TILE * DIM)
        .zip(scores.chunks_mut(INDEX_TILE))
    {
        let mut packed = vec![0u8; index_row_bytes(DIM) * INDEX_TILE];
        for (r, key) in keys.chunks(DIM).enumerate() {
            pack_index_row(key, INDEX_TILE, &mut packed[r..]);
        }
        unpack_index_tile(&packed, DIM, &mut tile);
        let mut lanes = [0f32; INDEX_TILE];
        index_score_tile(&twice, &scale, w, &tile, &mut lanes);
        scores.copy_from_slice(&lanes[..scores.len()]);
    }
}

/// Both kinds of rows.
fn scored<R: Runner>(
    runner: &mut R,
    n: usize,
    heads: usize,
    rows: usize,
) -> Result<Vec<Outcome>, KernelError> {
    let case = Case::new(n, heads, rows);
    let (codes, scales) = index_heads(&case.q);
    let words: Vec<u32> = case.visible.iter().map(|v| *v as u32).collect();
    let mut load = |bytes: &[u8]| runner.load(bytes, 0);
    let (w, seen) = (load(&f32_bytes(&case.w))?, load(&u32_bytes(&words))?);
    let firsts: Vec<u32> = (0..n).map(|i| (FIRST + i % 2) as u32).collect();
    let firsts = load(&u32_bytes(&firsts))?;
    let store = [&[f32::NAN; FIRST * DIM], &case.keys[..]].concat();
    let packed = [
        load(&codes)?,
        load(&f32_bytes(&scales))?,
        w,
        load(&case.packed)?,
        seen,
        firsts,
    ];
    let floats = [
        load(&f32_bytes(&case.q))?,
        w,
        load(&f32_bytes(&store))?,
        seen,
        firsts,
    ];
    let mut outcomes = Vec::new();
    for (call, inputs) in [
        (index::packed(&case.s)?, &packed[..]),
        (index::packed_many(&case.s)?, &packed[..]),
        (index::floats(&case.s)?, &floats[..]),
    ] {
        let out = runner.poisoned(n * case.s.stride * 4)?;
        runner.launch(&call, &[inputs, &[out]].concat())?;
        let got = to_f32(&runner.read(out)?);
        let name = format!("{} {n}x{heads} over {rows}", call.kernel);
        let of_packed = inputs.len() == packed.len();
        outcomes.extend(case.compare(&name, &got, of_packed));
    }
    Ok(outcomes)
}

/// The list of one position, as the CPU makes it.
fn list(s: &Lists, place: &Place, scores: Option<&[f32]>) -> Vec<u32> {
    let seen = place.pos as usize + 1;
    let raw = seen.saturating_sub(s.window)..seen;
    let slot = |x: usize| (x as u32).wrapping_sub(place.raw_from) & s.mask;
    let mut keys: Vec<u32> = raw.map(|x| place.raw_base + slot(x)).collect();
    let v = seen.checked_div(s.ratio).unwrap_or(0);
    let mut picks: Vec<u32> = (0..v as u32).collect();
    if let (Some(k), Some(scores)) = (s.top_k, scores)
        && v > k
    {
        top_k(&scores[..v], k, &mut Vec::new(), &mut picks);
    }
    keys.extend(picks.iter().map(|c| s.flag | (place.comp_base + c)));
    keys
}

/// Lists of all kinds of layers for `n` positions that see about `rows` compressed rows.
fn selected<R: Runner>(
    runner: &mut R,
    n: usize,
    rows: usize,
    k: usize,
) -> Result<Vec<Outcome>, KernelError> {
    let mut noise = Noise::new((n * 1000 + rows + k) as u64);
    let last = rows * 4 + 2;
    let mut scores: Vec<f32> = (0..n * (rows + 1))
        .map(|_| (noise.value() * 40.0).round())
        .collect();
    scores[0] = f32::NAN;
    scores[rows / 2] = f32::NEG_INFINITY;
    scores[rows] = f32::INFINITY;
    scores[rows / 3] = -0.0;
    scores[rows / 3 + 1] = 0.0;
    let places: Vec<Place> = (0..n)
        .map(|i| Place {
            pos: (last - i * (last / (n + 1))) as u32,
            raw_base: i as u32 * 300,
            raw_from: 0,
            comp_base: i as u32 * 5000,
        })
        .collect();
    let lists = |ratio, top_k, mask| Lists {
        n,
        last,
        window: 128,
        mask,
        ratio,
        top_k,
        score_stride: rows + 1,
        stride: 0,
        flag: COMPRESSED,
    };
    let mut outcomes = Vec::new();
    for (ratio, top, mask) in [
        (0, None, 255),
        (128, None, u32::MAX),
        (4, Some(k), 255),
        (4, None, 127),
    ] {
        let mut s = lists(ratio, top, mask);
        s.stride = s.longest() + 1;
        let mut buffers = vec![runner.load(
            &places.iter().flat_map(Place::bytes).collect::<Vec<u8>>(),
            0,
        )?];
        if top.is_some() {
            buffers.push(runner.load(&f32_bytes(&scores), 0)?);
        }
        let outs = [runner.poisoned(n * s.stride * 4)?, runner.poisoned(n * 4)?];
        buffers.extend(outs);
        runner.launch(&index::lists(&s)?, &buffers)?;
        let (mut want, mut counts) = (vec![u32::MAX; n * s.stride], Vec::new());
        for (i, place) in places.iter().enumerate() {
            let keys = list(&s, place, Some(&scores[i * (rows + 1)..][..=rows]));
            want[i * s.stride..][..keys.len()].copy_from_slice(&keys);
            counts.push(keys.len() as u32);
        }
        let name = format!("key_lists {n} positions, {rows} rows, ratio {ratio}, best {top:?}");
        let (got, got_counts) = (runner.read(outs[0])?, runner.read(outs[1])?);
        outcomes.push(compare_bytes(&name, &u32_bytes(&want), &got));
        outcomes.push(compare_bytes(
            format!("{name} counts"),
            &u32_bytes(&counts),
            &got_counts,
        ));
    }
    Ok(outcomes)
}

const ROW: usize = 512;
const ROT: usize = 64;
const RING: usize = 256;
/// Rows of rare values among the compressed ones.
const LARGE: usize = 3;
const WITH_NAN: usize = 7;

/// Rows that are on the grid of the stores: values, and packed.
struct Rows {
    values: Vec<f32>,
    bytes: Vec<u8>,
}

impl Rows {
    /// With `rare`, one row has values whose scale is far above one, and one has a NaN.
    fn new(noise: &mut Noise, rows: usize, rare: bool) -> Self {
        let size = kv_row_bytes(ROW, ROT);
        let mut values = noise.activations(rows, ROW);
        if rare {
            let large = &mut values[LARGE * ROW..][..ROW];
            large.iter_mut().for_each(|v| *v *= 3e7);
            values[WITH_NAN * ROW + 77] = f32::NAN;
        }
        let mut bytes = vec![0u8; rows * size];
        for (row, out) in values.chunks_mut(ROW).zip(bytes.chunks_mut(size)) {
            pack(row, ROT, out);
            unpack_kv_row(out, ROT, row);
        }
        Self { values, bytes }
    }
}

/// A pass over a sparse layer: its inputs, and what attention gives.
struct Flow {
    lists: Lists,
    shape: Shape,
    scale: f32,
    places: Vec<Place>,
    scores: Vec<f32>,
    q: Vec<f32>,
    raw: Rows,
    comp: Rows,
    sinks: Vec<f32>,
    angles: Angles,
}

impl Flow {
    fn new(n: usize, heads: usize, comp_rows: usize, k: usize) -> Self {
        let mut noise = Noise::new((n * 100 + comp_rows) as u64);
        let last = comp_rows * 4 - 1;
        let mut lists = Lists {
            n,
            last,
            window: 128,
            mask: RING as u32 - 1,
            ratio: 4,
            top_k: Some(k),
            score_stride: comp_rows,
            stride: 0,
            flag: COMPRESSED,
        };
        lists.stride = lists.longest();
        let place = |i: usize| Place {
            pos: (last + 1 - n + i) as u32,
            ..Place::default()
        };
        let mut scores: Vec<f32> = (0..n * comp_rows).map(|_| noise.value()).collect();
        // All positions pick the row of large values, the second one also that with a NaN.
        for (i, row) in scores.chunks_mut(comp_rows).enumerate() {
            row[LARGE] = 9.0;
            row[WITH_NAN] = if i == 1 { 8.0 } else { -9.0 };
        }
        Self {
            shape: Shape {
                positions: n,
                heads,
                dim: ROW,
                rows: RING,
                stride: lists.stride,
            },
            lists,
            scale: (1.0 / (ROW as f64).sqrt()) as f32,
            places: (0..n).map(place).collect(),
            scores,
            q: noise.activations(n * heads, ROW),
            raw: Rows::new(&mut noise, RING, false),
            comp: Rows::new(&mut noise, comp_rows, true),
            sinks: (0..heads).map(|_| noise.value()).collect(),
            angles: Angles::new(&mut noise, n, ROT),
        }
    }

    fn want(&self) -> Vec<f32> {
        // The CPU takes one slab: raw rows, then compressed ones.
        let slab = [&self.raw.values[..], &self.comp.values].concat();
        let wide = self.shape.heads * ROW;
        let mut want = vec![0f32; self.q.len()];
        let mut scratch = AttendScratch::default();
        for (i, place) in self.places.iter().enumerate() {
            let row = &self.scores[i * self.lists.score_stride..][..self.lists.score_stride];
            let flat = |key: u32| match key & COMPRESSED {
                0 => key,
                _ => (key & !COMPRESSED) + RING as u32,
            };
            let keys = list(&self.lists, place, Some(row));
            let keys: Vec<u32> = keys.into_iter().map(flat).collect();
            let (q, out) = (&self.q[i * wide..][..wide], &mut want[i * wide..][..wide]);
            attend(q, &slab, &keys, self.scale, &self.sinks, &mut scratch, out);
            for head in out.chunks_mut(ROW) {
                self.angles.turn(i, head, Turn::Back);
            }
        }
        want
    }
}

/// Scores, lists and attention over packed rows, one after the other on the device.
fn flow<R: Runner>(
    runner: &mut R,
    n: usize,
    heads: usize,
    comp_rows: usize,
    k: usize,
) -> Result<Vec<Outcome>, KernelError> {
    let f = Flow::new(n, heads, comp_rows, k);
    let place_bytes: Vec<u8> = f.places.iter().flat_map(Place::bytes).collect();
    let (places, scores) = (
        runner.load(&place_bytes, 0)?,
        runner.load(&f32_bytes(&f.scores), 0)?,
    );
    let (keys, counts) = (
        runner.poisoned(n * f.lists.stride * 4)?,
        runner.poisoned(n * 4)?,
    );
    runner.launch(&index::lists(&f.lists)?, &[places, scores, keys, counts])?;
    let (q, raw, comp) = (
        runner.load(&f32_bytes(&f.q), 0)?,
        runner.load(&f.raw.bytes, 0)?,
        runner.load(&f.comp.bytes, 0)?,
    );
    let (sinks, angles) = (
        runner.load(&f32_bytes(&f.sinks), 0)?,
        runner.load(&f32_bytes(&f.angles.pairs), 0)?,
    );
    let partial = n * f.shape.chunks() * heads * 4;
    let (m, l) = (runner.poisoned(partial)?, runner.poisoned(partial)?);
    let acc = runner.poisoned(partial * ROW)?;
    runner.launch(
        &chunks_packed(&f.shape, ROT, comp_rows, f.scale)?,
        &[q, raw, comp, keys, counts, m, l, acc],
    )?;
    let outs = outputs(runner, f.q.len())?;
    let given = [&[m, l, acc, sinks, counts, angles][..], &outs].concat();
    runner.launch(&merge(&f.shape, &OUTPUT)?, &given)?;
    let name = |kernels| format!("lists and {kernels} {n}x{heads}x{ROW} best {k} of {comp_rows}");
    let want = f.want();
    let mut outcomes = compare(runner, &name("attend_chunk_packed"), &want, outs)?;
    // The same of many positions: other kernels, whatever their number here.
    let (m, l) = (runner.poisoned(partial)?, runner.poisoned(partial)?);
    let weights = runner.poisoned(partial * CHUNK)?;
    runner.launch(
        &many_weights(&f.shape, ROT, comp_rows, f.scale)?,
        &[q, raw, comp, keys, counts, m, l, weights],
    )?;
    let outs = outputs(runner, f.q.len())?;
    let given = [raw, comp, keys, counts, m, l, weights, sinks, angles];
    let call = many_values(&f.shape, ROT, comp_rows, &OUTPUT)?;
    runner.launch(&call, &[&given[..], &outs].concat())?;
    outcomes.extend(compare(runner, &name("attend_many"), &want, outs)?);
    Ok(outcomes)
}

/// What attention writes here.
const OUTPUT: Output = Output {
    n_rot: ROT,
    floats: true,
    a8: true,
};

/// Room for it.
fn outputs<R: Runner>(runner: &mut R, n: usize) -> Result<[R::Buffer; 3], KernelError> {
    Ok([
        runner.poisoned(n * 4)?,
        runner.poisoned(n)?,
        runner.poisoned(n / 32 * META_BYTES)?,
    ])
}

fn compare<R: Runner>(
    runner: &mut R,
    name: &str,
    want: &[f32],
    outs: [R::Buffer; 3],
) -> Result<Vec<Outcome>, KernelError> {
    let blocks = Activations::new(want, want.len() / ROW, ROW);
    let got = to_f32(&runner.read(outs[0])?);
    Ok(vec![
        compare_f32(name, want, &got),
        compare_bytes(format!("{name} q"), &blocks.q, &runner.read(outs[1])?),
        compare_bytes(
            format!("{name} d and sums"),
            &blocks.meta,
            &runner.read(outs[2])?,
        ),
    ])
}
