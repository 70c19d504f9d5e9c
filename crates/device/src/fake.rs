//! A hostile device for tests: HIP's rules on host memory. Nothing runs before somebody waits or asks;
//! independent streams run in an order drawn from a seed, operations are held back, freed memory
//! stays poisoned and a later use is reported. The same seed gives the same run.

use crate::ability::{Ability, Lack};
use crate::cpu::facts;
use crate::driver::EarlyLaunch;
pub use crate::host::{BlockInfo, Defect};
use crate::host::{Chaos, Host, Seeded};
use crate::runtime::Runtime;
use crate::watch::Watched;

/// The driver of the fake device, without a watch.
pub type Fake = Host<Seeded>;

/// How the fake device behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Decides the order of independent streams, and delays.
    pub seed: u64,
    /// Most steps an operation is held back.
    pub delay: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Devices.
    pub devices: u32,
    /// A fault on purpose.
    pub defect: Option<Defect>,
    /// Name and version of a stand-in for a compiler.
    pub compiler: Option<String>,
    /// Whether it says that it starts kernels early. They run in order all the same: those that may be started
    /// early give the same bytes.
    pub early_launch: EarlyLaunch,
    /// Whether it pins memory of the host, and lets its devices reach each other.
    pub able: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 1,
            delay: 3,
            memory: 64 << 20,
            devices: 1,
            defect: None,
            compiler: None,
            early_launch: EarlyLaunch::Off("not asked for in its settings".into()),
            able: false,
        }
    }
}

/// The bare driver.
#[must_use]
pub fn driver(settings: &Settings) -> Fake {
    let chaos = Chaos {
        seed: settings.seed,
        delay: settings.delay,
        defect: settings.defect,
    };
    let mut facts = facts("fake".into(), settings.memory, 1);
    facts.early_launch = settings.early_launch.clone();
    facts.register = able(settings);
    // Handles are for another process, and this device is in one.
    facts.share = Ability::No(Lack::Kind("it lives in one process"));
    Fake::new(facts, settings.devices, settings.memory, Some(chaos))
        .with_compiler(settings.compiler.clone())
        .with_peers(able(settings))
}

fn able(settings: &Settings) -> Ability {
    Ability::when(settings.able, Lack::Kind("not asked for in its settings"))
}

/// A runtime of the fake device whose calls are counted and can be made to fail
/// (`runtime.driver().fail(...)`).
#[must_use]
pub fn runtime(settings: &Settings) -> Runtime<Watched<Fake>> {
    Runtime::new(Watched::new(driver(settings)))
}
