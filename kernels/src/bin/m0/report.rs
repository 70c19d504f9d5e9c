//! The results: a table for people, JSON for records.

use std::io::{self, Write};

use ds4_kernels::cases::Outcome;
use serde_json::{Value, json};

/// One kernel variant's time.
#[derive(Clone, Debug)]
pub(crate) struct Timing {
    /// Variant and its parameters.
    pub name: String,
    /// Median microseconds of a launch.
    pub us: f64,
    /// Spread of the middle half, percent of the median.
    pub spread: f64,
}

/// One shape measured.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// gemv or gemm.
    pub family: &'static str,
    /// Rows, K, columns.
    pub shape: [usize; 3],
    /// Bytes of weights a launch reads.
    pub bytes: u64,
    /// Variants that follow the contract, the first the one to beat.
    pub contract: Vec<Timing>,
    /// Variants in an order of their own.
    pub free: Vec<Timing>,
}

impl Line {
    pub(crate) fn best(list: &[Timing]) -> Option<&Timing> {
        list.iter().min_by(|a, b| a.us.total_cmp(&b.us))
    }

    /// Percent by which the best contract variant is slower than the best free one.
    pub(crate) fn price(&self) -> Option<f64> {
        let (c, f) = (Self::best(&self.contract)?, Self::best(&self.free)?);
        Some((c.us / f.us - 1.0) * 100.0)
    }

    /// GB/s of weights.
    pub(crate) fn gbs(&self, t: &Timing) -> f64 {
        self.bytes as f64 / t.us / 1e3
    }

    /// Tera integer operations a second.
    pub(crate) fn tops(&self, t: &Timing) -> f64 {
        2.0 * self.shape.iter().map(|s| *s as f64).product::<f64>() / t.us / 1e6
    }
}

/// A compiled kernel's resources.
#[derive(Clone, Debug)]
pub(crate) struct Compiled {
    pub kernel: &'static str,
    pub registers: u32,
    pub local: u32,
    pub shared: u32,
}

/// A launch of another family.
#[derive(Clone, Debug)]
pub(crate) struct Family {
    pub kernel: &'static str,
    /// Bytes that the launch must move: those of its buffers, or of the parts it visits.
    pub bytes: u64,
    /// What was timed.
    pub timing: Timing,
}

impl Family {
    fn gbs(&self) -> f64 {
        self.bytes as f64 / self.timing.us / 1e3
    }
}

/// Everything of one run.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    device: String,
    processors: u32,
    commit: String,
    pub cases: Vec<Outcome>,
    /// Name and GB/s of each memory ceiling; copies count bytes read plus bytes written.
    pub ceilings: Vec<(String, f64)>,
    pub compiled: Vec<Compiled>,
    pub lines: Vec<Line>,
    pub families: Vec<Family>,
    /// Comparisons of the timed kernels at the timed shapes.
    pub checks: Vec<Outcome>,
}

impl Report {
    pub(crate) fn new(device: String, processors: u32, commit: String) -> Self {
        Self {
            device,
            processors,
            commit,
            cases: Vec::new(),
            ceilings: Vec::new(),
            compiled: Vec::new(),
            lines: Vec::new(),
            families: Vec::new(),
            checks: Vec::new(),
        }
    }

    pub(crate) fn equal(&self) -> bool {
        self.cases.iter().chain(&self.checks).all(Outcome::equal)
    }

    fn ceiling(&self, name: &str) -> f64 {
        let found = self.ceilings.iter().find(|(n, _)| n == name);
        found.map_or(f64::NAN, |(_, gbs)| *gbs)
    }

    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let values: u64 = self
            .cases
            .iter()
            .chain(&self.checks)
            .map(|o| o.compared)
            .sum();
        let differing: u64 = self
            .cases
            .iter()
            .chain(&self.checks)
            .map(|o| o.differing)
            .sum();
        let count = self.cases.len() + self.checks.len();
        writeln!(
            out,
            "== {} ({} multiprocessors), commit {}",
            self.device, self.processors, self.commit
        )?;
        writeln!(
            out,
            "== {count} comparisons, {values} values, {differing} differ"
        )?;
        for (name, gbs) in &self.ceilings {
            writeln!(out, "{name}: {gbs:.0} GB/s")?;
        }
        for c in &self.compiled {
            let Compiled {
                kernel,
                registers,
                local,
                shared,
            } = c;
            writeln!(
                out,
                "{kernel}: {registers} registers, {local} B local, {shared} B shared"
            )?;
        }
        for line in &self.lines {
            self.print_line(line, out)?;
        }
        for f in &self.families {
            let (t, gbs) = (&f.timing, f.gbs());
            let share = 100.0 * gbs / self.ceiling("read");
            writeln!(
                out,
                "{}: {} {:.2} us (+-{:.1}%) {gbs:.0} GB/s {share:.0}%",
                t.name, f.kernel, t.us, t.spread
            )?;
        }
        Ok(())
    }

    fn print_line(&self, line: &Line, out: &mut impl Write) -> io::Result<()> {
        let [rows, k, cols] = line.shape;
        write!(out, "{} {rows}x{k} by {cols}:", line.family)?;
        for (label, list) in [("", &line.contract), (" | free", &line.free)] {
            write!(out, "{label}")?;
            for t in list {
                write!(out, " {} {:.2} us (+-{:.1}%)", t.name, t.us, t.spread)?;
                if line.family == "gemv" {
                    let gbs = line.gbs(t);
                    let share = 100.0 * gbs / self.ceiling("copy");
                    write!(out, " {gbs:.0} GB/s {share:.0}%,")?;
                } else {
                    write!(out, " {:.0} TOPS,", line.tops(t))?;
                }
            }
        }
        match line.price() {
            Some(price) => writeln!(out, " | price {price:+.1}%"),
            None => writeln!(out),
        }
    }

    pub(crate) fn json(&self) -> String {
        let outcome = |o: &Outcome| json!({"name": o.name, "compared": o.compared, "differing": o.differing, "first": o.first});
        let timing = |line: &Line, t: &Timing| json!({"name": t.name, "us": t.us, "spread_percent": t.spread, "gbs": line.gbs(t), "tops": line.tops(t)});
        let line = |l: &Line| {
            let list = |t: &[Timing]| Value::Array(t.iter().map(|t| timing(l, t)).collect());
            json!({"family": l.family, "rows": l.shape[0], "k": l.shape[1], "columns": l.shape[2],
                "weight_bytes": l.bytes, "contract": list(&l.contract), "free": list(&l.free),
                "price_percent": l.price()})
        };
        let compiled = |c: &Compiled| json!({"kernel": c.kernel, "registers": c.registers, "local": c.local, "shared": c.shared});
        let family = |f: &Family| {
            json!({"name": f.timing.name, "kernel": f.kernel, "bytes": f.bytes,
            "us": f.timing.us, "spread_percent": f.timing.spread, "gbs": f.gbs()})
        };
        let value = json!({
            "device": self.device, "multiprocessors": self.processors, "commit": self.commit,
            "equal": self.equal(),
            "cases": self.cases.iter().map(outcome).collect::<Vec<_>>(),
            "checks": self.checks.iter().map(outcome).collect::<Vec<_>>(),
            "ceilings_gbs": self.ceilings.iter().map(|(n, g)| json!({"name": n, "gbs": g})).collect::<Vec<_>>(),
            "compiled": self.compiled.iter().map(compiled).collect::<Vec<_>>(),
            "lines": self.lines.iter().map(line).collect::<Vec<_>>(),
            "families": self.families.iter().map(family).collect::<Vec<_>>(),
        });
        format!("{value:#}\n")
    }
}
