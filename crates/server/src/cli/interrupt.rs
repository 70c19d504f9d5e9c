//! Ctrl-C: the first one ends the answer in progress, without one or a second time it ends the
//! program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

/// Whether Ctrl-C was pressed since it was last asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    pressed: Arc<AtomicBool>,
}

impl Interrupt {
    /// Starts to listen. The process no longer dies of the first Ctrl-C.
    ///
    /// # Errors
    /// The system refuses a thread or a handler.
    pub(crate) fn listen() -> Result<Self> {
        let this = Self::default();
        let pressed = Arc::clone(&this.pressed);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .context("cannot listen for Ctrl-C")?;
        std::thread::Builder::new()
            .name("fourspark-signals".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    while tokio::signal::ctrl_c().await.is_ok() {
                        if pressed.swap(true, Ordering::SeqCst) {
                            // As a shell reports a program that died of Ctrl-C.
                            std::process::exit(130);
                        }
                    }
                });
            })
            .context("cannot listen for Ctrl-C")?;
        Ok(this)
    }

    /// Whether Ctrl-C was pressed; forgets it.
    pub(crate) fn take(&self) -> bool {
        self.pressed.swap(false, Ordering::SeqCst)
    }

    /// Whether Ctrl-C was pressed.
    pub(crate) fn is_pressed(&self) -> bool {
        self.pressed.load(Ordering::SeqCst)
    }
}
