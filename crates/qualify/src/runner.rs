//! Running arms: the real one starts the binary, in a process and an empty environment of its own for
//! every run; the fake one of `selftest` makes runs up.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::answer::{micros, take};
use crate::command::{PROMPT, argv};
use crate::hash;
use crate::profile::{ArmSpec, Context, Profile, frozen_prompt};
use crate::run::{Run, blank};
use crate::{card, heat, machine};

/// Whoever can run an arm once.
pub trait Runner {
    /// One run. What goes wrong is in it: a run is never lost.
    fn run(&mut self, profile: &Profile, context: &Context, arm: &ArmSpec) -> Run;
}

/// The binary.
#[derive(Clone, Debug)]
pub struct Process {
    /// The repository's root: paths of artefacts are relative to it.
    pub root: PathBuf,
    /// The executable.
    pub program: PathBuf,
    /// A run that takes longer is ended and counted as failed.
    pub limit: Duration,
    /// Where the system says how hot it is, `/sys`.
    pub sys: PathBuf,
    /// The GPU that the comparison is about.
    pub card: Option<card::Source>,
    /// A folder for files that are needed for a while.
    pub scratch: PathBuf,
}

impl Runner for Process {
    fn run(&mut self, profile: &Profile, context: &Context, arm: &ArmSpec) -> Run {
        let argv = argv(profile, context, arm);
        let mut run = blank(argv, arm.env.clone());
        run.exe_blake3 = hash::file(&self.program).unwrap_or_default();
        run.load_centi = machine::load_centi();
        let before = machine::clock_mhz();
        let cool = heat::read(&self.sys);
        let look = || self.card.as_ref()?.read().map(|(_, look)| look);
        let idle = look();
        let start = Instant::now();
        let answer = self.answer(&run, context);
        run.wall_us = micros(start.elapsed().as_secs_f64());
        run.clocks_mhz = before.zip(machine::clock_mhz());
        (run.throttled, run.heat) = heat::between(&cool, &heat::read(&self.sys));
        let around = |(before, after)| card::Around { before, after };
        run.gpu = idle.zip(look()).map(around);
        match answer.and_then(|text| take(&mut run, &text, profile.label)) {
            Ok(()) => run.ok = true,
            Err(why) => run.error = why,
        }
        run
    }
}

impl Process {
    fn answer(&self, run: &Run, context: &Context) -> Result<String, String> {
        let prompt = frozen_prompt(&context.prompt)
            .ok_or_else(|| format!("no frozen prompt {:?}", context.prompt))?;
        let word = |w: &String| {
            if w == PROMPT {
                prompt.text.clone()
            } else {
                w.clone()
            }
        };
        let mut command = Command::new(&self.program);
        command
            .current_dir(&self.root)
            .args(run.argv.iter().map(word))
            .env_clear()
            .envs(run.env.iter().map(|(n, v)| (n, v)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|e| format!("{}: {e}", self.program.display()))?;
        let start = Instant::now();
        // An answer is a few kilobytes: it fits the pipe while the process is waited for.
        while child.try_wait().map_err(|e| e.to_string())?.is_none() {
            if start.elapsed() > self.limit {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("timeout after {} s", self.limit.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let output = child.wait_with_output().map_err(|e| e.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("{}: {}", output.status, said.trim()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
