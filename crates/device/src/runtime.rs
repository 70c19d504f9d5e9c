//! A runtime that was found, and the way from it to its devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::Device;
use crate::driver::{Driver, Facts, Kind};
use crate::fault::{DeviceId, Fault};

static INSTANCES: AtomicU64 = AtomicU64::new(1);

/// A runtime of this process. Two instances of one kind are two runtimes: their handles do not mix.
#[derive(Debug)]
pub struct Runtime<R: Driver> {
    driver: Arc<R>,
    instance: u64,
}

impl<R: Driver> Clone for Runtime<R> {
    fn clone(&self) -> Self {
        let driver = Arc::clone(&self.driver);
        Self {
            driver,
            instance: self.instance,
        }
    }
}

impl<R: Driver> Runtime<R> {
    /// A runtime over a driver.
    #[must_use]
    pub fn new(driver: R) -> Self {
        Self {
            driver: Arc::new(driver),
            instance: INSTANCES.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// The same driver as another runtime: handles of the two do not mix.
    #[must_use]
    pub fn twin(&self) -> Self {
        Self {
            driver: Arc::clone(&self.driver),
            instance: INSTANCES.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Which one.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.driver.kind()
    }

    /// The driver below, for its own counters and settings.
    #[must_use]
    pub fn driver(&self) -> &Arc<R> {
        &self.driver
    }

    /// How many devices it has.
    ///
    /// # Errors
    /// `Call`.
    pub fn count(&self) -> Result<u32, Fault> {
        self.driver.count().map_err(|e| self.fault(0, e))
    }

    /// Describes a device without opening it.
    ///
    /// # Errors
    /// `NoDevice`, `Call`.
    pub fn facts(&self, ordinal: u32) -> Result<Facts, Fault> {
        self.exists(ordinal)?;
        self.driver
            .facts(ordinal)
            .map_err(|e| self.fault(ordinal, e))
    }

    /// Opens a device.
    ///
    /// # Errors
    /// `NoDevice`, `Call`.
    pub fn open(&self, ordinal: u32) -> Result<Device<R>, Fault> {
        let facts = self.facts(ordinal)?;
        let handle = self
            .driver
            .open(ordinal)
            .map_err(|e| self.fault(ordinal, e))?;
        let driver = Arc::clone(&self.driver);
        Ok(Device::new(driver, self.id(ordinal), facts, handle))
    }

    pub(crate) fn exists(&self, ordinal: u32) -> Result<(), Fault> {
        let count = self.driver.count().map_err(|e| self.fault(ordinal, e))?;
        if ordinal < count {
            return Ok(());
        }
        Err(Fault::NoDevice {
            kind: self.kind(),
            got: ordinal,
            count,
        })
    }

    pub(crate) fn id(&self, ordinal: u32) -> DeviceId {
        DeviceId {
            kind: self.kind(),
            ordinal,
            instance: self.instance,
        }
    }

    fn fault(&self, ordinal: u32, e: crate::driver::DriverError) -> Fault {
        Fault::of(self.id(ordinal), e)
    }
}
