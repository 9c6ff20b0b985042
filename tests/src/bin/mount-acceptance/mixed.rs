//! mixed: two local programs and three mounts work on the files of one directory at random: write,
//! append, cut, map, rename, sync, close. Each read must be one that the guarantees allow.
//!
//! One step comes after the other, drawn from a seed that the line tells; `DAFS_TEST_SEED=N`
//! draws the same again. Where the guarantees allow several outcomes a step is *open*: that
//! must be rare. A local program waits for the next tick of the clock after the last use of a
//! file before it changes that, but in one case of three: such a change the server may miss while
//! the length is the same, until a later one shows it.

mod model;
mod steps;
mod world;

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dafs_tests::Place;

use crate::{Line, Mode};
use steps::Mixed;

/// Mounts of the one server.
const MOUNTS: usize = 3;
/// Open steps in percent.
const OPEN_MAX: f64 = 5.0;
/// Defects that there were: see `planted` of the crates that have them.
const PLANTED: [&str; 4] =
    ["LocalChangeTakenForOurs", "LocalStoresNotSought", "OldBelowDirectWrite", "MappedPageExtends"];

fn seed() -> u64 {
    let given = std::env::var("DAFS_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
    given.unwrap_or_else(|| u64::from(clock()))
}

fn play(seed: u64, steps: u64, limit: Duration) -> Result<(f64, u64), String> {
    let mut place = Place::new(limit);
    let mut dirs: Vec<_> =
        world::OPTIONS.iter().map(|options| place.mount_again(options)).collect();
    dirs.resize(world::ACTORS, place.exported().to_path_buf());
    let mut mixed = Mixed::new(dirs, seed)?;
    for _ in 0..steps {
        mixed.step()?;
    }
    mixed.end()?;
    Ok((100.0 * mixed.open as f64 / steps as f64, mixed.at_once))
}

pub(crate) fn all(mode: Mode) -> Vec<Line> {
    let (seed, steps) = (seed(), mode.pick(2000, 10_000));
    let what = format!("{steps} steps of 2 programs and 3 mounts, seed {seed}");
    let line = Line::new("mixed", &what, "nothing against the guarantees");
    let result = play(seed, steps, Duration::from_secs(mode.pick(120, 600)));
    let mut lines = vec![match result {
        Ok((open, at_once)) => {
            let text =
                format!("{open:.1} % open, of ≤ {OPEN_MAX} %; {at_once} local changes in one tick");
            line.measured(text, open <= OPEN_MAX)
        }
        Err(story) => {
            eprintln!("mixed: seed {seed}: {story}");
            line.measured(story.lines().next().unwrap_or_default(), false)
        }
    }];
    // Not in a run that is to find one of them itself.
    if mode.long && std::env::var_os("DAFS_PLANT").is_none() {
        lines.extend(PLANTED.map(|defect| planted(seed, defect)));
    }
    lines
}

/// The same with a defect planted, which must be found. `DAFS_TEST_PLANTED` names a `dafs` that was
/// built with the feature `planted`.
fn planted(seed: u64, defect: &str) -> Line {
    let line = Line::new("mixed", &format!("{defect}, planted"), "found within 10000 steps");
    let Some(binary) = std::env::var_os("DAFS_TEST_PLANTED") else {
        return line.skipped("no DAFS_TEST_PLANTED: a dafs with the feature `planted`");
    };
    let again = std::env::current_exe().expect("this program");
    let mut command = Command::new(again);
    command.args(["--only", "mixed", "--long"]).envs([("DAFS_BIN", &binary)]);
    command.env("DAFS_PLANT", defect).env("DAFS_TEST_SEED", seed.to_string());
    line.result(command.output().map_err(|error| error.to_string()).and_then(|output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let found = text.lines().find_map(|line| line.split_once("  step "));
        let step = found.and_then(|(_, rest)| rest.split_once(':'));
        step.map(|(step, _)| format!("in step {step}")).ok_or_else(|| "not found".into())
    }))
}
