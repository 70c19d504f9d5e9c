//! A small pool of threads for steps of microseconds. One step of a token is some ten parallel
//! regions of 10 to 100 us each; a general scheduler's wake-up would cost as much as the work.
//!
//! Workers spin briefly for the next region, then sleep, so that an idle engine uses no processor
//! and a busy machine is not starved. How work is divided never changes a bit of the result: every
//! output element is computed whole by one task.
//!
//! The unsafe of this crate lives here: lending a closure to workers, and splitting an output
//! slice among tasks.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

/// Turns of the spin loop before a worker sleeps: some tens of microseconds.
const SPIN: u32 = 4_000;

/// A region's closure with its lifetime erased; valid until every worker has left the region.
#[derive(Clone, Copy)]
struct Work(*const (dyn Fn(usize) + Sync));

// SAFETY: the closure is `Sync`, and `Pool::run` keeps it alive until all workers are done.
unsafe impl Send for Work {}

struct Shared {
    /// Counts regions; workers wait for it to move.
    epoch: AtomicU64,
    work: Mutex<Option<Work>>,
    wake: Condvar,
    sleepers: AtomicUsize,
    next: AtomicUsize,
    tasks: AtomicUsize,
    /// Workers that have left the current region.
    left: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
}

/// The pool. `threads` counts the caller.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    region: Mutex<()>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads)", self.threads())
    }
}

impl Pool {
    /// A pool of `threads` threads, the caller included; at least one.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            epoch: AtomicU64::new(0),
            work: Mutex::new(None),
            wake: Condvar::new(),
            sleepers: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            tasks: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let workers = (1..threads.max(1))
            .map(|i| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("fourspark-cpu-{i}"))
                    .spawn(move || worker(&shared))
                    .expect("the system can start a thread")
            })
            .collect();
        Self {
            shared,
            workers,
            region: Mutex::new(()),
        }
    }

    /// Threads, the caller included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `f(0) .. f(tasks - 1)`, each exactly once, on all threads. Returns when all are done.
    ///
    /// # Panics
    /// If a task panicked.
    pub fn run(&self, tasks: usize, f: &(dyn Fn(usize) + Sync)) {
        if tasks <= 1 || self.workers.is_empty() {
            (0..tasks).for_each(f);
            return;
        }
        let _one_region = self
            .region
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let s = &*self.shared;
        s.next.store(0, Ordering::Relaxed);
        s.tasks.store(tasks, Ordering::Relaxed);
        s.left.store(0, Ordering::Relaxed);
        // SAFETY: only the lifetime changes. `finish` below waits, even when unwinding, until every
        // worker has left the region, and workers use the closure only inside it.
        let work = unsafe {
            std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(f)
        };
        *s.work
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(Work(work));
        s.epoch.fetch_add(1, Ordering::SeqCst);
        if s.sleepers.load(Ordering::SeqCst) > 0 {
            let _guard = s
                .work
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            s.wake.notify_all();
        }
        let finish = Finish {
            shared: s,
            workers: self.workers.len(),
        };
        take_tasks(s, f);
        drop(finish);
        assert!(
            !s.panicked.swap(false, Ordering::SeqCst),
            "a task of a parallel region panicked"
        );
    }

    /// Runs `f(i, part_i)` for the `n` parts of some outputs, `grain` consecutive parts a task.
    /// Takes the parts by value: none can be handed out twice.
    pub fn each<P: Parts, F>(&self, n: usize, grain: usize, parts: P, f: F)
    where
        F: Fn(usize, P::Part) + Sync,
    {
        parts.check(n);
        let grain = grain.max(1);
        self.run(n.div_ceil(grain), &|task| {
            for i in task * grain..((task + 1) * grain).min(n) {
                // SAFETY: `i < n` was checked against the parts' lengths, and each task index, so
                // each `i`, is visited once: no two parts alive at a time overlap.
                f(i, unsafe { parts.part(i) });
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        drop(self.shared.work.lock());
        self.shared.wake.notify_all();
        for w in self.workers.drain(..) {
            let _ = w.join();
        }
    }
}

/// Waits on drop until all workers have left the region.
struct Finish<'a> {
    shared: &'a Shared,
    workers: usize,
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        // If the caller's own task panicked, the rest must not start.
        if std::thread::panicking() {
            self.shared.next.store(usize::MAX / 2, Ordering::SeqCst);
        }
        let mut turns = 0u32;
        while self.shared.left.load(Ordering::Acquire) < self.workers {
            turns += 1;
            if turns > SPIN {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

fn take_tasks(s: &Shared, f: &(dyn Fn(usize) + Sync)) {
    let tasks = s.tasks.load(Ordering::Relaxed);
    loop {
        let i = s.next.fetch_add(1, Ordering::Relaxed);
        if i >= tasks {
            return;
        }
        f(i);
    }
}

fn worker(s: &Shared) {
    let mut seen = 0;
    loop {
        seen = wait_for_region(s, seen);
        if s.stop.load(Ordering::SeqCst) {
            return;
        }
        let work = *s
            .work
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(Work(f)) = work {
            // SAFETY: the region cannot end before this worker adds itself to `left` below.
            let f = unsafe { &*f };
            let run = std::panic::AssertUnwindSafe(|| take_tasks(s, f));
            if std::panic::catch_unwind(run).is_err() {
                s.panicked.store(true, Ordering::SeqCst);
            }
        }
        s.left.fetch_add(1, Ordering::Release);
    }
}

/// Waits until the region counter moves past `seen`: spins, then sleeps. Every worker takes part in
/// every region, so the counter moves by one at a time while work goes on.
fn wait_for_region(s: &Shared, seen: u64) -> u64 {
    for _ in 0..SPIN {
        let epoch = s.epoch.load(Ordering::Acquire);
        if epoch != seen {
            return epoch;
        }
        std::hint::spin_loop();
    }
    let mut guard = s
        .work
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    s.sleepers.fetch_add(1, Ordering::SeqCst);
    loop {
        let epoch = s.epoch.load(Ordering::SeqCst);
        if epoch != seen {
            s.sleepers.fetch_sub(1, Ordering::SeqCst);
            return epoch;
        }
        guard = s
            .wake
            .wait(guard)
            .unwrap_or_else(std::sync::PoisonError::into_inner);
    }
}

/// Outputs that split into disjoint parts.
pub trait Parts: Sync {
    /// One part.
    type Part;

    /// Panics unless there are at least `n` parts.
    fn check(&self, n: usize);

    /// Part `i`.
    ///
    /// # Safety
    /// `i` is below the checked count, and no part `i` was handed out before.
    unsafe fn part(&self, i: usize) -> Self::Part;
}

/// A slice split into rows of `width`.
#[derive(Debug)]
pub struct Split<'a, T> {
    ptr: *mut T,
    len: usize,
    width: usize,
    lent: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Split` hands out disjoint `&mut [T]`, which may cross threads when `T: Send`.
unsafe impl<T: Send> Sync for Split<'_, T> {}

/// Splits `slice` into rows of `width` elements.
pub fn split<T>(slice: &mut [T], width: usize) -> Split<'_, T> {
    Split {
        ptr: slice.as_mut_ptr(),
        len: slice.len(),
        width,
        lent: PhantomData,
    }
}

impl<'a, T: Send> Parts for Split<'a, T> {
    type Part = &'a mut [T];

    fn check(&self, n: usize) {
        let wanted = n.checked_mul(self.width);
        assert!(
            wanted.is_some_and(|w| w <= self.len),
            "{n} rows of {} in {}",
            self.width,
            self.len
        );
    }

    unsafe fn part(&self, i: usize) -> &'a mut [T] {
        // SAFETY: `check` proved that `i * width + width <= len`.
        let at = unsafe { self.ptr.add(i * self.width) };
        // SAFETY: the row lies in the lent slice, and this is the only part `i`.
        unsafe { std::slice::from_raw_parts_mut(at, self.width) }
    }
}

macro_rules! tuple_parts {
    ($($name:ident $at:tt),+) => {
        impl<$($name: Parts),+> Parts for ($($name,)+) {
            type Part = ($($name::Part,)+);

            fn check(&self, n: usize) {
                $(self.$at.check(n);)+
            }

            unsafe fn part(&self, i: usize) -> Self::Part {
                // SAFETY: the caller's promise holds for every member.
                ($(unsafe { self.$at.part(i) },)+)
            }
        }
    };
}
tuple_parts!(A 0, B 1);
tuple_parts!(A 0, B 1, C 2);
tuple_parts!(A 0, B 1, C 2, D 3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_for_any_thread_count() {
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads);
            for round in 0..200usize {
                let n = round % 17;
                let mut out = vec![0u32; n * 3];
                pool.each(n, 1 + round % 4, split(&mut out, 3), |i, row| {
                    for v in row {
                        *v += i as u32 + 1;
                    }
                });
                let want: Vec<u32> = (0..n).flat_map(|i| [i as u32 + 1; 3]).collect();
                assert_eq!(out, want, "threads {threads} round {round}");
            }
        }
    }

    #[test]
    fn a_panicking_task_reaches_the_caller_and_the_pool_survives() {
        let pool = Pool::new(3);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(64, &|i| assert!(i != 40, "planned"));
        }));
        assert!(result.is_err());
        let sum = AtomicUsize::new(0);
        pool.run(10, &|i| {
            sum.fetch_add(i, Ordering::SeqCst);
        });
        assert_eq!(sum.load(Ordering::SeqCst), 45);
    }

    #[test]
    #[should_panic(expected = "rows of")]
    fn parts_outside_the_slice_are_refused() {
        let mut out = [0f32; 5];
        Pool::new(1).each(2, 1, split(&mut out, 3), |_, _| {});
    }
}
