//! disk: how long programs take on the mount and on the disk below it, by turns in one run. The
//! best of each counts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use dafs_tests::Place;

use crate::script::root;
use crate::{Line, Mode};

/// Runs a script of the shell in a directory; how long it took.
pub(crate) fn timed(dir: &Path, script: &str, args: &[&Path]) -> Result<Duration, String> {
    let mut command = Command::new("bash");
    command.args(["-euc", script, "bash"]).args(args).current_dir(dir);
    command.env_remove("CARGO_TARGET_DIR");
    let start = Instant::now();
    let output = command.output().map_err(|error| error.to_string())?;
    let took = start.elapsed();
    if output.status.success() {
        return Ok(took);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(errors.lines().last().unwrap_or("failed").to_string())
}

/// The same script here and there by turns.
fn by_turns(
    line: Line,
    factor: f64,
    turns: usize,
    (disk, mount): (&Path, &Path),
    script: &str,
    args: &[&Path],
) -> Line {
    let mut best = [Duration::MAX; 2];
    for _ in 0..turns {
        for (best, dir) in best.iter_mut().zip([disk, mount]) {
            match timed(dir, script, args) {
                Ok(took) => *best = took.min(*best),
                // Not a matter of time.
                Err(error) => return line.measured(error, false),
            }
        }
    }
    let [disk, mount] = best.map(|took| took.as_secs_f64());
    let times = mount / disk;
    let text = format!("{mount:.2} s, the disk {disk:.2} s: {times:.1} ×");
    line.timing().measured(text, times <= factor)
}

/// What unpacks a tar of [`make_tar`].
pub(crate) const UNPACK: &str = "tar -xf \"$1\"";

/// Makes a tar in this directory: of so many files in a hundred directories.
pub(crate) fn make_tar(beside: &Path, files: usize) -> Result<PathBuf, String> {
    let tar = beside.join("tar");
    let make = format!(
        "mkdir source && cd source && head -c $(({files} * 2000)) /dev/urandom |
         split -b 2000 -a 5 -d - f && for i in $(seq 0 99); do mkdir d$i; mv f*$(printf %02d $i) d$i; done
         cd .. && tar -cf \"$1\" source && rm -r source"
    );
    timed(beside, &make, &[&tar]).map(|_| tar)
}

pub(crate) fn against_the_disk(mode: Mode) -> Vec<Line> {
    dafs_tests::served::as_in_use(true);
    let place = Place::fresh(Duration::from_secs(mode.pick(150, 7200)));
    let disk = place.exported().join("disk");
    let mount = place.path().join("mount");
    for dir in [&disk, &mount] {
        std::fs::create_dir(dir).expect("mkdir");
    }
    let both = (disk.as_path(), mount.as_path());
    let beside = place.beside().to_path_buf();
    let files = mode.pick(2000, 20_000);
    let line = Line::new("disk", &format!("tar x of {files} files"), "≤ 2 × the local disk");
    let mut lines = vec![match make_tar(&beside, files) {
        Ok(tar) => by_turns(line, 2.0, 3, both, &format!("{UNPACK}; rm -r source"), &[&tar]),
        Err(error) => line.measured(error, false),
    }];

    let entries = mode.pick(10_000, 100_000);
    let line = Line::new("disk", &format!("find over {entries} entries"), "≤ 3 × the local disk");
    let fill = format!(
        "for i in $(seq 0 99); do mkdir -p many/$i; done
         seq {entries} | awk '{{ print \"many/\" $1 % 100 \"/\" $1 }}' | xargs touch"
    );
    let filled = timed(&disk, &fill, &[]).and_then(|_| timed(&mount, &fill, &[]));
    lines.push(match filled {
        Ok(_) => {
            by_turns(line, 3.0, 3, both, "find many -newermt 2001-01-01 -printf x >/dev/null", &[])
        }
        Err(error) => line.measured(error, false),
    });

    let what = mode.pick("build of a small package", "release build of this project");
    let line = Line::new("disk", what, "≤ 2 × the local disk");
    let short = "cargo init -q --vcs none --name small p && cargo build -q --offline \
                 --manifest-path p/Cargo.toml; rm -r p";
    let long = "git clone -q \"file://$1\" p && cd p && cargo build -q --release --locked --offline \
                --package dafs-cli; cd ..; rm -r p";
    let turns = mode.pick(2, 1);
    lines.push(by_turns(line, 2.0, turns, both, mode.pick(short, long), &[&root()]));
    lines
}
