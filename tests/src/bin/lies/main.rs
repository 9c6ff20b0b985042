//! Random lies: a process without rights says what is not so to a real server, over raw frames,
//! for each seed in another way. It may never see what others have in the server's memory, nor may
//! the exported files; the server lives, within its memory; the data of an honest client beside it
//! is right.
//!
//! `lies --seconds 30`, `lies --seed 17` for one of them again, both with `--by shm` for lies by shared
//! memory instead of TCP, `lies --plant NAME` with a defect
//! that a server built with the feature `planted` has, which must be found. Last line: a summary.

#![forbid(unsafe_code)]

mod deeds;
mod habits;
mod honest;
mod inspect;
mod liar;
mod line;
mod world;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use dafs_tests::machine::SKIPPED;
use dafs_tests::marks::Marks;
use liar::Liar;
use world::World;

const NOBODY: u32 = 65_534;

#[derive(Debug, Clone)]
struct Args {
    seconds: u64,
    seed: Option<u64>,
    plant: Option<String>,
    by_shm: bool,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, target, by, seed, marks_of] = words.as_slice()
        && mode == "--as-nobody"
    {
        return as_nobody((target, by), seed.parse().unwrap_or(0), marks_of.parse().unwrap_or(0));
    }
    match parse(&words) {
        // Another user is to be lied as, and to be kept out.
        Some(args) if !nix::unistd::geteuid().is_root() => {
            println!("{SKIPPED}needs root");
            let missed = args.plant.is_some() || dafs_tests::must_try_all();
            if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
        Some(args) => tell(&args),
        None => {
            eprintln!("usage: lies [--seconds N] [--seed N] [--by shm] [--plant NAME]");
            ExitCode::from(2)
        }
    }
}

fn parse(words: &[String]) -> Option<Args> {
    let mut args = Args { seconds: 30, seed: None, plant: None, by_shm: false };
    for pair in words.chunks(2) {
        match pair {
            [name, value] if name == "--seconds" => args.seconds = value.parse().ok()?,
            [name, value] if name == "--seed" => args.seed = Some(value.parse().ok()?),
            [name, value] if name == "--by" && value == "shm" => args.by_shm = true,
            [name, value] if name == "--plant" => args.plant = Some(value.clone()),
            _ => return None,
        }
    }
    Some(args)
}

fn tell(args: &Args) -> ExitCode {
    let mut run = Run::default();
    let found = run.all(args);
    let Run { seeds, requests, answers, .. } = run;
    let after = run.took.as_secs();
    let plant = args.plant.as_deref();
    match &found {
        Some((seed, what)) => {
            let mut again = plant.map_or(String::new(), |plant| format!(" --plant {plant}"));
            again.push_str(if args.by_shm { " --by shm" } else { "" });
            println!(
                "FOUND by seed {seed} after {after} s ({seeds} seeds): {what}; \
                 again: scripts/lies.sh --seed {seed}{again}"
            );
        }
        None => println!(
            "{seeds} seeds, {requests} requests, {answers} operations answered, nothing found; \
             server {} MiB; honest client {} rounds, longest {} ms",
            run.peak >> 20,
            run.rounds,
            run.longest.as_millis()
        ),
    }
    // A planted defect is to be found.
    if found.is_some() == plant.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[derive(Debug, Default)]
struct Run {
    seeds: u64,
    requests: u64,
    answers: u64,
    peak: u64,
    rounds: u64,
    longest: Duration,
    took: Duration,
}

impl Run {
    /// The seed that found something, and what.
    fn all(&mut self, args: &Args) -> Option<(u64, String)> {
        let start = Instant::now();
        let first = args.seed.unwrap_or_else(some_seed);
        let mut world = World::start(first, args.plant.as_deref(), args.by_shm);
        let me = copy_for_nobody(world.work());
        let mut seed = first;
        let found = loop {
            let episode = self.episode(&mut world, (&me, args.by_shm), seed, first);
            self.took = start.elapsed();
            if let Err(what) = episode {
                break Some((seed, what));
            }
            let is_last = self.took.as_secs() >= args.seconds;
            if is_last || (args.seed.is_some() && args.plant.is_none()) {
                break None;
            }
            seed = seed.wrapping_add(1);
        };
        self.peak = world.server.peak_resident_bytes();
        if let Some(honest) = &world.honest {
            (self.rounds, self.longest) = (honest.rounds(), honest.longest());
        }
        found.or_else(|| Some((seed, world.end()?)))
    }

    fn episode(
        &mut self,
        world: &mut World,
        (me, by_shm): (&Path, bool),
        seed: u64,
        marks_of: u64,
    ) -> Result<(), String> {
        self.seeds += 1;
        let target = world.server.url.trim_start_matches("dafs://").trim_end_matches('/');
        let numbers = [seed.to_string(), marks_of.to_string()];
        let mut child = Command::new(me);
        let near = world.near();
        let by = if by_shm { near.as_str() } else { target };
        child.args(["--as-nobody", target, by]).args(numbers).uid(NOBODY).gid(NOBODY);
        let output = child.output().map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let numbers: Vec<u64> =
            said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        if let [lines, requests, answers] = numbers.as_slice() {
            world.connections = world.connections.max(lines + 2);
            self.requests += requests;
            self.answers += answers;
        }
        // A server that has ended explains all else.
        match (world.wrong(), output.status.success()) {
            (Some(wrong), _) => Err(wrong),
            (None, true) => Ok(()),
            (None, false) => {
                let errors = String::from_utf8_lossy(&output.stderr);
                Err(errors.lines().last().unwrap_or("the liar was killed").to_string())
            }
        }
    }
}

fn some_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| now.as_nanos() as u64 >> 10)
}

/// Another user cannot run what stands in somebody's home.
fn copy_for_nobody(work: &Path) -> PathBuf {
    let me = work.join("lies");
    let own = std::env::current_exe().expect("own path");
    fs::copy(own, &me).expect("copy");
    me
}

/// Lies `by` one of the server's addresses; what is left is looked at by the other.
fn as_nobody((target, by): (&str, &str), seed: u64, marks_of: u64) -> ExitCode {
    let marks = Marks::new(marks_of);
    let mut liar = Liar::new(by, seed, &marks);
    liar.lie();
    println!("{} {} {}", liar.most_lines, liar.asked, liar.answered);
    let name = liar.habits().name.to_string();
    let seen = liar.seen;
    // What it has under way counts as its user's until its connections have ended.
    drop(liar);
    let seen = match seen {
        Some(what) => Ok(Some(what)),
        None => inspect::all(target, &marks),
    };
    match seen {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(what)) => {
            eprintln!("{what} was seen by one who {name}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}, beside one who {name}");
            ExitCode::FAILURE
        }
    }
}
