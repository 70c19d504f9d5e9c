//! What takes memory on a device, and giving all of it back: the device is quiesced first, then graphs are retired,
//! then memory is freed. Each step takes the proof that nothing runs.
//!
//! Must not know: what the memory holds beyond its name, when it is given back.

use device::driver::Driver;
use device::{Buffer, Device, Fault, Graph, Quiesced};
use engine_core::seams::Resident;

use super::gpu::{Gpu, SLOTS};

/// What the parts are called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    /// In the order of the arenas: weights, state, scratch.
    pub(crate) arenas: [&'static str; 3],
    pub(crate) staging: &'static str,
    pub(crate) kernels: &'static str,
    pub(crate) graphs: &'static str,
}

/// A target's.
pub(crate) const TARGET: Names = Names {
    arenas: ["target weights", "target caches", "target scratch"],
    staging: "target staging",
    kernels: "target kernels",
    graphs: "target graphs",
};

/// A drafter's.
pub(crate) const DRAFTER: Names = Names {
    arenas: ["drafter weights", "drafter caches", "drafter scratch"],
    staging: "drafter staging",
    kernels: "drafter kernels",
    graphs: "drafter graphs",
};

impl<R: Driver> Gpu<R> {
    /// What takes memory, `graphs` captured ones among it.
    pub(crate) fn residents(&self, names: &Names, graphs: usize) -> Vec<Resident> {
        let device = self.device().id().to_string();
        let arenas = self.arenas.iter().flatten().zip(names.arenas);
        let mut all: Vec<Resident> = arenas
            .map(|(buffer, what)| Resident::new(what, device.as_str(), buffer.len()))
            .collect();
        if let Some(ring) = &self.staging {
            let bytes = SLOTS as u64 * ring.slot_bytes();
            all.push(Resident::new(names.staging, "host", bytes).noted("pinned"));
        }
        let images = self.kernels.counts().images;
        for (what, count) in [(names.kernels, images), (names.graphs, graphs as u64)] {
            if count > 0 {
                let one = Resident::uncounted(what, device.as_str());
                all.push(one.noted(format!("{count}; their bytes are the runtime's")));
            }
        }
        all
    }

    /// Gives everything back. The answer: what could not be, and why.
    pub(crate) fn retire(mut self, names: &Names, graphs: Vec<Graph<R>>) -> Vec<Resident> {
        let device = self.device().clone();
        let abandoned = device.counters().abandoned;
        self.clock = None;
        let arenas = self.arenas.take();
        let mut left = match device.quiesce() {
            Ok(still) => free(&still, names, graphs, arenas),
            Err(fault) => {
                let lost = unproved(&device, names, arenas.as_ref(), &fault);
                // Each stream waits once more when it ends, and gives up, counted, what it cannot prove idle.
                drop((graphs, arenas, self.staging.take()));
                lost
            }
        };
        // Staging, kernels and the stream: after the memory that their work was on.
        drop(self);
        if device.counters().abandoned == abandoned {
            left.retain(|one| {
                one.note
                    .as_deref()
                    .is_none_or(|note| !note.starts_with(RESTLESS))
            });
        }
        left.extend(unreleased(&device));
        left
    }
}

/// Of what nobody can tell whether the device still uses it.
const RESTLESS: &str = "the device did not come to rest";

fn free<R: Driver>(
    still: &Quiesced<R>,
    names: &Names,
    graphs: Vec<Graph<R>>,
    arenas: Option<[Buffer<R>; 3]>,
) -> Vec<Resident> {
    let device = still.device().to_string();
    let mut left = Vec::new();
    for graph in graphs {
        if let Err((_, fault)) = still.retire(graph) {
            let one = Resident::uncounted(names.graphs, device.as_str());
            left.push(one.noted(fault.to_string()));
        }
    }
    for (buffer, what) in arenas.into_iter().flatten().zip(names.arenas) {
        if let Err((buffer, fault)) = still.free(buffer) {
            let one = Resident::new(what, device.as_str(), buffer.len());
            left.push(one.noted(fault.to_string()));
        }
    }
    left
}

fn unproved<R: Driver>(
    device: &Device<R>,
    names: &Names,
    arenas: Option<&[Buffer<R>; 3]>,
    fault: &Fault,
) -> Vec<Resident> {
    let arenas = arenas.into_iter().flatten().zip(names.arenas);
    let of = |(buffer, what): (&Buffer<R>, _)| {
        let one = Resident::new(what, device.id().to_string(), buffer.len());
        one.noted(format!("{RESTLESS}: {fault}"))
    };
    arenas.map(of).collect()
}

/// What the runtime refused to take back.
fn unreleased<R: Driver>(device: &Device<R>) -> Option<Resident> {
    let refused = device.unreleased();
    let one = Resident::uncounted("refused releases", device.id().to_string());
    (refused > 0).then(|| {
        one.noted(format!(
            "{refused}; asked once more when the device is closed"
        ))
    })
}
