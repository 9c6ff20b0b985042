//! Who waits for memory holds nothing that others need for the same.

use dafs_protocol::CacheHint;

use super::disk::{Disk, Task, run};
use super::*;

const MIB: usize = 1 << 20;
const CLUSTER: u64 = 64 << 10;

#[test]
fn many_who_write_across_blocks_that_are_not_cached_do_not_wait_for_each_other() {
    let disk = Disk::new(1, 100);
    let file = disk.file(1, vec![1; 4 * MIB]);
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    // Each block that is read in holds a whole frame, of which there are 16.
    cached.wish(CacheHint { unit: CLUSTER as u32, ..CacheHint::default() });
    let write = |nth: u64| {
        let cached = cached.clone();
        Task::new(async move { write(&cached, 2 * nth * CLUSTER - 10, &[2; 20], 1).await })
    };
    let mut writes: Vec<_> = (1..30).map(write).collect();
    while !writes.is_empty() {
        writes.retain_mut(|write| write.poll().is_none());
        let is_woken = writes.iter().any(Task::is_woken);
        assert!(writes.is_empty() || is_woken || disk.complete_one(), "they wait for ever");
    }
    let written = (1..30).all(|nth| {
        run(&disk, {
            let cached = cached.clone();
            async move { read(&cached, 2 * nth * CLUSTER - 11, 22).await }
        }) == [&[1][..], &[2; 20], &[1]].concat()
    });
    assert!(written);
}
