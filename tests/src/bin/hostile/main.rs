//! Clients that send well-formed lies to a real server: limits hold, nothing leaks, others are
//! served meanwhile. Attackers are processes of nobody's at the lowest priority, beside whom root
//! writes and reads, and then for as long alone: three times. Last lines: kinds, memory, waits.
//! Kinds and memory decide about the end; times are told.
//!
//! `hostile NAME…` tells lies of the kinds that have this in their names, and times nothing; with
//! `--by shm` in front, by shared memory, and without a name all that can be told so.

#![forbid(unsafe_code)]

mod attack;
mod crowd;
mod forged;
mod frames;
mod half_sent;
mod honest;
mod kinds;
mod limits;
mod locks;
mod resent;
mod unheard;
mod world;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use dafs_tests::memory::Check;
use honest::{Honest, Stretch, Waits};
use kinds::{Kind, Part};
use world::{World, is_root};

/// Runs, each with attackers first, then without, beside a server of its own.
const RUNS: usize = 3;
/// Of the part without attackers, at most.
const ALONE: Duration = Duration::from_secs(8);
/// How much longer an honest call may wait beside attackers than alone.
const LONGER: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, kind, url, marks_of] = words.as_slice()
        && mode == "--lie"
    {
        return attack::run(kind, url, marks_of);
    }
    if let [by, network, names @ ..] = words.as_slice()
        && (by.as_str(), network.as_str()) == ("--by", "shm")
    {
        return only(names, true);
    }
    if !words.is_empty() {
        return only(&words, false);
    }
    let of = kinds::ALL.iter().filter(|kind| kind.part != Part::Beside).count();
    let mut run = Run { of, ..Run::default() };
    let waits = run.all();
    run.report();
    match &waits {
        Ok(waits) => println!("waits: {}", compare(waits)),
        Err(wrong) => println!("waits: MISS: {wrong}"),
    }
    if run.is_good() && waits.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Of kinds that were told.
#[derive(Default)]
struct Run {
    /// How many are to be.
    of: usize,
    refused: BTreeSet<&'static str>,
    skipped: BTreeSet<&'static str>,
    failed: Vec<String>,
    /// The figure that came closest to its bound.
    memory: Option<Check>,
}

fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| now.as_nanos() as u64)
}

/// Those with one of these words in their names, or all.
fn only(words: &[String], is_near: bool) -> ExitCode {
    let is_wanted = |kind: &&Kind| {
        let is_named = words.is_empty() || words.iter().any(|word| kind.name.contains(word));
        is_named && kind.part != Part::Beside && (kind.is_near || !is_near)
    };
    let mut run = Run { of: kinds::ALL.iter().filter(is_wanted).count(), ..Run::default() };
    for (data_path, is_second) in [("unifier", false), ("normal", true)] {
        let of_path = |kind: &&Kind| is_wanted(kind) && (kind.part == Part::Second) == is_second;
        let all: Vec<&Kind> = kinds::ALL.iter().filter(of_path).collect();
        if !all.is_empty() {
            let mut world = World::start(seed(), data_path, is_near);
            all.into_iter().for_each(|kind| run.tell(&mut world, kind));
            run.end(world);
        }
    }
    run.report();
    if run.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Run {
    /// The waits of honest clients, beside attackers and alone.
    fn all(&mut self) -> Result<Vec<[Waits; 2]>, String> {
        let runs: Result<Vec<_>, _> = (0..RUNS).map(|_| self.timed()).collect();
        let mut normal = World::start(seed(), "normal", false);
        self.tell_part(&mut normal, Part::Second);
        self.end(normal);
        runs
    }

    fn timed(&mut self) -> Result<[Waits; 2], String> {
        let mut world = World::start(seed(), "unifier", false);
        let honest = Honest::start(&world.server.url, &world.marks());
        let start = Instant::now();
        honest.begin(Stretch::Attacked);
        self.tell_part(&mut world, Part::Timed);
        honest.begin(Stretch::Alone);
        std::thread::sleep(start.elapsed().min(ALONE));
        honest.begin(Stretch::Rest);
        self.tell_part(&mut world, Part::After);
        let waits = honest.end();
        self.end(world);
        waits
    }

    fn tell_part(&mut self, world: &mut World, part: Part) {
        kinds::ALL.iter().filter(|kind| kind.part == part).for_each(|kind| self.tell(world, kind));
    }

    fn tell(&mut self, world: &mut World, kind: &Kind) {
        if kind.needs_root && !is_root() {
            self.skipped.insert(kind.name);
            return eprintln!("hostile: {}: skipped: needs root", kind.name);
        }
        if world.server.ended().is_some() {
            return self.failed.push(format!("{}: there is no server any more", kind.name));
        }
        let start = Instant::now();
        let told = world.tell(kind);
        let memory = world.memory();
        let is_refused = told.is_ok() && memory.holds();
        let wrong = told.err().unwrap_or_else(|| if is_refused { "ok" } else { "memory" }.into());
        let (name, took) = (kind.name, start.elapsed().as_secs_f64());
        eprintln!("hostile: {name}: {wrong}; {took:.1} s; at most {memory} so far");
        if is_refused {
            self.refused.insert(kind.name);
        } else {
            self.failed.push(format!("{name}: {wrong}; {memory}"));
        }
        if self.memory.is_none_or(|tightest| memory.room() < tightest.room()) {
            self.memory = Some(memory);
        }
    }

    /// After all of it the server serves, and ends well.
    fn end(&mut self, mut world: World) {
        if world.server.ended().is_some() {
            return;
        }
        if let Err(wrong) = world.still_serves() {
            self.failed.push(format!("afterwards: {wrong}"));
        }
        world.server.stop();
    }

    fn is_good(&self) -> bool {
        self.failed.is_empty()
    }

    fn report(&self) {
        self.failed.iter().for_each(|failure| eprintln!("hostile: FAILED {failure}"));
        let told = self.of;
        let is_whole =
            |name: &&&str| !self.failed.iter().any(|failure| failure.starts_with(**name));
        let refused = self.refused.iter().filter(is_whole).count();
        let skipped = match self.skipped.len() {
            0 => String::new(),
            count => format!(", {count} skipped (they need root)"),
        };
        let verdict = if self.is_good() { "pass" } else { "MISS" };
        println!("kinds: {refused} of {told} refused{skipped}: {verdict}");
        let verdict = |check: &Check| if check.holds() { "pass" } else { "MISS" };
        match &self.memory {
            Some(check) => println!("memory: at most {check}: {}", verdict(check)),
            None => println!("memory: MISS: nobody looked"),
        }
    }
}

/// The longest waits of each run, and whether attackers made them too long.
fn compare(runs: &[[Waits; 2]]) -> String {
    let is_there = runs.len() == RUNS && runs.iter().flatten().all(|waits| waits.rounds > 0);
    let is_short = |with: Duration, without: Duration| with <= without + LONGER;
    let holds = |[with, without]: &[Waits; 2]| {
        is_short(with.read, without.read) && is_short(with.write, without.write)
    };
    let list = |of: fn(&Waits) -> Duration| {
        let pair = |run: &[Waits; 2]| run.map(|waits| of(&waits).as_millis().to_string()).join("/");
        runs.iter().map(pair).collect::<Vec<_>>().join(" ")
    };
    let verdict = if is_there && runs.iter().all(holds) { "pass" } else { "MISS" };
    let (read, write) = (list(|waits| waits.read), list(|waits| waits.write));
    format!("longest with/without attackers, ms: read {read}, write {write}: {verdict}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(read: u64, write: u64) -> Waits {
        let ms = Duration::from_millis;
        Waits { read: ms(read), write: ms(write), rounds: 1 }
    }

    #[test]
    fn each_run_is_compared_with_itself_alone() {
        let quiet = waits(1, 2);
        let mut runs = vec![[quiet; 2]; RUNS];
        runs[0] = [waits(501, 502), quiet];
        let told = compare(&runs);
        assert!(told.ends_with("read 501/1 1/1 1/1, write 502/2 2/2 2/2: pass"), "{told}");
        runs[2] = [waits(1, 503), quiet];
        assert!(compare(&runs).ends_with("MISS"), "a write waited too long");
        runs[2] = [quiet, Waits { rounds: 0, ..quiet }];
        assert!(compare(&runs).ends_with("MISS"), "nothing was done alone");
        assert!(compare(&runs[..2]).ends_with("MISS"), "one was not begun");
    }
}
