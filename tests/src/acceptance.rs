//! Bars: what is promised, one line each: number, what, required, measured, pass or miss.

use std::process::ExitCode;
use std::time::Instant;

use crate::closing::Closing;
use crate::machine::SKIPPED;

/// How a bar ended.
#[derive(Debug)]
pub enum Verdict {
    /// As required.
    Pass,
    /// Not as required.
    Miss,
    /// Not tried, and why.
    Skipped(String),
}

/// One line of the table.
#[derive(Debug)]
pub struct Line {
    /// The bar that it belongs to.
    pub number: &'static str,
    /// What was tried.
    pub what: String,
    /// What must come out.
    pub required: String,
    /// What came out.
    pub measured: String,
    /// The comparison of both.
    pub verdict: Verdict,
    /// A matter of time, on a shared machine: a miss is said, and fails nothing.
    pub timing: bool,
}

impl Line {
    /// A line without result, which is a miss.
    pub fn new(number: &'static str, what: &str, required: &str) -> Line {
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
    #[must_use]
    pub fn timing(mut self) -> Line {
        self.timing = true;
        self
    }

    /// With its result.
    #[must_use]
    pub fn measured(mut self, measured: impl Into<String>, pass: bool) -> Line {
        self.measured = measured.into();
        self.verdict = if pass { Verdict::Pass } else { Verdict::Miss };
        self
    }

    /// With what came out, or what went wrong, or why it was not tried (see
    /// [`machine`](crate::machine)).
    #[must_use]
    pub fn result(self, result: Result<String, String>) -> Line {
        match result {
            Ok(text) => self.measured(text, true),
            Err(text) => match text.strip_prefix(SKIPPED) {
                Some(reason) => self.skipped(reason),
                None => self.measured(text, false),
            },
        }
    }

    /// Not tried.
    #[must_use]
    pub fn skipped(mut self, reason: impl Into<String>) -> Line {
        self.verdict = Verdict::Skipped(reason.into());
        self
    }

    /// Says on standard error how it ended: for lines that take long.
    #[must_use]
    pub fn told(self) -> Line {
        eprintln!("{} {}: {:?}: {}", self.number, self.what, self.verdict, self.measured);
        self
    }

    fn print(&self) {
        let verdict = match &self.verdict {
            Verdict::Pass => "pass".to_string(),
            Verdict::Miss if self.timing => "MISS (timing)".to_string(),
            Verdict::Miss => "MISS".to_string(),
            Verdict::Skipped(reason) => format!("skipped: {reason}"),
        };
        let measured = self.measured.replace('\n', " ");
        let (number, what, required) = (self.number, &self.what, &self.required);
        println!("{number:<13} {what:<58} {required:<34} {measured:<46} {verdict}");
    }
}

/// Which sizes to run.
#[derive(Debug, Clone, Copy)]
pub struct Mode {
    /// Full sizes.
    pub long: bool,
}

impl Mode {
    /// One of two values.
    pub fn pick<T>(self, short: T, long: T) -> T {
        if self.long { long } else { short }
    }
}

/// The middle one of those that are numbers; NaN without any.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.retain(|value| !value.is_nan());
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A number, and what makes its lines.
pub type Bar = (&'static str, fn(Mode) -> Vec<Line>);

/// Runs bars and prints their lines: `--long` at full size, `--only stream,latency` some. Times are reported
/// and never fail the run, since machines are shared; everything else does, and where
/// [all must be tried](crate::must_try_all) what is skipped, too. The last line counts.
pub fn run(bars: &[Bar], args: &[String]) -> ExitCode {
    let (mut mode, mut wanted) = (Mode { long: false }, None::<Vec<&str>>);
    let mut rest = args.iter().map(String::as_str);
    while let Some(arg) = rest.next() {
        match arg {
            "--long" => mode.long = true,
            "--only" => wanted = rest.next().map(|list| list.split(',').collect()),
            _ => {
                let known: Vec<&str> = bars.iter().map(|bar| bar.0).collect();
                eprintln!("usage: [--long] [--only BAR,...], of {}", known.join(","));
                return ExitCode::from(2);
            }
        }
    }
    let (mut closing, mut times) = (Closing::default(), Vec::new());
    println!("{:<13} {:<58} {:<34} {:<46} verdict", "bar", "what", "required", "measured");
    for (number, run) in bars {
        if wanted.as_ref().is_some_and(|list| !list.contains(number)) {
            continue;
        }
        crate::served::as_in_use(false);
        let start = Instant::now();
        let lines = std::panic::catch_unwind(|| run(mode)).unwrap_or_else(|panic| {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
                .unwrap_or_default();
            vec![Line::new(number, "stopped", "an answer").result(Err(text))]
        });
        for line in lines {
            line.print();
            closing.add_bar(&format!("{number} {}", line.what), &line.verdict, line.timing);
        }
        times.push(format!("{number} {} s", start.elapsed().as_secs()));
    }
    println!("took: {}", times.join(", "));
    println!("== {}", closing.line());
    let complete = closing.is_complete() || !crate::must_try_all();
    if closing.is_good() && complete { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
