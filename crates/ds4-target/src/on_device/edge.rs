//! The edge between two stages: how the streams of a part's tokens get from one device to the next.
//!
//! Straight into the other device's memory where bytes were seen to arrive so, else through pinned memory of the host.
//! Order between devices is the host's matter (ADR 0009): it waits for the copy before it lets the next stage begin.
//! Must not know: layers, what the bytes mean.

use std::collections::VecDeque;

use device::driver::Driver;
use device::{Device, Download, Fault, Peers, View};
use ds4_kernels::KernelError;
use engine_core::mutant::mutant;

use super::arena::Slot;
use super::gpu::Gpu;

/// How bytes cross from one device to the next, and why so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// The device they leave.
    pub from: String,
    /// The device they reach.
    pub to: String,
    /// Why they go through the host; `None`: they do not.
    pub staged: Option<String>,
}

impl std::fmt::Display for Crossing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {} ", self.from, self.to)?;
        match &self.staged {
            None => f.write_str("straight: bytes were seen to arrive"),
            Some(why) => write!(f, "through the host: {why}"),
        }
    }
}

/// How often a part's streams crossed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Crossed {
    pub(crate) straight: u64,
    pub(crate) staged: u64,
}

/// The way to a stage's device from that of the stage before.
#[derive(Debug)]
pub(crate) struct Edge<R: Driver> {
    peers: Result<Peers<R>, String>,
    pub(crate) counts: Crossed,
}

/// Pinned slots that are on their way at a time: one is copied on while the next one fills.
const AHEAD: usize = 2;

impl<R: Driver> Edge<R> {
    /// Looks which way there is. Devices that do not reach each other are no error.
    ///
    /// # Errors
    /// `Device` if one of them is lost.
    pub(crate) fn open(from: &Device<R>, to: &Device<R>) -> Result<Self, KernelError> {
        let peers = match Peers::open(from, to) {
            Err(fault @ Fault::Lost { .. }) => return Err(fault.into()),
            opened => opened.map_err(|fault| fault.to_string()),
        };
        Ok(Self {
            peers,
            counts: Crossed::default(),
        })
    }

    /// Why bytes go through the host, if they do.
    pub(crate) fn staged(&self) -> Option<String> {
        self.peers.as_ref().err().cloned()
    }

    /// Copies a slot of one device over one of the same length of the other, once everything submitted before on both is
    /// done with them; what is submitted to `to` later finds it there.
    ///
    /// # Errors
    /// `Device`, of either.
    pub(crate) fn cross(
        &mut self,
        (from, near): (&Gpu<R>, Slot),
        (to, far): (&Gpu<R>, Slot),
    ) -> Result<(), KernelError> {
        let (near, far) = (from.view(near)?, to.view(far)?);
        match &self.peers {
            Ok(peers) => {
                self.counts.straight += 1;
                straight(peers, (from, &near), (to, &far))
            }
            Err(_) => {
                self.counts.staged += 1;
                staged((from, &near), (to, &far))
            }
        }
    }
}

fn straight<R: Driver>(
    peers: &Peers<R>,
    (from, near): (&Gpu<R>, &View<R>),
    (to, far): (&Gpu<R>, &View<R>),
) -> Result<(), KernelError> {
    // The stage ahead may still read what the part before brought it; meanwhile this one computes.
    if !mutant(380) {
        to.stream.record()?.wait()?;
    }
    peers.copy(&from.stream, near, far)?;
    let arrived = from.stream.record()?;
    if !mutant(379) {
        arrived.wait()?;
    }
    Ok(())
}

/// In pieces of a pinned slot. The stream of `to` keeps what is written there behind what reads it.
fn staged<R: Driver>(
    (from, near): (&Gpu<R>, &View<R>),
    (to, far): (&Gpu<R>, &View<R>),
) -> Result<(), KernelError> {
    let each = from.piece()?;
    let mut flying: VecDeque<(u64, u64, Download<R>)> = VecDeque::new();
    let land = |flying: &mut VecDeque<(u64, u64, Download<R>)>| {
        let Some((at, len, download)) = flying.pop_front() else {
            return Ok(());
        };
        let landed = download.wait()?;
        to.write_view(&landed.bytes()[..len as usize], &far.part(at, len)?)
    };
    let mut at = 0;
    while at < near.len() {
        let len = each.min(near.len() - at);
        flying.push_back((at, len, from.begin_fetch_view(&near.part(at, len)?)?));
        if flying.len() >= AHEAD {
            land(&mut flying)?;
        }
        at += len;
    }
    while !flying.is_empty() {
        land(&mut flying)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use device::{Runtime, fake};
    use ds4_kernels::run::Kernels;

    use super::super::arena::{Arena, Layout};
    use super::*;

    const BYTES: usize = 1000;

    fn runtime(able: bool) -> Runtime<impl Driver> {
        fake::runtime(&fake::Settings {
            devices: 2,
            able,
            ..fake::Settings::default()
        })
    }

    /// A device with one slot, and pinned memory for less than that.
    fn gpu<R: Driver>(device: &Device<R>) -> (Gpu<R>, Slot) {
        let mut gpu = Gpu::new(Kernels::new(device, None)).unwrap();
        let mut layout = Layout::new(Arena::Scratch);
        let slot = layout.take(&[BYTES]).unwrap();
        let none = [Arena::Weights, Arena::State].map(Layout::new);
        gpu.allocate([&none[0], &none[1], &layout], 130).unwrap();
        (gpu, slot)
    }

    #[test]
    fn bytes_cross_whole_either_way_and_behind_what_reads_the_last_ones() {
        for able in [true, false] {
            let runtime = runtime(able);
            let devices = [0, 1].map(|n| runtime.open(n).unwrap());
            let mut edge = Edge::open(&devices[0], &devices[1]).unwrap();
            assert_eq!(edge.staged().is_none(), able);
            let (from, near) = gpu(&devices[0]);
            let (to, far) = gpu(&devices[1]);
            for round in 0..3u8 {
                let bytes: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8 ^ round).collect();
                from.write(&bytes, near).unwrap();
                edge.cross((&from, near), (&to, far)).unwrap();
                assert_eq!(to.read(far).unwrap(), bytes, "straight: {able}");
            }
            let want = if able { (3, 0) } else { (0, 3) };
            assert_eq!((edge.counts.straight, edge.counts.staged), want);
        }
    }

    #[test]
    fn slots_of_different_lengths_do_not_cross() {
        for able in [true, false] {
            let runtime = runtime(able);
            let devices = [0, 1].map(|n| runtime.open(n).unwrap());
            let mut edge = Edge::open(&devices[0], &devices[1]).unwrap();
            let (from, near) = gpu(&devices[0]);
            let (to, far) = gpu(&devices[1]);
            let crossed = edge.cross((&from, near), (&to, far.part(0, 999)));
            let why = crossed.unwrap_err().to_string();
            assert!(why.contains("999"), "{why}");
        }
    }
}
