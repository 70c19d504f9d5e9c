//! Clients that leave, engines that fail, servers that stop: nothing hangs, nothing is computed for
//! nobody, every stream has an end that says what happened.

use std::time::{Duration, Instant};

use crate::common::client::{Message, chat, get, post_chat};
use crate::common::{Server, ask, saying};
use engine_core::Fault;
use fourspark::{Limits, Stats};
use serde_json::json;
use server::http::ServeOptions;
use testkit::fake::FakeTarget;

/// Waits for counters, far beyond the time it takes.
fn await_stats(server: &Server, done: impl Fn(&Stats) -> bool) -> Stats {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let stats = server.engine.stats();
        if done(&stats) {
            return stats;
        }
        assert!(Instant::now() < end, "waited in vain: {stats:?}");
        std::thread::yield_now();
    }
}

/// Lets one pass after another through until the engine knows of `n` cancelled requests.
fn run_until_cancelled(server: &Server, n: u64) {
    while await_stats(server, |_| true).cancelled < n {
        server.watch.allow(1);
        std::thread::yield_now();
    }
}

#[test]
fn clients_that_leave_cost_nothing() {
    // Whole answers and streams alike.
    for stream in [false, true] {
        // An answer that ends by itself only where it is told to.
        let endless = FakeTarget::new(268, 1 << 30, 1).saying(|_| 100).gated();
        let server = Server::with(endless, Limits::default(), ServeOptions::default());
        let text = "p".repeat(600);
        let body = |max: &str| {
            format!(
                r#"{{"messages": [{{"role": "user", "content": "{text}"}}], "stream": {stream}{max}}}"#
            )
        };
        // One in its prefill, five behind it.
        let mut clients = Vec::new();
        for n in 1..=6 {
            let max = if n == 6 { r#", "max_tokens": 3"# } else { "" };
            clients.push(post_chat(server.address, &body(max)));
            await_stats(&server, |s| s.submitted == n);
        }
        server.watch.await_passes(1);
        let last = clients.pop().unwrap();
        let decoding = clients.pop().unwrap();
        drop(clients);
        // Those in the queue are gone at once, although the engine stands still.
        let stats = await_stats(&server, |s| s.cancelled == 3);
        assert_eq!((stats.queued, stats.active), (2, 1));
        run_until_cancelled(&server, 4);
        // The fifth leaves while it generates: its prompt takes two passes.
        let passes = server.watch.passes().len();
        server.watch.allow(4);
        server.watch.await_passes(passes + 4);
        drop(decoding);
        run_until_cancelled(&server, 5);
        server.watch.release();
        assert_eq!(last.read().status, 200);
        let stats = await_stats(&server, |s| s.in_flight() == 0);
        assert_eq!((stats.submitted, stats.cancelled, stats.length), (6, 5, 1));
        assert_eq!((server.watch.open(), server.watch.opened()), (0, 3));
    }
}

#[test]
fn silence_is_filled_by_the_clock_and_not_by_progress() {
    let options = ServeOptions {
        keep_alive: Duration::from_millis(5),
        ..ServeOptions::default()
    };
    let target = saying("ab", 256, 1).gated();
    let server = Server::with(target, Limits::default(), options);
    let mut stream = post_chat(server.address, &ask(r#""stream": true"#)).stream();
    assert_eq!(stream.data()["choices"][0]["delta"]["role"], "assistant");
    // The engine stands in its first pass and cannot make progress.
    server.watch.await_passes(1);
    for _ in 0..3 {
        assert_eq!(
            stream.next(),
            Some(Message::Comment("keep-alive".to_owned()))
        );
    }
    server.watch.allow(1);
    assert_eq!(stream.data()["choices"][0]["delta"]["content"], "a");
    // The same while a request waits for its slot.
    let mut queued = post_chat(server.address, &ask(r#""stream": true"#)).stream();
    queued.data();
    assert_eq!(
        queued.next(),
        Some(Message::Comment("keep-alive".to_owned()))
    );
    server.watch.release();
    assert!(!stream.objects().is_empty());
    assert!(!queued.objects().is_empty());
}

fn lost() -> Fault {
    Fault::Lost {
        what: "cpu:0".to_owned(),
        why: "on fire".to_owned(),
    }
}

#[test]
fn a_fault_is_an_error_and_the_server_goes_on() {
    let server = Server::start(saying("abc", 256, 1).failing_at(2, lost()));
    let response = chat(server.address, &ask(""));
    assert_eq!(response.status, 500);
    let error = &response.json()["error"];
    assert_eq!(
        (&error["type"], &error["code"]),
        (&"server_error".into(), &"engine_failed".into())
    );
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("cpu:0 failed: on fire")
    );
    assert_eq!(chat(server.address, &ask("")).status, 200);
    assert_eq!(get(server.address, "/health").status, 200);
}

#[test]
fn a_fault_within_a_stream_is_an_event_without_done() {
    let server = Server::start(saying("abc", 256, 1).failing_at(3, lost()));
    let stream = post_chat(server.address, &ask(r#""stream": true"#)).stream();
    let messages: Vec<Message> = stream.collect();
    let Some(Message::Data(last)) = messages.last() else {
        panic!("{messages:?}");
    };
    assert_eq!(last["error"]["code"], "engine_failed");
    assert_eq!(messages.len(), 4, "role, two tokens, the error");
}

#[test]
fn a_dead_engine_is_seen_from_outside() {
    let server = Server::start(saying("abc", 256, 1).panicking_at(2));
    assert_eq!(chat(server.address, &ask("")).status, 500);
    await_stats(&server, |s| s.dead);
    let health = get(server.address, "/health");
    assert_eq!(
        (health.status, health.json()),
        (503, json!({"status": "failed"}))
    );
    let refused = chat(server.address, &ask(""));
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (503, &"stopped".into())
    );
}

#[test]
fn stopping_lets_answers_end() {
    let mut server = Server::start(saying("abc", 256, 1).gated());
    let mut stream = post_chat(server.address, &ask(r#""stream": true"#)).stream();
    stream.data();
    server.watch.await_passes(1);
    server.stop();
    server.watch.release();
    let objects = stream.objects();
    let end = objects.last().unwrap();
    assert_eq!(end["choices"][0]["finish_reason"], "stop");
    server.join();
    assert!(
        std::net::TcpStream::connect(server.address).is_err(),
        "nobody listens"
    );
}

#[test]
fn stopping_cuts_off_what_does_not_end() {
    let options = ServeOptions {
        drain: Duration::ZERO,
        ..ServeOptions::default()
    };
    let target = saying(&"x".repeat(2000), 4096, 1).gated();
    let mut server = Server::with(target, Limits::default(), options);
    let mut stream = post_chat(server.address, &ask(r#""stream": true"#)).stream();
    stream.data();
    let whole = post_chat(server.address, &ask(""));
    await_stats(&server, |s| s.submitted == 2);
    server.watch.await_passes(1);
    server.stop();
    await_stats(&server, |s| s.dead);
    server.watch.release();
    let messages: Vec<Message> = stream.collect();
    let Some(Message::Data(last)) = messages.last() else {
        panic!("{messages:?}");
    };
    assert_eq!(last["error"]["code"], "stopping");
    let whole = whole.read();
    assert_eq!(
        (whole.status, &whole.json()["error"]["code"]),
        (503, &"stopping".into())
    );
    server.join();
}
