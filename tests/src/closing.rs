//! The last line of a run of all tests: how many there were of each verdict, and what was skipped
//! with its reason.

use std::collections::BTreeMap;

use crate::acceptance::Verdict;
use crate::machine::SKIPPED;

/// Verdicts of tests and of bars.
#[derive(Debug, Default)]
pub struct Closing {
    tests: u64,
    bars: u64,
    failed: u64,
    late: u64,
    /// Names, by reason.
    skipped: BTreeMap<String, Vec<String>>,
}

impl Closing {
    /// Adds what `cargo test -- --show-output` printed: a test that skips says so on a line that
    /// begins with [`SKIPPED`], and passes.
    pub fn add_tests(&mut self, printed: &str) {
        let (mut name, mut skipped) = ("", 0);
        for line in printed.lines() {
            if let Some(text) = line.strip_prefix("---- ") {
                name = text.trim_end_matches(" stdout ----");
            } else if let Some(reason) = line.strip_prefix(SKIPPED).filter(|_| !name.is_empty()) {
                self.skip(std::mem::take(&mut name), reason);
                skipped += 1;
            } else if let Some(counts) = line.strip_prefix("test result: ") {
                self.tests += number_before(counts, " passed;");
                self.failed += number_before(counts, " failed;");
            }
        }
        self.tests = self.tests.saturating_sub(skipped);
    }

    /// Adds a bar.
    pub fn add_bar(&mut self, name: &str, verdict: &Verdict, timing: bool) {
        match verdict {
            Verdict::Pass => self.bars += 1,
            Verdict::Miss if timing => self.late += 1,
            Verdict::Miss => self.failed += 1,
            Verdict::Skipped(reason) => self.skip(name, reason),
        }
    }

    /// Adds what the bars printed: the verdict stands at the end of each line.
    pub fn add_table(&mut self, printed: &str) {
        for line in printed.lines().filter(|line| !line.starts_with("== ")) {
            let name = name_in(line);
            if line.ends_with(" pass") {
                self.add_bar(&name, &Verdict::Pass, false);
            } else if line.ends_with(" MISS") || line.ends_with(" MISS (timing)") {
                self.add_bar(&name, &Verdict::Miss, line.ends_with(')'));
            } else if let Some((_, reason)) = line.rsplit_once(" skipped: ") {
                self.add_bar(&name, &Verdict::Skipped(reason.into()), false);
            }
        }
    }

    fn skip(&mut self, name: &str, reason: &str) {
        self.skipped.entry(reason.trim().to_owned()).or_default().push(name.to_owned());
    }

    /// Nothing failed.
    pub fn is_good(&self) -> bool {
        self.failed == 0
    }

    /// All was tried.
    pub fn is_complete(&self) -> bool {
        self.skipped.is_empty()
    }

    /// The line.
    pub fn line(&self) -> String {
        let (tests, bars, failed, late) = (self.tests, self.bars, self.failed, self.late);
        let skipped: usize = self.skipped.values().map(Vec::len).sum();
        let mut line = format!("{tests} tests and {bars} bars passed, {failed} failed");
        if late > 0 {
            line += &format!(
                ", {late} missed their time (MISS (timing): fails nothing, machines are busy)"
            );
        }
        line += &format!(", {skipped} skipped");
        for (index, (reason, names)) in self.skipped.iter().enumerate() {
            line += if index == 0 { ": " } else { "; " };
            line += &format!("{} ({reason})", names.join(", "));
        }
        line
    }
}

fn number_before(text: &str, what: &str) -> u64 {
    let before = text.split_once(what).map_or("", |(before, _)| before);
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Number and subject of a line of a table, which has two blanks between columns at least.
fn name_in(line: &str) -> String {
    let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
    let (number, rest) = line.split_once(' ').unwrap_or((&words, ""));
    let what = rest.trim_start().split("  ").next().unwrap_or_default();
    format!("{number} {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTS: &str = "
running 3 tests
test copies ... ok
successes:

---- limits stdout ----
some output

---- mounted stdout ----
skipped: needs root and /dev/fuse
skipped: and so a second time

test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.18s
test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0s
";

    #[test]
    fn verdicts_are_counted_and_what_is_skipped_is_named() {
        let mut closing = Closing::default();
        closing.add_tests(TESTS);
        assert!(!closing.is_good() && !closing.is_complete());
        closing.add_table(
            "bar  what                required  measured  verdict\n\
             m1   a disk              full      full      pass\n\
             m2   a time              short     9 s       MISS (timing)\n\
             m9   another user        EACCES              skipped: needs root and /dev/fuse\n\
             s11  rings: of a server  some                skipped: no io_uring here: EPERM\n\
             == 1 tests passed, 1 skipped: theirs\n",
        );
        assert_eq!(
            closing.line(),
            "7 tests and 1 bars passed, 2 failed, 1 missed their time (MISS (timing): fails \
             nothing, machines are busy), 3 skipped: mounted, m9 another user (needs root and /dev/fuse); \
             s11 rings: of a server (no io_uring here: EPERM)"
        );
    }

    #[test]
    fn a_table_without_a_word_of_it_counts_nothing() {
        let mut closing = Closing::default();
        closing.add_table("== bars\nbar what required measured verdict\n");
        closing.add_tests("running 0 tests\n\ntest result: ok. 0 passed; 0 failed;\n");
        assert_eq!(closing.line(), "0 tests and 0 bars passed, 0 failed, 0 skipped");
        assert!(closing.is_good() && closing.is_complete());
    }
}
