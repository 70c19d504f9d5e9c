//! Shared memory for payloads: one mapping, both directions, no name.
//!
//! | at | bytes | field | written by |
//! | --- | --- | --- | --- |
//! | 0 | 8 | magic `4SPREG01` | parent, before the start |
//! | 8 | 8 | capacity | parent, before the start |
//! | 16 | 16 | nonce | parent, before the start |
//! | 64 | 16 | number and bytes of the request | parent |
//! | 128 | 16 | number and bytes of the reply | worker |
//! | 4096 | capacity | payload | whose turn it is |
//!
//! A memfd is sealed against shrinking and growing before it leaves the parent, so that no access can
//! fault; nothing remains of it when both sides are gone. The local twin is the same layout for a worker
//! in this process. Payload is copied in and out, by this crate or by a device that pinned its pages, so that what the other side does to it
//! later cannot change what was read; only a worker on the processor reads the rows of a step where they lie, in its turn. Must not know: frames,
//! backbones.

#![allow(unsafe_code, reason = "mapping memory and copying to and from it")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use device::HostMemory;
use engine_core::mutant::mutant;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::copy::PIECE;
use crate::error::LinkError;
use crate::turn::Turn;

const MAGIC: [u8; 8] = *b"4SPREG01";
/// Where the payload starts: a page of its own.
pub const PAYLOAD_AT: usize = 4096;
const REQUEST_AT: usize = 64;
const REPLY_AT: usize = 128;

/// Recognises a start: the worker must show the one it was given.
pub type Nonce = [u8; 16];

/// What a region lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionKind {
    /// A sealed file without a name.
    Memfd,
    /// Memory of this process.
    Local,
}

/// A mapping of header and payload.
#[derive(Debug)]
pub struct Region {
    at: NonNull<u8>,
    /// Bytes mapped.
    len: usize,
    /// Bytes of payload.
    capacity: usize,
    kind: RegionKind,
    file: Option<OwnedFd>,
}

// SAFETY: the memory belongs to the mapping, which lives as long as the value; it is only touched through
// atomic words and copies under the turn rule.
unsafe impl Send for Region {}
// SAFETY: as above. Two threads that break the turn rule may read mixed bytes, which are only ever
// numbers: every value of a byte is valid.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length and unmapped nowhere else; no reference is left.
        if let Err(error) = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.len) } {
            tracing::error!(%error, "the payload region could not be unmapped");
        }
    }
}

/// Bytes of a region with so much payload.
fn whole(capacity: usize) -> Result<usize, LinkError> {
    let page = rustix::param::page_size().max(1);
    let most = i64::MAX as usize;
    capacity
        .checked_add(PAYLOAD_AT)
        .and_then(|n| n.checked_next_multiple_of(page))
        .filter(|n| *n <= most && capacity > 0)
        .ok_or_else(|| LinkError::corrupt("capacity", format!("1 to {most} bytes"), capacity))
}

/// An unnamed file, executable nowhere on kernels that know the flag.
fn unnamed() -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create("fourspark-draft", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create("fourspark-draft", flags),
        other => other,
    }
}

impl Region {
    /// A sealed region for a worker in another process.
    ///
    /// # Errors
    /// `Corrupt` for a size that cannot be; `Io`.
    pub fn memfd(capacity: usize, nonce: &Nonce) -> Result<Self, LinkError> {
        let len = whole(capacity)?;
        let file = unnamed().map_err(LinkError::sys("memfd_create"))?;
        rustix::fs::ftruncate(&file, len as u64).map_err(LinkError::sys("ftruncate"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        if !mutant(343) {
            rustix::fs::fcntl_add_seals(&file, seals).map_err(LinkError::sys("seal"))?;
        }
        let region = Self::map(len, capacity, RegionKind::Memfd, Some(file))?;
        region.write_header(nonce);
        Ok(region)
    }

    /// A region for a worker in this process.
    ///
    /// # Errors
    /// As [`Self::memfd`].
    pub fn local(capacity: usize, nonce: &Nonce) -> Result<Self, LinkError> {
        let region = Self::map(whole(capacity)?, capacity, RegionKind::Local, None)?;
        region.write_header(nonce);
        Ok(region)
    }

    /// The worker's mapping of a region it was given. What the file says about itself is compared with
    /// what was announced, so that no later access can reach outside.
    ///
    /// # Errors
    /// `Corrupt`, naming the field; `Io`.
    pub fn open(file: OwnedFd, capacity: usize, nonce: &Nonce) -> Result<Self, LinkError> {
        let len = whole(capacity)?;
        let size = rustix::fs::fstat(&file)
            .map_err(LinkError::sys("fstat"))?
            .st_size;
        if u64::try_from(size).ok() != Some(len as u64) && !mutant(344) {
            return Err(LinkError::corrupt("region size", len, size));
        }
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(LinkError::sys("seals"))?;
        let wanted = SealFlags::SHRINK | SealFlags::GROW;
        if !seals.contains(wanted) {
            let shown = |s: SealFlags| format!("{s:?}");
            return Err(LinkError::corrupt(
                "region seals",
                shown(wanted),
                shown(seals),
            ));
        }
        let mut region = Self::map(len, capacity, RegionKind::Memfd, Some(file))?;
        // The mapping stays; the descriptor is needed no more.
        region.file = None;
        region.check_header(nonce)?;
        Ok(region)
    }

    fn map(
        len: usize,
        capacity: usize,
        kind: RegionKind,
        file: Option<OwnedFd>,
    ) -> Result<Self, LinkError> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let null = std::ptr::null_mut();
        let at = match &file {
            // SAFETY: a new mapping at an address of the system's choice; it aliases nothing of Rust's.
            Some(file) => unsafe { rustix::mm::mmap(null, len, prot, MapFlags::SHARED, file, 0) },
            // SAFETY: as above.
            None => unsafe { rustix::mm::mmap_anonymous(null, len, prot, MapFlags::SHARED) },
        };
        let at = at.map_err(LinkError::sys("mmap"))?;
        let ptr = NonNull::new(at.cast()).ok_or(LinkError::Closed)?;
        let region = Self {
            at: ptr,
            len,
            capacity,
            kind,
            file,
        };
        for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
            // SAFETY: the whole mapping made above; neither advice changes its contents here.
            unsafe { rustix::mm::madvise(at, len, advice) }.map_err(LinkError::sys("madvise"))?;
        }
        Ok(region)
    }

    fn write_header(&self, nonce: &Nonce) {
        self.put(0, &MAGIC);
        self.put(8, &(self.capacity as u64).to_le_bytes());
        self.put(16, nonce);
    }

    fn check_header(&self, nonce: &Nonce) -> Result<(), LinkError> {
        let mut head = [0; 32];
        self.get(0, &mut head);
        let same = |field, expected: &[u8], got: &[u8]| {
            let shown = |bytes: &[u8]| format!("{bytes:02x?}");
            if expected == got {
                return Ok(());
            }
            Err(LinkError::corrupt(field, shown(expected), shown(got)))
        };
        same("region magic", &MAGIC, &head[..8])?;
        same(
            "region capacity",
            &(self.capacity as u64).to_le_bytes(),
            &head[8..16],
        )?;
        if mutant(345) {
            return Ok(());
        }
        same("region nonce", nonce, &head[16..])
    }

    /// Bytes of payload.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// What it lies in.
    #[must_use]
    pub const fn kind(&self) -> RegionKind {
        self.kind
    }

    /// The descriptor to hand to a worker; `None` for a local region and on the worker's side.
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// The descriptor has been handed over; the mapping stays.
    pub fn close_file(&mut self) {
        self.file = None;
    }

    pub(crate) fn request(&self) -> Turn<'_, AtomicU64> {
        self.words(REQUEST_AT)
    }

    pub(crate) fn reply(&self) -> Turn<'_, AtomicU64> {
        self.words(REPLY_AT)
    }

    fn words(&self, at: usize) -> Turn<'_, AtomicU64> {
        assert!(
            at + 16 <= PAYLOAD_AT && at.is_multiple_of(8),
            "words lie in the header"
        );
        // SAFETY: inside the mapping, which is longer than the header.
        let number = unsafe { self.at.as_ptr().add(at) };
        // SAFETY: as above.
        let bytes = unsafe { self.at.as_ptr().add(at + 8) };
        Turn {
            // SAFETY: aligned, as the mapping starts on a page; mapped as long as `self`; only touched atomically.
            number: unsafe { AtomicU64::from_ptr(number.cast()) },
            // SAFETY: as above.
            bytes: unsafe { AtomicU64::from_ptr(bytes.cast()) },
        }
    }

    /// Copies into the payload.
    ///
    /// # Errors
    /// `Corrupt` if it would reach outside.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), LinkError> {
        self.check(at, bytes.len())?;
        self.put(PAYLOAD_AT + at, bytes);
        Ok(())
    }

    /// Copies out of the payload.
    ///
    /// # Errors
    /// `Corrupt` if it would reach outside.
    pub fn read(&self, at: usize, to: &mut [u8]) -> Result<(), LinkError> {
        self.check(at, to.len())?;
        self.get(PAYLOAD_AT + at, to);
        Ok(())
    }

    /// Copies `n` values out of the payload, from byte `at` on.
    ///
    /// # Errors
    /// `Corrupt` if they would reach outside.
    pub fn floats(&self, at: usize, n: usize) -> Result<Vec<f32>, LinkError> {
        let bytes = n.saturating_mul(4);
        self.check(at, bytes)?;
        let mut values = Vec::<f32>::with_capacity(n);
        let to = values.as_mut_ptr().cast::<u8>();
        for piece in (0..bytes).step_by(PIECE) {
            // SAFETY: inside the mapping, by the check.
            let from = unsafe { self.at.as_ptr().add(PAYLOAD_AT + at + piece) };
            // SAFETY: inside the vector's memory, which holds `n` values of four bytes.
            let to = unsafe { to.add(piece) };
            // SAFETY: as in `put`; both ranges are valid for what is left of `bytes`.
            unsafe { std::ptr::copy_nonoverlapping(from, to, PIECE.min(bytes - piece)) };
        }
        // SAFETY: all `n` values were written above, and any four bytes are an f32.
        unsafe { values.set_len(n) };
        Ok(values)
    }

    /// The first `n` values of the payload, where they lie. For the worker alone, while it is its turn: the
    /// parent writes again only after the reply, or never, if it gave the worker up.
    ///
    /// # Errors
    /// `Corrupt` if they would reach outside.
    pub(crate) fn values(&self, n: usize) -> Result<&[f32], LinkError> {
        self.check(0, n.saturating_mul(4))?;
        // SAFETY: inside the mapping, by the check.
        let from = unsafe { self.at.as_ptr().add(PAYLOAD_AT) };
        // SAFETY: the payload starts on a page; the mapping lives as long as `self`; any four bytes are an f32. Nobody
        // writes: this side keeps the slice no longer than its turn (`Link::values`), and a parent that broke the
        // turn rule from its own process would change numbers, which nothing but arithmetic is done with.
        Ok(unsafe { std::slice::from_raw_parts(from.cast::<f32>(), n) })
    }

    fn check(&self, at: usize, n: usize) -> Result<(), LinkError> {
        match at.checked_add(n) {
            Some(end) if end <= self.capacity => Ok(()),
            _ => {
                let expected = format!("bytes within {}", self.capacity);
                Err(LinkError::corrupt(
                    "payload",
                    expected,
                    format!("{n} at {at}"),
                ))
            }
        }
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len, "within the mapping");
        for (n, piece) in bytes.chunks(PIECE).enumerate() {
            // SAFETY: inside the mapping, by the assertion.
            let to = unsafe { self.at.as_ptr().add(at + n * PIECE) };
            // SAFETY: both ranges are valid for the length; the mapping is no memory that `bytes` could lie
            // in, since no reference to it is ever made.
            unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), to, piece.len()) };
        }
    }

    fn get(&self, at: usize, to: &mut [u8]) {
        assert!(at + to.len() <= self.len, "within the mapping");
        for (n, piece) in to.chunks_mut(PIECE).enumerate() {
            // SAFETY: inside the mapping, by the assertion.
            let from = unsafe { self.at.as_ptr().add(at + n * PIECE) };
            // SAFETY: as in `put`.
            unsafe { std::ptr::copy_nonoverlapping(from, piece.as_mut_ptr(), piece.len()) };
        }
    }
}

/// The payload's pages, for a device to pin: the header is left out, whose words are touched by name.
#[derive(Debug)]
pub struct Pages {
    region: Arc<Region>,
}

impl Pages {
    /// The pages of a region.
    ///
    /// # Errors
    /// The payload does not start on a page of this system.
    pub fn of(region: &Arc<Region>) -> Result<Arc<Self>, String> {
        let page = rustix::param::page_size().max(1);
        if !PAYLOAD_AT.is_multiple_of(page) {
            return Err(format!(
                "pages have {page} bytes, the payload starts at byte {PAYLOAD_AT}"
            ));
        }
        Ok(Arc::new(Self {
            region: Arc::clone(region),
        }))
    }
}

// SAFETY: the payload's pages lie in the mapping, which lives as long as the region that is held; its size is fixed,
// also for the other side, by the seals. No reference to payload is ever made: it is copied from and to pointers.
unsafe impl HostMemory for Pages {
    fn start(&self) -> NonNull<u8> {
        // SAFETY: inside the mapping, which is longer than its header.
        unsafe { self.region.at.add(PAYLOAD_AT) }
    }

    fn bytes(&self) -> usize {
        self.region.len - PAYLOAD_AT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: Nonce = *b"0123456789abcdef";

    fn said(result: Result<Region, LinkError>) -> String {
        result.map(|_| ()).unwrap_err().to_string()
    }

    fn copy_of(region: &Region) -> OwnedFd {
        region.file().unwrap().try_clone_to_owned().unwrap()
    }

    /// closed on exec, sealed before it leaves, and readable on the other side.
    #[test]
    fn a_24_a_region_is_sealed_closed_on_exec_and_shared() {
        let region = Region::memfd(10_000, &NONCE).unwrap();
        let file = region.file().unwrap();
        let flags = rustix::io::fcntl_getfd(file).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        let seals = rustix::fs::fcntl_get_seals(file).unwrap();
        assert!(
            seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL),
            "{seals:?}"
        );
        assert!(rustix::fs::ftruncate(file, 0).is_err(), "cannot shrink");
        assert!(rustix::fs::ftruncate(file, 1 << 20).is_err(), "cannot grow");
        let other = Region::open(copy_of(&region), 10_000, &NONCE).unwrap();
        region.write(9_990, b"0123456789").unwrap();
        region.request().publish(3, 10);
        other.request().consume(3, 10).unwrap();
        let mut got = [0; 10];
        other.read(9_990, &mut got).unwrap();
        assert_eq!(&got, b"0123456789");
        let values: Vec<f32> = (0..2500).map(|v| v as f32).collect();
        other.write(0, bytemuck::cast_slice(&values)).unwrap();
        assert_eq!(region.floats(0, 2500).unwrap(), values);
        assert_eq!(region.floats(8, 700).unwrap(), values[2..702]);
        assert_eq!(region.values(2500).unwrap(), values);
        other.reply().publish(3, 4);
        region.reply().consume(3, 4).unwrap();
        assert!(other.file().is_none());
    }

    /// what the file says of itself is compared with what was announced.
    #[test]
    fn a_25_a_region_of_another_size_seal_or_start_is_refused() {
        let region = Region::memfd(10_000, &NONCE).unwrap();
        let wrong = said(Region::open(copy_of(&region), 20_000, &NONCE));
        assert_eq!(wrong, "region size: expected 24576, got 16384");
        let wrong = said(Region::open(copy_of(&region), 4_000, &NONCE));
        assert_eq!(wrong, "region size: expected 8192, got 16384");
        // The same pages, another capacity.
        let wrong = said(Region::open(copy_of(&region), 10_001, &NONCE));
        assert!(wrong.starts_with("region capacity"), "{wrong}");
        let wrong = said(Region::open(copy_of(&region), 10_000, &[0; 16]));
        assert!(wrong.starts_with("region nonce"), "{wrong}");
        let loose = rustix::fs::memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&loose, 16_384).unwrap();
        let wrong = said(Region::open(loose, 10_000, &NONCE));
        assert!(
            wrong.starts_with("region seals: expected SealFlags"),
            "{wrong}"
        );
        let plain = std::fs::File::open("/dev/zero").unwrap();
        assert!(said(Region::open(plain.into(), 10_000, &NONCE)).starts_with("region size"));
    }

    /// what a device pins is the payload, whole pages of it, and it keeps the mapping.
    #[test]
    fn a_36_the_payload_s_pages_are_what_is_pinned() {
        let region = Arc::new(Region::memfd(10_000, &NONCE).unwrap());
        region.write(0, b"payload").unwrap();
        let pages = Pages::of(&region).unwrap();
        assert_eq!(pages.bytes(), 16_384 - PAYLOAD_AT);
        assert_eq!(pages.start().as_ptr() as usize % PAYLOAD_AT, 0);
        drop(region);
        // SAFETY: the first bytes of the pages, written above.
        let first = unsafe { pages.start().cast::<[u8; 7]>().read() };
        assert_eq!(&first, b"payload");
    }

    /// sizes that overflow are refused, not wrapped; copies stay inside.
    #[test]
    fn a_29_sizes_that_overflow_are_refused() {
        for capacity in [0, usize::MAX, usize::MAX - PAYLOAD_AT, i64::MAX as usize] {
            assert!(
                said(Region::memfd(capacity, &NONCE)).starts_with("capacity"),
                "{capacity}"
            );
            assert!(
                said(Region::local(capacity, &NONCE)).starts_with("capacity"),
                "{capacity}"
            );
        }
        let region = Region::local(100, &NONCE).unwrap();
        for (at, n) in [(0, 101), (100, 1), (usize::MAX, 2), (1, 100)] {
            let mut bytes = vec![0; n];
            assert!(region.write(at, &bytes).is_err() && region.read(at, &mut bytes).is_err());
            assert!(region.floats(at, n).is_err());
            assert!(region.values(at.saturating_add(n)).is_err());
        }
        region.write(0, &[1; 100]).unwrap();
        region.check_header(&NONCE).unwrap();
    }
}
