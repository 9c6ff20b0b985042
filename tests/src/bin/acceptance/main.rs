//! The bars: what this project promises, measured. One line per bar:
//! name, what, required, measured, pass or miss.
//!
//! `acceptance` runs the short form, `acceptance --long` full sizes, `acceptance --only stream,latency`
//! some. Times are
//! reported and never fail a run, since machines are shared; everything else does.

#![forbid(unsafe_code)]

mod c_interface;
mod copies;
mod direct;
mod fairness;
mod faults;
mod fresh;
mod idle;
mod mirror;
mod optimistic;
mod same_host;
mod shared_memory;
mod speed;
mod suites;
mod variants;

use std::process::ExitCode;

use dafs_tests::acceptance::{Bar, run};
pub(crate) use dafs_tests::acceptance::{Line, Mode};

const BARS: &[Bar] = &[
    ("start", fresh::first_byte),
    ("trees", copies::trees),
    ("mirror", mirror::kills),
    ("stream", speed::stream),
    ("latency", speed::latency),
    ("rate", speed::rate),
    ("shared-memory", same_host::shared_memory),
    ("optimistic", optimistic::hits),
    ("hot", optimistic::hot),
    ("lost", optimistic::lost),
    ("paper", optimistic::paper),
    ("storm", optimistic::storm),
    ("storm-tcp", optimistic::storm_by_tcp),
    ("direct", direct::counts),
    ("writes", speed::writes),
    ("small-files", speed::small_files),
    ("counted", suites::counted),
    ("simulation", suites::simulation),
    ("compatibility", suites::compatibility),
    ("fairness", fairness::small_beside_bulk),
    ("c-fsx", c_interface::fsx),
    ("faults", faults::kills),
    ("hostile", suites::hostile),
    ("dropped-calls", suites::dropped_calls),
    ("variants", variants::all),
    ("idle", idle::sessions),
    ("shm-kills", shared_memory::kills::all),
    ("shm-crowd", shared_memory::crowd::at_once),
    ("shm-idle", shared_memory::crowd::idle),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, url] = args.as_slice()
        && mode.starts_with(shared_memory::victim::MODE)
    {
        return shared_memory::victim::run(mode, url);
    }
    if let [mode, url] = args.as_slice()
        && mode == optimistic::lost::MODE
    {
        return optimistic::lost::run(url);
    }
    if let [mode, reads] = args.as_slice()
        && mode == optimistic::counted::MODE
    {
        return optimistic::counted::run(reads);
    }
    run(BARS, &args)
}
