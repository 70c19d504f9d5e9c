//! Sockets with deadlines: datagrams that may carry descriptors, and exact streams.
//!
//! Every descriptor is closed on exec. Every wait ends: with what was waited for, with its deadline, or
//! with the end of the other side. Must not know: what the bytes mean.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};

use crate::error::LinkError;

/// Descriptors that may come with one datagram.
pub const FDS_MAX: usize = 2;

/// What a socket pair carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Whole messages.
    Datagrams,
    /// Bytes.
    Stream,
}

/// Two connected ends.
///
/// # Errors
/// `Io`.
pub fn pair(shape: Shape) -> Result<(OwnedFd, OwnedFd), LinkError> {
    let kind = match shape {
        Shape::Datagrams => SocketType::SEQPACKET,
        Shape::Stream => SocketType::STREAM,
    };
    socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
        .map_err(LinkError::sys("socketpair"))
}

/// Time left until a deadline, rounded up, so that a wait does not end early.
fn left(deadline: Option<Instant>) -> Option<Timespec> {
    let left = deadline?.saturating_duration_since(Instant::now());
    Timespec::try_from(left).ok()
}

/// Waits until `fd` is ready for `want`. `watch` becomes readable when the other side's process ends.
fn ready(
    fd: BorrowedFd<'_>,
    want: PollFlags,
    deadline: Option<Instant>,
    watch: Option<BorrowedFd<'_>>,
    what: &'static str,
) -> Result<(), LinkError> {
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(fd, want),
            PollFd::from_borrowed_fd(watch.unwrap_or(fd), PollFlags::IN),
        ];
        let asked = if watch.is_some() { 2 } else { 1 };
        match poll(&mut fds[..asked], left(deadline).as_ref()) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(LinkError::sys("poll")(errno)),
            Ok(0) => return Err(LinkError::Deadline { what }),
            // What was sent before the end still counts; a closed end is seen by the call that follows.
            Ok(_) if !fds[0].revents().is_empty() => return Ok(()),
            Ok(_) => return Err(LinkError::Exited),
        }
    }
}

/// Sends one datagram.
///
/// # Errors
/// `Closed`, `Deadline`, `Io`.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    deadline: Option<Instant>,
) -> Result<(), LinkError> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    loop {
        let mut control = SendAncillaryBuffer::new(&mut space);
        let pushed = fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds));
        if !pushed || fds.len() > FDS_MAX {
            return Err(LinkError::corrupt("descriptors", FDS_MAX, fds.len()));
        }
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(n) if n == bytes.len() => return Ok(()),
            Ok(n) => return Err(LinkError::corrupt("bytes sent", bytes.len(), n)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => ready(socket, PollFlags::OUT, deadline, None, "sending")?,
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Err(LinkError::Closed),
            Err(errno) => return Err(LinkError::sys("sendmsg")(errno)),
        }
    }
}

/// Receives one datagram into `buffer`, with its descriptors. One that does not fit, or comes with more
/// descriptors than allowed, is refused; those that arrived are closed.
///
/// # Errors
/// `Closed`, `Exited`, `Deadline`, `Corrupt`, `Io`.
pub fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    deadline: Option<Instant>,
    watch: Option<BorrowedFd<'_>>,
) -> Result<(usize, Vec<OwnedFd>), LinkError> {
    const MESSAGE: &str = "a message";
    let mut flags = RecvFlags::CMSG_CLOEXEC;
    // A reply is waited for, so the wait comes first; who has no deadline waits in the call itself.
    if deadline.is_some() || watch.is_some() {
        flags |= RecvFlags::DONTWAIT;
        ready(socket, PollFlags::IN, deadline, watch, MESSAGE)?;
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Ok(got) => got,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => {
                ready(socket, PollFlags::IN, deadline, watch, MESSAGE)?;
                continue;
            }
            Err(Errno::CONNRESET) => return Err(LinkError::Closed),
            Err(errno) => return Err(LinkError::sys("recvmsg")(errno)),
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(list) = message {
                fds.extend(list);
            }
        }
        // The buffer is rounded up: it may hold one more than allowed.
        let cut = got
            .flags
            .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        if cut || fds.len() > FDS_MAX {
            let got = format!("more than {} or {FDS_MAX} descriptors", buffer.len());
            return Err(LinkError::corrupt("datagram", "one that fits", got));
        }
        if got.bytes == 0 {
            return Err(LinkError::Closed);
        }
        return Ok((got.bytes, fds));
    }
}

/// Writes all of `bytes`.
///
/// # Errors
/// `Closed`, `Deadline`, `Io`.
pub fn write_all(
    stream: &OwnedFd,
    mut bytes: &[u8],
    deadline: Option<Instant>,
) -> Result<(), LinkError> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    while !bytes.is_empty() {
        match rustix::net::send(stream, bytes, flags) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => ready(stream.as_fd(), PollFlags::OUT, deadline, None, "writing")?,
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(LinkError::Closed),
            Err(errno) => return Err(LinkError::sys("send")(errno)),
        }
    }
    Ok(())
}

/// Fills all of `to`.
///
/// # Errors
/// `Closed`, `Exited`, `Deadline`, `Io`.
pub fn read_exact(
    stream: &OwnedFd,
    mut to: &mut [u8],
    deadline: Option<Instant>,
    watch: Option<BorrowedFd<'_>>,
) -> Result<(), LinkError> {
    while !to.is_empty() {
        match rustix::net::recv(stream, &mut *to, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Err(LinkError::Closed),
            Ok((_, n)) => to = &mut to[n..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => ready(stream.as_fd(), PollFlags::IN, deadline, watch, "payload")?,
            Err(Errno::CONNRESET) => return Err(LinkError::Closed),
            Err(errno) => return Err(LinkError::sys("recv")(errno)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn soon() -> Option<Instant> {
        Some(Instant::now() + Duration::from_millis(20))
    }

    #[test]
    fn datagrams_carry_descriptors_that_are_closed_on_exec() {
        let (a, b) = pair(Shape::Datagrams).unwrap();
        let (payload, other) = pair(Shape::Stream).unwrap();
        send(a.as_fd(), b"here", &[payload.as_fd()], soon()).unwrap();
        let mut buffer = [0; 16];
        let (n, fds) = receive(b.as_fd(), &mut buffer, soon(), None).unwrap();
        assert_eq!((&buffer[..n], fds.len()), (&b"here"[..], 1));
        for fd in fds.iter().chain([&a, &b]) {
            let flags = rustix::io::fcntl_getfd(fd).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
        write_all(&fds[0], b"through it", soon()).unwrap();
        let mut got = [0; 10];
        read_exact(&other, &mut got, soon(), None).unwrap();
        assert_eq!(&got, b"through it");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (a, b) = pair(Shape::Datagrams).unwrap();
        send(a.as_fd(), &[1; 17], &[], soon()).unwrap();
        let long = receive(b.as_fd(), &mut [0; 16], soon(), None).unwrap_err();
        assert!(long.to_string().contains("more than 16"), "{long}");
        let three = [a.as_fd(), a.as_fd(), a.as_fd()];
        let many = send(a.as_fd(), b"x", &three, soon()).unwrap_err();
        assert_eq!(many.to_string(), "descriptors: expected 2, got 3");
        // A peer that sends more than allowed all the same.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&three)));
        sendmsg(&a, &[IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL).unwrap();
        let many = receive(b.as_fd(), &mut [0; 16], soon(), None).unwrap_err();
        assert!(
            matches!(
                many,
                LinkError::Corrupt {
                    field: "datagram",
                    ..
                }
            ),
            "{many}"
        );
    }

    /// every wait has an end.
    #[test]
    fn a_22_waits_end_with_their_deadline_or_with_the_other_side() {
        let (a, b) = pair(Shape::Datagrams).unwrap();
        let late = receive(a.as_fd(), &mut [0; 16], soon(), None).unwrap_err();
        assert!(matches!(late, LinkError::Deadline { .. }), "{late}");
        let full = loop {
            if let Err(error) = send(a.as_fd(), &[0; 4096], &[], soon()) {
                break error;
            }
        };
        assert!(matches!(full, LinkError::Deadline { .. }), "{full}");
        drop(b);
        let gone = send(a.as_fd(), b"x", &[], soon()).unwrap_err();
        assert!(matches!(gone, LinkError::Closed), "{gone}");
        let (c, d) = pair(Shape::Stream).unwrap();
        let late = read_exact(&c, &mut [0; 1], soon(), None).unwrap_err();
        assert!(matches!(late, LinkError::Deadline { .. }), "{late}");
        let full = write_all(&c, &vec![0; 8 << 20], soon()).unwrap_err();
        assert!(matches!(full, LinkError::Deadline { .. }), "{full}");
        drop(d);
        let gone = read_exact(&c, &mut [0; 1], soon(), None).unwrap_err();
        assert!(matches!(gone, LinkError::Closed), "{gone}");
    }
}
