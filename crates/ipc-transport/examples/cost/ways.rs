//! Ways for the bytes of a step to go there and back: each is a closure that takes one step and says how
//! long it took.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine_core::seams::{Ask, Backbone};
use engine_core::{Epoch, SeqId};
use ipc_transport::handshake::Dims;
use ipc_transport::launch::{Launch, Threads};
use ipc_transport::probe::Probe;
use ipc_transport::remote::Choice;
use ipc_transport::worker;

use crate::common::{process, remote};
use crate::copies::{Copies, copy, file, load};

/// Rows committed in a step.
const COMMITTED: usize = 2;

/// Bytes that a step takes there, and back.
pub(crate) const fn bytes(dims: Dims) -> (usize, usize) {
    let there = 4 * (COMMITTED * dims.feature_width() + dims.block_width());
    (there, 8 * dims.block_width())
}

pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) step: Box<dyn FnMut() -> Duration>,
}

pub(crate) const COPY: &str = "copy of the same bytes";
pub(crate) const HERE: &str = "in process";
pub(crate) const MEMFD: &str = "process, shared memory";

/// Of a draft that is no copy.
const WORK: Duration = Duration::from_micros(300);
pub(crate) const HERE_WORKING: &str = "in process, drafts of 300 us";
pub(crate) const MEMFD_WORKING: &str = "process, shared, drafts of 300 us";

/// All ways, the one that the others are compared with first.
pub(crate) fn all(dims: Dims) -> Vec<Way> {
    let (there, back) = bytes(dims);
    let here = |work| drafting(Box::new(Copies::new(dims, work)), dims);
    let busy = |choice, launch, work| {
        let remote = remote(dims, file(work), choice, launch);
        drafting(Box::new(remote), dims)
    };
    let over = |choice, launch| busy(choice, launch, Duration::ZERO);
    let way = |name, step| Way { name, step };
    vec![
        way(COPY, copies(there + back)),
        way("the same, by way of another core", other_core(there, back)),
        way("a byte through two pipes", pipes(1, 1)),
        way(HERE, here(Duration::ZERO)),
        way("thread, local memory", over(Choice::Local, thread())),
        way(MEMFD, over(Choice::Shared, process())),
        way("process, stream", over(Choice::Stream, process())),
        way("process, two pipes, no checks", pipes(there, back)),
        way(HERE_WORKING, here(WORK)),
        way(MEMFD_WORKING, busy(Choice::Shared, process(), WORK)),
    ]
}

fn thread() -> Box<dyn Launch> {
    Box::new(Threads::new(|control, local| {
        // The parent ends it by closing the channel.
        let _ = worker::run(control, local, Probe::default(), load);
    }))
}

fn timed(step: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    step();
    begin.elapsed()
}

fn copies(bytes: usize) -> Box<dyn FnMut() -> Duration> {
    let (from, mut to) = (vec![1u8; bytes], vec![0u8; bytes]);
    Box::new(move || {
        timed(|| {
            copy(std::hint::black_box(&from), &mut to);
            std::hint::black_box(&mut to);
        })
    })
}

/// Memory that two threads copy into and out of by turns, a part for each way.
#[derive(Default)]
struct Handed {
    theirs: AtomicBool,
    request: Mutex<Vec<u8>>,
    reply: Mutex<Vec<u8>>,
}

/// The other thread: takes requests and gives replies until nobody else holds `handed`. It sleeps only
/// where nothing was asked for longer than a step takes, as when other ways have their turns.
fn take(handed: &Arc<Handed>, there: usize, back: usize) {
    let (mut request, reply) = (vec![0u8; there], vec![2u8; back]);
    let mut last = Instant::now();
    while Arc::strong_count(handed) > 1 {
        if !handed.theirs.load(Ordering::Acquire) {
            match last.elapsed() > Duration::from_millis(2) {
                true => std::thread::sleep(Duration::from_micros(200)),
                false => std::hint::spin_loop(),
            }
            continue;
        }
        copy(&handed.request.lock().unwrap(), &mut request);
        copy(&reply, &mut handed.reply.lock().unwrap());
        handed.theirs.store(false, Ordering::Release);
        last = Instant::now();
    }
}

/// Two threads that copy into and out of shared memory by turns and never sleep in a step: what moving the
/// bytes from one core to another and back takes at least.
fn other_core(there: usize, back: usize) -> Box<dyn FnMut() -> Duration> {
    let ours = Arc::new(Handed::default());
    ours.request.lock().unwrap().resize(there, 0);
    ours.reply.lock().unwrap().resize(back, 0);
    let theirs = Arc::clone(&ours);
    std::thread::spawn(move || take(&theirs, there, back));
    let (request, mut reply) = (vec![1u8; there], vec![0u8; back]);
    Box::new(move || {
        timed(|| {
            copy(&request, &mut ours.request.lock().unwrap());
            ours.theirs.store(true, Ordering::Release);
            while ours.theirs.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            copy(&ours.reply.lock().unwrap(), &mut reply);
        })
    })
}

fn drafting(mut backbone: Box<dyn Backbone>, dims: Dims) -> Box<dyn FnMut() -> Duration> {
    let rows = vec![1.5f32; COMMITTED * dims.feature_width()];
    let block = vec![0.5f32; dims.block_width()];
    let mut pos = 0;
    Box::new(move || {
        let ask = Ask {
            seq: SeqId(0),
            epoch: Epoch(pos),
            pos: pos + COMMITTED as u32,
            ahead: 0,
            seed: 0,
            depth: dims.block,
        };
        timed(|| {
            backbone.observe(SeqId(0), pos, &rows).unwrap();
            let ticket = backbone.submit(&[ask], &block).unwrap();
            let answer = backbone.poll(ticket, None).unwrap();
            assert_eq!(answer.normed.len(), block.len());
            pos += COMMITTED as u32;
        })
    })
}

/// A plain child that takes a request whole and answers it.
struct Piped {
    child: Child,
    /// `None` when it has been told to end.
    input: Option<ChildStdin>,
    output: ChildStdout,
}

impl Drop for Piped {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.wait();
    }
}

fn pipes(there: usize, back: usize) -> Box<dyn FnMut() -> Duration> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["pipe", &there.to_string(), &back.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut piped = Piped {
        input: child.stdin.take(),
        output: child.stdout.take().unwrap(),
        child,
    };
    let (request, mut reply) = (vec![1u8; there], vec![0u8; back]);
    Box::new(move || {
        timed(|| {
            let input = piped.input.as_mut().unwrap();
            input.write_all(&request).unwrap();
            piped.output.read_exact(&mut reply).unwrap();
        })
    })
}

/// The child of [`pipes`].
pub(crate) fn pipe(there: usize, back: usize) {
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let (mut request, mut taken, reply) = (vec![0u8; there], vec![0u8; there], vec![2u8; back]);
    while input.read_exact(&mut request).is_ok() {
        copy(&request, &mut taken);
        std::hint::black_box(&mut taken);
        output.write_all(&reply).unwrap();
        output.flush().unwrap();
    }
}
