//! Child processes: run with a time limit, their output kept in a log file.
//!
//! Separate so that every verb has the same rules: no shell, no inherited standard input, a hung
//! test is ended together with what it started, and the log stays after the run. Children stay in
//! this process's group, so that an interrupt at the terminal ends them too.

use std::fs::{self, File};
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
            end_tree(child);
            child.wait().map_err(lost)?;
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}

/// Ends the child and what it started: test binaries start workers of their own.
fn end_tree(child: &mut Child) {
    let started = descendants(child.id());
    // The child first, so that it starts nothing more; it may be gone already.
    let _ = child.kill();
    let pids = started.iter().map(u32::to_string);
    let _ = Command::new("kill")
        .arg("-KILL")
        .args(pids)
        .stderr(Stdio::null())
        .status();
}

/// Everything below a process, where the system shows its processes as files.
fn descendants(root: u32) -> Vec<u32> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // `pid (name) state parent ...`; the name may hold anything, brackets too.
        let after = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let parent = after
            .split_whitespace()
            .nth(1)
            .and_then(|p| p.parse::<u32>().ok());
        all.extend(parent.map(|parent| (pid, parent)));
    }
    let mut found = vec![root];
    let mut at = 0;
    while at < found.len() {
        let parent = found[at];
        found.extend(
            all.iter()
                .filter(|(_, p)| *p == parent)
                .map(|(pid, _)| *pid),
        );
        at += 1;
    }
    found.split_off(1)
}

/// A cargo that keeps nothing for a later change of the sources: that costs a build time and space that
/// these runs, all of which build whole crates, do not win back.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.env("CARGO_INCREMENTAL", "0").args(args);
    command
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
