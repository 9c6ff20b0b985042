//! Defects on purpose: each must be found within a number of seeds.

use std::fmt::Debug;
use std::process::ExitCode;

use crate::{Devices, run};

/// Seeds within which a defect must be found.
const SEEDS_MAX: u64 = 600;
/// So many must be found within so many seeds, which is what the tests run.
const EARLY: u64 = 200;
const EARLY_MIN: usize = 12;

/// Defects that the workload reaches hardly or not at all within these seeds, and the tests that
/// each makes fail: whether a seed finds one depends on each change of the code. They are tried and
/// told each time, and counted as found only when they are.
const SHOWN_BY_TESTS: [(&str, &str); 9] = [
    ("client: CallbackTakenEarly", "core locks::a_grant_before_the_reply_waits_for_it"),
    ("message: ReferenceEndsEarly", "references::data_is_read_where_it_is_and_let_go"),
    ("message: LoanEndsWithConnection", "references::what_is_lent_outlives_connections"),
    ("client: CommitCoversLaterWrites", "core a_commit_does_not_cover_what_was_written_after_it"),
    (
        "server: VerifierKeptThoughUnwritten",
        "server clean_end::tests::what_is_not_on_disk_leaves_no_mark",
    ),
    ("server: KeyNotReplaced", "server named a_reference_of_a_former_key_is_refused"),
    ("server: SessionNotLookedAt", "server named it_is_good_for_nobody_else"),
    (
        "unifier: RetiredBehindReaders",
        "entries::triggers::all_that_a_write_replaces_is_retired_before_any_of_it_is_published",
    ),
    (
        "unifier: CopyOnWriteSkipped",
        "parts::a_writer_does_not_wait_for_a_reader_nor_change_what_it_has",
    ),
];

/// A defect that can be planted.
struct Planted {
    name: String,
    plant: Box<dyn Fn(bool)>,
}

fn of_crate<D: Debug + Copy + 'static>(of: &str, all: &[D], plant: fn(Option<D>)) -> Vec<Planted> {
    let make = |defect: &D| {
        let defect = *defect;
        Planted {
            name: format!("{of}: {defect:?}"),
            plant: Box::new(move |on| plant(on.then_some(defect))),
        }
    };
    all.iter().map(make).collect()
}

fn all() -> Vec<Planted> {
    let mut all = of_crate("fabric", &dafs_fabric::Defect::ALL, dafs_fabric::plant);
    all.extend(of_crate("message", &dafs_message::Defect::ALL, dafs_message::plant));
    all.extend(of_crate("client", &dafs_client::Defect::ALL, dafs_client::plant));
    all.extend(of_crate("server", &dafs_server::Defect::ALL, dafs_server::plant));
    all.extend(of_crate("unifier", &dafs_unifier::Defect::ALL, dafs_unifier::plant));
    all
}

/// The first of `most` seeds that finds what is planted, and passes without it.
fn found_by(planted: &Planted, most: u64) -> Option<(u64, String)> {
    (0..most).find_map(|seed| {
        (planted.plant)(true);
        let result = run(seed, Devices::OfSeed, false);
        (planted.plant)(false);
        let why = result.err()?;
        run(seed, Devices::OfSeed, false).is_ok().then_some((seed, why))
    })
}

/// Plants each (with `only`, those whose name contains it) until it is found, and tells.
pub fn find_all(only: Option<&str>) -> ExitCode {
    let wanted = |planted: &Planted| only.is_none_or(|only| planted.name.contains(only));
    let all: Vec<Planted> = all().into_iter().filter(wanted).collect();
    let (mut found, mut early, mut worst, mut lost) = (0, 0, 0, 0);
    for planted in &all {
        let shown = SHOWN_BY_TESTS.iter().find(|(name, _)| *name == planted.name);
        let most = if shown.is_some() { EARLY } else { SEEDS_MAX };
        match (found_by(planted, most), shown) {
            (Some((seed, why)), _) => {
                found += 1;
                early += usize::from(seed < EARLY);
                worst = worst.max(seed + 1);
                let why: String = why.chars().filter(|c| *c != '\n').take(110).collect();
                println!("{:40} after {:>3} seeds: {why}", planted.name, seed + 1);
            }
            (None, Some((_, test))) => println!("{:40} not found; see test {test}", planted.name),
            (None, None) => {
                lost += 1;
                println!("{:40} NOT FOUND", planted.name);
            }
        }
    }
    let all = all.len();
    println!(
        "{found} of {all} planted defects found, {early} within {EARLY} seeds, all within {worst}"
    );
    if lost == 0 && early >= EARLY_MIN.min(all) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
