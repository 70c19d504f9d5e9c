//! Who hears of a model's way onto a device.
//!
//! Must not know: how it is shown.

use std::fmt;
use std::sync::Arc;

/// How far a model is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upload<'a> {
    /// `model` or `drafter`.
    pub what: &'static str,
    /// The device, as `cuda:0`.
    pub device: &'a str,
    /// Bytes that stand there.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// Hears of it after every tensor, on the thread that loads.
type Hears = Arc<dyn Fn(&Upload<'_>) + Send + Sync>;

/// Who hears of it; nobody by default.
#[derive(Clone, Default)]
pub struct Progress(Option<Hears>);

impl Progress {
    /// Tells `hears`.
    #[must_use]
    pub fn new(hears: impl Fn(&Upload<'_>) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hears)))
    }

    pub(crate) fn tell(&self, upload: &Upload<'_>) {
        tracing::debug!(?upload, "bytes of weights");
        if let Some(hears) = &self.0 {
            hears(upload);
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Progress(heard: {})", self.0.is_some())
    }
}

impl PartialEq for Progress {
    /// Whether the same one hears.
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }
}

impl Eq for Progress {}
