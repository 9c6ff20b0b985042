//! Shared memory: peers that die or stand still, many at once, many that do nothing.

pub(crate) mod crowd;
pub(crate) mod kills;
pub(crate) mod victim;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

fn is_of_memory(target: PathBuf) -> bool {
    target.to_string_lossy().starts_with("/memfd:")
}

/// What a process has open and mapped, but for files: the handles of a server that is not root keep those
/// that clients made, as long as its table has them.
#[derive(Debug, Clone, Copy)]
struct Held {
    descriptors: usize,
    mappings: usize,
}

impl Held {
    fn by(pid: u32) -> Held {
        let count = |what: &str| Path::new(&format!("/proc/{pid}")).join(what);
        let is_root = std::fs::metadata(count("")).is_ok_and(|process| process.uid() == 0);
        let is_file = |at: &Path| !is_root && std::fs::metadata(at).is_ok_and(|it| it.is_file());
        let is_held = |at: &Path| !is_file(at) || std::fs::read_link(at).is_ok_and(is_of_memory);
        let descriptors = std::fs::read_dir(count("fd"))
            .map_or(0, |all| all.flatten().filter(|one| is_held(&one.path())).count());
        let maps = std::fs::read_to_string(count("maps")).unwrap_or_default();
        Held { descriptors, mappings: maps.lines().count() }
    }
}
