//! Shared memory: peers that die or stand still, many at once, many that do nothing.

pub(crate) mod crowd;
pub(crate) mod kills;
pub(crate) mod victim;

use std::path::Path;

/// What a process has open and mapped.
#[derive(Debug, Clone, Copy)]
struct Held {
    descriptors: usize,
    mappings: usize,
}

impl Held {
    fn by(pid: u32) -> Held {
        let count = |what: &str| Path::new(&format!("/proc/{pid}")).join(what);
        let descriptors = std::fs::read_dir(count("fd")).map_or(0, Iterator::count);
        let maps = std::fs::read_to_string(count("maps")).unwrap_or_default();
        Held { descriptors, mappings: maps.lines().count() }
    }
}
