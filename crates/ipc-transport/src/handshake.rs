//! What both sides tell each other before the first step.
//!
//! The worker says that it is there and what it speaks; the parent says what to load and what it must turn
//! out to be; the worker loads it and says what it is. Each compares, and a difference is a refusal that
//! names the field and both values. Nothing after this parses a path or a text. Must not know: how a
//! model is loaded.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use engine_core::mutant::mutant;

use crate::error::LinkError;
use crate::frame::{MAJOR, MINOR};
use crate::region::Nonce;
pub use crate::report::Transport;
use crate::wire::{Reader, Writer};

/// Reads 1, 2, 3, 4 on a machine of the same byte order.
const ORDER: u32 = u32::from_ne_bytes([1, 2, 3, 4]);
const PATH_MAX: usize = 4096;
const TEXT_MAX: usize = 512;

fn transport(code: u32) -> Result<Transport, LinkError> {
    [Transport::Shared, Transport::Stream, Transport::Local]
        .into_iter()
        .find(|t| *t as u32 == code)
        .ok_or_else(|| LinkError::corrupt("transport", "a known code", code))
}

/// What a backbone is: everything that sizes and checks of the exchange come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dims {
    /// Width of a row.
    pub n_embd: u32,
    /// Captured layers of a feature row.
    pub captures: u32,
    /// Rows of a block.
    pub block: u32,
    /// Context rows a sequence keeps: what the parent's mirror must hold.
    pub ring: u32,
    /// Sequences.
    pub n_seq_max: u32,
    /// The draft model.
    pub fingerprint: [u8; 32],
}

impl Dims {
    /// Values of one position's features.
    #[must_use]
    pub const fn feature_width(&self) -> usize {
        self.captures as usize * self.n_embd as usize
    }

    /// Values of one ask's block.
    #[must_use]
    pub const fn block_width(&self) -> usize {
        self.block as usize * self.n_embd as usize
    }

    /// Bytes that hold a full ring of one sequence, and blocks and answers of all: the least an exchange
    /// needs.
    ///
    /// # Errors
    /// `Corrupt` for a size of zero, or one that no memory has.
    pub fn payload_bytes(&self) -> Result<usize, LinkError> {
        let sizes = [
            self.n_embd,
            self.captures,
            self.block,
            self.ring,
            self.n_seq_max,
        ];
        let wrong = || {
            LinkError::corrupt(
                "shapes",
                "sizes above 0 that fit memory",
                format!("{sizes:?}"),
            )
        };
        if sizes.contains(&0) || self.n_seq_max > 256 {
            return Err(wrong());
        }
        let product = |parts: &[u32]| {
            let each = parts.iter().map(|p| u64::from(*p));
            each.into_iter().try_fold(4u64, u64::checked_mul)
        };
        let ring = product(&[self.ring, self.captures, self.n_embd]);
        let rows = product(&[self.n_seq_max, self.block, self.n_embd]);
        let most = ring.zip(rows).and_then(|(ring, rows)| {
            // A normed and a pre-norm row come back for every row of a block.
            let replies = rows.checked_mul(2)?;
            ring.checked_add(rows).map(|asked| asked.max(replies))
        });
        most.and_then(|n| usize::try_from(n).ok())
            .filter(|n| *n <= (isize::MAX as usize) >> 1)
            .ok_or_else(wrong)
    }

    fn put(&self, w: &mut Writer) {
        w.u32(self.n_embd)
            .u32(self.captures)
            .u32(self.block)
            .u32(self.ring);
        w.u32(self.n_seq_max).raw(&self.fingerprint);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, LinkError> {
        Ok(Self {
            n_embd: r.u32("embedding_length")?,
            captures: r.u32("captured layers")?,
            block: r.u32("block_size")?,
            ring: r.u32("ring rows")?,
            n_seq_max: r.u32("sequences")?,
            fingerprint: r.array("draft fingerprint")?,
        })
    }

    /// Compares with what was asked for.
    ///
    /// # Errors
    /// `Corrupt`, naming the first field that differs.
    pub fn check(&self, got: &Self) -> Result<(), LinkError> {
        let same = |field, expected: u32, got: u32| match expected == got {
            true => Ok(()),
            false => Err(LinkError::corrupt(field, expected, got)),
        };
        same("embedding_length", self.n_embd, got.n_embd)?;
        same("captured layers", self.captures, got.captures)?;
        same("block_size", self.block, got.block)?;
        same("ring rows", self.ring, got.ring)?;
        same("sequences", self.n_seq_max, got.n_seq_max)?;
        if self.fingerprint != got.fingerprint && !mutant(347) {
            let (want, got) = (hex(&self.fingerprint), hex(&got.fingerprint));
            return Err(LinkError::corrupt("draft fingerprint", want, got));
        }
        Ok(())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The worker's first words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Protocol: must agree.
    pub major: u32,
    /// Protocol: may differ.
    pub minor: u32,
    /// Byte order.
    pub order: u32,
    /// Its process.
    pub pid: u32,
}

impl Hello {
    /// This build's.
    #[must_use]
    pub fn here() -> Self {
        Self {
            major: u32::from(MAJOR),
            minor: u32::from(MINOR),
            order: ORDER,
            pid: std::process::id(),
        }
    }

    /// As a body.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(self.major)
            .u32(self.minor)
            .u32(self.order)
            .u32(self.pid);
        w.0
    }

    /// From a body. What follows the known fields is of a newer minor version.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn decode(body: &[u8]) -> Result<Self, LinkError> {
        let mut r = Reader(body);
        let hello = Self {
            major: r.u32("protocol")?,
            minor: r.u32("protocol minor")?,
            order: r.u32("byte order")?,
            pid: r.u32("process id")?,
        };
        if hello.major != u32::from(MAJOR) {
            return Err(LinkError::corrupt("protocol", MAJOR, hello.major));
        }
        if hello.order != ORDER {
            let shown = |order| format!("{order:08x}");
            return Err(LinkError::corrupt(
                "byte order",
                shown(ORDER),
                shown(hello.order),
            ));
        }
        Ok(hello)
    }
}

/// What the worker is to load and to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configure {
    /// Recognises this start.
    pub nonce: Nonce,
    /// How payload travels.
    pub transport: Transport,
    /// Most bytes of a payload.
    pub capacity: u64,
    /// What the model must turn out to be.
    pub dims: Dims,
    /// Widest verify: rows a truncation may take back.
    pub verify_max: u32,
    /// Whether draft keys are rounded.
    pub kv_round: bool,
    /// Threads.
    pub threads: u32,
    /// The draft model's file.
    pub file: PathBuf,
    /// Where its layers are to run.
    pub place: Place,
}

/// Where the layers are to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// `cuda:N`, `hip:N`, `host` (the processor as a device, for tests), `cpu` or nothing: the processor.
    pub device: String,
    /// Folder of compiled kernels of a device; empty: none.
    pub images: PathBuf,
    /// Whether short passes are replayed as graphs.
    pub graphs: bool,
    /// Whether kernels may start before the one ahead has ended.
    pub early_launch: bool,
}

impl Place {
    fn put(&self, w: &mut Writer) -> Result<(), LinkError> {
        let (device, images) = (self.device.as_bytes(), self.images.as_os_str().as_bytes());
        for (field, text, most) in [
            ("device", device, TEXT_MAX),
            ("folder of kernels", images, PATH_MAX),
        ] {
            if text.len() > most {
                let expected = format!("at most {most} bytes");
                return Err(LinkError::corrupt(field, expected, text.len()));
            }
            w.text(text, most);
        }
        w.u32(u32::from(self.graphs))
            .u32(u32::from(self.early_launch));
        Ok(())
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, LinkError> {
        let device = r.text("device", TEXT_MAX)?;
        Ok(Self {
            device: String::from_utf8_lossy(device).into_owned(),
            images: OsString::from_vec(r.text("folder of kernels", PATH_MAX)?.to_vec()).into(),
            graphs: r.u32("graphs")? == 1,
            early_launch: r.u32("early launch")? == 1,
        })
    }
}

impl Configure {
    /// As a body.
    ///
    /// # Errors
    /// `Corrupt` if the path is too long.
    pub fn encode(&self) -> Result<Vec<u8>, LinkError> {
        let path = self.file.as_os_str().as_bytes();
        if path.len() > PATH_MAX {
            let expected = format!("at most {PATH_MAX} bytes");
            return Err(LinkError::corrupt("draft file", expected, path.len()));
        }
        let mut w = Writer::default();
        w.raw(&self.nonce)
            .u32(self.transport as u32)
            .u64(self.capacity);
        self.dims.put(&mut w);
        w.u32(self.verify_max)
            .u32(u32::from(self.kv_round))
            .u32(self.threads);
        w.text(path, PATH_MAX);
        self.place.put(&mut w)?;
        Ok(w.0)
    }

    /// From a body.
    ///
    /// # Errors
    /// `Corrupt`, naming the field.
    pub fn decode(body: &[u8]) -> Result<Self, LinkError> {
        Self::read(body).map(|(configure, _)| configure)
    }

    /// From a body, with what stands behind it.
    pub(crate) fn read(body: &[u8]) -> Result<(Self, &[u8]), LinkError> {
        let mut r = Reader(body);
        let configure = Self {
            nonce: r.array("nonce")?,
            transport: transport(r.u32("transport")?)?,
            capacity: r.u64("capacity")?,
            dims: Dims::take(&mut r)?,
            verify_max: r.u32("verify_max")?,
            kv_round: r.u32("kv_round")? == 1,
            threads: r.u32("threads")?,
            file: OsString::from_vec(r.text("draft file", PATH_MAX)?.to_vec()).into(),
            place: Place::take(&mut r)?,
        };
        let needed = configure.dims.payload_bytes()? as u64;
        if configure.capacity < needed {
            let expected = format!("at least {needed} bytes");
            return Err(LinkError::corrupt("capacity", expected, configure.capacity));
        }
        Ok((configure, r.0))
    }
}

/// What the worker has become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The start it answers.
    pub nonce: Nonce,
    /// How payload travels.
    pub transport: Transport,
    /// What it loaded.
    pub dims: Dims,
    /// What it runs on.
    pub device: String,
}

impl Ready {
    /// As a body.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.raw(&self.nonce).u32(self.transport as u32);
        self.dims.put(&mut w);
        w.text(self.device.as_bytes(), TEXT_MAX);
        w.0
    }

    /// From a body, compared with what was asked for.
    ///
    /// # Errors
    /// `Corrupt`, naming the field.
    pub fn decode(body: &[u8], asked: &Configure) -> Result<Self, LinkError> {
        Self::read(body, asked).map(|(ready, _)| ready)
    }

    /// From a body, compared with what was asked for, with what stands behind it.
    pub(crate) fn read<'a>(
        body: &'a [u8],
        asked: &Configure,
    ) -> Result<(Self, &'a [u8]), LinkError> {
        let mut r = Reader(body);
        let ready = Self {
            nonce: r.array("nonce")?,
            transport: transport(r.u32("transport")?)?,
            dims: Dims::take(&mut r)?,
            device: String::from_utf8_lossy(r.text("device", TEXT_MAX)?).into_owned(),
        };
        if ready.nonce != asked.nonce && !mutant(348) {
            return Err(LinkError::corrupt(
                "nonce",
                hex(&asked.nonce),
                hex(&ready.nonce),
            ));
        }
        if ready.transport != asked.transport {
            let (want, got) = (asked.transport.name(), ready.transport.name());
            return Err(LinkError::corrupt("transport", want, got));
        }
        asked.dims.check(&ready.dims)?;
        Ok((ready, r.0))
    }
}

/// A refusal's text as a body.
#[must_use]
pub fn refusal(text: &str) -> Vec<u8> {
    let mut w = Writer::default();
    w.text(text.as_bytes(), TEXT_MAX);
    w.0
}

/// A refusal's text from a body; whatever can be read of it.
#[must_use]
pub fn refusal_text(body: &[u8]) -> String {
    match Reader(body).text("text", TEXT_MAX) {
        Ok(text) => String::from_utf8_lossy(text).into_owned(),
        Err(_) => "no reason given".to_owned(),
    }
}
