//! Bars 9, 12, 13: simulation, fuzzers and hostile peers, calls dropped at random points.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::{Line, Mode};

fn root() -> PathBuf {
    let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.pop();
    path
}

/// Runs a script; its last line is the summary.
fn script(name: &str, args: &[&str]) -> (bool, String) {
    let output =
        Command::new(root().join("scripts").join(name)).args(args).current_dir(root()).output();
    match output {
        Ok(output) => (output.status.success(), last_line(&output)),
        Err(error) => (false, format!("{name}: {error}")),
    }
}

fn last_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = |text: &str| text.lines().rev().find(|l| !l.trim().is_empty()).map(str::to_string);
    last(&text).or_else(|| last(&errors)).unwrap_or_default()
}

pub(crate) fn simulation(mode: Mode) -> Vec<Line> {
    let seeds = mode.pick("200", "2000");
    let (ok, text) = script("simulate.sh", &["--seeds", seeds]);
    let what = format!("{seeds} seeds of clients and server against a model, with faults");
    let mut lines = vec![Line::new("9", &what, "no failure").measured(text, ok)];
    let (ok, text) = script("simulate.sh", &["--planted"]);
    lines.push(
        Line::new("9", "planted defects, found within 200 seeds", "≥ 12; all within 600")
            .measured(text, ok),
    );
    lines
}

pub(crate) fn hostile(mode: Mode) -> Vec<Line> {
    let seconds = mode.pick("15", "600");
    let (ok, text) = script("fuzz.sh", &[seconds]);
    let what = format!("fuzzers, {seconds} s each");
    let mut lines = vec![Line::new("12", &what, "no crash, no leak").measured(text, ok)];
    let (ok, text) = script("hostile.sh", &[]);
    lines.push(
        Line::new("12", "a hostile client that sends well-formed lies", "limits hold")
            .measured(text, ok),
    );
    lines.extend(lies(mode));
    lines
}

fn lies(mode: Mode) -> Vec<Line> {
    let seconds = mode.pick("30", "3600");
    let (ok, text) = script("lies.sh", &["--seconds", seconds]);
    let what = format!("{seconds} s of random lies by a process without rights");
    let required = "nothing seen, no end, data right";
    let mut lines = vec![Line::new("12", &what, required).measured(text, ok)];
    if mode.long {
        let (ok, text) = script("lies.sh", &["--planted"]);
        let what = "planted defects, found by random lies";
        lines.push(Line::new("12", what, "all within 600 s").measured(text, ok));
    }
    lines
}

pub(crate) fn dropped_calls(mode: Mode) -> Vec<Line> {
    let calls = mode.pick("5000", "100000");
    let (ok, text) = script("dropped-calls.sh", &[calls]);
    let what = format!("{calls} calls dropped or timed out, AddressSanitizer");
    vec![Line::new("13", &what, "no buffer written after its return").measured(text, ok)]
}
