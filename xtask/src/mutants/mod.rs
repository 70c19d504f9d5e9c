//! `xtask mutants`: shows that the tests notice the faults they were written for.
//!
//! One test build with the feature `mutants` holds every fault behind a number. For each row of
//! `docs/traps.md` the named tests run once without a fault, when they must pass, and once with it,
//! when one must fail. A fault that no test notices survives, and the verb fails.

mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use self::table::{Catcher, PATH, Row};
use crate::ci::counts;
use crate::failure::Failure;
use crate::testbins::{self, TestBin};
use crate::tidy::{Finding, Tree};
use crate::workspace::Workspace;
use crate::{parallel, sh};

/// Read by `engine_core::mutant` in builds with the feature, nowhere else.
const VARIABLE: &str = "FOURSPARK_MUTANT";
const TEST_LIMIT: Duration = Duration::from_secs(120);

/// The rule of `tidy`: the table and the hooks agree.
pub(crate) fn agreement(tree: &Tree) -> Vec<Finding> {
    let hooks =
        table::hooks(tree.texts(|path| path.ends_with(".rs") && !path.starts_with("xtask/")));
    let (rows, mut findings) = table::parse(tree.text(PATH).unwrap_or_default());
    findings.extend(table::disagreements(&rows, &hooks));
    findings
}

/// Entry of the verb. `args`: mutant numbers to try, all if empty.
///
/// # Errors
/// The table disagrees with the code, the tests do not build, or they fail without a fault.
pub(crate) fn run(args: &[String]) -> Result<bool, Failure> {
    let start = Instant::now();
    let workspace = Workspace::open()?;
    let rows = rows(&workspace, args)?;
    if rows.is_empty() {
        println!("{PATH} has no rows: nothing to show");
        return Ok(true);
    }
    let (shown, open): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|r| !r.catchers.is_empty());
    let runner = Runner {
        workspace: &workspace,
        bins: build(&workspace, &shown)?,
    };
    let matching = runner.baseline(&shown)?;
    let mutated: Vec<&Row> = shown
        .iter()
        .copied()
        .filter(|row| row.mutant.is_some())
        .collect();
    let fates = parallel::map(&mutated, |row| runner.fate(row, &matching));
    let mut survived = 0;
    for (row, fate) in mutated.iter().zip(fates) {
        let (caught, how) = fate?;
        survived += usize::from(!caught);
        println!(
            "{}",
            line(row, if caught { "caught" } else { "SURVIVED" }, &how)
        );
    }
    open.iter()
        .for_each(|row| println!("{}", line(row, "OPEN", "no test yet")));
    println!(
        "\n{} mutants, {survived} survived; {} traps with a test alone; {} open; {:.0} s",
        mutated.len(),
        shown.len() - mutated.len(),
        open.len(),
        start.elapsed().as_secs_f64()
    );
    Ok(survived == 0 && open.is_empty())
}

fn line(row: &Row, word: &str, how: &str) -> String {
    let id = row.mutant.map_or("-".to_owned(), |id| id.to_string());
    format!(
        "{id:>5}  trap {:<6} {word:<9} {how}  ({})",
        row.trap, row.fault
    )
}

fn rows(workspace: &Workspace, args: &[String]) -> Result<Vec<Row>, Failure> {
    let tree = Tree::read(workspace)?;
    let disagreements = agreement(&tree);
    if !disagreements.is_empty() {
        let lines = disagreements
            .iter()
            .map(|f| format!("{}:{}: {}", f.path, f.line, f.what));
        return Err(Failure::new(lines.collect::<Vec<_>>().join("\n")));
    }
    let (rows, _) = table::parse(tree.text(PATH).unwrap_or_default());
    let number = |arg: &String| {
        arg.parse::<u32>()
            .map_err(|_| Failure::new(format!("`{arg}` is no mutant")))
    };
    let wanted = args
        .iter()
        .map(number)
        .collect::<Result<BTreeSet<u32>, _>>()?;
    let chosen = |row: &Row| wanted.is_empty() || row.mutant.is_some_and(|id| wanted.contains(&id));
    let rows: Vec<Row> = rows.into_iter().filter(chosen).collect();
    let known: BTreeSet<u32> = rows.iter().filter_map(|row| row.mutant).collect();
    match wanted.difference(&known).next() {
        Some(id) => Err(Failure::new(format!("{PATH} has no mutant {id}"))),
        None => Ok(rows),
    }
}

fn build(workspace: &Workspace, rows: &[&Row]) -> Result<Vec<TestBin>, Failure> {
    let catchers = rows.iter().flat_map(|row| &row.catchers);
    let packages: BTreeSet<&str> = catchers.map(|c| c.package.as_str()).collect();
    // Without a package cargo would build the default ones.
    if packages.is_empty() {
        return Ok(Vec::new());
    }
    // Cargo takes features of the selected packages only; each passes its own on downwards.
    let features = ["mutants", "host-exec"]
        .into_iter()
        // Faults of the target on a device need the kernels' host build.
        .filter(|feature| *feature == "mutants" || sh::has("c++"))
        .flat_map(|feature| {
            let having = workspace.with_feature(feature).into_iter();
            having
                .filter(|name| packages.contains(name))
                .map(move |name| format!("{name}/{feature}"))
                .collect::<Vec<_>>()
        })
        .collect::<Vec<_>>()
        .join(",");
    let mut args = vec!["--features", features.as_str()];
    for package in &packages {
        args.extend(["--package", package]);
    }
    testbins::build(workspace, &args)
}

/// Binaries that hold at least one test of a catcher.
type Matching = BTreeMap<Catcher, Vec<TestBin>>;

struct Runner<'a> {
    workspace: &'a Workspace,
    bins: Vec<TestBin>,
}

impl Runner<'_> {
    /// Runs every catcher without a fault.
    fn baseline(&self, rows: &[&Row]) -> Result<Matching, Failure> {
        let catchers: BTreeSet<&Catcher> = rows.iter().flat_map(|row| &row.catchers).collect();
        let catchers: Vec<&Catcher> = catchers.into_iter().collect();
        let results = parallel::map(&catchers, |catcher| self.healthy(catcher));
        let mut matching = Matching::new();
        for (catcher, result) in catchers.into_iter().zip(results) {
            matching.insert(catcher.clone(), result?);
        }
        Ok(matching)
    }

    fn healthy(&self, catcher: &Catcher) -> Result<Vec<TestBin>, Failure> {
        let named = || format!("`{} {}`", catcher.package, catcher.filter);
        let mut having = Vec::new();
        for bin in self
            .bins
            .iter()
            .filter(|bin| bin.package == catcher.package)
        {
            let ran = self.start(bin, &catcher.filter, 0)?;
            if !ran.ok() {
                let said = sh::tail(&ran.output, 40);
                return Err(Failure::new(format!(
                    "{said}\n{} fails without a fault",
                    named()
                )));
            }
            if counts::read(&ran.output).passed > 0 {
                having.push(bin.clone());
            }
        }
        if having.is_empty() {
            return Err(Failure::new(format!("{PATH}: no test matches {}", named())));
        }
        Ok(having)
    }

    /// Whether the row's mutant is caught, and how.
    fn fate(&self, row: &Row, matching: &Matching) -> Result<(bool, String), Failure> {
        for catcher in &row.catchers {
            for bin in &matching[catcher] {
                let ran = self.start(bin, &catcher.filter, row.mutant.unwrap_or_default())?;
                if !ran.ok() {
                    let Catcher { package, filter } = catcher;
                    return Ok((true, format!("{package} {filter} [{}]", ran.ending())));
                }
            }
        }
        Ok((false, "every test passed".to_owned()))
    }

    fn start(&self, bin: &TestBin, filter: &str, mutant: u32) -> Result<sh::Ran, Failure> {
        let file = bin.path.file_name().unwrap_or_default().to_string_lossy();
        let name = format!("mutants/{mutant}-{file}-{}.log", filter.replace("::", "."));
        let log = self.workspace.target(&name);
        let mut command = bin.command();
        command
            .args([filter, "--test-threads=1"])
            .env(VARIABLE, mutant.to_string());
        // A failure that was planted must not leave a regression file behind.
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
        let ran = sh::run(&mut command, TEST_LIMIT, &log)?;
        if ran.ok() {
            let _ = fs::remove_file(&log);
        }
        Ok(ran)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_without_a_row_is_a_finding() {
        let tree = Tree::of(&[("crates/a/src/b.rs", "if mutant(3) {}\n")]);
        assert_eq!(agreement(&tree).len(), 1);
        assert_eq!(
            agreement(&Tree::of(&[("crates/a/src/b.rs", "fn a() {}\n")])),
            []
        );
    }
}
