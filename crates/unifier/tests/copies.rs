//! Payload is not copied on the paths that promise so. In a process of its own, since copies
//! are counted per process.

use std::sync::Arc;

use dafs_fabric::Arena;
use dafs_fabric::mem::copied_bytes;
use dafs_protocol::{Timestamp, WriteVerifier};
use dafs_unifier::{CachedFile, Config, Opening, Unifier, Writer, WriterId};

#[allow(dead_code)]
#[path = "../src/tests/disk.rs"]
mod disk;

use disk::{Disk, Handle, run};

const MIB: usize = 1 << 20;

async fn write(file: &Arc<CachedFile>, offset: u64, len: usize) {
    let mut reservation = file.reserve(offset, len).await.expect("reserve");
    for span in reservation.spans() {
        span.write_message(0, &vec![3; span.len()]);
    }
    reservation.landed(len);
    let writer = Writer { id: WriterId(1), clear_privileges: true };
    file.commit_write(reservation, writer).await.expect("commit");
}

#[test]
fn whole_blocks_and_reads_are_not_copied() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 4 * MIB]);
    let clock = || Timestamp { seconds: 1, nanoseconds: 0 };
    let arena = Arena::new(32 * MIB).expect("arena");
    let config = Config::new(32 * MIB, Arc::new(clock));
    let unifier = Unifier::new(arena, config, WriteVerifier([1; 16]));
    let mark = unifier.mark();
    let handle = Arc::new(Handle(file.clone()));
    let cached = unifier.open(mark, WriterId(1), handle, &file.attr_now(), Opening::Existing);
    run(&disk, async move {
        let before = copied_bytes();
        for (offset, len) in [(0, MIB), (5, 3), (4095, 70_000), (4 * MIB as u64 - 10, 100)] {
            let lease = cached.read(offset, len).await.expect("read");
            assert!(!lease.spans().is_empty());
        }
        write(&cached, 0, 4096).await;
        write(&cached, 8192, MIB).await;
        write(&cached, MIB as u64, MIB).await;
        // Not in the cache: no need to read it in.
        write(&cached, 3 * MIB as u64, 4096).await;
        // The end of the file may lie within a block.
        write(&cached, 4 * MIB as u64, 100).await;
        cached.flush().await.expect("flush");
        assert_eq!(copied_bytes(), before);
        // This proves that copies would have been seen.
        write(&cached, 100, 100).await;
        assert_eq!(copied_bytes() - before, 4096 - 100);
        cached.close(WriterId(1)).await.expect("close");
    });
    assert_eq!(file.state().reads, 2, "none for writes");
}
