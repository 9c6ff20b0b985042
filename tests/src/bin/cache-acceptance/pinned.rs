//! pinned: a cache on a device that pins what it knows, whose limit of locked memory is enough, or is not.

use dafs_tests::machine::locked_memory;
use dafs_tests::resized::{Plan, run};

use crate::{Line, Mode};

/// Segments of the 16 that the device takes.
const SOME: u64 = 6;
/// Of server and clients, at most.
const LOCKED: usize = 256 << 20;

pub(crate) fn resized(mode: Mode) -> Vec<Line> {
    let rounds = mode.pick(10, 100);
    let line = |what: &str, limit| {
        let what = format!("{rounds} times half of the cache, and all, {what}");
        let required = "right data, registered as used";
        let tried = locked_memory(LOCKED).and_then(|()| run(Plan { rounds, limit }));
        Line::new("pinned", &what, required).result(tried.map(|report| report.to_string())).told()
    };
    vec![line("a device that pins", None), line("6 of 16 segments", Some(SOME))]
}
