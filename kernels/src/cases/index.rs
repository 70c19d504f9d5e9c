//! Cases of `index.cu` and `select.cu`: scores, key lists, and lists that go on to attention.

use super::rows::{Angles, index_heads, pack};
use super::{
    Depth, Noise, Outcome, Runner, compare_bytes, compare_f32, f32_bytes, to_f32, u32_bytes,
};
use crate::KernelError;
use crate::cpu::{
    AttendScratch, IndexQuery, Turn, attend, index_row_bytes, index_scores_f32,
    index_scores_packed, kv_row_bytes, pack_index_row, quantise_index_query, scale_in_place, top_k,
    unpack_kv_row,
};
use crate::launch::attend::{Output, Shape, chunks_packed, merge};
use crate::launch::index::{self, COMPRESSED, DIM, Lists, Place, Scores};

/// Positions around the first that needs scores; lists with ties, wraps and stretches; lists into
/// attention.
///
/// # Errors
/// A failed launch.
pub fn run<R: Runner>(runner: &mut R, depth: Depth) -> Result<Vec<Outcome>, KernelError> {
    let mut scores = vec![(3, 5, 140), (1, 64, 300), (2, 2, 7)];
    let mut selections = vec![(3, 40, 16), (2, 1000, 512), (1, 513, 512), (4, 9, 1)];
    let mut flows = vec![(3, 8, 200, 16)];
    if depth == Depth::Full {
        scores.extend([(8, 64, 8192), (1, 64, 70_000)]);
        selections.extend([(8, 8192, 512), (2, 100_000, 1024)]);
        flows.extend([(1, 64, 2100, 512), (8, 64, 4000, 512)]);
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
        outcomes.push(flow(runner, n, heads, rows, k)?);
        runner.reset();
    }
    Ok(outcomes)
}

/// Both kinds of rows; the last position sees all, the first is skipped.
fn scored<R: Runner>(
    runner: &mut R,
    n: usize,
    heads: usize,
    rows: usize,
) -> Result<Vec<Outcome>, KernelError> {
    let mut noise = Noise::new((n * 1000 + rows) as u64);
    let (q, keys) = (
        noise.activations(n * heads, DIM),
        noise.activations(rows, DIM),
    );
    let w: Vec<f32> = (0..n * heads).map(|_| noise.value()).collect();
    let factor = (1.0 / ((DIM * heads) as f64).sqrt()) as f32;
    let mut scaled = w.clone();
    scale_in_place(&mut scaled, factor);
    let visible: Vec<usize> = (0..n)
        .map(|i| rows - (n - 1 - i) * rows / (n + 1))
        .collect();
    let skip = if n > 1 { visible[0] } else { 0 };
    let stride = rows + 3;
    let mut packed = vec![0u8; rows * index_row_bytes(DIM)];
    for (row, out) in keys
        .chunks(DIM)
        .zip(packed.chunks_mut(index_row_bytes(DIM)))
    {
        pack_index_row(row, out);
    }
    let (codes, scales) = index_heads(&q, DIM);
    let words: Vec<u32> = visible.iter().map(|v| *v as u32).collect();
    let (weights, seen) = (
        runner.load(&f32_bytes(&w), 0)?,
        runner.load(&u32_bytes(&words), 0)?,
    );
    let s = Scores {
        n,
        heads,
        dim: DIM,
        rows,
        stride,
        skip,
        factor,
    };
    let mut outcomes = Vec::new();
    for of_packed in [true, false] {
        let out = runner.poisoned(n * stride * 4)?;
        let call = if of_packed {
            let (twice, scale) = (
                runner.load(&codes, 0)?,
                runner.load(&f32_bytes(&scales), 0)?,
            );
            let rows = runner.load(&packed, 0)?;
            let call = index::packed(&s)?;
            runner.launch(&call, &[twice, scale, weights, rows, seen, out])?;
            call
        } else {
            let (heads, rows) = (
                runner.load(&f32_bytes(&q), 0)?,
                runner.load(&f32_bytes(&keys), 0)?,
            );
            let call = index::floats(&s)?;
            runner.launch(&call, &[heads, weights, rows, seen, out])?;
            call
        };
        let got = to_f32(&runner.read(out)?);
        let (mut all, mut all_got) = (Vec::new(), Vec::new());
        let mut query = IndexQuery::default();
        for (i, v) in visible.iter().enumerate().filter(|(_, v)| **v > skip) {
            let (heads, w) = (
                &q[i * heads * DIM..][..heads * DIM],
                &scaled[i * heads..][..heads],
            );
            let mut want = vec![0f32; *v];
            if of_packed {
                quantise_index_query(heads, DIM, &mut query);
                let rows = &packed[..v * index_row_bytes(DIM)];
                index_scores_packed(&mut query, w, rows, &mut want);
            } else {
                index_scores_f32(heads, w, &keys[..v * DIM], &mut want);
            }
            all.extend(want);
            all_got.extend_from_slice(&got[i * stride..][..*v]);
        }
        let name = format!("{} {n}x{heads} over {rows}", call.kernel);
        outcomes.push(compare_f32(name, &all, &all_got));
        // Skipped positions and rows that nobody sees stay as they were.
        let untouched = |i: usize, at: usize| visible[i] <= skip || at >= visible[i];
        let rest: Vec<u8> = (0..n * stride)
            .filter(|j| untouched(j / stride, j % stride))
            .map(|j| u8::from(got[j].to_bits() != u32::MAX))
            .collect();
        let name = format!("{} {n}x{heads} over {rows} leaves the rest", call.kernel);
        outcomes.push(compare_bytes(name, &vec![0; rest.len()], &rest));
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
        top_k(&scores[..v], k, &mut picks);
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

/// Scores, lists and attention over packed rows, one after the other on the device.
fn flow<R: Runner>(
    runner: &mut R,
    n: usize,
    heads: usize,
    comp_rows: usize,
    k: usize,
) -> Result<Outcome, KernelError> {
    let (dim, n_rot, ring) = (512, 64, 256usize);
    let mut noise = Noise::new((n * 100 + comp_rows) as u64);
    let (scale, size) = ((1.0 / (dim as f64).sqrt()) as f32, kv_row_bytes(dim, n_rot));
    let mut store = |rows: usize| {
        let mut values = noise.activations(rows, dim);
        let mut bytes = vec![0u8; rows * size];
        for (row, out) in values.chunks_mut(dim).zip(bytes.chunks_mut(size)) {
            pack(row, n_rot, out);
            unpack_kv_row(out, n_rot, row);
        }
        (values, bytes)
    };
    let ((raw, raw_bytes), (comp, comp_bytes)) = (store(ring), store(comp_rows));
    let q = noise.activations(n * heads, dim);
    let sinks: Vec<f32> = (0..heads).map(|_| noise.value()).collect();
    let scores: Vec<f32> = (0..n * comp_rows).map(|_| noise.value()).collect();
    let angles = Angles::new(&mut noise, n, n_rot);
    let last = comp_rows * 4 - 1;
    let places: Vec<Place> = (0..n)
        .map(|i| Place {
            pos: (last + 1 - n + i) as u32,
            ..Place::default()
        })
        .collect();
    let mut lists = Lists {
        n,
        last,
        window: 128,
        mask: ring as u32 - 1,
        ratio: 4,
        top_k: Some(k),
        score_stride: comp_rows,
        stride: 0,
        flag: COMPRESSED,
    };
    lists.stride = lists.longest();
    let shape = Shape {
        positions: n,
        heads,
        dim,
        rows: ring,
        stride: lists.stride,
    };
    // The CPU takes one slab: raw rows, then compressed ones.
    let slab: Vec<f32> = raw.iter().chain(&comp).copied().collect();
    let mut want = vec![0f32; q.len()];
    let mut scratch = AttendScratch::default();
    for (i, place) in places.iter().enumerate() {
        let row = &scores[i * comp_rows..][..comp_rows];
        let flat = |key: u32| match key & COMPRESSED {
            0 => key,
            _ => (key & !COMPRESSED) + ring as u32,
        };
        let keys: Vec<u32> = list(&lists, place, Some(row))
            .into_iter()
            .map(flat)
            .collect();
        let at = i * heads * dim..(i + 1) * heads * dim;
        let out = &mut want[at.clone()];
        attend(&q[at], &slab, &keys, scale, &sinks, &mut scratch, out);
        for head in out.chunks_mut(dim) {
            angles.turn(i, head, Turn::Back);
        }
    }
    let place_bytes: Vec<u8> = places.iter().flat_map(Place::bytes).collect();
    let inputs = [
        runner.load(&place_bytes, 0)?,
        runner.load(&f32_bytes(&scores), 0)?,
        runner.load(&f32_bytes(&q), 0)?,
        runner.load(&raw_bytes, 0)?,
        runner.load(&comp_bytes, 0)?,
        runner.load(&f32_bytes(&sinks), 0)?,
        runner.load(&f32_bytes(&angles.pairs), 0)?,
    ];
    let (keys, counts) = (
        runner.poisoned(n * lists.stride * 4)?,
        runner.poisoned(n * 4)?,
    );
    runner.launch(
        &index::lists(&lists)?,
        &[inputs[0], inputs[1], keys, counts],
    )?;
    let partial = n * shape.chunks() * heads * 4;
    let (m, l) = (runner.poisoned(partial)?, runner.poisoned(partial)?);
    let acc = runner.poisoned(partial * dim)?;
    runner.launch(
        &chunks_packed(&shape, n_rot, comp_rows, scale)?,
        &[inputs[2], inputs[3], inputs[4], keys, counts, m, l, acc],
    )?;
    let out = runner.poisoned(want.len() * 4)?;
    let output = Output {
        n_rot,
        floats: true,
        a8: false,
    };
    runner.launch(
        &merge(&shape, &output)?,
        &[m, l, acc, inputs[5], counts, inputs[6], out],
    )?;
    let name = format!("lists and attend_chunk_packed {n}x{heads}x{dim} best {k} of {comp_rows}");
    Ok(compare_f32(name, &want, &to_f32(&runner.read(out)?)))
}
