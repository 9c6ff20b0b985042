//! The bars of the cache and of the disk below it.
//!
//! `cache-bars` runs the short form, `cache-bars --long` full sizes, `cache-bars --only c8,d1` some.

#![forbid(unsafe_code)]

mod crash;
mod disk;
mod faults;
mod faulty;
mod lists;
mod memory;
mod paths;
mod policies;
mod suites;
mod written;

use std::process::ExitCode;

use dafs_tests::bars::{Bar, run};
pub(crate) use dafs_tests::bars::{Line, Mode};

const BARS: &[Bar] = &[
    ("u4", paths::cached),
    ("u5", paths::reread),
    ("p6", policies::scan),
    ("c7", lists::strided),
    ("c8", crash::kills),
    ("c10", memory::memory),
    ("f9", faults::faults),
    ("d1", disk::sequential),
    ("d2", disk::random),
    ("d3", disk::writes),
    ("s11", suites::all),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    run(BARS, &args)
}
