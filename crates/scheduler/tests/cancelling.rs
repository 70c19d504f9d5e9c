//! Requests that nobody waits for any more cost nothing, wherever they stand, and free what they
//! held.

mod common;

use std::sync::Arc;

use common::{request, run, start, submit};
use scheduler::{FinishReason, Flow, Limits, Scheduler, SubmitError};
use testkit::fake::FakeTarget;

#[test]
fn a_request_can_be_cancelled_at_every_phase() {
    // Prompts of 1200 tokens take three chunks; the gate stops before each pass.
    for passes_before in 0..6 {
        let target = FakeTarget::new(100, 2000, 1).gated();
        let watch = target.watch();
        let scheduler = start(target);
        let running = submit(&scheduler, request(&[1; 1200], 50));
        watch.allow(passes_before);
        watch.await_passes(passes_before as usize + 1);
        // The pass that waits at the gate goes on; no other follows.
        running.handle.cancel();
        watch.allow(1);
        let (tokens, finish) = running.finish();
        assert!(matches!(finish.reason, FinishReason::Cancelled));
        // The first token comes with the third pass; the pass in progress delivers none any more.
        assert_eq!(tokens.len() as u64, passes_before.saturating_sub(2));
        assert_eq!(watch.passes().len() as u64, passes_before + 1);
        assert_eq!(watch.open(), 0, "the slot is free");
        let stats = scheduler.stats();
        assert_eq!((stats.cancelled, stats.in_flight()), (1, 0));
        watch.release();
        assert_eq!(run(&scheduler, request(&[1], 2)).0, [2, 3]);
    }
}

#[test]
fn six_clients_of_one_slot_of_which_five_leave() {
    let target = FakeTarget::new(100, 2000, 1).gated();
    let watch = target.watch();
    let scheduler = start(target);
    // The first is in its prefill, the others wait.
    let mut clients: Vec<_> = (0..6u32)
        .map(|n| submit(&scheduler, request(&vec![10 * n + 1; 600], 3)))
        .collect();
    watch.await_passes(1);
    assert_eq!((scheduler.stats().queued, scheduler.stats().active), (5, 1));
    let last = clients.pop().unwrap();
    let decoding = clients.pop().unwrap();
    // Three leave while queued, one during its prefill: by handle, by dropping everything, by
    // dropping the receiver alone.
    for (n, client) in clients.into_iter().enumerate() {
        match n {
            0 | 1 => client.handle.cancel(),
            2 => drop(client),
            _ => {
                drop(client.events);
                client.handle.cancel();
            }
        }
    }
    watch.allow(1);
    // The next pass is for the fifth client: nothing was computed for those that left in the queue.
    watch.await_passes(2);
    assert_eq!(watch.passes()[1][0].tokens[0], 41);
    assert_eq!(scheduler.stats().cancelled, 4);
    // It leaves during its decode.
    watch.allow(2);
    assert_eq!(decoding.token(), 42);
    watch.await_passes(4);
    drop(decoding);
    watch.release();
    let (tokens, finish) = last.finish();
    assert_eq!(tokens, [52, 53, 54]);
    assert!(matches!(finish.reason, FinishReason::Length));
    let stats = scheduler.stats();
    assert_eq!(
        (stats.cancelled, stats.length, stats.in_flight()),
        (5, 1, 0)
    );
    let of: Vec<_> = watch.passes().iter().map(|p| p[0].tokens[0] / 10).collect();
    assert!(of.iter().all(|client| [0, 4, 5].contains(client)), "{of:?}");
    assert_eq!((watch.open(), watch.opened()), (0, 3));
}

#[test]
fn a_receiver_that_is_gone_cancels() {
    let target = FakeTarget::new(100, 2000, 1);
    let watch = target.watch();
    let scheduler = start(target);
    let running = submit(&scheduler, request(&[1], 1000));
    running.handle.detach();
    drop(running.events);
    assert_eq!(run(&scheduler, request(&[1], 2)).0, [2, 3]);
    // One pass to find out, two for the second request.
    assert!(watch.passes().len() <= 3, "{}", watch.passes().len());
    assert_eq!(scheduler.stats().cancelled, 1);
}

#[test]
fn the_queue_is_bounded_and_those_who_left_make_room() {
    let target = FakeTarget::new(100, 64, 1).gated();
    let watch = target.watch();
    let limits = Limits {
        queue: 2,
        ..Limits::default()
    };
    let scheduler = Scheduler::start(Box::new(target), None, limits).unwrap();
    let first = submit(&scheduler, request(&[1], 1));
    watch.await_passes(1);
    let second = submit(&scheduler, request(&[11], 1));
    let third = submit(&scheduler, request(&[21], 1));
    let full = scheduler.submit(request(&[31], 1), scheduler::channel().0);
    assert!(matches!(full, Err(SubmitError::QueueFull { limit: 2 })));
    assert_eq!(scheduler.stats().queued, 2);
    second.handle.cancel();
    let fourth = submit(&scheduler, request(&[31], 1));
    assert!(matches!(second.end(), FinishReason::Cancelled));
    watch.release();
    for (running, want) in [(first, 2), (third, 22), (fourth, 32)] {
        assert_eq!(running.finish().0, [want]);
    }
    assert_eq!(scheduler.stats().submitted, 4);
}

#[test]
fn stopping_ends_everything_and_refuses_what_comes() {
    let target = FakeTarget::new(100, 64, 1).gated();
    let watch = target.watch();
    let scheduler = start(target);
    let active = submit(&scheduler, request(&[1], 9));
    watch.await_passes(1);
    let queued = submit(&scheduler, request(&[1], 9));
    scheduler.stop();
    watch.release();
    assert!(matches!(active.end(), FinishReason::Cancelled));
    assert!(matches!(queued.end(), FinishReason::Cancelled));
    let refused = scheduler.submit(request(&[1], 1), scheduler::channel().0);
    assert!(matches!(refused, Err(SubmitError::Stopped)));
    assert_eq!(scheduler.stats().in_flight(), 0);
    drop(scheduler);
    assert_eq!(watch.open(), 0);
}

#[test]
fn a_sink_may_hold_the_last_reference() {
    let scheduler = Arc::new(start(FakeTarget::new(100, 64, 1)));
    let (told, end) = std::sync::mpsc::channel();
    let mut held = Some(Arc::clone(&scheduler));
    let sink = move |event| {
        if let scheduler::Event::Finished(_) = event {
            // Drops the scheduler on its own thread.
            drop(held.take());
            told.send(()).unwrap();
        }
        Flow::Continue
    };
    let handle = scheduler.submit(request(&[1], 3), Box::new(sink)).unwrap();
    drop(scheduler);
    end.recv().unwrap();
    drop(handle);
}
