//! Frames: what travels on the control channel. One frame is one datagram.
//!
//! A header of 64 bytes, little endian, then a body:
//!
//! | at | bytes | field |
//! | --- | --- | --- |
//! | 0 | 4 | magic `4SPW` |
//! | 4 | 2 | protocol, [`MAJOR`] |
//! | 6 | 2 | operation, [`Op`] |
//! | 8 | 8 | number of the request, from 1; a reply carries its request's |
//! | 16 | 8 | bytes of payload |
//! | 24 | 4 | bytes of body |
//! | 28 | 4 | status of a reply, [`Status`] |
//! | 32 | 8 | nanoseconds the worker took, in replies |
//! | 40 | 16 | zero |
//! | 56 | 4 | flags: bit 0 reply |
//! | 60 | 4 | CRC-32C of bytes 0 to 60 and the body |
//!
//! The body of a step is a list of [`Entry`], 32 bytes each, of many sequences. Must not know: sockets,
//! what a backbone does with an entry.

use engine_core::mutant::mutant;

use crate::crc::crc32c;
use crate::error::LinkError;
use crate::wire::{Reader, Writer};

/// Version of the protocol. Both sides must have the same.
pub const MAJOR: u16 = 3;
/// May differ: fields are only added at the end of a body.
pub const MINOR: u16 = 1;
/// Bytes of a header.
pub const HEADER: usize = 64;
/// Bytes of an entry.
pub const ENTRY: usize = 32;
/// The longest body: four entries for each of 256 sequences.
pub const BODY_MAX: usize = 4 * 256 * ENTRY;

const MAGIC: [u8; 4] = *b"4SPW";
const REPLY: u32 = 1;

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident: $word:ty, $field:literal { $($(#[$note:meta])* $id:ident = $code:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$note])* $id,)* }

        impl $name {
            /// Its number on the wire.
            #[must_use]
            pub const fn code(self) -> $word {
                match self { $(Self::$id => $code,)* }
            }

            /// From its number.
            ///
            /// # Errors
            /// `Corrupt` for a number that has no meaning.
            pub fn of(code: $word) -> Result<Self, LinkError> {
                match code {
                    $($code => Ok(Self::$id),)*
                    _ => Err(LinkError::corrupt($field, "a known code", code)),
                }
            }
        }
    };
}

codes!(
    /// What a frame asks for.
    Op: u16, "operation" {
        /// The worker is there.
        Hello = 1,
        /// What it is to load.
        Configure = 2,
        /// It has loaded it.
        Ready = 3,
        /// It could not.
        Failed = 4,
        /// Entries in order: rows taken and taken back, then blocks to draft.
        Step = 16,
        /// Write a sequence's context.
        Save = 17,
        /// Read a sequence's context.
        Load = 18,
        /// Nothing but a reply.
        Ping = 19,
        /// End.
        Quit = 20,
    }
);

codes!(
    /// How a request went. Every refusal has a number of its own.
    Status: u32, "status" {
        /// Done.
        Ok = 0,
        /// Sizes that do not belong together, or an entry that is none.
        BadRequest = 1,
        /// Rows would be skipped or overwritten, or a draft does not start at the end of the context.
        WrongPosition = 2,
        /// An entry of another use of the sequence.
        WrongEpoch = 3,
        /// No such sequence.
        NoSuchSequence = 4,
        /// More sequences than the worker has.
        Exhausted = 5,
        /// Positions end.
        ContextFull = 6,
        /// Saved bytes do not fit.
        BadState = 7,
        /// More payload than fits.
        TooLarge = 8,
        /// The backbone failed for another reason.
        Failed = 9,
        /// The backbone cannot go on.
        Lost = 10,
    }
);

codes!(
    /// What an entry is about.
    Kind: u16, "entry kind" {
        /// `rows` feature rows for positions `pos..`, in the payload.
        Observe = 1,
        /// A block to draft, its seed at `pos`; `rows` candidates are wanted.
        Ask = 2,
        /// Rows at and above `pos` are forgotten.
        Truncate = 3,
        /// The sequence is forgotten.
        Close = 4,
        /// In a reply: an ask got `rows` rows.
        Answer = 5,
        /// The sequence itself, to be saved or loaded.
        Whole = 6,
    }
);

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What is asked for.
    pub op: Op,
    /// Whether it is a reply.
    pub reply: bool,
    /// Number of the request.
    pub number: u64,
    /// Bytes of payload.
    pub payload: u64,
    /// How it went.
    pub status: Status,
    /// What the worker took, nanoseconds.
    pub nanos: u64,
}

impl Header {
    /// A request.
    #[must_use]
    pub const fn request(op: Op, number: u64, payload: u64) -> Self {
        Self {
            op,
            reply: false,
            number,
            payload,
            status: Status::Ok,
            nanos: 0,
        }
    }

    /// The reply to a request.
    #[must_use]
    pub const fn answer(self, status: Status, payload: u64) -> Self {
        Self {
            reply: true,
            payload,
            status,
            ..self
        }
    }
}

/// Appends a frame to `to`.
///
/// # Errors
/// `Corrupt` if the body is too long.
pub fn encode(header: &Header, body: &[u8], to: &mut Vec<u8>) -> Result<(), LinkError> {
    if body.len() > BODY_MAX {
        return Err(LinkError::corrupt(
            "body",
            format!("at most {BODY_MAX} bytes"),
            body.len(),
        ));
    }
    let start = to.len();
    let mut w = Writer(std::mem::take(to));
    w.raw(&MAGIC).raw(&MAJOR.to_le_bytes());
    w.raw(&header.op.code().to_le_bytes())
        .u64(header.number)
        .u64(header.payload)
        .u32(body.len() as u32)
        .u32(header.status.code())
        .u64(header.nanos)
        .raw(&[0; 16])
        .u32(if header.reply { REPLY } else { 0 });
    let sum = crc32c(&[&w.0[start..], body]);
    w.u32(sum).raw(body);
    *to = w.0;
    Ok(())
}

/// Reads a frame that is the whole of `bytes`.
///
/// # Errors
/// `Corrupt`, naming the field.
pub fn decode(bytes: &[u8]) -> Result<(Header, &[u8]), LinkError> {
    let mut r = Reader(bytes);
    let magic: [u8; 4] = r.array("magic")?;
    if magic != MAGIC {
        return Err(LinkError::corrupt(
            "magic",
            format!("{MAGIC:02x?}"),
            format!("{magic:02x?}"),
        ));
    }
    let major = r.u16("protocol")?;
    if major != MAJOR {
        return Err(LinkError::corrupt("protocol", MAJOR, major));
    }
    let op = r.u16("operation")?;
    let (number, payload) = (r.u64("number")?, r.u64("payload")?);
    let (len, status) = (r.u32("body")? as usize, r.u32("status")?);
    let nanos = r.u64("nanoseconds")?;
    let zero: [u8; 16] = r.array("reserved")?;
    let (flags, sum) = (r.u32("flags")?, r.u32("check sum")?);
    let body = r.raw("body", len.min(BODY_MAX + 1))?;
    r.end("body")?;
    let computed = crc32c(&[&bytes[..HEADER - 4], body]);
    if sum != computed && !mutant(340) {
        let shown = |sum| format!("{sum:08x}");
        return Err(LinkError::corrupt("check sum", shown(computed), shown(sum)));
    }
    if zero != [0; 16] || flags & !REPLY != 0 {
        return Err(LinkError::corrupt(
            "reserved",
            "zero",
            format!("{zero:02x?}, flags {flags:x}"),
        ));
    }
    let header = Header {
        op: Op::of(op)?,
        reply: flags & REPLY != 0,
        number,
        payload,
        status: Status::of(status)?,
        nanos,
    };
    Ok((header, body))
}

/// Part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it is about.
    pub kind: Kind,
    /// The sequence.
    pub seq: u32,
    /// Which use of the sequence, counted by the parent.
    pub epoch: u32,
    /// Position.
    pub pos: u32,
    /// Rows.
    pub rows: u32,
    /// The caller's own mark of an ask, given back with its answer.
    pub tag: u32,
    /// Of an ask: tokens before its seed that have no context rows yet. Else 0.
    pub ahead: u32,
}

impl Entry {
    /// Appends it to a body.
    pub fn put(&self, body: &mut Vec<u8>) {
        let mut w = Writer(std::mem::take(body));
        w.raw(&self.kind.code().to_le_bytes()).raw(&[0; 2]);
        w.u32(self.seq)
            .u32(self.epoch)
            .u32(self.pos)
            .u32(self.rows)
            .u32(self.tag)
            .u32(self.ahead)
            .u32(0);
        *body = w.0;
    }

    /// Reads a body.
    ///
    /// # Errors
    /// `Corrupt`, naming the field.
    pub fn list(body: &[u8]) -> Result<Vec<Self>, LinkError> {
        let (chunks, rest) = body.as_chunks::<ENTRY>();
        if !rest.is_empty() {
            let got = format!("{} bytes", body.len());
            return Err(LinkError::corrupt(
                "entries",
                format!("{ENTRY} bytes each"),
                got,
            ));
        }
        chunks.iter().map(|bytes| Self::read(bytes)).collect()
    }

    fn read(bytes: &[u8]) -> Result<Self, LinkError> {
        let mut r = Reader(bytes);
        let kind = Kind::of(r.u16("entry kind")?)?;
        let pad = r.u16("entry padding")?;
        let entry = Self {
            kind,
            seq: r.u32("entry sequence")?,
            epoch: r.u32("entry epoch")?,
            pos: r.u32("entry position")?,
            rows: r.u32("entry rows")?,
            tag: r.u32("entry tag")?,
            ahead: r.u32("entry ahead")?,
        };
        match (pad, r.u32("entry padding")?) {
            (0, 0) => Ok(entry),
            other => Err(LinkError::corrupt("entry padding", 0, format!("{other:?}"))),
        }
    }
}
