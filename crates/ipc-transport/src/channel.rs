//! Sockets with deadlines: datagrams that may carry descriptors, and exact streams.
//!
//! Every descriptor is closed on exec. Every wait ends: with what was waited for, with its deadline, or
//! with the end of the other side. Must not know: what the bytes mean.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use engine_core::mutant::mutant;
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

/// A datagram: its bytes and its descriptors.
pub type Datagram = (usize, Vec<OwnedFd>);

/// Takes the next datagram if there is one, or waits for it in the call itself without `DONTWAIT`.
fn take(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> Result<Option<Datagram>, LinkError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let got = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Ok(got) => break got,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::CONNRESET) => return Err(LinkError::Closed),
            Err(errno) => return Err(LinkError::sys("recvmsg")(errno)),
        }
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
    Ok(Some((got.bytes, fds)))
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
) -> Result<Datagram, LinkError> {
    // Who has no deadline waits in the call itself.
    let flags = match (deadline, watch) {
        (None, None) => RecvFlags::empty(),
        _ => RecvFlags::DONTWAIT,
    };
    loop {
        if let Some(datagram) = take(socket, buffer, flags)? {
            return Ok(datagram);
        }
        ready(socket, PollFlags::IN, deadline, watch, "a message")?;
    }
}

/// As [`receive`], but does not sleep while the message is `near`: it asks again and again. A message that comes
/// then wakes nobody, which saves both sides what a wake-up costs. A closed end is seen at once all the same; the
/// end of a process whose end others hold open, when it is over.
///
/// # Errors
/// As [`receive`].
pub fn receive_near(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    near: &Range<Instant>,
    deadline: Instant,
    watch: Option<BorrowedFd<'_>>,
) -> Result<Datagram, LinkError> {
    let Range { start, end } = *near;
    if Instant::now() < start {
        match receive(socket, buffer, Some(start.min(deadline)), watch) {
            Err(LinkError::Deadline { .. }) if start < deadline => {}
            other => return other,
        }
    }
    let awake = if mutant(355) { end } else { end.min(deadline) };
    while Instant::now() < awake {
        if let Some(datagram) = take(socket, buffer, RecvFlags::DONTWAIT)? {
            return Ok(datagram);
        }
        std::hint::spin_loop();
    }
    receive(socket, buffer, Some(deadline), watch)
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
    fn after(millis: u64) -> Instant {
        Instant::now() + Duration::from_millis(millis)
    }

    /// Whether it comes before, in or after the time when it is expected: it is received.
    #[test]
    fn a_message_is_received_whenever_it_comes() {
        for near in [
            after(0)..after(0),
            after(0)..after(5_000),
            after(10)..after(5_000),
            after(5_000)..after(6_000),
        ] {
            for early in [true, false] {
                let (a, b) = pair(Shape::Datagrams).unwrap();
                let wait = if early { 0 } else { 30 };
                let sender = std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(wait));
                    send(a.as_fd(), b"here", &[], None).unwrap();
                    a
                });
                let mut buffer = [0; 16];
                let deadline = after(20_000);
                let (n, _) = receive_near(b.as_fd(), &mut buffer, &near, deadline, None).unwrap();
                assert_eq!(&buffer[..n], b"here");
                drop(sender.join().unwrap());
            }
        }
    }

    /// who is awake sees the other side's end, and does not look beyond the deadline.
    #[test]
    fn a_22_a_look_ends_with_its_deadline_or_with_the_other_side() {
        let (a, b) = pair(Shape::Datagrams).unwrap();
        let (told, wait) = std::sync::mpsc::channel::<()>();
        let sender = std::thread::spawn(move || {
            // Later than the deadline by far, unless there is nobody to answer.
            let _ = wait.recv_timeout(Duration::from_secs(3));
            let sent = send(a.as_fd(), b"late", &[], soon());
            (a, sent)
        });
        for near in [after(0)..after(60_000), after(50_000)..after(60_000)] {
            let late = receive_near(b.as_fd(), &mut [0; 16], &near, after(20), None).unwrap_err();
            assert!(matches!(late, LinkError::Deadline { .. }), "{late}");
        }
        drop(told);
        let (a, sent) = sender.join().unwrap();
        sent.unwrap();
        let far = after(60_000);
        let (n, _) = receive_near(b.as_fd(), &mut [0; 16], &(far..far), far, None).unwrap();
        assert_eq!(n, 4, "nothing was lost");
        drop(a);
        for near in [after(0)..far, far..far] {
            let gone = receive_near(b.as_fd(), &mut [0; 16], &near, far, None).unwrap_err();
            assert!(matches!(gone, LinkError::Closed), "{gone}");
        }
        // A process that ended while somebody else holds its end open.
        let (_a, b) = pair(Shape::Datagrams).unwrap();
        let (ended, watch) = pair(Shape::Stream).unwrap();
        drop(ended);
        let near = after(0)..after(20);
        let exited =
            receive_near(b.as_fd(), &mut [0; 16], &near, far, Some(watch.as_fd())).unwrap_err();
        assert!(matches!(exited, LinkError::Exited), "{exited}");
    }
}
