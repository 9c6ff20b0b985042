//! `mutate TARGET SECONDS ARTIFACTS`: random changes to well-formed inputs, on stable Rust.
//! `mutate TARGET FILE`: runs one input, to look at a crash.
//!
//! It has no feedback from coverage and no sanitizer: scripts/fuzz.sh takes libFuzzer instead
//! where a nightly compiler is. Exit status 1 and a file under ARTIFACTS: a defect.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dafs_fuzz::{Dice, TARGETS, Target, mutate, seeds};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let find = |name: &str| TARGETS.iter().find(|target| target.name == name);
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [name, seconds, artifacts] => match (find(name), seconds.parse()) {
            (Some(target), Ok(seconds)) => run(target, seconds, Path::new(artifacts)),
            _ => usage(),
        },
        [name, file] => match (find(name), std::fs::read(file)) {
            (Some(target), Ok(bytes)) => {
                (target.run)(&bytes);
                ExitCode::SUCCESS
            }
            _ => usage(),
        },
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("mutate TARGET SECONDS ARTIFACTS | mutate TARGET FILE; targets:");
    TARGETS.iter().for_each(|target| eprintln!("  {}", target.name));
    ExitCode::from(2)
}

fn run(target: &Target, seconds: u64, artifacts: &Path) -> ExitCode {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_nanos() as u64);
    let (mut dice, seeds) = (Dice(clock), seeds(target, 500));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut runs = 0u64;
    while !runs.is_multiple_of(256) || Instant::now() < end {
        let pick = |dice: &mut Dice| &seeds[dice.below(seeds.len() as u64) as usize];
        let mut bytes = pick(&mut dice).clone();
        let other = pick(&mut dice);
        mutate(&mut bytes, other, &mut dice);
        runs += 1;
        if std::panic::catch_unwind(|| (target.run)(&bytes)).is_err() {
            return crashed(target, &bytes, artifacts);
        }
    }
    println!("{}: {runs} inputs in {seconds} s, no defect", target.name);
    ExitCode::SUCCESS
}

fn crashed(target: &Target, bytes: &[u8], artifacts: &Path) -> ExitCode {
    let path = artifacts.join(format!("crash-{}-{:x}", target.name, bytes.len()));
    let written = std::fs::create_dir_all(artifacts).and_then(|()| std::fs::write(&path, bytes));
    match written {
        Ok(()) => println!("{}: CRASH, input in {}", target.name, path.display()),
        Err(error) => println!("{}: CRASH, input {bytes:02x?} ({error})", target.name),
    }
    ExitCode::FAILURE
}
