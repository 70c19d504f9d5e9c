//! Reads how many tests ran from what the runners print: nextest's summary line and libtest's
//! `test result:` lines.

/// Results of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Ignored tests: the soak tests.
    pub(crate) ignored: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

/// Sums every summary in a runner's output.
pub(crate) fn read(output: &str) -> Counts {
    let mut sum = Counts::default();
    for line in output.lines() {
        // Not trimmed: nextest repeats a failed test's own output, indented.
        if let Some(rest) = line.strip_prefix("test result:") {
            sum += fields(
                rest.split(';')
                    .map(|part| part.rsplit_once(". ").map_or(part, |x| x.1)),
            );
        } else if let Some(rest) = nextest(line) {
            sum += fields(without_brackets(rest).split(','));
        }
    }
    sum
}

/// Tests that took at least `from` seconds, slowest first, as nextest reports them.
pub(crate) fn slow(output: &str, from: f64) -> Vec<(f64, String)> {
    let mut slow: Vec<(f64, String)> = output.lines().filter_map(timed).collect();
    slow.retain(|(seconds, _)| *seconds >= from);
    slow.sort_by(|a, b| b.0.total_cmp(&a.0));
    slow.dedup();
    slow
}

/// `PASS [   9.618s] (  3/339) text tokenizer::long` or the same with FAIL.
fn timed(line: &str) -> Option<(f64, String)> {
    let line = line.trim_start();
    let rest = line
        .strip_prefix("PASS [")
        .or_else(|| line.strip_prefix("FAIL ["))?;
    let (seconds, rest) = rest.split_once("s] ")?;
    let name = rest
        .trim_start()
        .strip_prefix('(')
        .and_then(|r| r.split_once(") "))
        .map(|r| r.1);
    Some((
        seconds.trim().parse().ok()?,
        name.unwrap_or(rest).to_owned(),
    ))
}

/// What follows `tests run:` in `Summary [ 0.1s] 3/5 tests run: 2 passed (1 slow), 1 failed`.
fn nextest(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("Summary [")?;
    let (_, counts) = rest.split_once("run:")?;
    Some(counts)
}

fn fields<'a>(parts: impl Iterator<Item = &'a str>) -> Counts {
    let mut counts = Counts::default();
    for part in parts {
        let mut words = part.split_whitespace();
        let (Some(number), Some(word)) = (words.next(), words.next()) else {
            continue;
        };
        let Ok(number) = number.parse::<u64>() else {
            continue;
        };
        match word {
            "passed" => counts.passed += number,
            "failed" | "timed" | "exec" => counts.failed += number,
            "ignored" | "skipped" => counts.ignored += number,
            _ => {}
        }
    }
    counts
}

fn without_brackets(text: &str) -> String {
    let mut inside = 0usize;
    let mut kept = String::new();
    for c in text.chars() {
        match c {
            '(' => inside += 1,
            ')' => inside = inside.saturating_sub(1),
            c if inside == 0 => kept.push(c),
            _ => {}
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(passed: u64, failed: u64, ignored: u64) -> Counts {
        Counts {
            passed,
            failed,
            ignored,
        }
    }

    #[test]
    fn libtest_lines_are_summed() {
        let text = "\
test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.1s
    test result: FAILED. 9 passed; 9 failed; 0 ignored; 0 measured; 0 filtered out

test result_of_mine ... ok";
        assert_eq!(read(text), counts(5, 4, 1));
    }

    #[test]
    fn nextest_summaries_are_read() {
        let text = "     Summary [   0.005s] 13 tests run: 13 passed, 2 skipped";
        assert_eq!(read(text), counts(13, 0, 2));
        let text = "Summary [  9.1s] 9/12 tests run: 5 passed (1 slow, 2 leaky), 1 failed, \
                    1 timed out, 2 exec failed, 0 skipped";
        assert_eq!(read(text), counts(5, 4, 0));
        assert_eq!(
            read("     Summary [   0.000s] 1 test run: 1 passed, 0 skipped"),
            counts(1, 0, 0)
        );
    }

    #[test]
    fn slow_tests_are_named() {
        let text = "        PASS [   0.005s] (  1/339) a::b quick\n\
                            PASS [   9.618s] (  3/339) text tokenizer::long\n\
                            FAIL [ 161.687s] (339/339) ds4-target::one_result every width\n";
        let want = [
            (161.687, "ds4-target::one_result every width"),
            (9.618, "text tokenizer::long"),
        ];
        assert_eq!(slow(text, 5.0), want.map(|(s, n)| (s, n.to_owned())));
        assert_eq!(slow("PASS [soon] x", 0.0), []);
    }

    #[test]
    fn other_text_counts_nothing() {
        assert_eq!(read("3 passed; 4 failed\nSummary [x]\n"), Counts::default());
    }
}
