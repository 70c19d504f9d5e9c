//! Copies, places, and running out of memory.

use super::bench::{Bench, pattern};
use super::{Checked, Why, ensure};
use crate::driver::{Driver, Place};
use crate::fault::Fault;
use crate::staging::Staging;

/// Bytes, offset in the device buffer.
const SHAPES: [(usize, u64); 7] = [
    (0, 0),
    (1, 3),
    (255, 1),
    (256, 256),
    (4097, 7),
    (65_536, 0),
    (1 << 20, 13),
];

/// Ways up, across and down give the same bytes.
pub(super) fn copies<D: Driver>(bench: &Bench<D>) -> Checked {
    let device = bench.device()?;
    let stream = device.stream()?;
    let room = (1 << 20) + 64;
    let (near, far) = (
        device.alloc(Place::Device, room)?,
        device.alloc(Place::Device, room)?,
    );
    let staging = Staging::new(&device, 2, room)?;
    for (seed, (len, offset)) in SHAPES.into_iter().enumerate() {
        let data = pattern(seed as u32, len);
        stream.fill(&near.view(), 0xaa)?;
        stream.fill(&far.view(), 0xbb)?;
        let source = near.part(offset, len as u64)?;
        let mut slot = staging.take()?.ok_or_else(no_slot)?;
        slot.bytes_mut()[..len].copy_from_slice(&data);
        slot.upload(&stream, &source)?;
        stream.copy(&source, &far.part(offset, len as u64)?)?;
        let slot = staging.take()?.ok_or_else(no_slot)?;
        let back = slot.download(&stream, &far.part(0, room)?)?.wait()?;
        let mut want = vec![0xbb; room as usize];
        want[offset as usize..offset as usize + len].copy_from_slice(&data);
        ensure(back.bytes()[..room as usize] == want[..], || {
            format!("{len} bytes at {offset} came back changed, or their surroundings did")
        })?;
        drop(back);
        let mut simple = vec![0; len];
        stream.read_now(&source, &mut simple)?;
        ensure(simple == data, || format!("blocking read of {len} bytes"))?;
        stream.write_now(&data, &far.part(0, len as u64)?)?;
        stream.read_now(&far.part(0, len as u64)?, &mut simple)?;
        ensure(simple == data, || format!("blocking write of {len} bytes"))?;
    }
    Ok(())
}

fn no_slot() -> Why {
    Why::Wrong("a ring with free slots gave none".into())
}

/// The host reads and writes pinned and unified memory of an idle device.
pub(super) fn places<D: Driver>(bench: &Bench<D>) -> Checked {
    let device = bench.device()?;
    let stream = device.stream()?;
    for place in bench.places(&device) {
        let mut buffer = device.alloc(place, 4096)?;
        let still = device.quiesce()?;
        if place == Place::Device {
            let refused = still.bytes(&buffer).err();
            let want = Fault::NotHost { place };
            ensure(refused == Some(want), || {
                format!("{refused:?} for device memory")
            })?;
            continue;
        }
        still
            .bytes_mut(&mut buffer)?
            .copy_from_slice(&pattern(9, 4096));
        drop(still);
        let copy = device.alloc(Place::Device, 4096)?;
        stream.copy(&buffer.view(), &copy.view())?;
        stream.fill(&buffer.view(), 0)?;
        stream.copy(&copy.view(), &buffer.view())?;
        let still = device.quiesce()?;
        ensure(still.bytes(&buffer)? == pattern(9, 4096), || {
            format!("{place:?} memory lost what the host wrote")
        })?;
    }
    Ok(())
}

/// Too much is refused, and what is possible goes on.
pub(super) fn exhaustion<D: Driver>(bench: &Bench<D>) -> Checked {
    let device = bench.device()?;
    let total = device.memory()?.total;
    let exact = matches!(bench.runtime.kind(), crate::Kind::Cpu | crate::Kind::Fake);
    // Vendors may refuse absurd sizes as such.
    let absurd = exact.then_some(u64::MAX / 2);
    for wanted in [total.saturating_mul(4)].into_iter().chain(absurd) {
        match device.alloc(Place::Device, wanted) {
            Err(Fault::OutOfMemory {
                device: said,
                place: Place::Device,
                bytes,
                total: known,
                ..
            }) => ensure(
                said == device.id() && bytes == wanted && known == total,
                || format!("{said}: {bytes} of {known}"),
            )?,
            other => {
                return Err(Why::Wrong(format!(
                    "{wanted} bytes of {total} were not refused for want of memory: {other:?}"
                )));
            }
        }
    }
    let before = device.memory()?.free;
    let some = device.alloc(Place::Device, 1 << 20)?;
    let stream = device.stream()?;
    stream.write_now(&pattern(1, 1 << 20), &some.view())?;
    drop((stream, some));
    let after = device.memory()?.free;
    // On a GPU others may allocate at the same time.
    ensure(!exact || after == before, || {
        format!("{before} bytes free before, {after} after")
    })
}
