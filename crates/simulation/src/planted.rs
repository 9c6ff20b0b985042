//! Defects on purpose: each must be found within a number of seeds.

use std::fmt::Debug;
use std::process::ExitCode;

use crate::{Devices, run};

/// Seeds within which a defect must be found.
const SEEDS_MAX: u64 = 600;
/// So many must be found within so many seeds, which is what the tests run.
const EARLY: u64 = 200;
const EARLY_MIN: usize = 12;

/// Defects that the workload reaches hardly or not at all within these seeds: whether one is found
/// depends on each change of the code. They are tried and told each time, and counted as found
/// only when they are. That of the unifier is found by its unit test
/// `tests::parts::a_writer_does_not_wait_for_a_reader_nor_change_what_it_has`.
const MISSED: [&str; 4] = [
    "message: CaughtReceiveReused",
    "client: CommitCoversLaterWrites",
    "server: HeldTooShort",
    "unifier: CopyOnWriteSkipped",
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
    let mut all = of_crate("message", &dafs_message::Defect::ALL, dafs_message::plant);
    all.extend(of_crate("client", &dafs_client::Defect::ALL, dafs_client::plant));
    all.extend(of_crate("server", &dafs_server::Defect::ALL, dafs_server::plant));
    all.extend(of_crate("unifier", &dafs_unifier::Defect::ALL, dafs_unifier::plant));
    all
}

/// Plants each (with `only`, those whose name contains it) until it is found, and tells.
pub fn find_all(only: Option<&str>) -> ExitCode {
    let wanted = |planted: &Planted| only.is_none_or(|only| planted.name.contains(only));
    let all: Vec<Planted> = all().into_iter().filter(wanted).collect();
    let (mut found, mut early, mut worst, mut lost) = (0, 0, 0, 0);
    for planted in &all {
        (planted.plant)(true);
        let caught =
            (0..SEEDS_MAX).find_map(|seed| Some((seed, run(seed, Devices::OfSeed, false).err()?)));
        (planted.plant)(false);
        match caught {
            Some((seed, why)) => {
                found += 1;
                early += usize::from(seed < EARLY);
                worst = worst.max(seed + 1);
                let why: String = why.chars().filter(|c| *c != '\n').take(110).collect();
                println!("{:40} after {:>3} seeds: {why}", planted.name, seed + 1);
            }
            None => {
                lost += usize::from(!MISSED.contains(&planted.name.as_str()));
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
