//! A model's way onto a device, on standard error: a bar on a terminal, else a line at each tenth.
//!
//! Must not know: devices, what is sent.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fourspark::{Progress, Upload};
use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};

use super::out;

/// Shows it.
pub(crate) fn progress() -> Progress {
    let terminal = std::io::stderr().is_terminal();
    let shown: Mutex<Option<Shown>> = Mutex::default();
    Progress::new(move |upload| {
        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        let now = shown.get_or_insert_with(|| Shown::new(upload, terminal));
        now.hear(upload);
        if upload.done >= upload.total {
            *shown = None;
        }
    })
}

/// One upload.
struct Shown {
    bar: Option<ProgressBar>,
    begun: Instant,
    /// Tenths that were told.
    told: u64,
}

impl Shown {
    fn new(upload: &Upload<'_>, terminal: bool) -> Self {
        Self {
            bar: terminal.then(|| bar(upload)),
            begun: Instant::now(),
            told: 0,
        }
    }

    fn hear(&mut self, upload: &Upload<'_>) {
        if let Some(bar) = &self.bar {
            bar.set_position(upload.done);
            return;
        }
        if let Some(tenth) = next_tenth(self.told, upload) {
            self.told = tenth;
            out::note(&line(upload, self.begun.elapsed()));
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(upload: &Upload<'_>) -> ProgressBar {
    let template = "{prefix} {bar:32} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    let style = ProgressStyle::with_template(template);
    ProgressBar::new(upload.total)
        .with_prefix(format!("{} to {}", upload.what, upload.device))
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The tenth reached, if it was not told.
fn next_tenth(told: u64, upload: &Upload<'_>) -> Option<u64> {
    let tenth = upload.done.saturating_mul(10) / upload.total.max(1);
    (tenth > told).then_some(tenth)
}

fn line(upload: &Upload<'_>, took: Duration) -> String {
    let Upload {
        what,
        device,
        done,
        total,
    } = *upload;
    let percent = 100.0 * done as f64 / total.max(1) as f64;
    let (done_shown, all) = (DecimalBytes(done), DecimalBytes(total));
    let seconds = took.as_secs_f64();
    let mut line = format!("{what} to {device}: {done_shown} of {all}, {percent:.0} %");
    if seconds > 0.0 && done > 0 {
        let rate = done as f64 / seconds;
        let rest = total.saturating_sub(done) as f64 / rate;
        line += &format!(
            ", {} a second, {rest:.1} s to go",
            DecimalBytes(rate as u64)
        );
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(done: u64) -> Upload<'static> {
        Upload {
            what: "model",
            device: "hip:0",
            done,
            total: 2_000,
        }
    }

    #[test]
    fn each_tenth_is_told_once() {
        let mut told = 0;
        let mut lines = Vec::new();
        for done in [1, 199, 200, 250, 390, 401, 1_500, 1_999, 2_000] {
            if let Some(tenth) = next_tenth(told, &at(done)) {
                (told, _) = (tenth, lines.push((done, tenth)));
            }
        }
        let want = [(200, 1), (401, 2), (1_500, 7), (1_999, 9), (2_000, 10)];
        assert_eq!(lines, want);
    }

    #[test]
    fn a_line_says_how_much_how_fast_and_how_long() {
        let said = line(&at(500), Duration::from_secs(2));
        assert_eq!(
            said,
            "model to hip:0: 500 B of 2.00 kB, 25 %, 250 B a second, 6.0 s to go"
        );
        let said = line(&at(0), Duration::ZERO);
        assert_eq!(said, "model to hip:0: 0 B of 2.00 kB, 0 %");
    }
}
