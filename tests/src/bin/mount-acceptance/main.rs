//! The bars of a mount: real programs on it, with their data verified, undisturbed and while the
//! server is restarted.
//!
//! `mount-acceptance` runs the short form, `mount-acceptance --long` full sizes, `mount-acceptance --only pjdfstest,integrity`
//! some, `mount-acceptance --sample` a part of those of correctness. `DAFS_TEST_DIR=DIR` tries the same programs in a plain directory below DIR, to see what
//! a local file system answers.

#![forbid(unsafe_code)]

mod faults;
mod history;
mod integrity;
mod locks;
mod maildir;
mod mixed;
mod pjdfstest;
mod programs;
mod role;
mod round_trips;
mod same_host;
mod sample;
mod script;
mod small;
mod speed;
mod ten;
mod times;

use std::path::Path;
use std::process::ExitCode;

use dafs_tests::acceptance::{Bar, run};
pub(crate) use dafs_tests::acceptance::{Line, Mode};

use role::Role;

const BARS: &[Bar] = &[
    ("pjdfstest", pjdfstest::cases),
    ("integrity", integrity::all),
    ("programs", programs::all),
    ("latency", speed::latency),
    ("rate", speed::rate),
    ("same-host", same_host::all),
    ("disk", times::against_the_disk),
    ("round-trips", round_trips::counts),
    ("locks", locks::owners),
    ("faults", faults::all),
    ("small-writes", small::writes),
    ("history", history::all),
    ("mixed", mixed::all),
];

const ROLES: &[(&str, Role)] = &[
    ("deliver", maildir::deliver),
    ("take", maildir::take),
    ("lock", locks::lock),
    ("read", faults::read),
    ("write", faults::write),
    ("append", history::append),
    ("registers", history::registers),
    ("count", history::count),
    ("replace", history::replace),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.split_first() {
        Some((first, rest)) if first == "--role" => act(rest),
        Some((first, rest)) if first == "--sample" => run(&[("m", sample::all)], rest),
        _ => run(BARS, &args),
    }
}

/// `--role NAME DIRECTORY NUMBERS…`
fn act(args: &[String]) -> ExitCode {
    let [name, dir, numbers @ ..] = args else { return ExitCode::from(2) };
    let Some((_, role)) = ROLES.iter().find(|(known, _)| known == name) else {
        return ExitCode::from(2);
    };
    let numbers: Result<Vec<u64>, _> = numbers.iter().map(|number| number.parse()).collect();
    let Ok(numbers) = numbers else { return ExitCode::from(2) };
    match role(Path::new(dir), &numbers) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(text) => {
            println!("{text}");
            ExitCode::FAILURE
        }
    }
}
