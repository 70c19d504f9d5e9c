//! The worker's side: a loop over any backbone. It answers, and keeps nothing but context rows.
//!
//! It holds no text, no sampler, no plan: what it answers is a function of the rows it was sent, the
//! block and the position. So a worker that is killed and started again, and sent the same rows, answers
//! the same bytes. Must not know: how it was started, tokens.

mod draft;
mod process;
mod serve;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dspark_draft::on_device::DirectBackbone;
use engine_core::seams::Backbone;

use crate::error::LinkError;
use crate::frame::{Header, Op, Status};
use crate::handshake::{Configure, Dims, Hello, Ready, Transport, refusal};
use crate::link::{Link, Message, Payload, Side};
use crate::probe::Probe;
use crate::reach::{self, Lent, Told};
use crate::region::{Nonce, Region};
use crate::report::Standing;

pub use draft::{dims, load, saved_range};
pub use process::run as run_process;

/// How long the worker waits for room to send in. The parent reads at once, or is gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// A backbone, by where its layers run.
pub enum Layers {
    /// On the processor: rows are copied in and out.
    Here(Box<dyn Backbone>),
    /// On a device that may take rows from the region and put them there by itself.
    Device(Box<dyn DirectBackbone>),
}

impl std::fmt::Debug for Layers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Here(_) => "Here",
            Self::Device(_) => "Device",
        })
    }
}

impl Layers {
    /// The backbone.
    pub fn backbone(&mut self) -> &mut dyn Backbone {
        match self {
            Self::Here(here) => &mut **here,
            Self::Device(there) => &mut **there,
        }
    }

    /// Pins what rows travel by, and answers the parent's probe.
    fn reach(&mut self, payload: &Payload, lent: Option<&Lent>, nonce: &Nonce) -> Told {
        let Self::Device(there) = self else {
            return Told::processor();
        };
        let region = match payload {
            Payload::Region(region) => Some(region),
            Payload::Stream(_) => None,
        };
        let (pinned, copies) = match reach::pages(region) {
            Err(why) => (Standing::No(why), region.is_some()),
            Ok(pages) => {
                let (pinned, copies, _) = reach::outcome(there.pin(pages));
                (pinned, copies)
            }
        };
        Told {
            pinned,
            copies,
            memory: Lent::answer(lent, there.device(), nonce),
        }
    }
}

/// What a worker serves.
pub struct Loaded {
    /// The backbone.
    pub backbone: Layers,
    /// What it is.
    pub dims: Dims,
    /// What it runs on, for people.
    pub device: String,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Loaded({}, {:?})", self.device, self.dims)
    }
}

/// Why a worker ended without a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was told to.
    Quit,
    /// The parent is gone.
    ParentGone,
}

/// Speaks to the parent over `control` until told to end. `local`: the region of a worker on a thread.
/// `load`: makes the backbone that was asked for, or says why not.
///
/// # Errors
/// Any [`LinkError`]: the parent sent what is no protocol, or could not be reached.
pub fn run(
    control: OwnedFd,
    local: Option<Arc<Region>>,
    probe: Probe,
    load: impl FnOnce(&Configure) -> Result<Loaded, String>,
) -> Result<End, LinkError> {
    let mut link = Link::new(control, Side::Worker, probe);
    match start(&mut link, local, load) {
        Ok(Some((loaded, direct))) => serve::serve(&mut link, loaded, direct),
        Ok(None) | Err(LinkError::Closed) => Ok(End::ParentGone),
        Err(error) => Err(error),
    }
}

pub(crate) fn soon() -> Option<Instant> {
    Some(Instant::now() + PATIENCE)
}

/// The handshake: what is served, and whether its device takes rows by itself; `None` if a refusal was sent.
fn start(
    link: &mut Link,
    local: Option<Arc<Region>>,
    load: impl FnOnce(&Configure) -> Result<Loaded, String>,
) -> Result<Option<(Loaded, bool)>, LinkError> {
    let hello = Header::request(Op::Hello, 1, 0);
    link.send_frame(&hello, &Hello::here().encode(), &[], soon())?;
    let (message, fds) = link.receive_frame(None, None)?;
    let (configure, lent) = match configure(&message) {
        Ok(asked) => asked,
        Err(error) => return refuse(link, Status::BadRequest, &error.to_string()),
    };
    let payload = match payload(&configure, fds, local) {
        Ok(payload) => payload,
        // A region that cannot be used is told apart: another transport may do.
        Err(error) => return refuse(link, Status::BadState, &error.to_string()),
    };
    let mut loaded = match load(&configure) {
        Ok(loaded) => loaded,
        Err(why) => return refuse(link, Status::Failed, &why),
    };
    let told = loaded
        .backbone
        .reach(&payload, lent.as_ref(), &configure.nonce);
    link.attach(payload, usize::try_from(configure.capacity).unwrap_or(0));
    let ready = Ready {
        nonce: configure.nonce,
        transport: configure.transport,
        dims: loaded.dims,
        device: loaded.device.clone(),
    };
    let header = Header::request(Op::Ready, 2, 0);
    let mut body = ready.encode();
    told.put(&mut body);
    link.send_frame(&header, &body, &[], soon())?;
    Ok(Some((loaded, told.pinned.is_yes())))
}

fn configure(message: &Message) -> Result<(Configure, Option<Lent>), LinkError> {
    if message.header.op != Op::Configure {
        let got = format!("{:?}", message.header.op);
        return Err(LinkError::corrupt("operation", "Configure", got));
    }
    let (configure, rest) = Configure::read(&message.body)?;
    Ok((configure, Lent::take(rest)?))
}

fn payload(
    configure: &Configure,
    mut fds: Vec<OwnedFd>,
    local: Option<Arc<Region>>,
) -> Result<Payload, LinkError> {
    let wanted = usize::from(configure.transport != Transport::Local);
    if fds.len() != wanted {
        return Err(LinkError::corrupt("descriptors", wanted, fds.len()));
    }
    let capacity = usize::try_from(configure.capacity)
        .map_err(|_| LinkError::corrupt("capacity", "bytes that fit memory", configure.capacity))?;
    match (configure.transport, fds.pop(), local) {
        (Transport::Shared, Some(file), _) => {
            let region = Region::open(file, capacity, &configure.nonce)?;
            Ok(Payload::Region(Arc::new(region)))
        }
        (Transport::Stream, Some(stream), _) => Ok(Payload::Stream(stream)),
        (Transport::Local, _, Some(region)) => Ok(Payload::Region(region)),
        (transport, ..) => Err(LinkError::corrupt(
            "transport",
            "one that this worker was given the means for",
            transport.name(),
        )),
    }
}

fn refuse<T>(link: &mut Link, status: Status, text: &str) -> Result<Option<T>, LinkError> {
    let header = Header {
        status,
        ..Header::request(Op::Failed, 2, 0)
    };
    link.send_frame(&header, &refusal(text), &[], soon())?;
    Ok(None)
}
