//! pjdfstest: the cases of pjdfstest that pass on ext4 pass through a mount of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dafs_tests::Place;
use dafs_tests::mounted::Ending;

use crate::script::{program, root, tool};
use crate::{Line, Mode};

/// Verdicts by case: `ok`, `FAILED`, `skipped`.
type Cases = BTreeMap<String, String>;

pub(crate) fn cases(_: Mode) -> Vec<Line> {
    let mut place = Place::fresh(Duration::from_secs(300));
    let exported = place.exported().to_path_buf();
    let mounted = place.path().to_path_buf();
    let line =
        Line::new("pjdfstest", "pjdfstest through the mount", "passes where ext4 itself passes");
    let mut run = |dir: &Path| verdicts(&mut place, dir);
    let result = run(&exported).and_then(|local| compare(&local, &run(&mounted)?, &exceptions()?));
    vec![line.result(result)]
}

fn verdicts(place: &mut Place, dir: &Path) -> Result<Cases, String> {
    let mut command = Command::new(tool("pjdfstest"));
    command.arg("-c").arg(root().join("tests/suites/pjdfstest.toml"));
    command.arg("-p").arg(dir).arg("-s").arg(place.beside());
    let undisturbed = (0, Duration::ZERO, Ending::Orderly);
    let (printed, _) = program(place, command, Duration::from_secs(250), undisturbed)?;
    let mut cases = Cases::new();
    for line in printed.text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [case, verdict @ ("ok" | "FAILED" | "skipped")] = words[..] {
            cases.insert(case.to_string(), verdict.to_string());
        }
    }
    if cases.is_empty() { Err(printed.end()) } else { Ok(cases) }
}

/// Cases that may fail, from the data file.
fn exceptions() -> Result<BTreeSet<String>, String> {
    let path = root().join("tests/suites/pjdfstest.exceptions");
    let text = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
    let mut cases = BTreeSet::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let Some((case, reason)) = line.split_once('|') else {
            return Err(format!("{}: expected CASE | REASON: {line}", path.display()));
        };
        if reason.trim().is_empty() {
            return Err(format!("{}: {case} has no reason", path.display()));
        }
        cases.insert(case.trim().to_string());
    }
    Ok(cases)
}

fn compare(
    local: &Cases,
    mounted: &Cases,
    exceptions: &BTreeSet<String>,
) -> Result<String, String> {
    let passed = |cases: &Cases, case: &str| cases.get(case).is_some_and(|verdict| verdict == "ok");
    let (mut same, mut wrong) = (0, Vec::new());
    for case in local.keys().filter(|case| passed(local, case)) {
        match (passed(mounted, case), exceptions.contains(case)) {
            (true, false) => same += 1,
            (false, true) => {}
            (false, false) => wrong.push(case.clone()),
            (true, true) => wrong.push(format!("{case} passes and is listed")),
        }
    }
    let unknown = exceptions.iter().filter(|case| !local.contains_key(*case));
    wrong.extend(unknown.map(|case| format!("{case} is listed and no case")));
    if wrong.is_empty() {
        return Ok(format!("{same} cases pass, {} exceptions", exceptions.len()));
    }
    Err(format!("{same} cases pass, {} do not: {}", wrong.len(), wrong.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_that_passes_only_on_the_disk_is_found() {
        let cases = |verdict: &str| {
            let pairs = [("chmod::a", "ok"), ("chmod::b", verdict), ("chmod::c", "skipped")];
            Cases::from(pairs.map(|(case, verdict)| (case.to_string(), verdict.to_string())))
        };
        let none = BTreeSet::new();
        assert!(compare(&cases("ok"), &cases("ok"), &none).is_ok());
        let listed = BTreeSet::from(["chmod::b".to_string()]);
        assert!(compare(&cases("ok"), &cases("skipped"), &listed).is_ok());
        assert!(compare(&cases("ok"), &cases("ok"), &listed).is_err(), "passes and is listed");
        assert!(compare(&cases("ok"), &cases("FAILED"), &none).is_err());
        assert!(compare(&cases("ok"), &cases("skipped"), &none).is_err());
        assert!(compare(&cases("FAILED"), &cases("FAILED"), &none).is_ok());
    }
}
