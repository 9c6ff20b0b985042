//! What a mount must hold with every configuration of the server, in a few seconds each: a part
//! of pjdfstest, integrity and programs.

use std::time::Duration;

use dafs_tests::Place;
use dafs_tests::mounted::Ending;

use crate::script::suite;
use crate::{Line, Mode, integrity, pjdfstest};

pub(crate) fn all(mode: Mode) -> Vec<Line> {
    let mut lines = pjdfstest::cases(mode);
    let mut place = Place::new(Duration::from_secs(110));
    let dir = place.path().to_path_buf();
    for (what, config) in [("fsx", "fsx.toml"), ("fsx with shared mappings", "fsx-mmap.toml")] {
        lines.push(integrity::fsx(&mut place, mode, Ending::Killed, what, config, &dir));
    }
    drop(place);
    let mut place = Place::new(Duration::from_secs(110));
    let line =
        Line::new("programs", "tar, rsync, cp, find, du, rm", "data as written, nothing lost");
    lines.push(line.result(suite(&mut place, mode, "trees.sh", &[], false)));
    lines
}
