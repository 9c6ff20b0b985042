//! Memory that the system does not take back: a process of its own, all of whose memory is locked.

use std::sync::Arc;

use dafs_fabric::Arena;
use dafs_protocol::{Timestamp, WriteVerifier};
use dafs_unifier::{Config, Unifier};
use nix::sys::mman::{MlockAllFlags, mlockall, munlockall};

const MIB: usize = 1 << 20;

#[test]
fn what_the_system_does_not_take_is_not_counted_as_given_back() {
    if let Err(error) = mlockall(MlockAllFlags::MCL_FUTURE) {
        return eprintln!("skipped: memory cannot be locked: {error}");
    }
    let arena = Arena::new(8 * MIB).expect("arena");
    let clock = || Timestamp { seconds: 1, nanoseconds: 0 };
    let config = Config { least_bytes: MIB, ..Config::new(arena.len(), Arc::new(clock)) };
    let unifier = Unifier::new(arena, config, WriteVerifier([7; 16]));
    assert_eq!(unifier.resize(4 << 20), 8 << 20, "all of it is still there");
    let stats = unifier.stats();
    assert_eq!((stats.decommitted_bytes, stats.decommits_refused), (0, 1));
    munlockall().expect("unlocked");
    assert_eq!(unifier.resize(4 << 20), 4 << 20);
    let stats = unifier.stats();
    assert_eq!((stats.decommitted_bytes, stats.decommits_refused), (4 << 20, 1));
}
