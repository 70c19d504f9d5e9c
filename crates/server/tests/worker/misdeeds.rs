//! The program with a worker that misbehaves: a start that is wrong is refused by its step, a worker that
//! goes wrong later costs drafts, is counted and told, and never changes the text.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::common::client::{chat, get};
use crate::serve::{Serving, text};
use crate::stand_in::{Misdeed, StandIn};
use crate::start::{ask, object, said};
use crate::{eventually, exists, names};

/// Points of a worker before its first step: it sends, receives and sends.
const SHAKE: usize = 3;
/// Points of a step: it receives, copies in, copies two blocks out, sends.
const STEP: usize = 5;

const DRAFTS: [&str; 4] = ["--draft-source", "backbone", "--draft-policy", "fixed:4"];

/// A question, and the tokens that answer it without drafts.
struct Text {
    question: &'static str,
    ids: Value,
}

impl Text {
    fn new(question: &'static str) -> Self {
        let answer = object(&ask(question, &["--json", "--draft-policy", "fixed:1"]));
        let ids = answer["ids"].clone();
        Self { question, ids }
    }

    fn short() -> Self {
        Self::new("What is the capital of France?")
    }

    fn with(&self, program: &Path, more: &[&str]) -> std::process::Output {
        let program = ["--draft-worker-program", program.to_str().unwrap()];
        ask(self.question, &[&DRAFTS[..], &program, more].concat())
    }
}

/// Each of `cases` on one of a few threads, since most of a case is waiting.
fn side_by_side<T: Sync>(cases: &[T], each: impl Fn(&T) + Sync) {
    const LANES: usize = 8;
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..LANES.min(cases.len()) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::SeqCst)) {
                    each(case);
                }
            });
        }
    });
}

/// Starts that fail, and the words that name what failed.
fn starts() -> Vec<(Option<Misdeed>, &'static str, &'static str)> {
    let planned = |misdeed, words| (Some(misdeed), "", words);
    vec![
        (None, "/nowhere/worker", "step spawn: "),
        (
            None,
            "/bin/true",
            "step hello: the other side closed the channel",
        ),
        planned(Misdeed::Hello, "step hello: protocol: expected 3, got 4"),
        planned(Misdeed::Garbage(0), "step hello: magic: expected "),
        planned(
            Misdeed::Dies(0),
            "step hello: the other side closed the channel",
        ),
        planned(
            Misdeed::Fails(1),
            "step load: the other side closed the channel",
        ),
        planned(Misdeed::Refuses, "step load: not today"),
        planned(
            Misdeed::Version(2),
            "step load: protocol: expected 3, got 4",
        ),
        planned(Misdeed::Width, "step ready: embedding_length: expected "),
        planned(Misdeed::Nonce, "step ready: nonce: expected "),
    ]
}

/// each start that fails ends the program with 78 and its step where a worker is required;
/// else it is told, counted, and the text is the same.
#[test]
fn a_12_a_start_that_fails_is_told_by_its_step() {
    let (before, text) = (names(), Text::short());
    side_by_side(&starts(), |(misdeed, program, words)| {
        let plan: Vec<Misdeed> = misdeed.iter().copied().cycle().take(2).collect();
        let stand_in = StandIn::new(&plan);
        let own = stand_in.program();
        let program = misdeed.map_or(Path::new(program), |_| own.as_path());
        let refused = text.with(program, &["--draft-worker", "required"]);
        let line = format!("error: the draft worker did not start: {words}");
        assert_eq!(
            refused.status.code(),
            Some(78),
            "{words}: {}",
            said(&refused)
        );
        assert!(
            said(&refused).contains(&line),
            "{words}: {}",
            said(&refused)
        );
        assert!(refused.stdout.is_empty(), "{words}");
        let answer = object(&text.with(program, &["--json", "--draft-worker", "auto"]));
        assert_eq!(answer["ids"], text.ids, "{words}");
        let (worker, usage) = (&answer["drafter"]["worker"], &answer["usage"]["drafting"]);
        assert_eq!(worker["state"], "in process", "{worker}");
        assert_eq!(
            (&worker["counts"]["fallbacks"], &usage["state"]),
            (&json!(1), &json!("on"))
        );
        for reason in [&worker["reason"], &usage["worker"]["reason"]] {
            assert!(
                reason.as_str().unwrap().contains(words),
                "{words}: {reason}"
            );
        }
        assert_eq!(stand_in.done(), plan.len(), "{words}");
        assert!(!stand_in.started().into_iter().any(exists), "{words}");
    });
    assert_eq!(names(), before);
}

/// What the program says of a misdeed in a step.
fn words(misdeed: Misdeed, transport: &str) -> &'static str {
    match misdeed {
        Misdeed::Garbage(_) => "magic: expected",
        Misdeed::Version(_) => "protocol: expected 3, got 4",
        // The words of a reply are in shared memory as well, and compared first.
        Misdeed::Number(_) if transport == "shared" => "number in the region: expected",
        Misdeed::Number(_) => "reply: expected",
        Misdeed::Late(_) => "nothing within the deadline",
        _ => "closed",
    }
}

/// A text with one misdeed: whether it was done, and whether it was told.
fn one(misdeed: Misdeed, more: &[&str], text: &Text) -> (bool, bool) {
    let stand_in = StandIn::new(&[misdeed]);
    let answer = object(&text.with(&stand_in.program(), &[&["--json"], more].concat()));
    assert_eq!(answer["ids"], text.ids, "{misdeed}, {more:?}");
    let worker = &answer["drafter"]["worker"];
    let told = &answer["usage"]["drafting"]["worker"];
    let done = stand_in.done();
    // The last points of a text lie behind its last draft: then there is nothing to tell.
    assert!(
        worker["counts"]["lost"].as_u64().unwrap() <= done as u64,
        "{misdeed}: {worker}"
    );
    assert_eq!(told["lost"], worker["counts"]["lost"], "{misdeed}");
    if told["lost"] == 1 {
        assert!(
            worker["counts"]["unanswered"].as_u64().unwrap() > 0,
            "{misdeed}: {worker}"
        );
        let reason = told["reason"].as_str().unwrap();
        let transport = if more.contains(&"stream") {
            "stream"
        } else {
            "shared"
        };
        let known = reason.contains(words(misdeed, transport));
        assert!(known, "{misdeed}, {more:?}: {reason}");
    }
    for pid in stand_in.started() {
        eventually("the worker's end", || !exists(pid));
    }
    (done == 1, told["lost"] == 1)
}

const KINDS: [fn(usize) -> Misdeed; 5] = [
    Misdeed::Garbage,
    Misdeed::Version,
    Misdeed::Number,
    Misdeed::Fails,
    Misdeed::Dies,
];

/// each kind of misdeed at a point of its own in the first steps, and a reply that is
/// late: lost once, told in the usage with its reason, the text the same, the worker gone.
#[test]
fn a_05_a_misdeed_in_a_step_changes_no_answer() {
    let (before, text) = (names(), Text::short());
    let mut cases: Vec<Misdeed> = (0..2 * STEP)
        .map(|at| KINDS[at % KINDS.len()](SHAKE + STEP + at))
        .collect();
    // First, since it waits longest; in the second step, as the first one may take longer.
    cases.insert(0, Misdeed::Late(SHAKE + STEP));
    let lost = AtomicUsize::new(0);
    side_by_side(&cases, |misdeed| {
        let mode = ["auto", "required"][usize::from(misdeed.to_string().len() % 2 == 0)];
        let (_, told) = one(*misdeed, &["--draft-worker", mode], &text);
        lost.fetch_add(usize::from(told), Ordering::SeqCst);
    });
    assert_eq!(lost.into_inner(), cases.len(), "each was noticed");
    assert_eq!(names(), before);
}

/// a server tells of a misdeed in the answer it met and in its properties, and goes on with
/// another worker.
#[test]
fn a_23_a_server_tells_of_a_misdeed_and_goes_on() {
    let asked = json!({"messages": [{"role": "user", "content": "Tell me about the sea."}], "max_tokens": 40});
    let asked = asked.to_string();
    let plain = Serving::start_with(&[]);
    let want = text(&chat(plain.address, &asked).json());
    drop(plain);
    let stand_in = StandIn::new(&[Misdeed::Garbage(SHAKE + STEP)]);
    let program = stand_in.program();
    let program = [
        "--draft-worker",
        "auto",
        "--draft-worker-program",
        program.to_str().unwrap(),
    ];
    let server = Serving::start(&program);
    let answer = chat(server.address, &asked).json();
    assert_eq!(text(&answer), want);
    let told = &answer["usage"]["fourspark"]["drafting"]["worker"];
    assert_eq!(told["lost"], 1, "{told}");
    assert!(
        told["reason"].as_str().unwrap().contains("magic: expected"),
        "{told}"
    );
    let worker = get(server.address, "/props").json()["drafter"]["worker"].clone();
    assert_eq!(worker["counts"]["lost"], 1, "{worker}");
    assert!(
        worker["counts"]["unanswered"].as_u64().unwrap() > 0,
        "{worker}"
    );
    assert!(
        worker["reason"]
            .as_str()
            .unwrap()
            .contains("magic: expected"),
        "{worker}"
    );
    eventually("another worker", || server.worker()["state"] == "up");
    let steps = |worker: &Value| worker["counts"]["steps"].as_u64().unwrap();
    let before = steps(&server.worker());
    assert_eq!(text(&chat(server.address, &asked).json()), want);
    let after = server.worker();
    assert!(
        steps(&after) > before && after["counts"]["restarts"] == 1,
        "{after}"
    );
    assert_eq!(stand_in.started().len(), 2);
    drop(server);
    for pid in stand_in.started() {
        eventually("the worker's end", || !exists(pid));
    }
}

/// Texts with `kind` at each point of a worker until one is not reached: points reached, losses told.
fn everywhere(kind: fn(usize) -> Misdeed, transport: &str, text: &Text) -> (usize, usize) {
    let more = ["--draft-worker", "auto", "--draft-transport", transport];
    let mut lost = 0;
    for at in 0.. {
        let (done, told) = one(kind(at), &more, text);
        if !done {
            return (at, lost);
        }
        lost += usize::from(told);
    }
    unreachable!("a text ends")
}

#[test]
#[ignore = "soak: five kinds of misdeed at every point of a worker, in the program"]
fn soak_misdeeds_at_every_point() {
    let (before, text) = (names(), Text::new("Tell me about the sea."));
    let kinds = KINDS.into_iter();
    let cases: Vec<_> = kinds.flat_map(|k| [(k, "shared"), (k, "stream")]).collect();
    let (points, losses) = (AtomicUsize::new(0), AtomicUsize::new(0));
    side_by_side(&cases, |(kind, transport)| {
        let (reached, lost) = everywhere(*kind, transport, &text);
        assert!(
            lost > SHAKE + STEP && lost < reached,
            "{transport}: {lost} of {reached}"
        );
        let kind = kind(0).to_string();
        println!(
            "soak: {kind} to {}, {transport}: {lost} workers lost, text equal",
            reached - 1
        );
        points.fetch_add(reached, Ordering::SeqCst);
        losses.fetch_add(lost, Ordering::SeqCst);
    });
    assert_eq!(names(), before);
    let (points, losses) = (points.into_inner(), losses.into_inner());
    println!(
        "soak: {points} misdeeds of workers of the program, {losses} noticed in a step, text equal"
    );
}
