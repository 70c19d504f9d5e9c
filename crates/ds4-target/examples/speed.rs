//! Prefill and decode speed of a GGUF model on this processor:
//! `speed FILE [threads] [prompt] [generate] [repeats]`. Prints medians of the repeats; a figure from a shared machine is only worth its ratio to another
//! taken in the same run.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Instant;

use ds4_target::{CpuTarget, GgufSource, Model, Options};
use engine_core::{Out, SamplePlan, Span, Tap, Target, Want};

fn span(seq: engine_core::SeqId, pos: u32, len: usize) -> Span {
    let want = Want::Ids(Arc::new(SamplePlan::greedy()));
    Span {
        seq,
        pos,
        range: 0..len,
        out: Out::Last,
        want,
        tap: Tap::default(),
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, default: usize| args.get(i).map_or(default, |a| a.parse().unwrap());
    let (threads, prompt, generate) = (number(2, 2), number(3, 512), number(4, 128));
    let repeats = number(5, 7).max(1);
    let file = gguf::Gguf::open(&args[1], &gguf::OpenOptions::default()).unwrap();
    let model = Arc::new(Model::load(&GgufSource::new(file)).unwrap());
    let options = Options {
        n_ctx: prompt + generate + 8,
        threads,
        ..Options::default()
    };
    let mut t = CpuTarget::new(model, options).unwrap();
    let tokens: Vec<u32> = (0..prompt as u32)
        .map(|i| (i * 7919 + 13) % t.info().n_vocab as u32)
        .collect();
    let (mut prefill, mut decode) = (vec![], vec![]);
    for _ in 0..repeats {
        let seq = t.open().unwrap();
        let start = Instant::now();
        let mut next = 0;
        for (i, part) in tokens.chunks(512).enumerate() {
            let ticket = t
                .submit(part, &[span(seq, (i * 512) as u32, part.len())])
                .unwrap();
            next = t.wait(ticket, None).unwrap().ids[0];
            t.commit(seq, (i * 512 + part.len()) as u32);
        }
        prefill.push(prompt as f64 / start.elapsed().as_secs_f64());
        let start = Instant::now();
        for pos in prompt..prompt + generate {
            let ticket = t.submit(&[next], &[span(seq, pos as u32, 1)]).unwrap();
            next = t.wait(ticket, None).unwrap().ids[0];
            t.commit(seq, pos as u32 + 1);
        }
        decode.push(generate as f64 / start.elapsed().as_secs_f64());
        t.close(seq);
    }
    prefill.sort_by(f64::total_cmp);
    decode.sort_by(f64::total_cmp);
    println!(
        "threads {threads}: prefill {prompt} {:.0} tok/s (best {:.0}), decode {generate} {:.0} tok/s (best {:.0})",
        prefill[repeats / 2],
        prefill[repeats - 1],
        decode[repeats / 2],
        decode[repeats - 1]
    );
}
