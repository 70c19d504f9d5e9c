//! When to look for a reply instead of sleeping until it comes.
//!
//! A thread that sleeps must be woken, which costs the worker a call into the system and the text the time until a
//! processor runs the thread again. The caller has nothing else to do until the reply is there. So it sleeps until shortly
//! before the time when the reply is likely and stays awake for a moment around it. It does so only where processors are
//! left for it and for one more beside the worker's threads, never beyond a deadline, and the less often the more often it
//! looked in vain. Must not know: how a reply is received, what it holds.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::report::Standing;

/// A sleep ends this much before the likely time: the system ends sleeps late, by 50 us for its timers and by the wake-up.
const EARLY: Duration = Duration::from_micros(80);
/// A reply is looked for this long after its likely time, which is that of the worker alone, without the way there and back.
const LATE: Duration = Duration::from_micros(60);
/// Most replies in a row that are slept for after looks in vain.
const MOST: u32 = 63;

/// What became of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// The reply came during it.
    Met,
    /// It was over before.
    Vain,
}

/// What is known of the time that replies take.
#[derive(Debug)]
pub(super) struct Lookout {
    /// Processors are free for it.
    free: bool,
    /// What the newest step took the worker.
    usual: Option<Duration>,
    /// Replies that are slept for before the next look.
    rest: u32,
    /// The rest after the next look in vain.
    penalty: u32,
}

impl Lookout {
    /// `threads`: how many the worker computes with.
    pub(super) fn new(processors: usize, threads: usize) -> (Self, Standing) {
        // One for the caller and one for whatever else runs: on two processors that others used too, a caller that
        // did not sleep kept the worker waiting for the other one.
        let free = processors > threads.saturating_add(1);
        let lookout = Self {
            free,
            usual: None,
            rest: 0,
            penalty: 1,
        };
        let standing = match free {
            true => Standing::Yes,
            false => Standing::no(format!(
                "the worker computes with {threads} threads on {processors} processors"
            )),
        };
        (lookout, standing)
    }

    /// When to be awake for the reply to a step that is sent now; `None`: sleep until it comes.
    pub(super) fn next(&mut self, now: Instant) -> Option<Range<Instant>> {
        let usual = self.usual.filter(|_| self.free)?;
        if self.rest > 0 {
            self.rest -= 1;
            return None;
        }
        Some(now + usual.saturating_sub(EARLY)..now + usual + LATE)
    }

    /// A step was answered that took the worker `took`. `near`: when somebody was awake for it.
    pub(super) fn came(
        &mut self,
        took: Duration,
        near: Option<&Range<Instant>>,
        now: Instant,
    ) -> Option<Look> {
        // A time that no step takes would be a lie; a look at it would still be short.
        const LONGEST: Duration = Duration::from_secs(60);
        self.usual = Some(took.min(LONGEST));
        let near = near?;
        if now <= near.end {
            self.penalty = 1;
            // Before that it was slept for.
            return (now >= near.start).then_some(Look::Met);
        }
        self.rest = self.penalty;
        self.penalty = (2 * self.penalty + 1).min(MOST);
        Some(Look::Vain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_micros(300);

    fn seen() -> (Lookout, Instant) {
        let (mut lookout, standing) = Lookout::new(4, 2);
        assert_eq!(standing, Standing::Yes);
        let now = Instant::now();
        assert_eq!(lookout.next(now), None, "no step has been answered");
        assert_eq!(lookout.came(STEP, None, now), None);
        (lookout, now)
    }

    #[test]
    fn looks_around_the_time_of_the_last_step() {
        let (mut lookout, now) = seen();
        let near = lookout.next(now).unwrap();
        assert_eq!(
            (near.start, near.end),
            (now + STEP - EARLY, now + STEP + LATE)
        );
        let short = Duration::from_micros(5);
        assert_eq!(lookout.came(short, Some(&near), near.end), Some(Look::Met));
        let near = lookout.next(now).unwrap();
        assert_eq!((near.start, near.end), (now, now + short + LATE));
        // A worker may say anything.
        lookout.came(Duration::MAX, None, now);
        let near = lookout.next(now).unwrap();
        assert_eq!(near.end - near.start, EARLY + LATE);
    }

    #[test]
    fn looks_in_vain_become_rare_until_one_is_not() {
        let (mut lookout, now) = seen();
        let mut rests = Vec::new();
        for _ in 0..8 {
            let near = lookout.next(now).unwrap();
            let late = near.end + Duration::from_nanos(1);
            assert_eq!(lookout.came(STEP, Some(&near), late), Some(Look::Vain));
            let mut rest = 0;
            while lookout.rest > 0 {
                assert_eq!(lookout.next(now), None);
                assert_eq!(lookout.came(STEP, None, late), None, "slept for");
                rest += 1;
            }
            rests.push(rest);
        }
        assert_eq!(rests, [1, 3, 7, 15, 31, 63, 63, 63]);
        let near = lookout.next(now).unwrap();
        assert_eq!(lookout.came(STEP, Some(&near), near.start), Some(Look::Met));
        let near = lookout.next(now).unwrap();
        lookout.came(STEP, Some(&near), near.end + STEP);
        assert_eq!(lookout.rest, 1, "forgiven");
    }

    #[test]
    fn takes_no_processor_from_the_worker() {
        for (processors, threads) in [(1, 0), (1, 1), (2, 1), (2, 3), (16, 15), (16, usize::MAX)] {
            let (mut lookout, standing) = Lookout::new(processors, threads);
            let why =
                format!("the worker computes with {threads} threads on {processors} processors");
            assert_eq!(standing, Standing::No(why));
            lookout.came(STEP, None, Instant::now());
            assert_eq!(lookout.next(Instant::now()), None);
        }
    }
}
