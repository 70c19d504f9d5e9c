//! Whole messages: a frame, and its payload by the transport that both sides agreed on.
//!
//! One implementation for both sides. A payload is an ordered list of parts that are copied once, into the
//! region or into the stream. Must not know: what an entry means, processes.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use engine_core::mutant::mutant;

use crate::channel::{self, Datagram};
use crate::error::LinkError;
use crate::frame::{self, BODY_MAX, HEADER, Header};
use crate::heap;
use crate::probe::{Point, Probe};
use crate::region::Region;

/// How payload travels.
#[derive(Debug)]
pub enum Payload {
    /// Through memory both sides map.
    Region(Arc<Region>),
    /// Through a socket.
    Stream(OwnedFd),
}

/// Which side this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Sends requests.
    Parent,
    /// Sends replies.
    Worker,
}

/// Bytes that are also aligned f32, kept at their largest size.
#[derive(Debug, Default)]
pub struct Words {
    words: Vec<f32>,
    bytes: usize,
}

impl Words {
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        self.bytes = bytes;
        let n = bytes.div_ceil(4);
        if self.words.len() < n {
            self.words.resize(n, 0.0);
        }
        &mut bytemuck::cast_slice_mut(&mut self.words)[..bytes]
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }

    /// The whole values.
    #[must_use]
    pub fn floats(&self) -> &[f32] {
        &self.words[..self.bytes / 4]
    }
}

/// A received frame. Its payload lies in the buffer given to [`Link::receive`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The header.
    pub header: Header,
    /// The body.
    pub body: Vec<u8>,
}

/// One end.
#[derive(Debug)]
pub struct Link {
    control: OwnedFd,
    /// `None` until the handshake has chosen.
    payload: Option<Payload>,
    side: Side,
    /// Most bytes of a payload.
    capacity: usize,
    probe: Probe,
    out: Vec<u8>,
    buffer: Vec<u8>,
}

impl Link {
    /// A link over a datagram socket, without payload yet.
    #[must_use]
    pub fn new(control: OwnedFd, side: Side, probe: Probe) -> Self {
        Self {
            control,
            payload: None,
            side,
            capacity: 0,
            probe,
            out: Vec::new(),
            // One byte more than the longest frame, so that a longer one is seen to be longer.
            buffer: vec![0; HEADER + BODY_MAX + 1],
        }
    }

    /// Sets how payload travels, up to `capacity` bytes.
    pub fn attach(&mut self, payload: Payload, capacity: usize) {
        self.payload = Some(payload);
        self.capacity = capacity;
        heap::keep(capacity);
    }

    /// Most bytes of a payload.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// The control socket.
    #[must_use]
    pub fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Sends a frame whose payload is `parts`, one after the other; the header's payload size is set here.
    ///
    /// # Errors
    /// Any [`LinkError`].
    pub fn send(
        &mut self,
        header: Header,
        body: &[u8],
        parts: &[&[u8]],
        deadline: Option<Instant>,
    ) -> Result<(), LinkError> {
        let header = self.sized(header, parts)?;
        self.publish(&header, parts)?;
        self.send_frame(&header, body, &[], deadline)?;
        let Some(Payload::Stream(stream)) = &self.payload else {
            return Ok(());
        };
        for part in parts.iter().filter(|p| !p.is_empty()) {
            self.probe
                .at(Point::CopyOut)
                .map_err(LinkError::io("copy out"))?;
            channel::write_all(stream, part, deadline)?;
        }
        Ok(())
    }

    fn sized(&self, header: Header, parts: &[&[u8]]) -> Result<Header, LinkError> {
        let bytes = parts.iter().try_fold(0usize, |n, p| n.checked_add(p.len()));
        match bytes {
            Some(n) if n <= self.capacity => Ok(Header {
                payload: n as u64,
                ..header
            }),
            _ => {
                let expected = format!("at most {} bytes", self.capacity);
                Err(LinkError::corrupt(
                    "payload",
                    expected,
                    format!("{bytes:?}"),
                ))
            }
        }
    }

    /// Puts payload into the region and hands it over.
    fn publish(&self, header: &Header, parts: &[&[u8]]) -> Result<(), LinkError> {
        let Some(Payload::Region(region)) = &self.payload else {
            return Ok(());
        };
        let mut at = 0;
        for part in parts.iter().filter(|p| !p.is_empty()) {
            self.probe
                .at(Point::CopyOut)
                .map_err(LinkError::io("copy out"))?;
            region.write(at, part)?;
            at += part.len();
        }
        let turn = match self.side {
            Side::Parent => region.request(),
            Side::Worker => region.reply(),
        };
        turn.publish(header.number, header.payload);
        Ok(())
    }

    /// Sends a frame whose payload of `bytes` bytes lies in the region already, from its start.
    ///
    /// # Errors
    /// Any [`LinkError`]; `Corrupt` without a region.
    pub(crate) fn send_placed(
        &mut self,
        header: Header,
        body: &[u8],
        bytes: usize,
        deadline: Option<Instant>,
    ) -> Result<(), LinkError> {
        if bytes > self.capacity || self.region().is_none() {
            let expected = format!("at most {} bytes of a region", self.capacity);
            return Err(LinkError::corrupt("payload", expected, bytes));
        }
        if bytes > 0 {
            let probed = self.probe.at(Point::CopyOut);
            probed.map_err(LinkError::io("copy out"))?;
        }
        let header = Header {
            payload: bytes as u64,
            ..header
        };
        self.publish(&header, &[])?;
        self.send_frame(&header, body, &[], deadline)
    }

    /// Bytes of payload of a frame that was received, which stay in the region.
    ///
    /// # Errors
    /// As [`Self::announced`].
    pub(crate) fn placed(&self, header: &Header) -> Result<usize, LinkError> {
        let bytes = self.announced(header)?;
        if bytes > 0 {
            let probed = self.probe.at(Point::CopyIn);
            probed.map_err(LinkError::io("copy in"))?;
        }
        Ok(bytes)
    }

    /// The whole values of a frame that the worker received: those in the region where they lie, those of a stream in
    /// `words`. Nothing can be sent before they are let go of, so that they are read in this side's turn.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub(crate) fn values<'a>(
        &'a mut self,
        header: &Header,
        words: &'a mut Words,
        deadline: Option<Instant>,
    ) -> Result<&'a [f32], LinkError> {
        debug_assert_eq!(
            self.side,
            Side::Worker,
            "the parent believes its own copies only"
        );
        let Some(region) = self.region() else {
            self.take(header, words, deadline, None)?;
            return Ok(words.floats());
        };
        let bytes = self.placed(header)?;
        region.values(bytes / 4)
    }

    /// The region that payload travels by, if it does.
    pub(crate) fn region(&self) -> Option<&Arc<Region>> {
        match &self.payload {
            Some(Payload::Region(region)) => Some(region),
            _ => None,
        }
    }

    /// Sends a frame without payload, with descriptors.
    ///
    /// # Errors
    /// Any [`LinkError`].
    pub fn send_frame(
        &mut self,
        header: &Header,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
    ) -> Result<(), LinkError> {
        self.out.clear();
        frame::encode(header, body, &mut self.out)?;
        self.probe.at(Point::Send).map_err(LinkError::io("send"))?;
        channel::send(self.control.as_fd(), &self.out, fds, deadline)
    }

    /// Receives a frame and its descriptors, without payload.
    ///
    /// # Errors
    /// Any [`LinkError`].
    pub fn receive_frame(
        &mut self,
        deadline: Option<Instant>,
        watch: Option<BorrowedFd<'_>>,
    ) -> Result<(Message, Vec<OwnedFd>), LinkError> {
        let (socket, buffer) = (self.control.as_fd(), &mut self.buffer);
        let datagram = channel::receive(socket, buffer, deadline, watch)?;
        self.decoded(datagram)
    }

    /// As [`Self::receive_frame`], but does not sleep while the frame is `near`: see [`channel::receive_near`].
    ///
    /// # Errors
    /// Any [`LinkError`].
    pub fn receive_frame_near(
        &mut self,
        near: &Range<Instant>,
        deadline: Instant,
        watch: Option<BorrowedFd<'_>>,
    ) -> Result<(Message, Vec<OwnedFd>), LinkError> {
        let (socket, buffer) = (self.control.as_fd(), &mut self.buffer);
        let datagram = channel::receive_near(socket, buffer, near, deadline, watch)?;
        self.decoded(datagram)
    }

    fn decoded(&self, (n, fds): Datagram) -> Result<(Message, Vec<OwnedFd>), LinkError> {
        self.probe
            .at(Point::Receive)
            .map_err(LinkError::io("receive"))?;
        let (header, body) = frame::decode(&self.buffer[..n])?;
        let body = body.to_vec();
        Ok((Message { header, body }, fds))
    }

    /// Receives a frame, then its payload into `words`.
    ///
    /// # Errors
    /// Any [`LinkError`]; `Corrupt` for a payload larger than fits, of which nothing is read.
    pub fn receive(
        &mut self,
        words: &mut Words,
        deadline: Option<Instant>,
        watch: Option<BorrowedFd<'_>>,
    ) -> Result<Message, LinkError> {
        let (message, _) = self.receive_frame(deadline, watch)?;
        self.take(&message.header, words, deadline, watch)?;
        Ok(message)
    }

    /// Takes the payload of a frame that was received.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub fn take(
        &self,
        header: &Header,
        words: &mut Words,
        deadline: Option<Instant>,
        watch: Option<BorrowedFd<'_>>,
    ) -> Result<(), LinkError> {
        let bytes = self.announced(header)?;
        self.take_bytes(header, words.room(bytes), deadline, watch)
    }

    /// Bytes of payload of a frame that was received, if they fit and are there to be taken.
    ///
    /// # Errors
    /// `Corrupt`, also where the region holds the payload of another frame.
    pub fn announced(&self, header: &Header) -> Result<usize, LinkError> {
        let bytes = usize::try_from(header.payload).ok();
        let Some(bytes) = bytes.filter(|n| *n <= self.capacity) else {
            let expected = format!("at most {} bytes", self.capacity);
            return Err(LinkError::corrupt("payload", expected, header.payload));
        };
        if let Some(Payload::Region(region)) = &self.payload {
            let turn = match self.side {
                Side::Parent => region.reply(),
                Side::Worker => region.request(),
            };
            turn.consume(header.number, header.payload)?;
        }
        Ok(bytes)
    }

    /// Takes the payload of a frame that was announced into `to`.
    ///
    /// # Errors
    /// Any [`LinkError`]; `Corrupt` for a payload of another size, of which nothing is read.
    pub fn take_bytes(
        &self,
        header: &Header,
        to: &mut [u8],
        deadline: Option<Instant>,
        watch: Option<BorrowedFd<'_>>,
    ) -> Result<(), LinkError> {
        if to.is_empty() {
            return self.expect(header, 0);
        }
        match self.source(header, to.len())? {
            Payload::Region(region) => region.read(0, to),
            Payload::Stream(stream) if !mutant(346) => {
                channel::read_exact(stream, to, deadline, watch)
            }
            Payload::Stream(_) => Ok(()),
        }
    }

    /// Takes the payload of a frame that was announced: two blocks of `n` values.
    ///
    /// # Errors
    /// Any [`LinkError`]; `Corrupt` for a payload of another size, of which nothing is read.
    pub fn take_blocks(
        &self,
        header: &Header,
        n: usize,
        deadline: Option<Instant>,
        watch: Option<BorrowedFd<'_>>,
    ) -> Result<[Vec<f32>; 2], LinkError> {
        if n == 0 {
            self.expect(header, 0)?;
            return Ok([Vec::new(), Vec::new()]);
        }
        let block = n.saturating_mul(4);
        match self.source(header, block.saturating_mul(2))? {
            Payload::Region(region) => Ok([region.floats(0, n)?, region.floats(block, n)?]),
            Payload::Stream(stream) => {
                let mut blocks = [vec![0.0; n], vec![0.0; n]];
                for block in &mut blocks {
                    let bytes = bytemuck::cast_slice_mut(block);
                    channel::read_exact(stream, bytes, deadline, watch)?;
                }
                Ok(blocks)
            }
        }
    }

    /// Refuses a payload of another size.
    fn expect(&self, header: &Header, bytes: usize) -> Result<(), LinkError> {
        if header.payload != bytes as u64 {
            return Err(LinkError::corrupt("payload", bytes, header.payload));
        }
        Ok(())
    }

    /// Where the payload of a frame is taken from, if it has so many bytes.
    fn source(&self, header: &Header, bytes: usize) -> Result<&Payload, LinkError> {
        self.expect(header, bytes)?;
        self.probe
            .at(Point::CopyIn)
            .map_err(LinkError::io("copy in"))?;
        let missing = || LinkError::corrupt("payload", "none in the handshake", bytes);
        self.payload.as_ref().ok_or_else(missing)
    }
}
