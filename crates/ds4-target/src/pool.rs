//! A small pool of threads for steps of microseconds. One step of a token is some ten parallel
//! regions of 10 to 100 us each; a general scheduler's wake-up would cost as much as the work.
//!
//! A region is open to whoever comes: workers that are awake join it, and the caller waits only for
//! those that did. A worker that sleeps, or that the system runs elsewhere, delays nobody. Workers
//! spin briefly for the next region, then sleep, so that an idle engine uses no processor and a busy
//! machine is not starved. A worker that the system takes away inside a region does delay it; after
//! that the caller works alone for a while, and counts it ([`Pool::stalls`]). How work is divided never
//! changes a bit of the result: every output element is computed whole by one task.
//!
//! The unsafe of this crate lives here: lending a closure to workers, and splitting an output
//! slice among tasks.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Turns of the spin loop before a worker sleeps: some tens of microseconds.
const SPIN: u32 = 4_000;

/// Waiting for workers beyond twice the caller's own share of the region and this (nanoseconds) is a
/// stall: tasks are even enough that only a worker without a processor explains it.
const STALL: u64 = 100_000;

/// How long the caller works alone after a stall: so many times its length, at most this.
const STALL_REST: u64 = 16;
const LONGEST_REST: u64 = 100_000_000;

/// The state word: workers inside, how many may be, whether the region is open, and which it is.
const INSIDE: u64 = (1 << 16) - 1;
const LIMIT_AT: u32 = 16;
const LIMIT: u64 = 0x7fff;
const OPEN: u64 = 1 << 31;
const EPOCH_AT: u32 = 32;

/// A region's closure with its lifetime erased, and its tasks.
#[derive(Clone, Copy)]
struct Work {
    f: *const (dyn Fn(usize) + Sync),
    tasks: usize,
}

/// Keeps what different threads write apart: two cache lines, since processors fetch pairs.
#[repr(align(128))]
struct Line<T>(T);

struct Shared {
    /// Joining is one compare-exchange here: it fails once the region is closed, full or another.
    state: Line<AtomicU64>,
    /// Written by the caller while nobody is inside; read by workers that are.
    work: Line<UnsafeCell<Work>>,
    next: Line<AtomicUsize>,
    sleepers: Line<AtomicUsize>,
    lock: Mutex<()>,
    wake: Condvar,
    panicked: AtomicBool,
    stop: AtomicBool,
}

// SAFETY: the closure behind `work` is `Sync`. The cell is written only by the caller of the open
// region (`busy` admits one) while no worker is inside, and read only by workers inside: joining
// acquires what opening released, and the caller acquires what leaving released.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is only followed inside a region, which its closure outlives.
unsafe impl Send for Shared {}

/// The pool. `threads` counts the caller.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Whether a region is open; another caller, or a task of it, works alone meanwhile.
    busy: AtomicBool,
    handed: AtomicU64,
    stalls: AtomicU64,
    /// Nanoseconds after `start` until which no region is opened.
    alone_until: AtomicU64,
    start: Instant,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads)", self.threads())
    }
}

fn nothing(_: usize) {}

impl Pool {
    /// A pool of `threads` threads, the caller included; at least one.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        let work = Work {
            f: &nothing,
            tasks: 0,
        };
        let shared = Arc::new(Shared {
            state: Line(AtomicU64::new(0)),
            work: Line(UnsafeCell::new(work)),
            next: Line(AtomicUsize::new(0)),
            sleepers: Line(AtomicUsize::new(0)),
            lock: Mutex::new(()),
            wake: Condvar::new(),
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
            busy: AtomicBool::new(false),
            handed: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
            alone_until: AtomicU64::new(0),
            start: Instant::now(),
        }
    }

    /// Threads, the caller included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Regions that were opened to workers since the start.
    #[must_use]
    pub fn regions(&self) -> u64 {
        self.handed.load(Ordering::Relaxed)
    }

    /// Regions that a worker held up, each followed by a while in which the caller worked alone.
    #[must_use]
    pub fn stalls(&self) -> u64 {
        self.stalls.load(Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Runs `f(0) .. f(tasks - 1)`, each exactly once, on whatever threads are free. Returns when all
    /// are done. A second caller, and a task that calls this, run theirs alone.
    ///
    /// # Panics
    /// If a task panicked.
    pub fn run(&self, tasks: usize, f: &(dyn Fn(usize) + Sync)) {
        let alone = tasks <= 1 || self.workers.is_empty();
        let began = if alone { 0 } else { self.now() };
        let alone = alone || began < self.alone_until.load(Ordering::Relaxed);
        if alone || self.busy.swap(true, Ordering::Acquire) {
            (0..tasks).for_each(f);
            return;
        }
        let s = &*self.shared;
        // SAFETY: only the lifetime changes. `Finish` below waits, even when unwinding, until every
        // worker that joined has left, and workers use the closure only inside.
        let lent = unsafe {
            std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(f)
        };
        // SAFETY: `busy` is ours and the last region was left by all: nobody else is at the cell.
        unsafe { *s.work.0.get() = Work { f: lent, tasks } };
        s.next.0.store(0, Ordering::Relaxed);
        self.handed.fetch_add(1, Ordering::Relaxed);
        let helpers = self.workers.len().min(tasks - 1).min(LIMIT as usize);
        let finish = Finish { pool: self };
        open(s, helpers);
        take_tasks(s, f, tasks);
        let worked = self.now();
        drop(finish);
        let ended = self.now();
        if let Some(rest) = rest_after(worked - began, ended - worked) {
            self.stalls.fetch_add(1, Ordering::Relaxed);
            self.alone_until.store(ended + rest, Ordering::Relaxed);
        }
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
        drop(self.shared.lock.lock());
        self.shared.wake.notify_all();
        for w in self.workers.drain(..) {
            let _ = w.join();
        }
    }
}

/// How long to work alone after a region: `None` if its workers did not hold it up.
fn rest_after(own: u64, waited: u64) -> Option<u64> {
    (waited > 2 * own + STALL).then(|| (STALL_REST * waited).min(LONGEST_REST))
}

/// Opens the next region to `helpers` workers and wakes as many sleepers.
fn open(s: &Shared, helpers: usize) {
    let epoch = (s.state.0.load(Ordering::Relaxed) >> EPOCH_AT).wrapping_add(1) << EPOCH_AT;
    let state = epoch | OPEN | ((helpers as u64) << LIMIT_AT);
    // Sequentially consistent with the load below: either a worker that goes to sleep sees the open
    // region, or this sees the sleeper.
    s.state.0.swap(state, Ordering::SeqCst);
    let asleep = s.sleepers.0.load(Ordering::SeqCst);
    if asleep > 0 {
        let _guard = s.lock.lock().unwrap_or_else(PoisonError::into_inner);
        (0..asleep.min(helpers)).for_each(|_| s.wake.notify_one());
    }
}

/// Closes the region on drop and waits until all that joined have left.
struct Finish<'a> {
    pool: &'a Pool,
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let s = &*self.pool.shared;
        // If the caller's own task panicked, the rest must not start.
        if std::thread::panicking() {
            s.next.0.store(usize::MAX / 2, Ordering::SeqCst);
        }
        s.state.0.fetch_and(!OPEN, Ordering::Relaxed);
        let mut turns = 0u32;
        while s.state.0.load(Ordering::Acquire) & INSIDE != 0 {
            turns += 1;
            if turns > SPIN {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        self.pool.busy.store(false, Ordering::Release);
    }
}

fn take_tasks(s: &Shared, f: &(dyn Fn(usize) + Sync), tasks: usize) {
    loop {
        let i = s.next.0.fetch_add(1, Ordering::Relaxed);
        if i >= tasks {
            return;
        }
        f(i);
    }
}

fn worker(s: &Shared) {
    let mut seen = 0;
    while let Some(epoch) = join(s, seen) {
        seen = epoch;
        // SAFETY: this worker is inside, so the caller does not write the cell.
        let work = unsafe { *s.work.0.get() };
        // SAFETY: the region cannot end before this worker leaves below.
        let f = unsafe { &*work.f };
        let run = std::panic::AssertUnwindSafe(|| take_tasks(s, f, work.tasks));
        if std::panic::catch_unwind(run).is_err() {
            s.panicked.store(true, Ordering::SeqCst);
        }
        s.state.0.fetch_sub(1, Ordering::Release);
    }
}

/// Whether a worker that was in region `seen` last may join.
fn joinable(state: u64, seen: u64) -> bool {
    let room = state & INSIDE < (state >> LIMIT_AT) & LIMIT;
    state & OPEN != 0 && state >> EPOCH_AT != seen && room
}

/// Joins the next region and returns its number; `None` when the pool stops. Spins, then sleeps.
fn join(s: &Shared, seen: u64) -> Option<u64> {
    let mut turns = 0;
    loop {
        let state = s.state.0.load(Ordering::Relaxed);
        if joinable(state, seen) {
            let joined = (Ordering::Acquire, Ordering::Relaxed);
            let inside = s
                .state
                .0
                .compare_exchange_weak(state, state + 1, joined.0, joined.1);
            if inside.is_ok() {
                return Some(state >> EPOCH_AT);
            }
        } else if turns < SPIN {
            turns += 1;
            std::hint::spin_loop();
        } else {
            turns = 0;
            sleep(s, seen);
            if s.stop.load(Ordering::SeqCst) {
                return None;
            }
        }
    }
}

/// Sleeps until woken, unless there is something to join or the pool stops.
fn sleep(s: &Shared, seen: u64) {
    let guard = s.lock.lock().unwrap_or_else(PoisonError::into_inner);
    s.sleepers.0.fetch_add(1, Ordering::SeqCst);
    if !joinable(s.state.0.load(Ordering::SeqCst), seen) && !s.stop.load(Ordering::SeqCst) {
        drop(s.wake.wait(guard).unwrap_or_else(PoisonError::into_inner));
    }
    s.sleepers.0.fetch_sub(1, Ordering::SeqCst);
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
    fn a_task_may_open_a_region_and_callers_may_meet() {
        let pool = Pool::new(3);
        let sum = AtomicUsize::new(0);
        let add = |i: usize| {
            sum.fetch_add(i, Ordering::SeqCst);
        };
        pool.run(8, &|_| pool.run(10, &add));
        assert_eq!(sum.load(Ordering::SeqCst), 8 * 45);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..100).for_each(|_| pool.run(5, &add)));
            }
        });
        assert_eq!(sum.load(Ordering::SeqCst), 8 * 45 + 400 * 10);
    }

    #[test]
    fn only_a_worker_without_a_processor_is_a_stall() {
        let (us, ms) = (1_000, 1_000_000);
        assert_eq!(rest_after(10 * us, 90 * us), None, "a short wait");
        assert_eq!(rest_after(5 * ms, 9 * ms), None, "an uneven long region");
        assert_eq!(rest_after(10 * us, 4 * ms), Some(64 * ms));
        assert_eq!(rest_after(10 * us, 400 * ms), Some(100 * ms), "no longer");
        let pool = Pool::new(2);
        let caller = std::thread::current().id();
        let hold = |_: usize| {
            let worker = std::thread::current().id() != caller;
            let millis = if worker { 60 } else { 2 };
            std::thread::sleep(std::time::Duration::from_millis(millis));
        };
        // The worker may miss a region, but not for ever.
        (0..1_000)
            .take_while(|_| pool.stalls() == 0)
            .for_each(|_| pool.run(2, &hold));
        assert_eq!(pool.stalls(), 1);
    }

    #[test]
    fn only_regions_with_several_tasks_are_opened() {
        let pool = Pool::new(2);
        pool.run(1, &|_| {});
        pool.run(0, &|_| {});
        assert_eq!(pool.regions(), 0);
        pool.run(2, &|_| {});
        assert_eq!(pool.regions(), 1);
        // Long enough that the worker sleeps in between, and any rest is over.
        std::thread::sleep(std::time::Duration::from_millis(120));
        pool.run(2, &|_| {});
        assert_eq!(pool.regions(), 2);
    }

    #[test]
    #[should_panic(expected = "rows of")]
    fn parts_outside_the_slice_are_refused() {
        let mut out = [0f32; 5];
        Pool::new(1).each(2, 1, split(&mut out, 3), |_, _| {});
    }
}
