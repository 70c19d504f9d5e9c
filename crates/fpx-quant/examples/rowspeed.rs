//! Speed of the row kernels on one core: billions of multiply-adds and of weight bytes a second.
//!
//! `cargo run --release -p fpx-quant --example rowspeed [rows] [k] [seconds] [format|all] [isa]`.
//! The default matrix fits a second-level cache; a large one shows what memory delivers. A matrix
//! is taken in pieces of 64 rows; the lower quartile of their times counts, so that other work on
//! the machine disturbs little.

#![allow(clippy::print_stdout, reason = "a report for people")]

use std::time::{Duration, Instant};

use fpx_quant::rows::{matmul_a8_on, matmul_f32_on};
use fpx_quant::{A8Rows, Format, Fp2Dialect, Fp6Endpoint, Isa, Matrix, Out};

const FORMATS: [Format; 17] = [
    Format::Fp4Fast,
    Format::Fp4,
    Format::Fp8,
    Format::Q8_0,
    Format::Fp6(Fp6Endpoint::Zero),
    Format::Fp6(Fp6Endpoint::Neg32),
    Format::Fp3,
    Format::Fp2(Fp2Dialect::Signed),
    Format::Fp2(Fp2Dialect::Affine),
    Format::Fp2(Fp2Dialect::S40),
    Format::Mxfp4,
    Format::Q4K,
    Format::Q2K,
    Format::Iq2Xxs,
    Format::F32,
    Format::F16,
    Format::BF16,
];

/// Columns of a product: decode, verify, prefill.
const COLUMNS: [usize; 6] = [1, 2, 3, 4, 8, 64];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, or: usize| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(or);
    let (rows, k) = (number(0, PIECE).next_multiple_of(PIECE), number(1, 4096));
    let seconds: f64 = args.get(2).and_then(|a| a.parse().ok()).unwrap_or(0.2);
    let only = args.get(3).filter(|name| *name != "all");
    let only_isa = args.get(4);
    println!("{rows} rows of {k}, one core; GMAC/s (GB/s of weights)");
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
        if only_isa.is_some_and(|name| *name != format!("{isa:?}")) {
            continue;
        }
        println!("\n{:<16} columns: {COLUMNS:?}", format!("{isa:?}"));
        for format in FORMATS {
            if only.is_some_and(|name| name != format.name()) {
                continue;
            }
            print!("{:<16}", format.name());
            for n in COLUMNS {
                let macs = measure(isa, format, rows, k, n, Duration::from_secs_f64(seconds));
                let bytes = format.row_bytes(k).unwrap_or(0) as f64 / k as f64;
                print!(
                    " {:>13}",
                    format!("{macs:.1} ({:.1})", macs / n as f64 * bytes)
                );
            }
            println!();
        }
        let x: Vec<f32> = (0..k).map(|i| (i % 251) as f32 - 125.0).collect();
        let mut a8 = A8Rows::new();
        let calls = repeat(Duration::from_secs_f64(seconds), || {
            a8.quantize_on(isa, &x, 1, k)
        });
        println!("a8 of f32: {:.2} G values/s", calls * k as f64 / 1e9);
    }
}

/// Billions of multiply-adds a second.
fn measure(isa: Isa, format: Format, rows: usize, k: usize, n: usize, time: Duration) -> f64 {
    let mut state = 1u64;
    let len = format.matrix_bytes(rows, k).unwrap_or(0);
    let bytes: Vec<u8> = (0..len)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            // Below 0x40 no scale byte is invalid and no float is huge.
            (state >> 58) as u8
        })
        .collect();
    let Ok(w) = Matrix::new(format, rows, k, &bytes) else {
        return 0.0;
    };
    let x: Vec<f32> = (0..n * k).map(|i| (i % 251) as f32 - 125.0).collect();
    let mut a8 = A8Rows::new();
    a8.quantize(&x, n, k);
    let mut out = vec![0.0; n * PIECE];
    let mut row = 0;
    let calls = repeat(time, || {
        let mut out = Out::new(&mut out, n, PIECE);
        if format.is_float() {
            matmul_f32_on(isa, &w, row..row + PIECE, &x, 0..n, &mut out);
        } else {
            matmul_a8_on(isa, &w, row..row + PIECE, &a8, 0..n, &mut out);
        }
        row = (row + PIECE) % rows;
    });
    calls * (PIECE * k * n) as f64 / 1e9
}

/// Rows of a piece.
const PIECE: usize = 64;

/// Calls a second.
fn repeat(time: Duration, mut call: impl FnMut()) -> f64 {
    let (mut times, begin) = (Vec::new(), Instant::now());
    while begin.elapsed() < time {
        let start = Instant::now();
        call();
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 4).map_or(0.0, |t| 1.0 / t)
}
