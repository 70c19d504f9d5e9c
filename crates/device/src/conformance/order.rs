//! Completion, order between streams, and who owns what until then.

use super::bench::{Bench, pattern, read, to_words, words};
use super::kernels::churned;
use super::{Checked, Why, ensure};
use crate::driver::{Driver, Place};
use crate::staging::Staging;

const N: u64 = 1024;
/// Long enough to be still at work when the host goes on.
const ROUNDS: u32 = 20_000;

/// What a wait promises.
pub(super) fn completion<D: Driver>(bench: &Bench<D>) -> Checked {
    let device = bench.device()?;
    let (k, stream) = (bench.kernels(&device)?, device.stream()?);
    let y = words(&device, N)?;
    let staging = Staging::new(&device, 1, N * 4)?;
    for round in 0..8 {
        let want: Vec<u32> = (0..N as u32)
            .map(|i| churned(i.wrapping_add(round), ROUNDS))
            .collect();
        k.put(&stream, &y.view(), round)?;
        k.churn(&stream, &y.view(), ROUNDS)?;
        let slot = staging
            .take()?
            .ok_or_else(|| Why::Wrong("no slot".into()))?;
        let landed = slot.download(&stream, &y.view())?.wait()?;
        ensure(to_words(landed.bytes()) == want, || {
            format!("round {round}: the event fired before the copy was done")
        })?;
        drop(landed);
        stream.fill(&y.view(), 0)?;
        stream.sync()?;
        ensure(read(&stream, &y.view())? == vec![0; N as usize], || {
            format!("round {round}: the wait ended before the fill was done")
        })?;
    }
    Ok(())
}

/// A stream sees what it waited for.
pub(super) fn streams<D: Driver>(bench: &Bench<D>) -> Checked {
    let device = bench.device()?;
    let k = bench.kernels(&device)?;
    let (left, right) = (device.stream()?, device.stream()?);
    let (a, b) = (words(&device, N)?, words(&device, N)?);
    for round in 0..16u32 {
        // Left makes a, right makes b from it, left overwrites a after right has read it.
        k.put(&left, &a.view(), round)?;
        k.churn(&left, &a.view(), ROUNDS)?;
        let made = left.record()?;
        right.wait(&made)?;
        k.add(&right, &a.view(), &a.view(), &b.view())?;
        let used = right.record()?;
        left.wait(&used)?;
        left.fill(&a.view(), 0x11)?;
        let want: Vec<u32> = (0..N as u32)
            .map(|i| churned(i.wrapping_add(round), ROUNDS).wrapping_mul(2))
            .collect();
        ensure(read(&right, &b.view())? == want, || {
            format!("round {round}: a stream ran ahead of the event it waited for")
        })?;
        left.sync()?;
    }
    Ok(())
}

/// Slots are overwritten as soon as they are given out again.
pub(super) fn staging<D: Driver>(bench: &Bench<D>) -> Checked {
    const COPIES: u32 = 24;
    const BYTES: u64 = 8192;
    let device = bench.device()?;
    let (k, stream) = (bench.kernels(&device)?, device.stream()?);
    let (all, busy) = (
        device.alloc(Place::Device, BYTES * u64::from(COPIES))?,
        words(&device, N)?,
    );
    let ring = Staging::new(&device, 2, BYTES)?;
    for copy in 0..COPIES {
        // The copy waits behind work; its slot must wait with it.
        k.churn(&stream, &busy.view(), ROUNDS)?;
        let mut slot = ring.take()?.ok_or_else(|| Why::Wrong("no slot".into()))?;
        slot.bytes_mut()
            .copy_from_slice(&pattern(copy, BYTES as usize));
        slot.upload(&stream, &all.part(u64::from(copy) * BYTES, BYTES)?)?;
    }
    let mut got = vec![0; all.len() as usize];
    stream.read_now(&all.view(), &mut got)?;
    for (copy, chunk) in got.chunks_exact(BYTES as usize).enumerate() {
        ensure(chunk == pattern(copy as u32, BYTES as usize), || {
            format!("copy {copy} holds what its slot was filled with later")
        })?;
    }
    // Two slots in hands: the third is not waited for.
    let (one, two) = (ring.take()?, ring.take()?);
    ensure(
        one.is_some() && two.is_some() && ring.take()?.is_none(),
        || "a ring of two gave another number of slots".into(),
    )
}

/// The caller lets go at once.
pub(super) fn ownership<D: Driver>(bench: &Bench<D>) -> Checked {
    let device = bench.device()?;
    let (k, stream) = (bench.kernels(&device)?, device.stream()?);
    let result = words(&device, N)?;
    let alive = || bench.runtime.driver().alive().get("memory").copied();
    let before = alive();
    for round in 0..100u32 {
        let (a, b) = (words(&device, N)?, words(&device, N)?);
        k.put(&stream, &a.view(), round)?;
        k.churn(&stream, &a.view(), 100)?;
        k.put(&stream, &b.view(), 1)?;
        k.add(&stream, &a.view(), &b.view(), &result.view())?;
        drop((a, b));
        // Would be handed the memory of the dropped ones, if they were free.
        let poison = words(&device, N)?;
        let other = device.stream()?;
        other.fill(&poison.view(), 0xff)?;
        other.sync()?;
    }
    let want: Vec<u32> = (0..N as u32)
        .map(|i| churned(i.wrapping_add(99), 100).wrapping_add(i.wrapping_add(1)))
        .collect();
    ensure(read(&stream, &result.view())? == want, || {
        "a dropped buffer was freed before its kernel ran".into()
    })?;
    stream.sync()?;
    let after = alive();
    ensure(after == before, || {
        format!("{before:?} buffers before, {after:?} after")
    })
}
