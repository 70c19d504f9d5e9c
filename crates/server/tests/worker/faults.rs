//! A-05 through the program: workers that are killed or stopped while answers are made, with drafts begun
//! ahead. The answers stay those of plain decoding, and nothing is left behind.

use serde_json::{Value, json};
use testkit::rng::Rng;

use crate::common::client::chat;
use crate::serve::{Serving, text};
use crate::{eventually, exists, names, signal};

/// What is done to a worker while an answer is made.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    Kill,
    /// It answers nothing any more, and is let go of at the deadline of a step.
    Stop,
}

/// A worker is started again at most so often in ten minutes.
const LOSSES_A_SERVER: usize = 3;

/// A request of its own for each generation.
fn request(rng: &mut Rng) -> String {
    const SUBJECTS: [&str; 5] = ["the sea", "a lamp", "two ships", "the wind", "nothing"];
    let most = 20 + rng.below(120);
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

/// One answer during which the worker meets `fault` after some steps.
fn during(server: &Serving, body: &str, fault: Fault, rng: &mut Rng) -> Value {
    eventually("a worker", || server.worker()["state"] == "up");
    let steps = |worker: &Value| worker["counts"]["steps"].as_u64().unwrap_or(0);
    let (address, asked) = (server.address, body.to_owned());
    let before = steps(&server.worker());
    let asking = std::thread::spawn(move || chat(address, &asked).json());
    let after = before + 1 + rng.below(8) as u64;
    let pid = server.pid().unwrap();
    // A short answer may be over first: then the next one meets the fault.
    while fault != Fault::None && steps(&server.worker()) < after && !asking.is_finished() {
        std::thread::yield_now();
    }
    match fault {
        Fault::None => {}
        Fault::Kill => signal(pid, "-KILL"),
        Fault::Stop => signal(pid, "-STOP"),
    }
    let answer = asking.join().unwrap();
    if fault != Fault::None {
        // Noticed at the latest by the next draft.
        let short = json!({"messages": [{"role": "user", "content": "And?"}], "max_tokens": 8});
        chat(address, &short.to_string());
        eventually("the lost worker is gone", || !exists(pid));
    }
    answer
}

/// Answers with faults, `each(n)` in generation n, beside those of a server without drafter; how many faults.
fn generations(n: usize, each: impl Fn(usize) -> Fault) -> usize {
    let before = names();
    let mut rng = Rng::new(205);
    let plain = Serving::start_with(&[]);
    let mut server: Option<Serving> = None;
    let (mut losses, mut all) = (0, 0);
    for generation in 0..n {
        let fault = each(generation);
        if losses == LOSSES_A_SERVER {
            (server, losses) = (None, 0);
        }
        let options = ["--draft-worker", "auto", "--draft-overlap", "on"];
        let server = server.get_or_insert_with(|| Serving::start(&options));
        let body = request(&mut rng);
        let want = text(&chat(plain.address, &body).json());
        let got = during(server, &body, fault, &mut rng);
        assert_eq!(
            text(&got),
            want,
            "generation {generation}, {fault:?}: {body}"
        );
        losses += usize::from(fault != Fault::None);
        all += usize::from(fault != Fault::None);
    }
    drop(server);
    drop(plain);
    assert_eq!(names(), before, "files are left");
    all
}

#[test]
fn a_05_a_few_faults_in_the_program_change_no_answer() {
    let faults = generations(4, |n| [Fault::Kill, Fault::None][n % 2]);
    assert_eq!(faults, 2);
}

#[test]
#[ignore = "soak: 200 generations through the program with workers killed and stopped"]
fn soak_faults_in_the_program() {
    let kinds = [Fault::Kill, Fault::Stop, Fault::Kill, Fault::None];
    let faults = generations(200, |n| kinds[n % 4]);
    println!("soak: 200 generations, {faults} faults (killed, stopped), text equal");
}
