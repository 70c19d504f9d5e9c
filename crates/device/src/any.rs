//! A device without its runtime's type, for code that must not know which: what a transport between processes needs.

use std::fmt;
use std::sync::Arc;

use crate::device::Device;
use crate::driver::Driver;
use crate::fault::Fault;
use crate::registered::{HostMemory, Registered};
use crate::shared::{self, Handle, Probe};

/// Host memory that is pinned as long as this lives.
pub trait Pin: fmt::Debug + Send + Sync {}

impl<R: Driver> Pin for Registered<R> {}

/// The lender's half of a probe of memory across processes.
pub trait Lending: fmt::Debug + Send + Sync {
    /// The handle for the borrower.
    fn handle(&self) -> Handle;

    /// Whether the borrower's pattern is there.
    ///
    /// # Errors
    /// The first byte that differs, or the fault.
    fn check(&self) -> Result<(), String>;
}

impl<R: Driver> Lending for Probe<R> {
    fn handle(&self) -> Handle {
        Self::handle(self)
    }

    fn check(&self) -> Result<(), String> {
        Self::check(self)
    }
}

/// A device of any runtime.
pub trait AnyDevice: fmt::Debug + Send + Sync {
    /// Its name: `cuda:0`.
    fn name(&self) -> String;

    /// Pins memory of the host, see [`Device::register`].
    ///
    /// # Errors
    /// As there.
    fn pin(&self, memory: Arc<dyn HostMemory>) -> Result<Box<dyn Pin>, Fault>;

    /// Begins a probe of memory across processes, see [`Probe::new`].
    ///
    /// # Errors
    /// As there.
    fn lend(&self, seed: u64) -> Result<Box<dyn Lending>, Fault>;

    /// Answers another process's probe, see [`shared::answer`].
    ///
    /// # Errors
    /// As there.
    fn answer(&self, handle: &Handle, seed: u64) -> Result<(), String>;
}

impl<R: Driver> AnyDevice for Device<R> {
    fn name(&self) -> String {
        self.id().to_string()
    }

    fn pin(&self, memory: Arc<dyn HostMemory>) -> Result<Box<dyn Pin>, Fault> {
        Ok(Box::new(self.register(memory)?))
    }

    fn lend(&self, seed: u64) -> Result<Box<dyn Lending>, Fault> {
        Ok(Box::new(Probe::new(self, seed)?))
    }

    fn answer(&self, handle: &Handle, seed: u64) -> Result<(), String> {
        shared::answer(self, handle, seed)
    }
}
