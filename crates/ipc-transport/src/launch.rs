//! How a worker is started, watched and ended.
//!
//! A process gets an environment of listed variables, its control socket as standard input and nothing
//! else; it is known by a descriptor of its process, so that a number that the system has given away again
//! is never signalled. A thread, for tests and for the process-local transport, speaks the same protocol.
//! Must not know: what the worker does.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::region::Region;

/// Starts workers.
pub trait Launch: Send {
    /// Starts one that speaks over `control`. `local`: the region of a worker in this process.
    ///
    /// # Errors
    /// The system's.
    fn launch(
        &mut self,
        control: OwnedFd,
        local: Option<Arc<Region>>,
    ) -> io::Result<Box<dyn Running>>;
}

/// A worker that was started. Whoever holds it ends it.
pub trait Running: Send {
    /// Its process, if it has one of its own.
    fn pid(&self) -> Option<u32>;

    /// Readable when the process has ended.
    fn watch(&self) -> Option<BorrowedFd<'_>>;

    /// Waits for its end, asks for it, forces it, and takes it off the system's list. Says how it ended.
    fn end(&mut self, grace: Grace) -> String;
}

/// How long to wait before asking, and before forcing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grace {
    /// For an end of its own.
    pub quit: Duration,
    /// For an end on request.
    pub term: Duration,
}

impl Grace {
    /// At once.
    pub const NONE: Self = Self {
        quit: Duration::ZERO,
        term: Duration::ZERO,
    };
}

/// Workers as processes.
#[derive(Clone, Debug)]
pub struct Process {
    /// The program.
    pub program: PathBuf,
    /// Its arguments; the parent's id follows them.
    pub args: Vec<OsString>,
    /// All of its environment.
    pub env: Vec<(OsString, OsString)>,
}

impl Launch for Process {
    fn launch(&mut self, control: OwnedFd, _: Option<Arc<Region>>) -> io::Result<Box<dyn Running>> {
        let mut command = Command::new(&self.program);
        command
            .arg0("fourspark")
            .args(&self.args)
            .arg(std::process::id().to_string())
            // Ctrl-C is the parent's to answer: it lets the worker end in order.
            .process_group(0)
            .env_clear()
            .envs(self.env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::from(control))
            .stdout(Stdio::null());
        let mut child = command.spawn()?;
        let watch = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        match watch {
            Ok(watch) => Ok(Box::new(RunningProcess { child, watch })),
            Err(errno) => {
                child.kill()?;
                child.wait()?;
                Err(io::Error::other(format!("pidfd_open: {errno}")))
            }
        }
    }
}

struct RunningProcess {
    child: Child,
    watch: OwnedFd,
}

impl RunningProcess {
    /// Whether it has ended within `patience`.
    fn ended(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::new(&self.watch, PollFlags::IN)];
            match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                result => return result.is_ok_and(|n| n > 0),
            }
        }
    }
}

impl Running for RunningProcess {
    fn pid(&self) -> Option<u32> {
        Some(self.child.id())
    }

    fn watch(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watch.as_fd())
    }

    fn end(&mut self, grace: Grace) -> String {
        let mut how = "";
        if !self.ended(grace.quit) {
            how = ", asked to end";
            let asked =
                !grace.term.is_zero() && pidfd_send_signal(&self.watch, Signal::TERM).is_ok();
            if !asked || !self.ended(grace.term) {
                how = ", forced to end";
                // Not reaped yet, so the number is still its own.
                if let Err(error) = self.child.kill() {
                    return format!("cannot be ended: {error}");
                }
            }
        }
        match self.child.wait() {
            Ok(status) => format!("{status}{how}"),
            Err(error) => format!("cannot be waited for: {error}"),
        }
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        // Nothing if it was ended and reaped before.
        if let Ok(None) = self.child.try_wait() {
            self.end(Grace::NONE);
        }
    }
}

/// What a worker on a thread runs.
pub type ThreadMain = dyn Fn(OwnedFd, Option<Arc<Region>>) + Send + Sync;

/// Workers as threads of this process.
#[derive(Clone)]
pub struct Threads(Arc<ThreadMain>);

impl Threads {
    /// Each worker runs `main`.
    pub fn new(main: impl Fn(OwnedFd, Option<Arc<Region>>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(main))
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Threads")
    }
}

impl Launch for Threads {
    fn launch(
        &mut self,
        control: OwnedFd,
        local: Option<Arc<Region>>,
    ) -> io::Result<Box<dyn Running>> {
        let main = Arc::clone(&self.0);
        let thread = std::thread::Builder::new()
            .name("fourspark-draft".to_owned())
            .spawn(move || main(control, local))?;
        Ok(Box::new(RunningThread(Some(thread))))
    }
}

struct RunningThread(Option<JoinHandle<()>>);

impl Running for RunningThread {
    fn pid(&self) -> Option<u32> {
        None
    }

    fn watch(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// A thread cannot be forced: one that has not ended in time is left to itself, and said to be.
    fn end(&mut self, grace: Grace) -> String {
        let Some(thread) = self.0.take() else {
            return "ended before".to_owned();
        };
        const LEAST: Duration = Duration::from_millis(200);
        let until = Instant::now() + (grace.quit + grace.term).max(LEAST);
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        if !thread.is_finished() {
            return "a thread that goes on".to_owned();
        }
        match thread.join() {
            Ok(()) => "a thread that ended".to_owned(),
            Err(_) => "a thread that panicked".to_owned(),
        }
    }
}
