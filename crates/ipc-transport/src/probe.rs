//! A place for tests to stand: every send, receive and copy of a link asks a probe first, which may make
//! it fail. Without a probe, which is how the product runs, nothing is asked.

use std::fmt;
use std::io;
use std::sync::Arc;

/// Where a link stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// A frame is about to be sent.
    Send,
    /// A frame has been received.
    Receive,
    /// Payload is about to be copied or written out.
    CopyOut,
    /// Payload is about to be copied or read in.
    CopyIn,
}

type Ask = dyn Fn(Point) -> io::Result<()> + Send + Sync;

/// Asked at every [`Point`].
#[derive(Clone, Default)]
pub struct Probe(Option<Arc<Ask>>);

impl Probe {
    /// Calls `ask` at every point, in order; its error becomes the link's.
    pub fn new(ask: impl Fn(Point) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(ask)))
    }

    pub(crate) fn at(&self, point: Point) -> io::Result<()> {
        self.0.as_ref().map_or(Ok(()), |ask| ask(point))
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Probe({})", self.0.is_some())
    }
}
