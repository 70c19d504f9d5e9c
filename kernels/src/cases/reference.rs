//! The bits that the kernels must give, in plain Rust: contract rules 1, 2, 3 and 7
//! (`docs/adr/0001-arithmetic.md`).

use engine_core::math::{exp, fma};

/// Rule 1: one row of activations to q and d.
pub fn quantise(x: &[f32], q: &mut [i8], d: &mut [f32]) {
    let (blocks, _) = x.as_chunks::<32>();
    for ((block, q), d) in blocks.iter().zip(q.as_chunks_mut::<32>().0).zip(d) {
        let amax = block.iter().fold(0f32, |m, v| m.max(v.abs()));
        *q = [0; 32];
        *d = 0.0;
        if block.iter().any(|v| v.is_nan()) {
            *d = f32::from_bits(0x7fc0_0000);
        } else if amax >= f32::from_bits(0x0f80_0000) {
            let inv = 127.0 / amax;
            *d = amax / 127.0;
            for (q, v) in q.iter_mut().zip(block) {
                // The cast takes the NaN of inf * 0 to 0.
                *q = (v * inv).round_ties_even().clamp(-127.0, 127.0) as i8;
            }
        }
    }
}

/// The device's form of a block's scale and sums (`gpu/a8.cu`).
#[must_use]
pub fn meta(q: &[i8], d: &[f32]) -> Vec<u8> {
    let sum = |half: &[i8]| half.iter().map(|v| i16::from(*v)).sum::<i16>();
    let (blocks, _) = q.as_chunks::<32>();
    let pack = |(d, q): (&f32, &[i8; 32])| {
        let (s0, s1) = (sum(&q[..16]).cast_unsigned(), sum(&q[16..]).cast_unsigned());
        u64::from(d.to_bits()) | u64::from(s0) << 32 | u64::from(s1) << 48
    };
    d.iter()
        .zip(blocks)
        .flat_map(|block| pack(block).to_le_bytes())
        .collect()
}

/// Levels of the FP4 codes (spec/fpx-formats.md 1).
const LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 10, 0, -1, -2, -3, -4, -6, -8, -10];

/// A scale byte's value (spec/fpx-formats.md 2).
#[must_use]
pub fn ue4m3(byte: u8) -> f32 {
    let (e, m) = (i32::from(byte >> 3), f32::from(byte & 7));
    match e {
        _ if byte > 0x7e => 0.0,
        0 => m * 2f32.powi(-10),
        _ => (8.0 + m) * 2f32.powi(e - 11),
    }
}

/// Levels and scales of a matrix's rows, unpacked once.
#[derive(Clone, Debug)]
pub struct Fp4fMatrix {
    levels: Vec<[i8; 32]>,
    scales: Vec<f32>,
    blocks: usize,
}

impl Fp4fMatrix {
    /// Reads file blocks; `raw` holds whole rows of `blocks` blocks.
    #[must_use]
    pub fn new(raw: &[u8], blocks: usize) -> Self {
        let (units, _) = raw.as_chunks::<17>();
        let level = |u: &[u8; 17], i: usize| {
            LEVELS[usize::from(if i < 16 { u[i] & 15 } else { u[i - 16] >> 4 })]
        };
        Self {
            levels: units
                .iter()
                .map(|u| std::array::from_fn(|i| level(u, i)))
                .collect(),
            scales: units.iter().map(|u| ue4m3(u[16])).collect(),
            blocks,
        }
    }

    /// Rules 2 and 3: one row times one activation row.
    #[must_use]
    pub fn dot(&self, row: usize, q: &[i8], d: &[f32]) -> f32 {
        let blocks = row * self.blocks..(row + 1) * self.blocks;
        let (levels, scales) = (&self.levels[blocks.clone()], &self.scales[blocks]);
        let (x, _) = q.as_chunks::<32>();
        let mut total = 0.0;
        for first in (0..self.blocks).step_by(16) {
            let mut acc = 0.0;
            for b in first..self.blocks.min(first + 16) {
                let sum: i32 = levels[b]
                    .iter()
                    .zip(&x[b])
                    .map(|(l, x)| i32::from(*l) * i32::from(*x))
                    .sum();
                acc = fma(d[b], scales[b] * sum as f32, acc);
            }
            total = if first == 0 { acc } else { total + acc };
        }
        total
    }
}

/// Rule 7 without values: probabilities of one row of scores.
#[must_use]
pub fn softmax(scores: &[f32], sink: Option<f32>) -> Vec<f32> {
    let chunks: Vec<(f32, Vec<f32>, f32)> = scores
        .chunks(128)
        .map(|chunk| {
            let peak = chunk.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
            let weights: Vec<f32> = chunk.iter().map(|s| exp(s - peak)).collect();
            let sum = weights.iter().fold(0.0, |l, w| fma(*w, 1.0, l));
            (peak, weights, sum)
        })
        .collect();
    let start = sink.unwrap_or(f32::NEG_INFINITY);
    let peak = chunks.iter().fold(start, |m, (p, ..)| m.max(*p));
    let factors: Vec<f32> = chunks.iter().map(|(p, ..)| exp(p - peak)).collect();
    let total = chunks
        .iter()
        .zip(&factors)
        .fold(0.0, |l, ((.., sum), f)| fma(*f, *sum, l));
    let total = sink.map_or(total, |s| total + exp(s - peak));
    let weights = chunks.iter().zip(&factors);
    weights
        .flat_map(|((_, w, _), f)| w.iter().map(move |w| f * w / total))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantise_handles_the_corners() {
        let mut x = vec![0f32; 32 * 6];
        x[32..64].fill(1e-30); // below 2^-96 = 1.26e-29
        x[64] = f32::NAN;
        x[65] = 5.0;
        x[96] = f32::INFINITY;
        x[97] = 1.0;
        x[128] = -127.0;
        x[129] = 0.5; // ties to even
        x[130] = 1.5;
        x[160] = f32::from_bits(0x0f80_0000); // 2^-96 itself
        let (mut q, mut d) = (vec![1i8; x.len()], vec![1f32; 6]);
        quantise(&x, &mut q, &mut d);
        assert!(q[..128].iter().all(|v| *v == 0));
        assert_eq!((d[0], d[1], d[3]), (0.0, 0.0, f32::INFINITY));
        assert_eq!(d[2].to_bits(), 0x7fc0_0000);
        assert_eq!((q[128], q[129], q[130], d[4]), (-127, 0, 2, 1.0));
        assert_eq!(q[160], 127);
    }

    #[test]
    fn scale_bytes_have_their_values() {
        assert_eq!(
            (ue4m3(0), ue4m3(1), ue4m3(7)),
            (0.0, 0.000_976_562_5, 0.006_835_937_5)
        );
        assert_eq!((ue4m3(0x40), ue4m3(0x7e), ue4m3(0x7f)), (1.0, 224.0, 0.0));
    }

    #[test]
    fn the_row_order_is_segments_of_sixteen_blocks() {
        // 2^24 in block 0, ones in blocks 1 and 16: a running sum loses both ones, segments keep
        // none of the first but would keep two ones of segment 1.
        let blocks = 18;
        let mut raw = vec![0u8; 17 * blocks];
        let mut q = vec![0i8; 32 * blocks];
        let mut d = vec![0f32; blocks];
        for (b, scale) in [(0, 16_777_216.0), (16, 1.0), (17, 1.0)] {
            raw[b * 17] = 1;
            raw[b * 17 + 16] = 0x40;
            q[b * 32] = 1;
            d[b] = scale;
        }
        let got = Fp4fMatrix::new(&raw, blocks).dot(0, &q, &d);
        assert_eq!(got, 16_777_218.0);
    }

    #[test]
    fn softmax_is_close_to_f64_and_sums_to_one() {
        let scores: Vec<f32> = (0..300)
            .map(|i| ((i * 37) % 101) as f32 * 0.07 - 3.0)
            .collect();
        let p = softmax(&scores, Some(0.5));
        let sum: f64 = scores.iter().map(|s| f64::from(*s).exp()).sum::<f64>() + 0.5f64.exp();
        for (s, p) in scores.iter().zip(&p) {
            let want = f64::from(*s).exp() / sum;
            assert!((f64::from(*p) - want).abs() < 1e-6 * want);
        }
        let total: f32 = softmax(&scores, None).iter().sum();
        assert!((total - 1.0).abs() < 1e-5);
    }
}
