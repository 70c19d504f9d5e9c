//! The thread that starts, watches over and ends workers, one at a time.
//!
//! A thread of its own for two reasons: starting again must not hold up the text, and the system tells a
//! worker that its parent died when the thread that started it ends. Must not know: steps, rows.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use device::{AnyDevice, Pin};
use engine_core::mutant::mutant;

use super::{Plan, Shape};
use crate::channel::{self, Shape as Socket};
use crate::error::{LinkError, StartError, Step};
use crate::frame::{Header, Op, Status};
use crate::handshake::{Configure, Hello, Ready, Transport, refusal_text};
use crate::launch::{Launch, Running};
use crate::link::{Link, Message, Payload, Side};
use crate::reach::{self, Lent, Told};
use crate::region::{Nonce, Region};
use crate::report::{Reach, Standing, State, Watch};

/// A worker that is ready.
#[derive(Debug)]
pub(super) struct Up {
    pub(super) link: Link,
    /// What the sides have beside memory that both map, and how many could not pin it with their devices.
    pub(super) reach: Reach,
    unpinned: u64,
    /// Ends before the region is let go of for the last time.
    _pin: Option<Box<dyn Pin>>,
    /// Readable when its process ends.
    pub(super) watch: Option<OwnedFd>,
    pub(super) pid: Option<u32>,
    pub(super) ready: Ready,
    /// Why the transport is not the first choice.
    pub(super) degraded: Option<String>,
}

/// A worker that came up, with the starts that failed before; or the last failure.
pub(super) type Started = Result<(Box<Up>, usize), StartError>;

/// Ends the worker there is, then starts another after each of these waits until one comes up.
struct Order {
    waits: Vec<Duration>,
    reply: Sender<Started>,
}

/// The thread's handle. Dropping it ends the worker and waits for that.
#[derive(Debug)]
pub(super) struct Keeper {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
    /// Nobody wants a worker any more: a start in progress is given up.
    over: Arc<AtomicBool>,
}

impl Keeper {
    /// `watch` is kept true by the thread, so that a worker that is up again is known to be before
    /// anybody asks it.
    pub(super) fn new(
        launch: Box<dyn Launch>,
        plan: Arc<Plan>,
        watch: Watch,
    ) -> Result<Self, StartError> {
        let (orders, inbox) = channel();
        let over = Arc::new(AtomicBool::new(false));
        let keep = Keep {
            launch,
            plan,
            watch,
            over: Arc::clone(&over),
        };
        let thread = std::thread::Builder::new()
            .name("fourspark-keeper".to_owned())
            .spawn(move || keep.run(&inbox))
            .map_err(StartError::at(Step::Spawn))?;
        Ok(Self {
            orders: Some(orders),
            thread: Some(thread),
            over,
        })
    }

    /// Ends the worker there is by force and starts another, once for each wait, until one comes up.
    /// Without waits it only ends it.
    pub(super) fn start(&self, waits: &[Duration]) -> Receiver<Started> {
        let (reply, answer) = channel();
        let waits = waits.to_vec();
        if let Some(orders) = &self.orders {
            // If the thread is gone the answer never comes, which its receiver notices.
            let _ = orders.send(Order { waits, reply });
        }
        answer
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Keep {
    launch: Box<dyn Launch>,
    plan: Arc<Plan>,
    watch: Watch,
    over: Arc<AtomicBool>,
}

impl Keep {
    fn run(mut self, inbox: &Receiver<Order>) {
        let mut running: Option<Box<dyn Running>> = None;
        while let Ok(order) = inbox.recv() {
            if let Some(worker) = running.take() {
                end(worker, &self.plan, true);
            }
            running = self.perform(&order, inbox);
        }
        if let Some(worker) = running {
            end(worker, &self.plan, false);
        }
    }

    fn perform(&mut self, order: &Order, inbox: &Receiver<Order>) -> Option<Box<dyn Running>> {
        for (failed, wait) in order.waits.iter().enumerate() {
            // Nothing is ordered meanwhile: this is a wait that the end interrupts.
            if let Err(RecvTimeoutError::Disconnected) = inbox.recv_timeout(*wait) {
                return None;
            }
            match start(&mut *self.launch, &self.plan, &self.over) {
                Ok((up, running)) => {
                    self.tell(&up);
                    // Nobody waits for it any more: the end takes care of it.
                    let _ = order.reply.send(Ok((Box::new(up), failed)));
                    return Some(running);
                }
                Err(error) if failed + 1 < order.waits.len() => {
                    tracing::warn!(%error, "the draft worker");
                    let mut report = self.watch.lock();
                    report.lost += 1;
                    report.reason = Some(error.to_string());
                }
                Err(error) => {
                    let _ = order.reply.send(Err(error));
                }
            }
        }
        None
    }

    fn tell(&self, up: &Up) {
        let mut report = self.watch.lock();
        report.state = State::Up;
        report.transport = Some(up.ready.transport);
        report.degraded.clone_from(&up.degraded);
        report.pid = up.pid;
        report.device.clone_from(&up.ready.device);
        report.reach.clone_from(&up.reach);
        report.unpinned += up.unpinned;
    }
}

fn end(mut worker: Box<dyn Running>, plan: &Plan, force: bool) {
    let pid = worker.pid();
    if force && mutant(353) {
        std::mem::forget(worker);
        return;
    }
    let grace = if force {
        crate::launch::Grace::NONE
    } else {
        plan.timeouts.grace
    };
    let how = worker.end(grace);
    tracing::debug!(pid, how, "the draft worker ended");
}

/// Tries the transports of the plan in order.
fn start(
    launch: &mut dyn Launch,
    plan: &Plan,
    over: &AtomicBool,
) -> Result<(Up, Box<dyn Running>), StartError> {
    let (first, second) = plan.transport.order();
    let why = match start_with(launch, plan, over, first) {
        Ok(started) => return Ok(started),
        Err(error) if error.step == Step::Region && second.is_some() => error.why,
        Err(error) => return Err(error),
    };
    let Some(second) = second else {
        return Err(StartError::at(Step::Region)(why));
    };
    let degraded = format!("{} not possible: {why}", first.name());
    tracing::warn!(
        why,
        "draft worker: {} is not possible, using {}",
        first.name(),
        second.name()
    );
    let (mut up, running) = start_with(launch, plan, over, second)?;
    up.degraded = Some(degraded);
    Ok((up, running))
}

fn start_with(
    launch: &mut dyn Launch,
    plan: &Plan,
    over: &AtomicBool,
    transport: Transport,
) -> Result<(Up, Box<dyn Running>), StartError> {
    let shape = &plan.shape;
    let needed = shape
        .dims
        .payload_bytes()
        .map_err(StartError::at(Step::Sizes))?;
    let capacity = needed.max(plan.capacity);
    let mut nonce: Nonce = [0; 16];
    rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())
        .map_err(StartError::at(Step::Region))?;
    let offer = Offer::make(transport, capacity, &nonce)?;
    let (ours, theirs) = channel::pair(Socket::Datagrams).map_err(StartError::at(Step::Channel))?;
    let running = launch
        .launch(theirs, offer.local())
        .map_err(StartError::at(Step::Spawn))?;
    let link = Link::new(ours, Side::Parent, plan.probe.clone());
    let asked = configure(shape, nonce, transport, capacity);
    let mut pending = Pending {
        running,
        link,
        deadline: Instant::now() + plan.timeouts.load,
        over,
    };
    let device = plan.device.as_deref();
    match pending.shake(&asked, &offer, device) {
        Ok(shaken) => Ok(pending.into_up(offer, capacity, shaken, device)),
        Err(error) => {
            // The link first: a worker on a thread ends when it is closed.
            let Pending { running, link, .. } = pending;
            drop((link, offer));
            end(running, plan, true);
            Err(error)
        }
    }
}

fn configure(shape: &Shape, nonce: Nonce, transport: Transport, capacity: usize) -> Configure {
    Configure {
        nonce,
        transport,
        capacity: capacity as u64,
        dims: shape.dims,
        verify_max: shape.verify_max,
        kv_round: shape.kv_round,
        threads: shape.threads,
        file: shape.file.clone(),
        place: shape.place.clone(),
    }
}

/// What payload will travel by, and the worker's end of it.
enum Offer {
    Region(Arc<Region>),
    Stream { ours: OwnedFd, theirs: OwnedFd },
}

impl Offer {
    fn make(transport: Transport, capacity: usize, nonce: &Nonce) -> Result<Self, StartError> {
        match transport {
            Transport::Shared => Region::memfd(capacity, nonce)
                .map(Arc::new)
                .map(Self::Region),
            Transport::Local => Region::local(capacity, nonce)
                .map(Arc::new)
                .map(Self::Region),
            Transport::Stream => {
                channel::pair(Socket::Stream).map(|(ours, theirs)| Self::Stream { ours, theirs })
            }
        }
        .map_err(StartError::at(Step::Region))
    }

    fn local(&self) -> Option<Arc<Region>> {
        match self {
            Self::Region(region) if region.file().is_none() => Some(Arc::clone(region)),
            _ => None,
        }
    }
}

/// What the worker said when it was ready.
struct Shaken {
    ready: Ready,
    told: Told,
}

/// A worker that has been started and is not ready.
struct Pending<'a> {
    running: Box<dyn Running>,
    link: Link,
    deadline: Instant,
    over: &'a AtomicBool,
}

impl Pending<'_> {
    /// Waits in slices, to see whether the start is wanted still: a model may take minutes to load.
    fn receive(&mut self) -> Result<Message, LinkError> {
        const SLICE: Duration = Duration::from_millis(50);
        loop {
            let until = self.deadline.min(Instant::now() + SLICE);
            let watch = self.running.watch();
            match self.link.receive_frame(Some(until), watch) {
                Err(LinkError::Deadline { .. })
                    if Instant::now() < self.deadline && !self.over.load(Ordering::Acquire) => {}
                Ok((message, fds)) if fds.is_empty() => return Ok(message),
                Ok((_, fds)) => {
                    let got = fds.len();
                    return Err(LinkError::corrupt("descriptors from the worker", 0, got));
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn shake(
        &mut self,
        asked: &Configure,
        offer: &Offer,
        device: Option<&dyn AnyDevice>,
    ) -> Result<Shaken, StartError> {
        let at = StartError::at;
        let hello = self.receive().map_err(at(Step::Hello))?;
        expect(&hello, Op::Hello).map_err(at(Step::Hello))?;
        let hello = Hello::decode(&hello.body).map_err(at(Step::Hello))?;
        if let Some(pid) = self.running.pid().filter(|pid| *pid != hello.pid) {
            let error = LinkError::corrupt("process id", pid, hello.pid);
            return Err(at(Step::Hello)(error));
        }
        let mut body = asked.encode().map_err(StartError::at(Step::Configure))?;
        let lent = Lent::begin(device, &asked.nonce);
        Lent::put(lent.as_ref().ok().map(|(lent, _)| lent), &mut body);
        let fd = match offer {
            Offer::Region(region) => region.file(),
            Offer::Stream { theirs, .. } => Some(theirs.as_fd()),
        };
        let fds: Vec<_> = fd.into_iter().collect();
        let header = Header::request(Op::Configure, 1, 0);
        self.link
            .send_frame(&header, &body, &fds, Some(self.deadline))
            .map_err(StartError::at(Step::Configure))?;
        let answer = self.receive().map_err(StartError::at(Step::Load))?;
        if answer.header.op == Op::Failed {
            let step = match answer.header.status {
                Status::BadRequest => Step::Configure,
                Status::BadState => Step::Region,
                _ => Step::Load,
            };
            return Err(StartError::at(step)(refusal_text(&answer.body)));
        }
        let at = StartError::at(Step::Ready);
        expect(&answer, Op::Ready).map_err(at)?;
        let at = StartError::at(Step::Ready);
        let (ready, rest) = Ready::read(&answer.body, asked).map_err(at)?;
        let mut told = Told::take(rest).map_err(StartError::at(Step::Ready))?;
        // The worker has closed it: what it wrote must be there.
        told.memory = match (lent, told.memory) {
            (Err(why), _) => why,
            (Ok((_, lending)), Standing::Yes) => match lending.check() {
                Ok(()) => Standing::Yes,
                Err(why) => Standing::No(why),
            },
            (Ok(_), no) => no,
        };
        Ok(Shaken { ready, told })
    }

    fn into_up(
        self,
        offer: Offer,
        capacity: usize,
        shaken: Shaken,
        device: Option<&dyn AnyDevice>,
    ) -> (Up, Box<dyn Running>) {
        let Self {
            running, mut link, ..
        } = self;
        let payload = match offer {
            Offer::Region(mut region) => {
                // The worker has its mapping: the descriptor is needed no more.
                if let Some(region) = Arc::get_mut(&mut region) {
                    region.close_file();
                }
                Payload::Region(region)
            }
            Offer::Stream { ours, .. } => Payload::Stream(ours),
        };
        link.attach(payload, capacity);
        let (pinned_here, copies, pin) = reach::pin(device, link.region());
        let Shaken { ready, told } = shaken;
        let unpinned = u64::from(copies) + u64::from(told.copies);
        let reach = Reach {
            pinned_here,
            pinned_there: told.pinned,
            memory: told.memory,
        };
        if unpinned > 0 {
            tracing::warn!(?reach, "draft worker: rows are copied once more");
        }
        let watch = running.watch().and_then(|w| w.try_clone_to_owned().ok());
        let up = Up {
            link,
            reach,
            unpinned,
            _pin: pin,
            watch,
            pid: running.pid(),
            ready,
            degraded: None,
        };
        (up, running)
    }
}

fn expect(message: &Message, op: Op) -> Result<(), LinkError> {
    if message.header.op == op && !message.header.reply {
        return Ok(());
    }
    let got = format!("{:?}", message.header.op);
    Err(LinkError::corrupt("operation", format!("{op:?}"), got))
}
