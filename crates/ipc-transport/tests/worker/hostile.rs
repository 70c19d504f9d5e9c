//! The other side lies: what comes from a worker or a parent that is broken is refused, and never believed,
//! never waited for without end, never a panic.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine_core::seams::{Ask, Backbone};
use engine_core::{Epoch, SeqId};
use ipc_transport::channel::{self, Shape};
use ipc_transport::error::LinkError;
use ipc_transport::frame::{self, ENTRY, Entry, HEADER, Header, Kind, Op, Status};
use ipc_transport::handshake::{Configure, Hello, Place, Ready, Transport, refusal_text};
use ipc_transport::launch::Threads;
use ipc_transport::link::{Link, Payload, Side, Words};
use ipc_transport::probe::Probe;
use ipc_transport::region::Region;
use ipc_transport::remote::{Choice, RemoteBackbone};
use ipc_transport::worker::{self, End};
use proptest::prelude::*;
use testkit::rng::Rng;

use crate::common::{toy_plan, toys};
use crate::toy;

fn until() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

/// A parent by hand.
struct Parent {
    link: Link,
    words: Words,
    number: u64,
    worker: Option<JoinHandle<Result<End, LinkError>>>,
}

impl Parent {
    fn new(transport: Transport) -> Self {
        let (ours, theirs) = channel::pair(Shape::Datagrams).unwrap();
        let worker = std::thread::spawn(move || worker::run(theirs, None, Probe::default(), toys));
        let mut link = Link::new(ours, Side::Parent, Probe::default());
        let (hello, _) = link.receive_frame(until(), None).unwrap();
        Hello::decode(&hello.body).unwrap();
        let capacity = toy::dims().payload_bytes().unwrap();
        let asked = Configure {
            nonce: [5; 16],
            transport,
            capacity: capacity as u64,
            dims: toy::dims(),
            verify_max: 8,
            kv_round: false,
            threads: 1,
            file: "toy".into(),
            place: Place::default(),
        };
        let body = asked.encode().unwrap();
        let header = Header::request(Op::Configure, 1, 0);
        let payload = if transport == Transport::Shared {
            let region = Region::memfd(capacity, &asked.nonce).unwrap();
            link.send_frame(&header, &body, &[region.file().unwrap()], until())
                .unwrap();
            Payload::Region(Arc::new(region))
        } else {
            let (ours, theirs) = channel::pair(Shape::Stream).unwrap();
            link.send_frame(&header, &body, &[theirs.as_fd()], until())
                .unwrap();
            Payload::Stream(ours)
        };
        let (ready, _) = link.receive_frame(until(), None).unwrap();
        Ready::decode(&ready.body, &asked).unwrap();
        link.attach(payload, capacity);
        Self {
            link,
            words: Words::default(),
            number: 0,
            worker: Some(worker),
        }
    }

    fn send(&mut self, op: Op, entries: &[Entry], payload: &[f32]) -> (Status, String) {
        let mut body = Vec::new();
        entries.iter().for_each(|e| e.put(&mut body));
        self.send_body(op, &body, payload)
    }

    fn send_body(&mut self, op: Op, body: &[u8], payload: &[f32]) -> (Status, String) {
        self.number += 1;
        let header = Header::request(op, self.number, 0);
        let bytes = bytemuck::cast_slice(payload);
        self.link.send(header, body, &[bytes], until()).unwrap();
        let reply = self.link.receive(&mut self.words, until(), None).unwrap();
        assert_eq!((reply.header.number, reply.header.op), (self.number, op));
        (reply.header.status, refusal_text(&reply.body))
    }

    /// The socket by hand, past every rule of a link.
    fn raw(&self, bytes: &[u8]) {
        channel::send(self.link.control(), bytes, &[], until()).unwrap();
    }

    fn end(mut self) -> Result<End, LinkError> {
        let worker = self.worker.take().unwrap();
        drop(self);
        worker.join().unwrap()
    }
}

fn entry(kind: Kind, seq: u32, epoch: u32, pos: u32, rows: u32) -> Entry {
    Entry {
        kind,
        seq,
        epoch,
        pos,
        rows,
        tag: 0,
        ahead: 0,
    }
}

fn row(n: usize) -> Vec<f32> {
    vec![1.0; n * toy::dims().feature_width()]
}

fn block() -> Vec<f32> {
    vec![1.0; toy::dims().block_width()]
}

/// stale, skipping, overlapping and foreign entries are refused with numbers of their own.
#[test]
fn a_17_each_wrong_entry_has_its_own_refusal() {
    let mut p = Parent::new(Transport::Shared);
    let begin = [
        entry(Kind::Close, 0, 1, 0, 0),
        entry(Kind::Observe, 0, 1, 10, 2),
    ];
    assert_eq!(p.send(Op::Step, &begin, &row(2)).0, Status::Ok);
    let observe = |epoch, pos| [entry(Kind::Observe, 0, epoch, pos, 1)];
    let ask = |seq, epoch, pos| [entry(Kind::Ask, seq, epoch, pos, 2)];
    assert_eq!(
        p.send(Op::Step, &observe(1, 13), &row(1)).0,
        Status::WrongPosition,
        "a gap"
    );
    assert_eq!(
        p.send(Op::Step, &observe(1, 11), &row(1)).0,
        Status::WrongPosition,
        "an overlap"
    );
    assert_eq!(
        p.send(Op::Step, &observe(2, 12), &row(1)).0,
        Status::WrongEpoch
    );
    assert_eq!(
        p.send(Op::Step, &ask(0, 1, 11), &block()).0,
        Status::WrongPosition,
        "stale"
    );
    assert_eq!(
        p.send(Op::Step, &ask(0, 0, 12), &block()).0,
        Status::WrongEpoch
    );
    assert_eq!(
        p.send(Op::Step, &ask(5, 1, 12), &block()).0,
        Status::WrongEpoch,
        "never begun"
    );
    let old = [entry(Kind::Truncate, 0, 1, 11, 0)];
    assert_eq!(
        p.send(Op::Step, &old, &[]).0,
        Status::WrongEpoch,
        "a rewind of the same use"
    );
    let many = [
        entry(Kind::Close, 9, 1, 0, 0),
        entry(Kind::Observe, 9, 1, 0, 1),
    ];
    assert_eq!(p.send(Op::Step, &many, &row(1)).0, Status::Exhausted);
    assert_eq!(
        p.send(Op::Step, &ask(0, 1, 12), &block()).0,
        Status::Ok,
        "goes on"
    );
    let rewound = [
        entry(Kind::Truncate, 0, 2, 11, 0),
        entry(Kind::Ask, 0, 2, 11, 2),
    ];
    assert_eq!(p.send(Op::Step, &rewound, &block()).0, Status::Ok);
    assert_eq!(
        p.send(Op::Save, &[entry(Kind::Whole, 3, 1, 0, 0)], &[]).0,
        Status::WrongEpoch
    );
    let whole = [entry(Kind::Whole, 0, 3, 0, 0)];
    let (status, why) = p.send(Op::Load, &whole, &[f32::from_bits(9)]);
    assert_eq!(status, Status::Failed, "{why}");
    assert!(matches!(p.end(), Ok(End::ParentGone)));
}

/// a request whose parts do not belong together is refused, its payload is taken, and the next one
/// is answered rightly; on a stream and in shared memory.
#[test]
fn a_20_a_wrong_request_leaves_the_channel_in_order() {
    for transport in [Transport::Stream, Transport::Shared] {
        let mut p = Parent::new(transport);
        let begin = [
            entry(Kind::Close, 0, 1, 0, 0),
            entry(Kind::Observe, 0, 1, 0, 2),
        ];
        assert_eq!(p.send(Op::Step, &begin, &row(2)).0, Status::Ok);
        let wrong: [(&[Entry], usize); 6] = [
            (&[entry(Kind::Observe, 0, 1, 2, 3)], 2 * row(1).len()),
            (&[entry(Kind::Observe, 0, 1, 2, u32::MAX)], 1),
            (&[entry(Kind::Ask, 0, 1, 2, 1)], block().len() + 1),
            (&[entry(Kind::Answer, 0, 1, 2, 1)], 0),
            (
                &[
                    entry(Kind::Ask, 0, 1, 2, 1),
                    entry(Kind::Observe, 0, 1, 2, 1),
                ],
                7,
            ),
            (&[], 3),
        ];
        for (entries, values) in wrong {
            let (status, why) = p.send(Op::Step, entries, &vec![f32::NAN; values]);
            assert_eq!(status, Status::BadRequest, "{why}");
        }
        for body in [&[1u8; ENTRY - 1][..], &[9; ENTRY]] {
            assert_eq!(p.send_body(Op::Step, body, &row(1)).0, Status::BadRequest);
        }
        assert_eq!(p.send(Op::Ready, &[], &row(1)).0, Status::BadRequest);
        assert_eq!(p.send(Op::Save, &[], &row(1)).0, Status::BadRequest);
        let good = [
            entry(Kind::Observe, 0, 1, 2, 1),
            entry(Kind::Ask, 0, 1, 3, 2),
        ];
        let values = [row(1), block()].concat();
        assert_eq!(p.send(Op::Step, &good, &values).0, Status::Ok);
        let got = p.words.floats().to_vec();
        let mut fresh = Parent::new(Transport::Shared);
        let all = [
            entry(Kind::Close, 0, 1, 0, 0),
            entry(Kind::Observe, 0, 1, 0, 3),
            entry(Kind::Ask, 0, 1, 3, 2),
        ];
        assert_eq!(
            fresh.send(Op::Step, &all, &[row(3), block()].concat()).0,
            Status::Ok
        );
        assert_eq!(
            got,
            fresh.words.floats(),
            "nothing of a refused request was done"
        );
        assert_eq!(got.len(), 2 * 2 * toy::dims().n_embd as usize);
    }
}

/// more payload than fits is refused before any of it is read, and is the end.
#[test]
fn a_20_too_much_payload_ends_the_worker() {
    for transport in [Transport::Stream, Transport::Shared] {
        let mut p = Parent::new(transport);
        let mut bytes = Vec::new();
        frame::encode(&Header::request(Op::Step, 1, 1 << 40), &[], &mut bytes).unwrap();
        p.raw(&bytes);
        let reply = p.link.receive(&mut p.words, until(), None).unwrap();
        assert_eq!(reply.header.status, Status::TooLarge);
        let end = p.end().unwrap_err();
        assert!(
            matches!(
                end,
                LinkError::Corrupt {
                    field: "payload",
                    ..
                }
            ),
            "{end}"
        );
    }
}

/// The worker refuses what is no frame by ending; a frame whose words in the region differ as well.
#[test]
fn a_20_a_frame_that_is_none_ends_the_worker() {
    let mut good = Vec::new();
    frame::encode(&Header::request(Op::Ping, 1, 0), &[], &mut good).unwrap();
    let spoil = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    let frames = [
        (spoil(0), "magic"),
        (spoil(4), "protocol"),
        (spoil(9), "check sum"),
        (spoil(61), "check sum"),
        (good[..HEADER - 1].to_vec(), "check sum"),
        (vec![7; 40_000], "datagram"),
        // The number was never published in the region.
        (good.clone(), "number in the region"),
    ];
    for (bytes, field) in frames {
        let p = Parent::new(Transport::Shared);
        p.raw(&bytes);
        let worker = p.worker.as_ref().unwrap();
        while !worker.is_finished() {
            std::thread::yield_now();
        }
        let end = p.end().unwrap_err().to_string();
        assert!(end.starts_with(field), "{field}: {end}");
    }
}

/// What a scripted worker answers to its first step.
type Lie = fn(&mut Link, &Header, &[u8]) -> Vec<Vec<u8>>;

fn lying(control: OwnedFd, lie: Lie) -> Result<(), LinkError> {
    let mut link = Link::new(control, Side::Worker, Probe::default());
    link.send_frame(
        &Header::request(Op::Hello, 1, 0),
        &Hello::here().encode(),
        &[],
        until(),
    )?;
    let (asked, mut fds) = link.receive_frame(until(), None)?;
    let asked = Configure::decode(&asked.body)?;
    let capacity = asked.capacity as usize;
    let region = Arc::new(Region::open(
        fds.pop().ok_or(LinkError::Closed)?,
        capacity,
        &asked.nonce,
    )?);
    link.attach(Payload::Region(region), capacity);
    let ready = Ready {
        nonce: asked.nonce,
        transport: asked.transport,
        dims: asked.dims,
        device: "liar".to_owned(),
    };
    link.send_frame(
        &Header::request(Op::Ready, 2, 0),
        &ready.encode(),
        &[],
        until(),
    )?;
    let message = link.receive(&mut Words::default(), until(), None)?;
    for bytes in lie(&mut link, &message.header, &message.body) {
        channel::send(link.control(), &bytes, &[], until())?;
    }
    // Until the parent lets go.
    let _ = link.receive_frame(until(), None);
    Ok(())
}

/// A reply whose words in the region agree with it.
fn replied(link: &mut Link, header: &Header, body: &[u8]) -> Vec<Vec<u8>> {
    link.send(*header, body, &[], until()).unwrap();
    Vec::new()
}

fn framed(header: &Header, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode(header, body, &mut bytes).unwrap();
    bytes
}

const LIES: [(Lie, &str); 9] = [
    (
        |l, h, b| {
            let number = h.number + 1;
            replied(
                l,
                &Header {
                    number,
                    ..h.answer(Status::Ok, 0)
                },
                b,
            )
        },
        "reply: expected Step 1, got Step 2",
    ),
    (
        |l, h, b| {
            let op = Op::Ping;
            replied(
                l,
                &Header {
                    op,
                    ..h.answer(Status::Ok, 0)
                },
                b,
            )
        },
        "reply: expected Step 1, got Ping 1",
    ),
    (|l, h, b| replied(l, h, b), "reply: expected"),
    (
        |l, h, _| replied(l, &h.answer(Status::Ok, 0), &[]),
        "answers: expected 1, got 0",
    ),
    (
        |_, h, b| vec![framed(&h.answer(Status::Ok, 64), b)],
        "number in the region: expected 1, got 0",
    ),
    (
        |_, h, b| vec![framed(&h.answer(Status::Ok, 1 << 50), b)],
        "payload: expected at most",
    ),
    (|_, _, _| vec![vec![0xa5; 200]], "magic: expected"),
    (
        |_, h, b| {
            let mut bytes = framed(&h.answer(Status::Ok, 0), b);
            bytes[40] = 1;
            vec![bytes]
        },
        "check sum: expected",
    ),
    (
        |_, _, _| Vec::new(),
        "a message: nothing within the deadline",
    ),
];

/// a reply that is missing, doubled, of another request, spoiled, or without its payload: the
/// worker is lost with a reason and the ask gets nothing.
#[test]
fn a_08_a_wrong_reply_loses_the_worker() {
    for (lie, why) in LIES {
        let mut plan = toy_plan(Choice::Shared);
        plan.restarts.delays.clear();
        plan.timeouts.first = Duration::from_millis(300);
        let threads = Threads::new(move |control, _| {
            let _ = lying(control, lie);
        });
        let mut remote = RemoteBackbone::start(plan, Box::new(threads)).unwrap();
        remote.observe(SeqId(0), 0, &row(1)).unwrap();
        let ask = Ask {
            seq: SeqId(0),
            epoch: Epoch(4),
            pos: 1,
            ahead: 0,
            seed: 0,
            depth: 2,
        };
        let ticket = remote.submit(&[ask], &block()).unwrap();
        assert_eq!(remote.poll(ticket, None).unwrap().rows, [0]);
        let told = remote.health().unwrap_err().to_string();
        assert!(told.contains(why), "{told}, expected {why}");
        assert!(remote.submit(&[ask], &block()).is_err(), "lost for good");
    }
}

fn any_header() -> impl Strategy<Value = Vec<u8>> {
    let raw = prop::collection::vec(any::<u8>(), 0..300);
    let frame = (
        any::<u64>(),
        0u64..3000,
        prop::collection::vec(any::<u8>(), 0..200),
        any::<u16>(),
    )
        .prop_map(|(number, payload, body, op)| {
            let ops = [
                Op::Step,
                Op::Save,
                Op::Load,
                Op::Ping,
                Op::Hello,
                Op::Failed,
            ];
            let op = ops[op as usize % ops.len()];
            framed(&Header::request(op, number, payload), &body)
        });
    prop_oneof![raw, frame]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Frames survive the way; every cut and every spoiled bit is noticed.
    #[test]
    fn frames_are_read_back_or_refused(
        number in any::<u64>(), payload in any::<u64>(), nanos in any::<u64>(), reply in any::<bool>(),
        body in prop::collection::vec(any::<u8>(), 0..400), bit in any::<prop::sample::Index>(),
    ) {
        let header = Header { op: Op::Step, reply, number, payload, status: Status::WrongEpoch, nanos };
        let bytes = framed(&header, &body);
        prop_assert_eq!(frame::decode(&bytes).unwrap(), (header, body.as_slice()));
        prop_assert!(frame::decode(&bytes[..bytes.len() - 1]).is_err());
        let mut spoiled = bytes.clone();
        let bit = bit.index(8 * spoiled.len());
        spoiled[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(frame::decode(&spoiled).is_err(), "bit {}", bit);
    }

    /// Any entry survives the way, and bytes that are none are refused.
    #[test]
    fn entries_are_read_back_or_refused(
        kind in 1u16..7, words in any::<[u32; 6]>(), bytes in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let [seq, epoch, pos, rows, tag, ahead] = words;
        let entry = Entry { kind: Kind::of(kind).unwrap(), seq, epoch, pos, rows, tag, ahead };
        let mut body = Vec::new();
        entry.put(&mut body);
        prop_assert_eq!(Entry::list(&body).unwrap(), vec![entry]);
        if let Ok(list) = Entry::list(&bytes) {
            prop_assert_eq!(list.len() * ENTRY, bytes.len());
        }
    }

    /// A worker that gets anything ends or answers; it never panics and never hangs.
    #[test]
    fn a_worker_survives_any_frame(frames in prop::collection::vec(any_header(), 1..6)) {
        let p = Parent::new(Transport::Stream);
        for bytes in frames.iter().filter(|b| !b.is_empty()) {
            // It may have ended.
            let _ = channel::send(p.link.control(), bytes, &[], until());
        }
        let ended = p.end();
        prop_assert!(!matches!(ended, Ok(End::Quit)), "{:?}", ended);
    }
}

/// Random bits in frames of a real exchange, and random words in the region's header.
fn fuzz(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut p = Parent::new(if seed.is_multiple_of(2) {
        Transport::Stream
    } else {
        Transport::Shared
    });
    let mut bytes = framed(
        &Header::request(Op::Step, 1, 4 * rng.below(500) as u64),
        &(0..rng.below(5) * ENTRY)
            .map(|_| rng.below(7) as u8)
            .collect::<Vec<_>>(),
    );
    for _ in 0..rng.below(4) {
        let at = rng.below(bytes.len());
        bytes[at] = rng.next_u64() as u8;
    }
    p.raw(&bytes);
    p.link.attach(
        Payload::Region(Arc::new(Region::local(8, &[0; 16]).unwrap())),
        8,
    );
    drop(p.link.receive(
        &mut p.words,
        Some(Instant::now() + Duration::from_millis(1)),
        None,
    ));
    assert!(!matches!(p.end(), Ok(End::Quit)));
    // A region whose header holds anything but what was announced is refused.
    let nonce = [1; 16];
    let region = Region::memfd(100, &nonce).unwrap();
    let file = region.file().unwrap().try_clone_to_owned().unwrap();
    let at = rng.below(32);
    let value = [rng.next_u64() as u8];
    let before = {
        let mut byte = [0];
        rustix::io::pread(&file, &mut byte, at as u64).unwrap();
        byte
    };
    rustix::io::pwrite(&file, &value, at as u64).unwrap();
    assert_eq!(
        Region::open(file, 100, &nonce).is_ok(),
        before == value,
        "byte {at}"
    );
}

#[test]
fn a_few_random_frames_and_headers() {
    (0..40).for_each(fuzz);
}

#[test]
#[ignore = "soak: random frames and region headers for 300 seconds"]
fn soak_random_frames_and_headers() {
    let end = Instant::now() + Duration::from_secs(300);
    let mut cases = 40;
    while Instant::now() < end {
        fuzz(cases);
        cases += 1;
    }
    println!(
        "soak: {} random frames and region headers in 300 s, none believed",
        cases - 40
    );
}
