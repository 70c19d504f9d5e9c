//! What a step costs beside the drafting itself: in this process, on a thread over memory of the process, in
//! a worker over shared memory and over a stream, and through two plain pipes.
//!
//! `cargo run --release -p ipc-transport --example cost [ROUNDS] [STEPS] [WAY]`; with WAY only the ways
//! with that in their name, beside the copy and drafting in process. The backbone copies its rows in
//! and its answer out and computes nothing, so what is left is the way there and back; two ways have drafts that take
//! time, as real ones do, so that both sides have slept when a reply comes. For the shapes of
//! the shipped drafter and of DeepSeek V4 Flash; a step takes two committed rows and asks for a block. All
//! ways take turns; a round of a way counts by its median step. Prints quartiles of the rounds, and of the
//! differences between rounds of a way and of a copy that took turns with it. Two ways say what part of
//! that no transport can save: the bytes on another core and back, and two wake-ups. Meant for an idle
//! machine; it asserts nothing.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program that prints a table"
)]

#[cfg(target_os = "linux")]
#[path = "../common/mod.rs"]
mod common;
#[cfg(target_os = "linux")]
mod copies;
#[cfg(target_os = "linux")]
mod ways;

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("workers need Linux");
}

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use ipc_transport::handshake::Dims;

    use crate::common::served;
    use crate::copies::load;
    use crate::ways::{self, COPY, HERE, HERE_WORKING, MEMFD, MEMFD_WORKING, Way};

    /// Steps of a round that are not counted: they find cold pages.
    const COLD: usize = 20;

    fn dims(n_embd: u32) -> Dims {
        Dims {
            n_embd,
            captures: 3,
            block: 5,
            ring: 256,
            n_seq_max: 4,
            fingerprint: [0; 32],
        }
    }

    /// Microseconds of the median step of a round.
    fn round(way: &mut Way, steps: usize) -> f64 {
        let mut times: Vec<Duration> = (0..COLD + steps).map(|_| (way.step)()).collect();
        let counted = &mut times[COLD..];
        counted.sort_unstable();
        counted[counted.len() / 2].as_secs_f64() * 1e6
    }

    fn quartiles(mut values: Vec<f64>) -> String {
        values.sort_by(f64::total_cmp);
        let at = |quarter: usize| values[(values.len() - 1) * quarter / 4];
        format!("{:>8.1} {:>8.1} {:>8.1}", at(1), at(2), at(3))
    }

    fn table(title: &str, dims: Dims, rounds: usize, steps: usize, only: &str) {
        let mut ways = ways::all(dims);
        ways.retain(|way| {
            [COPY, HERE, HERE_WORKING].contains(&way.name) || way.name.contains(only)
        });
        let mut medians = BTreeMap::<&str, Vec<f64>>::new();
        for _ in 0..rounds {
            for way in &mut ways {
                medians.entry(way.name).or_default().push(round(way, steps));
            }
        }
        let over = |name: &str, base: &str| {
            let pairs = medians[name].iter().zip(&medians[base]);
            quartiles(pairs.map(|(a, b)| a - b).collect())
        };
        let (there, back) = ways::bytes(dims);
        println!(
            "{title}: {there} bytes there, {back} back; us a step, quartiles of {rounds} rounds of {steps} steps"
        );
        println!("{:<34} {:>26}   {:>26}", "", "25%, 50%, 75%", "over a copy");
        for way in &ways {
            let own = quartiles(medians[way.name].clone());
            println!("{:<34} {own}   {}", way.name, over(way.name, COPY));
        }
        for (title, way, base) in [
            ("shared memory over in process", MEMFD, HERE),
            ("the same, drafts of 300 us", MEMFD_WORKING, HERE_WORKING),
        ] {
            if medians.contains_key(way) {
                println!("{title:<34} {}", over(way, base));
            }
        }
    }

    pub(super) fn main() {
        let args: Vec<String> = std::env::args().skip(1).collect();
        if served(&args, load) {
            return;
        }
        match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["pipe", there, back] => ways::pipe(there.parse().unwrap(), back.parse().unwrap()),
            ref rest => {
                let number = |at: usize, or: usize| rest.get(at).map_or(or, |n| n.parse().unwrap());
                let (rounds, steps) = (number(0, 40), number(1, 100));
                let only = rest.get(2).copied().unwrap_or_default();
                table("shipped shapes", dims(256), rounds, steps, only);
                table("DeepSeek V4 Flash shapes", dims(4096), rounds, steps, only);
            }
        }
    }
}
