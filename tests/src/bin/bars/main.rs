//! The bars: what this project promises, measured. One line per bar:
//! number, what, required, measured, pass or miss.
//!
//! `bars` runs the short form, `bars --long` full sizes, `bars --only 3,4` some. Times are
//! reported and never fail a run, since machines are shared; everything else does.

#![forbid(unsafe_code)]

mod copies;
mod direct;
mod fairness;
mod faults;
mod fresh;
mod idle;
mod speed;
mod suites;
mod variants;

use std::process::ExitCode;

/// How a bar ended.
pub(crate) enum Verdict {
    Pass,
    Miss,
    Skipped(String),
}

/// One line of the table.
pub(crate) struct Line {
    pub number: &'static str,
    pub what: String,
    pub required: String,
    pub measured: String,
    pub verdict: Verdict,
    /// A matter of time, on a shared machine.
    pub timing: bool,
}

impl Line {
    pub(crate) fn new(number: &'static str, what: &str, required: &str) -> Line {
        let (what, required) = (what.to_string(), required.to_string());
        Line {
            number,
            what,
            required,
            measured: String::new(),
            verdict: Verdict::Miss,
            timing: false,
        }
    }

    /// A matter of time.
    pub(crate) fn timing(mut self) -> Line {
        self.timing = true;
        self
    }

    pub(crate) fn measured(mut self, measured: impl Into<String>, pass: bool) -> Line {
        self.measured = measured.into();
        self.verdict = if pass { Verdict::Pass } else { Verdict::Miss };
        self
    }

    pub(crate) fn skipped(mut self, reason: impl Into<String>) -> Line {
        self.verdict = Verdict::Skipped(reason.into());
        self
    }
}

/// Which sizes to run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mode {
    pub long: bool,
}

impl Mode {
    /// One of two values.
    pub(crate) fn pick<T>(self, short: T, long: T) -> T {
        if self.long { long } else { short }
    }
}

type Bar = (&'static str, fn(Mode) -> Vec<Line>);

const BARS: &[Bar] = &[
    ("1", fresh::first_byte),
    ("2", copies::trees),
    ("3", speed::stream),
    ("4", speed::latency),
    ("5", speed::rate),
    ("6", direct::counts),
    ("7", speed::writes),
    ("8", speed::small_files),
    ("9", suites::simulation),
    ("10", fairness::small_beside_bulk),
    ("11", faults::kills),
    ("12", suites::hostile),
    ("13", suites::dropped_calls),
    ("14", variants::all),
    ("15", idle::sessions),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mode = Mode { long: args.iter().any(|arg| arg == "--long") };
    let only = args.iter().position(|arg| arg == "--only").and_then(|i| args.get(i + 1));
    let wanted: Option<Vec<&str>> = only.map(|list| list.split(',').collect());
    let mut failed = false;
    println!("{:<4} {:<58} {:<34} {:<46} verdict", "bar", "what", "required", "measured");
    for (number, run) in BARS {
        if wanted.as_ref().is_some_and(|list| !list.contains(number)) {
            continue;
        }
        let lines = std::panic::catch_unwind(|| run(mode)).unwrap_or_else(|panic| {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
                .unwrap_or_default();
            vec![Line::new(number, "stopped", "an answer").measured(text, false)]
        });
        for line in lines {
            failed |= print(&line);
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn print(line: &Line) -> bool {
    let verdict = match &line.verdict {
        Verdict::Pass => "pass".to_string(),
        Verdict::Miss if line.timing => "MISS (timing)".to_string(),
        Verdict::Miss => "MISS".to_string(),
        Verdict::Skipped(reason) => format!("skipped: {reason}"),
    };
    let measured = line.measured.replace('\n', " ");
    println!("{:<4} {:<58} {:<34} {measured:<46} {verdict}", line.number, line.what, line.required);
    matches!(line.verdict, Verdict::Miss) && !line.timing
}
