//! A step allocates nothing: plain decoding, a verify of four, and five sequences in a pass, on the
//! shipped model.

#![allow(clippy::unwrap_used, reason = "test helpers")]

use std::sync::Arc;

use ds4_target::{CpuTarget, GgufSource, Model, Options};
use engine_core::{Out, SamplePlan, SeqId, Span, Tap, Target, Want};

/// Counts the allocations of all threads.
mod counting {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::sync::atomic::{AtomicUsize, Ordering};

    static COUNT: AtomicUsize = AtomicUsize::new(0);

    pub(super) fn count() -> usize {
        COUNT.load(Ordering::SeqCst)
    }

    struct Counting;

    // SAFETY: every call goes to the system allocator unchanged, which keeps the trait's contract;
    // counting is one atomic addition and does not allocate.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            COUNT.fetch_add(1, Ordering::SeqCst);
            // SAFETY: the caller keeps the contract of `alloc`.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
            // SAFETY: the block came from `System` with this layout.
            unsafe { System.dealloc(block, layout) }
        }
    }

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;
}

fn target(threads: usize) -> CpuTarget {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny.gguf");
    let file = gguf::Gguf::open(path, &gguf::OpenOptions::default()).unwrap();
    let model = Arc::new(Model::load(&GgufSource::new(file)).unwrap());
    let options = Options {
        n_ctx: 1024,
        n_seq_max: 6,
        threads,
        ..Options::default()
    };
    CpuTarget::new(model, options).unwrap()
}

/// Spans of `q` tokens each, reused: their plan is the caller's, not the step's.
fn spans(seqs: &[SeqId], q: usize) -> Vec<Span> {
    let want = Want::Ids(Arc::new(SamplePlan::greedy()));
    let span = |(i, seq): (usize, &SeqId)| Span {
        seq: *seq,
        pos: 0,
        range: i * q..(i + 1) * q,
        out: Out::All,
        want: want.clone(),
        tap: Tap::default(),
    };
    seqs.iter().enumerate().map(span).collect()
}

/// Runs `steps` passes and returns how much was allocated in each.
fn steps(t: &mut CpuTarget, spans: &mut [Span], q: usize, steps: usize) -> Vec<usize> {
    let n_vocab = t.info().n_vocab as u32;
    let tokens: Vec<u32> = (0..(spans.len() * q) as u32)
        .map(|i| (i * 37 + 11) % n_vocab)
        .collect();
    let mut counts = Vec::with_capacity(steps);
    for _ in 0..steps {
        for span in spans.iter_mut() {
            span.pos = t.pos(span.seq).unwrap();
        }
        let before = counting::count();
        let ticket = t.submit(&tokens, spans).unwrap();
        assert_eq!(t.wait(ticket, None).unwrap().ids.len(), tokens.len());
        for span in spans.iter() {
            t.commit(span.seq, span.pos + q as u32);
        }
        counts.push(counting::count() - before);
    }
    counts
}

fn prefilled(t: &mut CpuTarget, n: usize) -> SeqId {
    let seq = t.open().unwrap();
    steps(t, &mut spans(&[seq], n), n, 1);
    seq
}

#[test]
fn a_step_allocates_nothing() {
    let mut t = target(1);
    let seqs: Vec<SeqId> = (0..5).map(|i| prefilled(&mut t, 120 + 40 * i)).collect();
    for (seqs, q, n) in [
        (&seqs[4..], 1, 64),
        (&seqs[3..4], 4, 64),
        (&seqs[..], 1, 64),
    ] {
        let mut spans = spans(seqs, q);
        // Warm: the first pass of a kind, and depths at which more rows come into sight.
        steps(&mut t, &mut spans, q, 4);
        let counts = steps(&mut t, &mut spans, q, n);
        assert_eq!(counts, vec![0; n], "{} sequences, q = {q}", seqs.len());
    }
    // With workers, each thread's own scratch grows the first time it gets a task of a kind; when
    // that is, is up to the scheduler. Nothing else may allocate.
    let mut t = target(3);
    let seq = prefilled(&mut t, 400);
    let mut spans = spans(&[seq], 1);
    steps(&mut t, &mut spans, 1, 4);
    let late: usize = steps(&mut t, &mut spans, 1, 64).iter().sum();
    assert!(late <= 2 * 12, "{late} allocations by two workers");
    let before = counting::count();
    let noticed = vec![0u8; 1];
    assert_eq!(counting::count() - before, 1, "it counts {noticed:?}");
}
