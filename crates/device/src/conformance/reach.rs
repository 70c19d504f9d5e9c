//! What not every device can: memory of the host that was pinned, and peers. Where a device says that it cannot, the
//! check is skipped with the device's own reason.

use std::ptr::NonNull;
use std::sync::Arc;

use super::bench::{Bench, W, pattern, words};
use super::{Checked, Why, ensure};
use crate::buffer::View;
use crate::device::Device;
use crate::driver::{Driver, Place};
use crate::fault::Fault;
use crate::peers::Peers;
use crate::registered::HostMemory;
use crate::stream::Stream;

/// Whole pages on every system.
const PAGE: usize = 64 << 10;
const BYTES: usize = 2 * PAGE;

/// Pages of this process, as the owner of memory would hold them.
#[derive(Debug)]
struct Pages(NonNull<u8>);

// SAFETY: the memory is the value's; it is touched through copies of whole bytes only.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

// SAFETY: allocated until the value is dropped, and never referred to.
unsafe impl HostMemory for Pages {
    fn start(&self) -> NonNull<u8> {
        self.0
    }

    fn bytes(&self) -> usize {
        BYTES
    }
}

fn layout() -> Result<std::alloc::Layout, Why> {
    std::alloc::Layout::from_size_align(BYTES, PAGE).map_err(|e| Why::Wrong(e.to_string()))
}

impl Pages {
    fn new() -> Result<Arc<Self>, Why> {
        // SAFETY: the size is not zero.
        let start = unsafe { std::alloc::alloc_zeroed(layout()?) };
        let start = NonNull::new(start).ok_or_else(|| Why::Wrong("no memory".into()))?;
        Ok(Arc::new(Self(start)))
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        // SAFETY: inside the memory, by the caller's sizes.
        let to = unsafe { self.0.add(at) };
        // SAFETY: as above; `bytes` lie elsewhere.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }

    fn get(&self, at: usize, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        // SAFETY: inside the memory, by the caller's sizes.
        let from = unsafe { self.0.add(at) };
        // SAFETY: as above; `bytes` lie elsewhere.
        unsafe { from.copy_to_nonoverlapping(NonNull::from(&mut bytes[..]).cast(), n) };
        bytes
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if let Ok(layout) = layout() {
            // SAFETY: allocated with this layout.
            unsafe { std::alloc::dealloc(self.0.as_ptr(), layout) };
        }
    }
}

/// Long enough to be still at work when the host goes on.
const CHURNED: u32 = 5_000;

/// Copies straight from and to memory of the host; it is overwritten as soon as an event says so.
pub(super) fn registered<D: Driver>(bench: &Bench<D>) -> Checked {
    let device = bench.device()?;
    let pages = Pages::new()?;
    if let Err(why) = device.facts().register.check() {
        let refused = device.register(pages).err().map(|f| f.to_string());
        return refusal(refused, &why.to_string());
    }
    let (k, stream) = (bench.kernels(&device)?, device.stream()?);
    let busy = words(&device, 1024)?;
    let far = device.alloc(Place::Device, BYTES as u64)?;
    let near = device.register(Arc::clone(&pages) as _)?;
    ensure(near.len() == BYTES as u64, || {
        format!("{} bytes", near.len())
    })?;
    let mut before = Vec::new();
    for round in 0..24u32 {
        let (at, n) = (16 * round as usize, PAGE + round as usize);
        let data = pattern(round, n);
        pages.put(at, &data);
        // The copy waits behind work, and its memory with it.
        k.churn(&stream, &busy.view(), CHURNED)?;
        stream.copy(&near.part(at as u64, n as u64)?, &far.part(7, n as u64)?)?;
        stream.record()?.wait()?;
        pages.put(at, &vec![0xff; n]);
        let back = near.part(0, n as u64)?;
        stream.copy(&far.part(7, n as u64)?, &back)?;
        stream.record()?.wait()?;
        ensure(pages.get(0, n) == data, || {
            format!("round {round}: pinned memory was copied before or after its time")
        })?;
        ensure(before != data, || "the same data twice".into())?;
        before = data;
    }
    // Lets go of what the copies used.
    stream.sync()?;
    twice(bench, &pages)?;
    lifetime(bench, &pages, near)
}

/// A copy from pinned memory, which is let go of under it.
pub(super) fn a_little<D: Driver>(
    device: &Device<W<D>>,
    stream: &Stream<W<D>>,
    to: &View<W<D>>,
) -> Result<(), Fault> {
    let Ok(pages) = Pages::new() else {
        return Ok(());
    };
    let near = device.register(pages)?;
    stream.copy(&near.part(0, to.len())?, to)
}

/// Memory that is pinned is not pinned again.
fn twice<D: Driver>(bench: &Bench<D>, pages: &Arc<Pages>) -> Checked {
    let again = bench.device()?.register(Arc::clone(pages) as _);
    match again {
        Err(Fault::Call { .. }) => Ok(()),
        other => Err(Why::Wrong(format!("pinned twice: {other:?}"))),
    }
}

/// The owner's memory stays until the work that uses it is done, and is then let go of.
fn lifetime<D: Driver>(
    bench: &Bench<D>,
    pages: &Arc<Pages>,
    near: crate::Registered<W<D>>,
) -> Checked {
    let device = bench.device()?;
    let alive = || bench.runtime.driver().alive().get("registration").copied();
    ensure(alive() == Some(1), || format!("{:?} are pinned", alive()))?;
    drop(near);
    ensure(alive().is_none(), || "still pinned although dropped".into())?;
    let held = Arc::strong_count(pages);
    let (stream, far) = (device.stream()?, device.alloc(Place::Device, PAGE as u64)?);
    let near = device.register(Arc::clone(pages) as _)?;
    stream.copy(&near.part(0, PAGE as u64)?, &far.view())?;
    drop(near);
    ensure(alive() == Some(1), || "ended under a copy".into())?;
    ensure(Arc::strong_count(pages) > held, || {
        "the owner was let go of under a copy".into()
    })?;
    stream.sync()?;
    let left = Arc::strong_count(pages);
    ensure(alive().is_none() && left == held, || {
        format!("{:?} pinned, {left} holders after the work", alive())
    })
}

/// A device that cannot says so, in the words of its facts.
fn refusal(said: Option<String>, why: &str) -> Checked {
    match said {
        Some(said) if said.contains(why) => Err(Why::NotHere(why.into())),
        other => Err(Why::Wrong(format!(
            "refused with {other:?}, the facts say {why:?}"
        ))),
    }
}

/// Memory for other processes: here only that it is given with a handle, and that one of this process or of nobody
/// is not opened. The probe between two processes is a test of whoever has two.
pub(super) fn shared<D: Driver>(bench: &Bench<D>) -> Checked {
    let device = bench.device()?;
    if let Err(why) = device.facts().share.check() {
        let refused = device.lend(4096).err().map(|f| f.to_string());
        return refusal(refused, &why.to_string());
    }
    let lent = match device.lend(crate::shared::PROBE_BYTES) {
        Err(Fault::Call {
            call, code, name, ..
        }) => {
            return Err(Why::NotHere(format!("{call}: {name} ({code})")));
        }
        lent => lent?,
    };
    ensure(lent.view().len() == crate::shared::PROBE_BYTES, || {
        "another size than asked for".into()
    })?;
    let nobody = crate::shared::Handle([0; 64]);
    for handle in [nobody, lent.handle()] {
        if device.borrow(&handle, 4096).is_ok() {
            return Err(Why::Wrong(
                "a handle of this process, or none, opened".into(),
            ));
        }
    }
    Ok(())
}

/// Bytes go between two devices both ways; the way is closed again, and not opened twice.
pub(super) fn peers<D: Driver>(bench: &Bench<D>) -> Checked {
    let count = bench.runtime.count()?;
    let others: Vec<u32> = (0..count).filter(|n| *n != bench.ordinal).collect();
    let Some(other) = others.first() else {
        return Err(Why::NotHere("there is one device".into()));
    };
    let (a, b) = (bench.device()?, bench.runtime.open(*other)?);
    let alone = Peers::open(&a, &a).err();
    ensure(matches!(alone, Some(Fault::WrongDevice { .. })), || {
        format!("a device is no peer of itself: {alone:?}")
    })?;
    for (from, to) in [(bench.ordinal, *other), (*other, bench.ordinal)] {
        if let Err(why) = bench.runtime.peer(from, to)?.check() {
            let refused = Peers::open(&a, &b).err().map(|f| f.to_string());
            return refusal(refused, &why.to_string());
        }
    }
    let alive = || bench.runtime.driver().alive().get("peer").copied();
    let peers = Peers::open(&a, &b)?;
    ensure(alive() == Some(2), || {
        format!("{:?} ways are open", alive())
    })?;
    ensure(Peers::open(&a, &b).is_err(), || "opened twice".into())?;
    let (k, stream, theirs) = (bench.kernels(&a)?, a.stream()?, b.stream()?);
    let (near, far) = (words(&a, 1024)?, words(&b, 1024)?);
    for round in 0..4 {
        k.put(&stream, &near.view(), round)?;
        peers.copy(&stream, &near.view(), &far.view())?;
        stream.sync()?;
        let want: Vec<u32> = (0..1024).map(|i| i + round).collect();
        ensure(super::bench::read(&theirs, &far.view())? == want, || {
            format!("round {round}: other words arrived")
        })?;
    }
    peers.copy(&stream, &far.view(), &near.view())?;
    drop(peers);
    ensure(alive() == Some(2), || "closed under a copy".into())?;
    stream.sync()?;
    ensure(alive().is_none(), || "still open although dropped".into())
}
