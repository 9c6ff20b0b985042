//! integrity: what is read is what was written, by all ways to read and write, over restarts of the
//! server. Nothing is lost by those in order, and neither by kill -9: the mount writes again what
//! had not reached the server's file system.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dafs_tests::Place;
use dafs_tests::mounted::Ending;

use crate::script::{program, root, tool};
use crate::{Line, Mode};

const MAPPED: &str = "fsx with shared mappings";

pub(crate) fn all(mode: Mode) -> Vec<Line> {
    let limit = Duration::from_secs(mode.pick(200, 4 * 3600));
    let mut place = Place::new(limit);
    let buffered = place.path().to_path_buf();
    let direct = place.mount_again("direct_io");
    let mut lines = Vec::new();
    for ending in [Ending::Orderly, Ending::Killed] {
        for (what, config, dir) in [
            ("fsx", "fsx.toml", &buffered),
            (MAPPED, "fsx-mmap.toml", &buffered),
            ("fsx past the page cache", "fsx.toml", &direct),
        ] {
            lines.push(fsx(&mut place, mode, ending, what, config, dir));
        }
        for (engine, options) in [
            ("psync", &["--direct=0"][..]),
            ("psync", &["--direct=1"]),
            ("libaio", &["--direct=1", "--iodepth=16"]),
            ("io_uring", &["--direct=1", "--iodepth=16"]),
            ("mmap", &["--direct=0"]),
        ] {
            lines.push(fio(&mut place, mode, ending, engine, options));
        }
    }
    lines
}

/// Runs more that a program may need to live through all restarts.
const RUNS_MORE: u32 = 20;

/// Runs a program, told the number of the run, so many times while the server is restarted as
/// often as asked for: more often where it is over before the last of the restarts.
fn over_restarts(
    place: &mut Place,
    mode: Mode,
    ending: Ending,
    runs: u32,
    command: impl Fn(u32) -> Command,
) -> Result<String, String> {
    let limit = Duration::from_secs(mode.pick(60, 1800));
    // What a kill hits is chance: more of them.
    let (short, long): (u32, u32) = if ending == Ending::Killed { (4, 40) } else { (2, 10) };
    let wanted = if place.is_mount() { mode.pick(short, long) } else { 0 };
    let every = Duration::from_millis(mode.pick(300, 3000));
    let mut left = wanted;
    for run in 1..=runs + RUNS_MORE {
        let share = left.div_ceil((runs + 1).saturating_sub(run).max(1));
        let (printed, done) = program(place, command(run), limit, (share, every, ending))?;
        if !printed.ok {
            return Err(printed.end());
        }
        left -= done;
        if run >= runs && left == 0 {
            return Ok(format!("no difference, {wanted} {}", name_of(ending)));
        }
    }
    Err(format!("over before restart {} of {wanted}", wanted - left + 1))
}

fn name_of(ending: Ending) -> &'static str {
    if ending == Ending::Killed { "kills" } else { "restarts" }
}

pub(crate) fn fsx(
    place: &mut Place,
    mode: Mode,
    ending: Ending,
    what: &str,
    config: &str,
    dir: &Path,
) -> Line {
    // It lets go of its mappings only when it ends.
    let long = if what == MAPPED { (100, 10_000) } else { (10, 100_000) };
    let (runs, operations) = mode.pick((1, 20_000), long);
    let what = format!("{what}, {} operations", runs * operations);
    let line = Line::new("integrity", &what, &format!("no difference, all {}", name_of(ending)));
    let beside = place.beside().to_path_buf();
    let command = |run: u32| {
        let mut command = Command::new(tool("fsx"));
        command.args(["-q", "-S", &(6 + run).to_string(), "-N", &operations.to_string(), "-f"]);
        command.arg(root().join("tests/suites").join(config));
        command.arg("-P").arg(&beside).arg(dir.join("fsx"));
        command
    };
    line.result(over_restarts(place, mode, ending, runs, command))
}

/// Random writes with check sums, then all of it read and verified.
fn fio(place: &mut Place, mode: Mode, ending: Ending, engine: &str, options: &[&str]) -> Line {
    let what = format!("fio, {engine} {}", options.join(" ").replace("--", ""));
    let line = Line::new("integrity", &what, &format!("no difference, all {}", name_of(ending)));
    if engine == "io_uring"
        && let Err(reason) = dafs_tests::machine::rings()
    {
        return line.result(Err(reason));
    }
    let (beside, file) = (place.beside().to_path_buf(), place.path().join("fio"));
    let command = |_| {
        let mut command = Command::new("fio");
        command.current_dir(&beside);
        command.args(["--name=verify", "--rw=randwrite", "--bs=4k", "--verify=crc32c"]);
        command.args(["--verify_fatal=1", "--do_verify=1", "--verify_state_save=0"]);
        command.args(["--fallocate=none", "--end_fsync=1", "--minimal", "--randseed=7"]);
        command.arg(format!("--size={}", mode.pick("40m", "2g")));
        command.arg(format!("--ioengine={engine}")).args(options);
        command.arg(format!("--filename={}", file.display()));
        command
    };
    line.result(over_restarts(place, mode, ending, 1, command))
}
