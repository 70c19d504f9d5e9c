//! Logits of a GGUF model for given token ids, compared with another engine's:
//! `logits FILE IDS OTHER.bin [threads]`.
//!
//! `IDS` holds token ids as decimal text, `OTHER.bin` the other engine's logits: tokens x vocabulary f32,
//! little endian. Prints the largest difference, the NMSE and how many rows agree in their argmax. The
//! pass keeps K and V as they are (`kv_sim` off), as engines do that know no such rounding.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::sync::Arc;

use ds4_target::{CpuTarget, GgufSource, Model, Options};
use engine_core::{Out, Span, Tap, Target, Want};

fn logits(file: &str, ids: &[u32], threads: usize) -> Vec<f32> {
    let file = gguf::Gguf::open(file, &gguf::OpenOptions::default()).unwrap();
    let model = Arc::new(Model::load(&GgufSource::new(file)).unwrap());
    let options = Options {
        n_ctx: ids.len() + 8,
        threads,
        kv_sim: false,
        ..Options::default()
    };
    let mut target = CpuTarget::new(model, options).unwrap();
    let seq = target.open().unwrap();
    let mut all = Vec::new();
    for (i, part) in ids.chunks(512).enumerate() {
        let pos = (i * 512) as u32;
        let span = Span {
            seq,
            pos,
            range: 0..part.len(),
            out: Out::All,
            want: Want::Logits,
            tap: Tap::default(),
        };
        let ticket = target.submit(part, &[span]).unwrap();
        let rows = target.wait(ticket, None).unwrap();
        for row in 0..part.len() {
            all.extend_from_slice(rows.logits(row).unwrap());
        }
        target.commit(seq, pos + part.len() as u32);
    }
    all
}

fn argmax(row: &[f32]) -> usize {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best })
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let ids: Vec<u32> = std::fs::read_to_string(&args[2])
        .unwrap()
        .split_whitespace()
        .map(|id| id.parse().unwrap())
        .collect();
    let threads = args.get(4).map_or(1, |a| a.parse().unwrap());
    let ours = logits(&args[1], &ids, threads);
    let theirs: Vec<f32> = std::fs::read(&args[3])
        .unwrap()
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    assert_eq!(ours.len(), theirs.len(), "rows x vocabulary differ");
    let vocabulary = ours.len() / ids.len();
    let (mut largest, mut error, mut power) = (0f32, 0f64, 0f64);
    for (a, b) in ours.iter().zip(&theirs) {
        largest = largest.max((a - b).abs());
        error += f64::from(a - b).powi(2);
        power += f64::from(*b).powi(2);
    }
    let rows = ours.chunks(vocabulary).zip(theirs.chunks(vocabulary));
    let agree = rows.filter(|(a, b)| argmax(a) == argmax(b)).count();
    println!(
        "{} rows: largest difference {largest:.3e}, NMSE {:.3e}, argmax {agree}/{}",
        ids.len(),
        error / power,
        ids.len()
    );
}
