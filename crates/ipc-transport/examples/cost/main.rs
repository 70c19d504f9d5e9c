//! What a step costs beside the drafting itself: in this process, on a thread over memory of the process, in
//! a worker over shared memory and over a stream, and through two plain pipes.
//!
//! `cargo run --release -p ipc-transport --example cost [STEPS]`. The backbone copies its rows in and its
//! answer out and computes nothing, so what is left is the way there and back. For the shapes of the
//! shipped drafter and of DeepSeek V4 Flash; a step takes two committed rows and asks for a block. Prints
//! the tenth, fiftieth and ninetieth percentile, and a copy of the same bytes to compare with. Meant for an
//! idle machine; it asserts nothing.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program that prints a table"
)]

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
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use engine_core::seams::{Ask, Backbone, DraftRows};
    use engine_core::{Epoch, Fault, Pos, SeqId, Ticket};
    use ipc_transport::handshake::{Configure, Dims};
    use ipc_transport::launch::{Launch, Process, Threads};
    use ipc_transport::probe::Probe;
    use ipc_transport::remote::{Choice, Plan, RemoteBackbone, Shape};
    use ipc_transport::worker::{self, Loaded};

    /// Rows committed in a step.
    const COMMITTED: usize = 2;

    /// A copy in pieces, as `copy.rs` of the crate makes its own: see there.
    fn pieces(from: &[f32]) -> Vec<f32> {
        let mut to = Vec::with_capacity(from.len());
        from.chunks(512).for_each(|part| to.extend_from_slice(part));
        to
    }

    /// Copies what it is given, and answers with the block twice.
    struct Copies {
        dims: Dims,
        ring: Vec<f32>,
        block: Vec<f32>,
    }

    impl Copies {
        fn new(dims: Dims) -> Self {
            Self {
                dims,
                ring: vec![0.0; dims.ring as usize * dims.feature_width()],
                block: Vec::new(),
            }
        }
    }

    impl Backbone for Copies {
        fn observe(&mut self, _: SeqId, pos: Pos, features: &[f32]) -> Result<(), Fault> {
            let width = self.dims.feature_width();
            for (at, row) in (pos as usize..).zip(features.chunks_exact(width)) {
                let slot = at % self.dims.ring as usize * width;
                let ring = &mut self.ring[slot..slot + width];
                for (to, from) in ring.chunks_mut(512).zip(row.chunks(512)) {
                    to.copy_from_slice(from);
                }
            }
            Ok(())
        }

        fn submit(&mut self, _: &[Ask], block: &[f32]) -> Result<Ticket, Fault> {
            self.block.clear();
            block
                .chunks(512)
                .for_each(|part| self.block.extend_from_slice(part));
            Ok(Ticket(0))
        }

        fn poll(&mut self, _: Ticket, _: Option<Instant>) -> Result<DraftRows, Fault> {
            Ok(DraftRows {
                rows: vec![self.dims.block as usize],
                normed: pieces(&self.block),
                pre_norm: pieces(&self.block),
            })
        }

        fn truncate(&mut self, _: SeqId, _: Pos) {}

        fn close(&mut self, _: SeqId) {}

        fn save(&self, _: SeqId, _: &mut dyn Write) -> Result<(), Fault> {
            Err(Fault::Unsupported("save"))
        }

        fn load(&mut self, _: SeqId, _: &mut dyn Read) -> Result<(), Fault> {
            Err(Fault::Unsupported("load"))
        }

        fn health(&self) -> Result<(), Fault> {
            Ok(())
        }
    }

    fn load(configure: &Configure) -> Result<Loaded, String> {
        Ok(Loaded {
            backbone: Box::new(Copies::new(configure.dims)),
            dims: configure.dims,
            device: "copies".to_owned(),
        })
    }

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

    fn remote(dims: Dims, choice: Choice, launch: Box<dyn Launch>) -> RemoteBackbone {
        let shape = Shape {
            dims,
            verify_max: 8,
            kv_round: false,
            threads: 1,
            file: "none".into(),
        };
        let plan = Plan {
            transport: choice,
            ..Plan::new(shape)
        };
        RemoteBackbone::start(plan, launch).unwrap()
    }

    fn process() -> Box<dyn Launch> {
        Box::new(Process {
            program: std::env::current_exe().unwrap(),
            args: vec!["worker".into()],
            env: Vec::new(),
        })
    }

    fn thread() -> Box<dyn Launch> {
        Box::new(Threads::new(|control, local| {
            // The parent ends it by closing the channel.
            let _ = worker::run(control, local, Probe::default(), load);
        }))
    }

    /// Times of `steps` steps, sorted.
    fn steps(backbone: &mut dyn Backbone, dims: Dims, steps: u32) -> Vec<Duration> {
        let rows = vec![1.5f32; COMMITTED * dims.feature_width()];
        let block = vec![0.5f32; dims.block_width()];
        let mut times = Vec::with_capacity(steps as usize);
        for step in 0..steps + 50 {
            let pos = step * COMMITTED as u32;
            let begin = Instant::now();
            backbone.observe(SeqId(0), pos, &rows).unwrap();
            let ask = Ask {
                seq: SeqId(0),
                epoch: Epoch(step),
                pos: pos + COMMITTED as u32,
                ahead: 0,
                seed: 0,
                depth: dims.block,
            };
            let ticket = backbone.submit(&[ask], &block).unwrap();
            let answer = backbone.poll(ticket, None).unwrap();
            let took = begin.elapsed();
            assert_eq!(answer.normed.len(), block.len());
            // The first ones find cold pages.
            if step >= 50 {
                times.push(took);
            }
        }
        times.sort_unstable();
        times
    }

    /// The same bytes through two pipes to a process that copies them, which is what a plain child would do.
    fn pipes(dims: Dims, steps: u32) -> Vec<Duration> {
        let there = 4 * (COMMITTED * dims.feature_width() + dims.block_width());
        let back = 8 * dims.block_width();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["pipe", &there.to_string(), &back.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut output = child.stdout.take().unwrap();
        let (request, mut reply) = (vec![1u8; there], vec![0u8; back]);
        let mut times = Vec::new();
        for step in 0..steps + 50 {
            let begin = Instant::now();
            input.write_all(&request).unwrap();
            output.read_exact(&mut reply).unwrap();
            if step >= 50 {
                times.push(begin.elapsed());
            }
        }
        drop(input);
        child.wait().unwrap();
        times.sort_unstable();
        times
    }

    /// A copy of the bytes of a step, there and back.
    fn copies(dims: Dims, steps: u32) -> Vec<Duration> {
        let bytes = 4 * (COMMITTED * dims.feature_width() + 3 * dims.block_width());
        let (from, mut to) = (vec![1u8; bytes], vec![0u8; bytes]);
        let mut times = Vec::new();
        for _ in 0..steps {
            let begin = Instant::now();
            for (to, from) in to
                .chunks_mut(2048)
                .zip(std::hint::black_box(&from).chunks(2048))
            {
                to.copy_from_slice(from);
            }
            std::hint::black_box(&mut to);
            times.push(begin.elapsed());
        }
        times.sort_unstable();
        times
    }

    fn line(name: &str, times: &[Duration]) {
        let at = |percent: usize| times[times.len() * percent / 100].as_secs_f64() * 1e6;
        println!("{name:<28} {:>9.1} {:>9.1} {:>9.1}", at(10), at(50), at(90));
    }

    fn table(title: &str, dims: Dims, n: u32) {
        println!("{title}: us a step, percentiles 10, 50, 90 of {n}");
        line("copy of the same bytes", &copies(dims, n));
        line("in process", &steps(&mut Copies::new(dims), dims, n));
        for (name, choice, launch) in [
            ("thread, local memory", Choice::Local, thread()),
            ("process, shared memory", Choice::Shared, process()),
            ("process, stream", Choice::Stream, process()),
        ] {
            line(name, &steps(&mut remote(dims, choice, launch), dims, n));
        }
        line("process, two pipes", &pipes(dims, n));
    }

    fn serve() {
        let control = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
        let _ = worker::run(control, None, Probe::default(), load);
    }

    fn pipe(there: usize, back: usize) {
        let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
        let (mut request, mut copy, reply) = (vec![0u8; there], vec![0u8; there], vec![2u8; back]);
        while input.read_exact(&mut request).is_ok() {
            copy.copy_from_slice(&request);
            std::hint::black_box(&mut copy);
            output.write_all(&reply).unwrap();
            output.flush().unwrap();
        }
    }

    pub(super) fn main() {
        let args: Vec<String> = std::env::args().skip(1).collect();
        match args
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .as_slice()
        {
            ["worker", _] => serve(),
            ["pipe", there, back] => pipe(there.parse().unwrap(), back.parse().unwrap()),
            rest => {
                let n = rest.first().map_or(2000, |n| n.parse().unwrap());
                table("shipped shapes", dims(256), n);
                table("DeepSeek V4 Flash shapes", dims(4096), n);
            }
        }
    }
}
