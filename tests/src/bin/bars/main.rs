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

use dafs_tests::bars::{Bar, run};
pub(crate) use dafs_tests::bars::{Line, Mode};

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
    run(BARS, &args)
}
