//! Bars 9, 12, 13: simulation, fuzzers and hostile peers, calls dropped at random points.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::{Line, Mode};

fn root() -> PathBuf {
    let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.pop();
    path
}

fn output(name: &str, args: &[&str]) -> Result<Output, String> {
    let path = root().join("scripts").join(name);
    let output = Command::new(path).args(args).current_dir(root()).output();
    output.map_err(|error| format!("{name}: {error}"))
}

/// Runs a script; its last line is the summary.
fn script(name: &str, args: &[&str]) -> (bool, String) {
    match output(name, args) {
        Ok(output) => (output.status.success(), last_line(&output)),
        Err(error) => (false, error),
    }
}

fn last_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = |text: &str| text.lines().rev().find(|l| !l.trim().is_empty()).map(str::to_string);
    last(&text).or_else(|| last(&errors)).unwrap_or_default()
}

/// What reads cost, cached and cold, which is the same on a busy machine.
pub(crate) fn counted(_: Mode) -> Vec<Line> {
    let beside = std::env::current_exe().map(|this| this.with_file_name("counted"));
    let output = beside.and_then(|counted| Command::new(counted).arg("--check").output());
    let (text, ok) = match output {
        Ok(output) => (last_line(&output), output.status.success()),
        Err(error) => (format!("counted: {error}"), false),
    };
    let what = "instructions, memcpy calls, allocations of 4 KiB reads, depth 32";
    vec![Line::new("counted", what, "at most as many as written down").measured(text, ok)]
}

pub(crate) fn simulation(mode: Mode) -> Vec<Line> {
    let seeds = mode.pick("200", "2000");
    let (ok, text) = script("simulate.sh", &["--seeds", seeds]);
    let what = format!("{seeds} seeds of clients and server against a model, with faults");
    let mut lines = vec![Line::new("simulation", &what, "no failure").measured(text, ok)];
    let (ok, text) = script("simulate.sh", &["--planted"]);
    lines.push(
        Line::new("simulation", "planted defects, found within 200 seeds", "≥ 12; all within 600")
            .measured(text, ok),
    );
    lines
}

/// A client of an earlier build with today's server, and the other way round.
pub(crate) fn compatibility(mode: Mode) -> Vec<Line> {
    if !mode.long {
        return Vec::new();
    }
    let (ok, text) = script("compatibility.sh", &[]);
    let what = "client and server of today's build and of the commit in scripts/wire-baseline";
    vec![Line::new("compatibility", what, "all checks hold").measured(text, ok)]
}

pub(crate) fn hostile(mode: Mode) -> Vec<Line> {
    let seconds = mode.pick("15", "600");
    let (ok, text) = script("fuzz.sh", &[seconds]);
    let what = format!("fuzzers, {seconds} s each");
    let mut lines = vec![Line::new("hostile", &what, "no crash, no leak").measured(text, ok)];
    lines.extend(known_lies());
    lines.extend(known_lies_by_shm());
    lines.extend(lies(mode));
    lines
}

/// What a line of this name says, and whether that is as it must be.
fn told(text: &str, name: &str) -> Option<(String, bool)> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))?;
    let parts = line.rsplit_once(": ");
    Some(match parts {
        Some((figures, verdict)) => (figures.to_string(), verdict == "pass"),
        None => (line.to_string(), false),
    })
}

/// What `hostile.sh` says in its line of this name, as a line here.
fn lines_of(arguments: &[&str], lines: &[(&str, &str, &str)]) -> Vec<Line> {
    let (text, ended) = match output("hostile.sh", arguments) {
        Ok(output) => (String::from_utf8_lossy(&output.stdout).into_owned(), last_line(&output)),
        Err(error) => (String::new(), error),
    };
    let line = |(name, what, required): &(&str, &str, &str)| {
        let (figures, is_good) = told(&text, name).unwrap_or_else(|| (ended.clone(), false));
        Line::new("hostile", what, required).measured(figures, is_good)
    };
    lines.iter().map(line).collect()
}

const LIES: &str = "nobody's clients that send well-formed lies, by kinds";
const LIES_NEAR: &str = "the kinds that are told by shared memory";
const MEMORY: &str = "resident memory of their server, nearest to its bound";
const MOST: &str = "arena + 64 MiB + 70 KiB x connections";
const MOST_NEAR: &str = "that, and rings";
const WAITS: &str = "4 KiB of root's beside them, and alone, by turns";

fn known_lies() -> Vec<Line> {
    let lines = [
        ("kinds", LIES, "all refused"),
        ("memory", MEMORY, MOST),
        ("waits", WAITS, "at most 0.5 s more"),
    ];
    let mut lines = lines_of(&[], &lines);
    let waits = lines.pop().map(Line::timing);
    lines.extend(waits);
    lines
}

fn known_lies_by_shm() -> Vec<Line> {
    let lines = [("kinds", LIES_NEAR, "all refused"), ("memory", MEMORY, MOST_NEAR)];
    lines_of(&["--by", "shm"], &lines)
}

fn lies(mode: Mode) -> Vec<Line> {
    let seconds = mode.pick("30", "3600");
    let (ok, text) = script("lies.sh", &["--seconds", seconds]);
    let what = format!("{seconds} s of random lies by a process without rights");
    let required = "nothing seen, no end, data right";
    let mut lines = vec![Line::new("hostile", &what, required).measured(text, ok)];
    let seconds = mode.pick("10", "1800");
    let (ok, text) = script("lies.sh", &["--by", "shm", "--seconds", seconds]);
    let what = format!("{seconds} s of them by shared memory");
    lines.push(Line::new("hostile", &what, required).measured(text, ok));
    if mode.long {
        let (ok, text) = script("lies.sh", &["--planted"]);
        let what = "planted defects, found by random lies";
        lines.push(Line::new("hostile", what, "all within 600 s").measured(text, ok));
    }
    lines
}

pub(crate) fn dropped_calls(mode: Mode) -> Vec<Line> {
    let calls = mode.pick("5000", "100000");
    let (ok, text) = script("dropped-calls.sh", &[calls]);
    let what = format!("{calls} calls dropped or timed out, AddressSanitizer");
    vec![Line::new("dropped-calls", &what, "no buffer written after its return").measured(text, ok)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_by_its_name_and_says_how_it_ended() {
        let text = "kinds: 3 of 4 refused, 1 skipped: pass\nmemory: 5 of 6 MiB: MISS\nwaits: none";
        let found = |name| told(text, name);
        assert_eq!(found("kinds"), Some(("3 of 4 refused, 1 skipped".into(), true)));
        assert_eq!(found("memory"), Some(("5 of 6 MiB".into(), false)));
        assert_eq!(found("waits"), Some(("none".into(), false)));
        assert_eq!(found("wait"), None);
    }
}
