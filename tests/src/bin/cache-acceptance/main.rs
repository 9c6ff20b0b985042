//! The bars of the cache and of the disk below it.
//!
//! `cache-acceptance` runs the short form, `cache-acceptance --long` full sizes, `cache-acceptance --only kills,sequential` some.

#![forbid(unsafe_code)]

mod crash;
mod disk;
mod faults;
mod faulty;
mod lists;
mod memory;
mod paths;
mod pinned;
mod policies;
mod suites;
mod written;

use std::process::ExitCode;

use dafs_tests::acceptance::{Bar, run};
pub(crate) use dafs_tests::acceptance::{Line, Mode};

const BARS: &[Bar] = &[
    ("cached-paths", paths::cached),
    ("reread", paths::reread),
    ("scan", policies::scan),
    ("lists", lists::strided),
    ("kills", crash::kills),
    ("memory", memory::memory),
    ("pinned", pinned::resized),
    ("faults", faults::faults),
    ("sequential", disk::sequential),
    ("random", disk::random),
    ("writes", disk::writes),
    ("suites", suites::all),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    run(BARS, &args)
}
