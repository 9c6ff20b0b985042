//! programs: programs, with their data verified, undisturbed and while the server is restarted.

use std::path::PathBuf;
use std::time::Duration;

use dafs_tests::Place;

use crate::script::{root, suite};
use crate::{Line, Mode, maildir};

/// Suites with what they do; those that need it are given the repository or a second mount.
const SUITES: &[(&str, &str)] = &[
    ("git.sh", "git clone, commits, merge, gc, fsck"),
    ("build.sh", "cargo builds, clean and incremental"),
    ("trees.sh", "tar, rsync, cp, find, du, rm"),
    ("sqlite.sh", "SQLite: both journals, kills, two mounts by turns"),
    ("postgres.sh", "PostgreSQL: pgbench, kills, pg_amcheck"),
    ("redis.sh", "Redis: append-only file, kills"),
];

pub(crate) fn all(mode: Mode) -> Vec<Line> {
    let mut lines = Vec::new();
    for disturbed in [false, true] {
        for (script, what) in SUITES {
            lines.push(tried(mode, what, disturbed, |place| {
                let arg: Option<PathBuf> = match *script {
                    "git.sh" | "build.sh" => Some(root()),
                    "sqlite.sh" => Some(place.mount_again("")),
                    _ => None,
                };
                let args: Vec<_> = arg.iter().map(PathBuf::as_path).collect();
                suite(place, mode, script, &args, disturbed)
            }));
        }
        let what = "maildir: deliveries and readers on two mounts";
        let deliver = |place: &mut Place| maildir::deliver_and_read(place, mode, disturbed);
        lines.push(tried(mode, what, disturbed, deliver));
    }
    lines
}

/// Runs one in a place of its own.
fn tried(
    mode: Mode,
    what: &str,
    disturbed: bool,
    body: impl FnOnce(&mut Place) -> Result<String, String>,
) -> Line {
    let with = if disturbed { ", restarts" } else { "" };
    let line = Line::new("programs", &format!("{what}{with}"), "data as written, nothing lost");
    let mut place = Place::new(Duration::from_secs(mode.pick(110, 4000)));
    if disturbed && !place.is_mount() {
        return line.skipped("no server in a plain directory");
    }
    line.result(body(&mut place))
}
