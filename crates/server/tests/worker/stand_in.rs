//! A worker that misbehaves by a plan, for `--draft-worker-program`.
//!
//! What the program is given is a script that starts this binary's test [`serves`] with the plan's folder.
//! A worker takes the first line of the plan that none before it took; behind the last line workers are
//! good ones. So it can be told afterwards who was started and which misdeeds were done, and nothing of it
//! is in the program.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ipc_transport::channel;
use ipc_transport::error::LinkError;
use ipc_transport::frame::{self, Header, Op, Status};
use ipc_transport::handshake::{Configure, Hello, Ready, refusal};
use ipc_transport::link::{Link, Side};
use ipc_transport::probe::Probe;
use ipc_transport::worker;
use rustix::process::{Signal, getpid, kill_process};

/// Begins the argument with the folder.
const FOLDER: &str = "stand-in=";
/// Longer than the program waits for a step.
const LATE: Duration = Duration::from_secs(11);

/// What a worker does, and what of itself it says wrongly or at which point it does it: points are sends,
/// receives and copies, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misdeed {
    /// Says in its first message that it speaks another protocol.
    Hello,
    /// Says that it cannot load the file.
    Refuses,
    /// Shows another nonce than it was given.
    Nonce,
    /// Says that it loaded a drafter of another width.
    Width,
    /// Sends bytes that are no frame.
    Garbage(usize),
    /// Sends a reply of another protocol.
    Version(usize),
    /// Sends a whole reply to another request.
    Number(usize),
    /// Goes on after the program's patience.
    Late(usize),
    /// Fails to send, receive or copy, and ends.
    Fails(usize),
    /// Ends at once, as by a signal.
    Dies(usize),
}

impl std::fmt::Display for Misdeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hello => f.write_str("hello"),
            Self::Refuses => f.write_str("refuses"),
            Self::Nonce => f.write_str("nonce"),
            Self::Width => f.write_str("width"),
            Self::Garbage(at) => write!(f, "garbage {at}"),
            Self::Version(at) => write!(f, "version {at}"),
            Self::Number(at) => write!(f, "number {at}"),
            Self::Late(at) => write!(f, "late {at}"),
            Self::Fails(at) => write!(f, "fails {at}"),
            Self::Dies(at) => write!(f, "dies {at}"),
        }
    }
}

impl FromStr for Misdeed {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let other = || format!("no misdeed: {line}");
        let (word, at) = line.split_once(' ').unwrap_or((line, ""));
        let at = || at.parse::<usize>().map_err(|_| other());
        Ok(match word {
            "hello" => Self::Hello,
            "refuses" => Self::Refuses,
            "nonce" => Self::Nonce,
            "width" => Self::Width,
            "garbage" => Self::Garbage(at()?),
            "version" => Self::Version(at()?),
            "number" => Self::Number(at()?),
            "late" => Self::Late(at()?),
            "fails" => Self::Fails(at()?),
            "dies" => Self::Dies(at()?),
            _ => return Err(other()),
        })
    }
}

impl Misdeed {
    /// The point at which it is done; `None` for one of the handshake.
    const fn at(self) -> Option<usize> {
        match self {
            Self::Hello | Self::Refuses | Self::Nonce | Self::Width => None,
            Self::Garbage(at)
            | Self::Version(at)
            | Self::Number(at)
            | Self::Late(at)
            | Self::Fails(at)
            | Self::Dies(at) => Some(at),
        }
    }
}

/// A plan in a folder of its own, and the program that follows it.
pub(crate) struct StandIn(tempfile::TempDir);

impl StandIn {
    pub(crate) fn new(plan: &[Misdeed]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let lines: Vec<String> = plan.iter().map(Misdeed::to_string).collect();
        fs::write(folder.path().join("plan"), lines.join("\n")).unwrap();
        let this = Self(folder);
        let test = std::env::current_exe().unwrap();
        let (test, folder) = (test.display(), this.0.path().display());
        let script = format!(
            "#!/bin/sh\nexec '{test}' --exact stand_in::serves --nocapture '{FOLDER}{folder}'\n"
        );
        // Written by another process: a file that this one had open for writing cannot be started while a
        // thread beside is between fork and exec.
        let (draft, program) = (this.0.path().join("draft"), this.program());
        fs::write(&draft, script).unwrap();
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o700)).unwrap();
        let copied = std::process::Command::new("cp")
            .arg("-p")
            .args([draft, program])
            .status();
        assert!(copied.unwrap().success());
        this
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.0.path().join("worker")
    }

    /// Processes of the workers that were started, in order.
    pub(crate) fn started(&self) -> Vec<u32> {
        let pid = |n: usize| fs::read_to_string(self.0.path().join(format!("pid-{n}"))).ok();
        (0..)
            .map_while(pid)
            .map(|pid| pid.parse().unwrap())
            .collect()
    }

    /// How many misdeeds were done.
    pub(crate) fn done(&self) -> usize {
        let done = |n: &usize| self.0.path().join(format!("done-{n}")).exists();
        (0..self.started().len()).filter(done).count()
    }
}

/// Takes the next line: its number, and what it says.
fn take(folder: &Path) -> (usize, Option<Misdeed>) {
    let claim = |n: &usize| File::create_new(folder.join(format!("pid-{n}"))).ok();
    let (n, mut file) = (0..).find_map(|n| Some((n, claim(&n)?))).unwrap();
    file.write_all(std::process::id().to_string().as_bytes())
        .unwrap();
    let plan = fs::read_to_string(folder.join("plan")).unwrap();
    (n, plan.lines().nth(n).map(|line| line.parse().unwrap()))
}

/// What is sent in place of a reply.
fn lie(misdeed: Misdeed) -> Vec<u8> {
    let mut bytes = Vec::new();
    let strange = Header::request(Op::Step, 1 << 40, 0).answer(Status::Ok, 0);
    frame::encode(&strange, &[], &mut bytes).unwrap();
    match misdeed {
        Misdeed::Garbage(_) => vec![0xa5; 200],
        Misdeed::Version(_) => {
            bytes[4] += 1;
            bytes
        }
        _ => bytes,
    }
}

fn commit(misdeed: Misdeed, control: &OwnedFd) -> io::Result<()> {
    match misdeed {
        Misdeed::Late(_) => std::thread::sleep(LATE),
        Misdeed::Fails(_) => return Err(io::Error::other("made to fail")),
        Misdeed::Dies(_) => kill_process(getpid(), Signal::KILL)?,
        // A channel that is closed by then is no matter.
        _ => drop(channel::send(
            control.as_fd(),
            &lie(misdeed),
            &[],
            Some(Instant::now()),
        )),
    }
    Ok(())
}

/// A handshake that says something wrong.
fn shake(misdeed: Misdeed, control: OwnedFd) -> Result<(), LinkError> {
    let mut link = Link::new(control, Side::Worker, Probe::default());
    let mut hello = Hello::here();
    hello.major += u32::from(misdeed == Misdeed::Hello);
    link.send_frame(
        &Header::request(Op::Hello, 1, 0),
        &hello.encode(),
        &[],
        None,
    )?;
    let (asked, _) = link.receive_frame(None, None)?;
    let Configure {
        mut nonce,
        transport,
        mut dims,
        ..
    } = Configure::decode(&asked.body)?;
    let header = Header::request(Op::Ready, 2, 0);
    if misdeed == Misdeed::Refuses {
        let header = Header {
            op: Op::Failed,
            status: Status::Failed,
            ..header
        };
        link.send_frame(&header, &refusal("not today"), &[], None)?;
    } else {
        nonce[0] ^= u8::from(misdeed == Misdeed::Nonce);
        dims.n_embd += u32::from(misdeed == Misdeed::Width);
        let device = "stand-in".to_owned();
        let ready = Ready {
            nonce,
            transport,
            dims,
            device,
        };
        link.send_frame(&header, &ready.encode(), &[], None)?;
    }
    // Until the parent lets go.
    link.receive_frame(None, None).map(|_| ())
}

/// Serves as the worker of the program that started it.
fn serve(folder: &Path) {
    let (n, misdeed) = take(folder);
    let mark = folder.join(format!("done-{n}"));
    let control = || io::stdin().as_fd().try_clone_to_owned().unwrap();
    let (point, own) = (AtomicUsize::new(0), control());
    let probe = Probe::new(move |_| {
        let here = Some(point.fetch_add(1, Ordering::SeqCst));
        match misdeed.filter(|misdeed| misdeed.at() == here) {
            Some(misdeed) => {
                File::create(&mark)?;
                commit(misdeed, &own)
            }
            None => Ok(()),
        }
    });
    match misdeed.filter(|misdeed| misdeed.at().is_none()) {
        // How it ends is the program's to tell.
        Some(misdeed) => {
            File::create(folder.join(format!("done-{n}"))).unwrap();
            drop(shake(misdeed, control()));
        }
        None => drop(worker::run(control(), None, probe, worker::load)),
    }
}

/// The worker's side where it was started as one; plans are read as they were written.
#[test]
fn serves() {
    let folder = std::env::args().find_map(|a| a.strip_prefix(FOLDER).map(PathBuf::from));
    if let Some(folder) = folder {
        serve(&folder);
        // Without the words of a test that has ended.
        std::process::exit(0);
    }
    for misdeed in [
        Misdeed::Hello,
        Misdeed::Width,
        Misdeed::Garbage(0),
        Misdeed::Late(17),
    ] {
        assert_eq!(misdeed.to_string().parse(), Ok(misdeed));
    }
    for other in ["", "garbage", "garbage -1", "late x", "kill 3"] {
        assert!(other.parse::<Misdeed>().is_err(), "{other}");
    }
}
