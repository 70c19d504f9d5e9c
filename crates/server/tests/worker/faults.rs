//! A-05 through the program: workers that are killed, stopped or misbehave while answers are made, with
//! drafts begun ahead. The answers stay those of plain decoding, and nothing is left behind.

use serde_json::{Value, json};
use testkit::rng::Rng;

use crate::common::client::chat;
use crate::serve::{Serving, text};
use crate::stand_in::{Misdeed, StandIn};
use crate::{eventually, exists, names, signal};

/// What is done to a worker while an answer is made.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    Kill,
    /// It answers nothing any more, and is let go of at the deadline of a step.
    Stop,
}

/// The third loss of a server is followed by a wait of 25 seconds: another one is started instead.
const LOSSES_A_SERVER: u64 = 2;

/// A request of its own for each generation.
fn request(rng: &mut Rng) -> String {
    const SUBJECTS: [&str; 5] = ["the sea", "a lamp", "two ships", "the wind", "nothing"];
    let most = 20 + rng.below(60);
    let seed = rng.below(1000);
    let temperature = [0.0, 0.9][rng.below(2)];
    let message = format!("Tell me about {}.", SUBJECTS[rng.below(SUBJECTS.len())]);
    json!({
        "messages": [{"role": "user", "content": message}],
        "max_tokens": most,
        "temperature": temperature,
        "seed": seed,
    })
    .to_string()
}

fn count(worker: &Value, name: &str) -> u64 {
    worker["counts"][name].as_u64().unwrap_or(0)
}

/// A server whose workers follow a plan.
struct Faulty {
    server: Serving,
    stand_in: StandIn,
}

impl Faulty {
    fn start(plan: &[Misdeed]) -> Self {
        let stand_in = StandIn::new(plan);
        let program = stand_in.program();
        let server = Serving::start(&[
            "--draft-worker",
            "auto",
            "--draft-overlap",
            "on",
            "--draft-worker-program",
            program.to_str().unwrap(),
        ]);
        Self { server, stand_in }
    }

    /// One answer during which the worker meets `fault` after some steps.
    fn during(&self, body: &str, fault: Fault, rng: &mut Rng) -> Value {
        let server = &self.server;
        eventually("a worker", || server.worker()["state"] == "up");
        let (address, asked) = (server.address, body.to_owned());
        let short = json!({"messages": [{"role": "user", "content": "And?"}], "max_tokens": 8});
        let short = short.to_string();
        if fault == Fault::Stop {
            // For its first answer a worker has a minute, which is not waited for here.
            chat(address, &short);
        }
        let before = count(&server.worker(), "steps");
        let asking = std::thread::spawn(move || chat(address, &asked).json());
        let after = before + 1 + rng.below(8) as u64;
        // A short answer may be over first: then the next one meets the fault.
        while fault != Fault::None
            && count(&server.worker(), "steps") < after
            && !asking.is_finished()
        {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // One that misbehaves may be gone by itself.
        let pid = server.pid().filter(|_| fault != Fault::None);
        match pid {
            Some(pid) if fault == Fault::Kill => signal(pid, "-KILL"),
            Some(pid) => signal(pid, "-STOP"),
            None => {}
        }
        let answer = asking.join().unwrap();
        if let Some(pid) = pid {
            // Noticed at the latest by the next draft.
            chat(address, &short);
            eventually("the lost worker is gone", || !exists(pid));
        }
        answer
    }

    /// Ends it; how many workers were lost, how many of them by their own misdeeds.
    fn end(self) -> (u64, u64) {
        let lost = count(&self.server.worker(), "lost");
        drop(self.server);
        for pid in self.stand_in.started() {
            eventually("the worker's end", || !exists(pid));
        }
        (lost, self.stand_in.done() as u64)
    }
}

/// What went wrong in some answers.
#[derive(Debug, Default)]
struct Seen {
    lost: u64,
    misdeeds: u64,
}

/// Answers `from` some generation on, `step` apart, with `each(n)` in generation n and workers that
/// misbehave as `plan` says, beside those of a server without drafter.
fn generations(
    numbers: impl Iterator<Item = usize>,
    each: impl Fn(usize) -> Fault,
    plan: impl Fn(&mut Rng) -> Vec<Misdeed>,
) -> Seen {
    let plain = Serving::start_with(&[]);
    let mut faulty: Option<Faulty> = None;
    let mut seen = Seen::default();
    let mut end = |faulty: Option<Faulty>| {
        let (lost, misdeeds) = faulty.map_or((0, 0), Faulty::end);
        seen.lost += lost;
        seen.misdeeds += misdeeds;
    };
    for generation in numbers {
        let mut rng = Rng::new(205 + generation as u64);
        let lost = |f: &Faulty| count(&f.server.worker(), "lost") >= LOSSES_A_SERVER;
        if faulty.as_ref().is_some_and(lost) {
            end(faulty.take());
        }
        let faulty = faulty.get_or_insert_with(|| Faulty::start(&plan(&mut rng)));
        let body = request(&mut rng);
        let want = text(&chat(plain.address, &body).json());
        let fault = each(generation);
        let got = faulty.during(&body, fault, &mut rng);
        assert_eq!(
            text(&got),
            want,
            "generation {generation}, {fault:?}: {body}"
        );
    }
    end(faulty);
    seen
}

#[test]
fn a_05_a_few_faults_in_the_program_change_no_answer() {
    let before = names();
    let kinds = [Fault::Kill, Fault::None];
    let seen = generations(0..4, |n| kinds[n % 2], |_| Vec::new());
    assert_eq!((seen.lost, seen.misdeeds), (2, 0));
    assert_eq!(names(), before, "files are left");
}

/// Workers that go wrong by themselves at a random point, most of them in a step.
fn random_plan(rng: &mut Rng) -> Vec<Misdeed> {
    let mut misdeed = |begun: bool| {
        let at = 8 + rng.below(50);
        match rng.below(if begun { 7 } else { 5 }) {
            0 => Misdeed::Garbage(at),
            1 => Misdeed::Version(at),
            2 => Misdeed::Number(at),
            3 => Misdeed::Late(at),
            4 => Misdeed::Dies(at),
            // What the first worker cannot be, or there is none at all.
            5 => Misdeed::Nonce,
            _ => Misdeed::Hello,
        }
    };
    vec![misdeed(false), misdeed(true)]
}

/// What waits most, the deadline of a step and the pause before another start, is that of the program; so
/// servers work side by side.
#[test]
#[ignore = "soak: 200 generations through the program with workers killed, stopped and misbehaving"]
fn soak_faults_in_the_program() {
    const LANES: usize = 8;
    let before = names();
    let kinds = [
        Fault::Kill,
        Fault::None,
        Fault::Stop,
        Fault::None,
        Fault::None,
    ];
    let lane = |lane: usize| {
        let numbers = (lane..200).step_by(LANES);
        generations(numbers, |n| kinds[n / LANES % kinds.len()], random_plan)
    };
    let lane = &lane;
    let seen: Vec<Seen> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|n| scope.spawn(move || lane(n))).collect();
        lanes.into_iter().map(|l| l.join().unwrap()).collect()
    });
    assert_eq!(names(), before, "files are left");
    let sum = |of: fn(&Seen) -> u64| seen.iter().map(of).sum::<u64>();
    let (lost, misdeeds) = (sum(|s| s.lost), sum(|s| s.misdeeds));
    assert!(
        misdeeds > 20 && lost > misdeeds,
        "{lost} lost, {misdeeds} misdeeds"
    );
    println!(
        "soak: 200 generations of the program, {lost} workers lost, {misdeeds} of them by misdeeds, the others killed or stopped, text equal"
    );
}
