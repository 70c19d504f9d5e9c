//! Progress of long work on the terminal; nothing where standard error is not one.

use indicatif::{ProgressBar, ProgressStyle};
use model_tools::Progress;

use super::interrupt::Interrupt;

/// A bar over the items or bytes of a stage. Ctrl-C stops the work; nothing half done is kept.
#[derive(Debug)]
pub(crate) struct Bar {
    bar: ProgressBar,
    bytes: bool,
    interrupt: Interrupt,
}

impl Bar {
    pub(crate) fn new(interrupt: Interrupt) -> Self {
        Self {
            bar: ProgressBar::hidden(),
            bytes: false,
            interrupt,
        }
    }
}

impl Progress for Bar {
    fn begin(&mut self, stage: &'static str, items: u64, bytes: u64) {
        self.bytes = bytes > 0;
        let (length, template) = if self.bytes {
            let template =
                "{prefix} {bar:32} {bytes}/{total_bytes} {bytes_per_sec} {eta} {wide_msg}";
            (bytes, template)
        } else {
            (items, "{prefix} {bar:32} {pos}/{len} {eta} {wide_msg}")
        };
        let style = ProgressStyle::with_template(template);
        self.bar = ProgressBar::new(length)
            .with_prefix(stage)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    }

    fn done(&mut self, item: &str, bytes: u64) -> bool {
        self.bar.inc(if self.bytes { bytes } else { 1 });
        self.bar.set_message(item.to_owned());
        !self.interrupt.is_pressed()
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
