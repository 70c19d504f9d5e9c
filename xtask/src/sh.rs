//! Child processes: run with a time limit, their output kept in a log file.
//!
//! Separate so that every verb has the same rules: no shell, no inherited standard input, one
//! process group a child (a hung test is ended together with what it started), and a log that
//! stays after the run.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;

const POLL: Duration = Duration::from_millis(20);

/// How a child ended.
#[derive(Debug)]
pub(crate) struct Ran {
    /// `None`: it ran into the limit and was ended.
    pub(crate) status: Option<ExitStatus>,
    /// Standard output and error, interleaved as written.
    pub(crate) output: String,
}

impl Ran {
    /// Whether it ended by itself with status 0.
    pub(crate) fn ok(&self) -> bool {
        self.status.is_some_and(|s| s.success())
    }

    /// "exit 101", "signal 9" or "over its limit".
    pub(crate) fn ending(&self) -> String {
        use std::os::unix::process::ExitStatusExt;
        match self.status {
            None => "over its time limit".to_owned(),
            Some(s) => match (s.code(), s.signal()) {
                (Some(code), _) => format!("exit {code}"),
                (None, Some(signal)) => format!("signal {signal}"),
                (None, None) => s.to_string(),
            },
        }
    }
}

/// Runs `command` to its end or for at most `limit`, writing both streams to `log`.
///
/// # Errors
/// The program cannot be started, or the log cannot be written or read.
pub(crate) fn run(command: &mut Command, limit: Duration, log: &Path) -> Result<Ran, Failure> {
    let io = |error: std::io::Error| Failure::io(log, &error);
    if let Some(folder) = log.parent() {
        fs::create_dir_all(folder).map_err(io)?;
    }
    let file = File::create(log).map_err(io)?;
    let twin = file.try_clone().map_err(io)?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(twin)
        .process_group(0)
        .spawn()
        .map_err(|e| Failure::new(format!("cannot start {:?}: {e}", command.get_program())))?;
    let status = wait(&mut child, Instant::now() + limit)?;
    let output = String::from_utf8_lossy(&fs::read(log).map_err(io)?).into_owned();
    Ok(Ran { status, output })
}

fn wait(child: &mut Child, deadline: Instant) -> Result<Option<ExitStatus>, Failure> {
    let lost = |error: std::io::Error| Failure::new(format!("waiting for a child: {error}"));
    loop {
        if let Some(status) = child.try_wait().map_err(lost)? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            end_group(child);
            child.wait().map_err(lost)?;
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}

/// Ends the child's whole process group: test binaries start workers of their own.
fn end_group(child: &mut Child) {
    let group = format!("-{}", child.id());
    let ended = Command::new("kill").args(["-KILL", "--", &group]).status();
    if !ended.is_ok_and(|s| s.success()) {
        // The group may be gone already; the child itself must not stay.
        let _ = child.kill();
    }
}

/// Standard output of a short command, `None` if it is missing or fails.
pub(crate) fn capture(command: &mut Command) -> Option<String> {
    let out = command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    out.status
        .success()
        .then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// Whether `program` starts and answers `--version`.
pub(crate) fn has(program: &str) -> bool {
    capture(Command::new(program).arg("--version")).is_some()
}

/// The last `n` lines, without cargo's progress.
pub(crate) fn tail(text: &str, n: usize) -> String {
    let progress = [
        "Compiling ",
        "Checking ",
        "Documenting ",
        "Downloaded ",
        "Downloading ",
    ];
    let said = |line: &&str| !progress.iter().any(|p| line.trim_start().starts_with(p));
    let lines: Vec<&str> = text.lines().filter(said).collect();
    lines[lines.len().saturating_sub(n)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("xtask-sh-{}-{name}.log", std::process::id()))
    }

    #[test]
    fn keeps_both_streams_and_the_status() {
        let path = log("both");
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 7"]);
        let ran = run(&mut command, Duration::from_secs(20), &path).unwrap();
        assert_eq!(ran.output, "out\nerr\n");
        assert!(!ran.ok());
        assert_eq!(ran.ending(), "exit 7");
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn ends_a_child_and_what_it_started() {
        let path = log("limit");
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]);
        let ran = run(&mut command, Duration::from_millis(300), &path).unwrap();
        assert!(ran.status.is_none() && !ran.ok());
        assert_eq!(ran.ending(), "over its time limit");
        let grandchild = ran.output.trim().to_owned();
        // It is gone, or a zombie that nobody has reaped yet, as soon as the system gets to it;
        // the runner's time limit ends the wait otherwise.
        let stat = format!("/proc/{grandchild}/stat");
        while fs::read_to_string(&stat).is_ok_and(|state| !state.contains(") Z ")) {
            thread::yield_now();
        }
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_missing_program_is_named() {
        let path = log("missing");
        let error = run(
            &mut Command::new("no-such-program-here"),
            Duration::from_secs(1),
            &path,
        )
        .unwrap_err();
        assert!(
            error.to_string().contains("no-such-program-here"),
            "{error}"
        );
        assert!(!has("no-such-program-here"));
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn tail_takes_the_end() {
        assert_eq!(tail("a\nb\nc", 2), "b\nc");
        assert_eq!(tail("a", 5), "a");
        assert_eq!(tail("   Compiling x v1\nerror: y\n", 5), "error: y");
    }
}
