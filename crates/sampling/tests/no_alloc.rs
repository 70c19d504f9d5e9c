//! A draw allocates nothing: it runs once for every token of every sequence.

#![allow(clippy::unwrap_used, reason = "test helpers")]

use engine_core::{Penalties, SamplePlan};
use sampling::Sampler;

/// Counts the allocations of this thread.
mod counting {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    thread_local! {
        static COUNT: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn count() -> usize {
        COUNT.with(Cell::get)
    }

    struct Counting;

    // SAFETY: every call goes to the system allocator unchanged, which keeps the trait's contract;
    // counting touches only a const-initialised thread-local and does not allocate.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            COUNT.with(|c| c.set(c.get() + 1));
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

#[test]
fn a_draw_from_a_wide_row_allocates_nothing() {
    let n = 129_280u32;
    let row: Vec<f32> = (0..n)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 12) as f32 * 1e-5)
        .collect();
    let history: Vec<u32> = (0..2000).map(|i| i * 7 % n).collect();
    let penalties = Penalties {
        repeat: 1.2,
        presence: 0.1,
        frequency: 0.1,
        window: 1024,
    };
    let base = SamplePlan {
        temperature: 1.0,
        ..SamplePlan::greedy()
    };
    let plans = [
        SamplePlan::greedy(),
        base.clone(),
        SamplePlan {
            top_k: 40,
            top_p: 0.95,
            ..base.clone()
        },
        SamplePlan {
            top_p: 0.999,
            ..base.clone()
        },
        SamplePlan {
            top_k: 100_000,
            min_p: 1e-3,
            ..base.clone()
        },
        SamplePlan {
            min_p: 0.05,
            penalties,
            ..base
        },
    ];
    let mut sampler = Sampler::new(row.len());
    for plan in plans {
        let before = counting::count();
        let drawn = sampler.draw(&plan, &row, 5, &history);
        let after = counting::count();
        assert!(drawn.is_ok());
        assert_eq!(after - before, 0, "{plan:?}");
    }
    let before = counting::count();
    let noticed = vec![0u8; 1];
    assert_eq!(
        counting::count() - before,
        1,
        "the counter counts {noticed:?}"
    );
}
