//! Cases of `compress.cu`: spans of two sequences over rings and pass, with and without a window before.

use super::rows::{Angles, pack};
use super::{Depth, Noise, Outcome, Runner, compare_bytes, f32_bytes};
use crate::KernelError;
use crate::cpu::{Entry, Turn, hadamard, index_row_bytes, pack_index_row, pool_row, rms_norm};
use crate::launch::compress::{self, Kind, Pass, Spot};
use crate::launch::rows::Row;

const EPS: f32 = 1e-6;

/// One span of the pass, and one of another sequence before it.
#[derive(Clone, Copy)]
struct Span {
    row: Row,
    ratio: usize,
    overlap: usize,
    ring: usize,
    pos: usize,
    len: usize,
}

/// Tokens of the other span and its first position; sequences with room, and ours among them.
const OTHER: usize = 3;
const FIRST: usize = 4;
const SEQUENCES: usize = 3;
const MINE: usize = 2;
/// What stores hold before.
const UNTOUCHED: u8 = 0x5a;

impl Span {
    fn wide(&self) -> usize {
        self.overlap * self.row.dim
    }

    fn rows(&self) -> std::ops::Range<usize> {
        self.pos / self.ratio..(self.pos + self.len) / self.ratio
    }

    fn pass(&self) -> Pass {
        Pass {
            row: self.row,
            ratio: self.ratio,
            overlap: self.overlap,
            ring: self.ring,
            tokens: OTHER + self.len,
            sequences: SEQUENCES,
            eps: EPS,
        }
    }

    /// The other span stands at positions 4, 5, 6 of sequence 0 and ends no window.
    fn spots(&self) -> Vec<Spot> {
        let spot = |pos, first: usize, len, sequence| Spot {
            pos: pos as u32,
            first: first as u32,
            end: (first + len) as u32,
            sequence,
        };
        let other = (FIRST..FIRST + OTHER).map(|pos| spot(pos, FIRST, OTHER, 0));
        let (first, len) = (self.pos, self.len);
        let mine = (first..first + len).map(|pos| spot(pos, first, len, MINE as u32));
        other.chain(mine).collect()
    }
}

/// Both ratios; windows that end in the pass's first token, in its last, and that wrap the ring.
///
/// # Errors
/// A failed launch.
pub fn run<R: Runner>(runner: &mut R, depth: Depth) -> Result<Vec<Outcome>, KernelError> {
    let span = |dim, ratio, overlap, ring, pos, len| Span {
        row: Row { dim, n_rot: 64 },
        ratio,
        overlap,
        ring,
        pos,
        len,
    };
    let mut spans = vec![
        span(128, 4, 2, 16, 3, 1),
        span(128, 4, 2, 16, 0, 9),
        span(512, 4, 2, 16, 1021, 8),
        span(128, 4, 2, 16, 1018, 6),
        span(96, 4, 2, 16, 5, 40),
        span(128, 128, 1, 256, 255, 1),
        span(512, 128, 1, 256, 500, 20),
    ];
    if depth == Depth::Full {
        spans.extend([
            span(512, 4, 2, 16, 4095, 1),
            span(512, 4, 2, 16, 0, 2048),
            span(128, 4, 2, 16, 7, 2048),
            span(512, 128, 1, 256, 100, 1000),
        ]);
    }
    let mut outcomes = Vec::new();
    for s in spans {
        let mut kinds = vec![Kind::F32];
        if (s.row.dim - s.row.n_rot).is_multiple_of(64) {
            kinds.push(Kind::Kv);
        }
        if s.row.dim == 128 {
            kinds.push(Kind::Index);
        }
        for kind in kinds {
            outcomes.extend(one(runner, &s, kind)?);
            runner.reset();
        }
    }
    Ok(outcomes)
}

/// Inputs of a span.
struct Case {
    keys: Vec<f32>,
    gates: Vec<f32>,
    ring_keys: Vec<f32>,
    ring_gates: Vec<f32>,
    ape: Vec<f32>,
    norm: Vec<f32>,
}

impl Case {
    fn new(s: &Span, noise: &mut Noise) -> Self {
        let mut floats = |n: usize| (0..n).map(|_| noise.value() * 3.0).collect::<Vec<f32>>();
        Self {
            keys: floats(s.len * s.wide()),
            gates: floats(s.len * s.wide()),
            ring_keys: floats(s.ring * s.wide()),
            ring_gates: floats(s.ring * s.wide()),
            ape: floats(s.ratio * s.wide()),
            norm: floats(s.row.dim),
        }
    }

    /// Gates of the pass with the position table added.
    fn biased(&self, s: &Span) -> Vec<f32> {
        let wide = s.wide();
        let ape = |i: usize| self.ape[(s.pos + i / wide) % s.ratio * wide + i % wide];
        (0..self.gates.len())
            .map(|i| self.gates[i] + ape(i))
            .collect()
    }

    /// The finished row of window `w`, before rounding.
    fn row(&self, s: &Span, biased: &[f32], w: usize) -> Vec<f32> {
        let (dim, wide) = (s.row.dim, s.wide());
        let own = w * s.ratio;
        let first = if s.overlap == 2 && w > 0 {
            own - s.ratio
        } else {
            own
        };
        let entries: Vec<Entry<'_>> = (first..own + s.ratio)
            .map(|x| {
                let half = if x < own { 0 } else { s.overlap - 1 };
                let (keys, gates, row) = if x >= s.pos {
                    (&self.keys[..], biased, x - s.pos)
                } else {
                    (&self.ring_keys[..], &self.ring_gates[..], x & (s.ring - 1))
                };
                let at = row * wide + half * dim;
                Entry {
                    key: &keys[at..at + dim],
                    gate: &gates[at..at + dim],
                }
            })
            .collect();
        let (mut pool, mut row) = (vec![0f32; dim], vec![0f32; dim]);
        pool_row(&entries, &mut pool);
        rms_norm(&pool, &self.norm, EPS, &mut row);
        row
    }
}

/// The stores of all sequences after the span's rows were made.
fn stores(
    s: &Span,
    kind: Kind,
    case: &Case,
    biased: &[f32],
    angles: &Angles,
    stored: usize,
) -> Vec<u8> {
    let size = match kind {
        Kind::Kv => s.row.stored(true),
        Kind::Index => index_row_bytes(s.row.dim),
        Kind::F32 => s.row.stored(false),
    };
    let mut want = vec![UNTOUCHED; SEQUENCES * stored * size];
    for w in s.rows() {
        let mut row = case.row(s, biased, w);
        let token = OTHER + (w + 1) * s.ratio - 1 - s.pos;
        angles.turn(token, &mut row, Turn::Forward);
        let out = &mut want[(MINE * stored + w) * size..][..size];
        match kind {
            Kind::Kv => pack(&mut row, s.row.n_rot, out),
            Kind::Index => {
                hadamard(&mut row);
                pack_index_row(&row, 1, out);
            }
            Kind::F32 => out.copy_from_slice(&f32_bytes(&row)),
        }
    }
    want
}

/// Rings of all sequences: those of others as they are, then `mine`.
fn rings(s: &Span, mine: &[f32]) -> Vec<f32> {
    [&vec![f32::NAN; MINE * s.ring * s.wide()], mine].concat()
}

/// The rings after the pass's values were kept; `other` and `pass` are the spans' keys or gates.
fn kept(s: &Span, ring: &[f32], other: impl Fn(usize, usize) -> f32, pass: &[f32]) -> Vec<f32> {
    let wide = s.wide();
    let mut want = rings(s, ring);
    for i in 0..OTHER {
        for d in 0..wide {
            want[(FIRST + i) * wide + d] = other(i, d);
        }
    }
    let mine = MINE * s.ring * wide;
    for x in s.pos..s.pos + s.len {
        let slot = mine + (x & (s.ring - 1)) * wide;
        want[slot..slot + wide].copy_from_slice(&pass[(x - s.pos) * wide..][..wide]);
    }
    want
}

fn one<R: Runner>(runner: &mut R, s: &Span, kind: Kind) -> Result<Vec<Outcome>, KernelError> {
    let mut noise = Noise::new((s.pos * 1000 + s.len + s.row.dim) as u64);
    let case = Case::new(s, &mut noise);
    let biased = case.biased(s);
    let (range, wide) = (s.rows(), s.wide());
    let angles = Angles::new(&mut noise, OTHER + s.len, s.row.n_rot);
    let stored = range.end + 1;
    let want = stores(s, kind, &case, &biased, &angles, stored);
    // The other span's rows stand first.
    let other = vec![0.5f32; OTHER * wide];
    let mut load = |v: &[f32]| runner.load(&f32_bytes(v), 0);
    let keys = load(&[&other, &case.keys[..]].concat())?;
    let gates = load(&[&other, &case.gates[..]].concat())?;
    let ring = [
        load(&rings(s, &case.ring_keys))?,
        load(&rings(s, &case.ring_gates))?,
    ];
    let (ape, norm, pairs) = (load(&case.ape)?, load(&case.norm)?, load(&angles.pairs)?);
    let spots: Vec<u8> = s.spots().iter().flat_map(Spot::bytes).collect();
    let spots = runner.load(&spots, 0)?;
    let store = runner.load(&vec![UNTOUCHED; want.len()], 0)?;
    let call = compress::rows(&s.pass(), kind, stored)?;
    let (made, dim) = (range.len(), s.row.dim);
    let name = format!("{} {made} of {dim} from {}", call.kernel, s.pos);
    let buffers = [
        keys, gates, ring[0], ring[1], ape, norm, pairs, spots, store,
    ];
    runner.launch(&call, &buffers)?;
    let mut outcomes = vec![compare_bytes(&name, &want, &runner.read(store)?)];
    let keeper = if s.pass().keeps() {
        call.kernel
    } else {
        let keep = compress::keep(&s.pass())?;
        runner.launch(&keep, &[keys, gates, ape, spots, ring[0], ring[1]])?;
        keep.kernel
    };
    let table = |i: usize, d: usize| 0.5 + case.ape[(FIRST + i) % s.ratio * wide + d];
    let wants = [
        kept(s, &case.ring_keys, |_, _| 0.5, &case.keys),
        kept(s, &case.ring_gates, table, &biased),
    ];
    for (want, ring) in wants.into_iter().zip(ring) {
        let name = format!("rings of {keeper} after {name}");
        outcomes.push(compare_bytes(name, &f32_bytes(&want), &runner.read(ring)?));
    }
    Ok(outcomes)
}
