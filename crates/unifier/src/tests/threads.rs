//! Many threads at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use dafs_protocol::CommitLevel;

use super::disk::{Disk, Rng};
use super::{open, read, unifier, write};
use crate::WriterId;

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub(super) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match work.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// Each block is written as a whole with one byte; a reader sees whole blocks. The last byte
/// written of each is what is in the store at the end.
#[test]
fn workers_share_files_in_a_small_arena() {
    let disk = Disk::new(1, 50);
    let unifier = unifier(256 * 1024);
    let files: Vec<_> = (0..2).map(|inode| disk.file(inode, vec![0; 400_000])).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if !disk.complete_one() {
                    thread::yield_now();
                }
            }
        });
        let worker = |id: u64| {
            let (unifier, files) = (&unifier, &files);
            move || {
                let mut rng = Rng::new(id);
                let cached: Vec<_> = files.iter().map(|file| open(unifier, file)).collect();
                // Of each file, the blocks that this worker alone writes.
                let mut mine = vec![[0u8; 24]; 2];
                for round in 0..600u64 {
                    let at = rng.below(2) as usize;
                    let nth = rng.below(24);
                    let offset = (nth * 4 + id) * 4096;
                    let byte = rng.below(255) as u8 + 1;
                    block_on(async {
                        if rng.chance(50) {
                            write(&cached[at], offset, &[byte; 4096], id).await;
                            mine[at][nth as usize] = byte;
                        }
                        let other = rng.below(90) * 4096;
                        let seen = read(&cached[at], other, 8192).await;
                        for block in seen.chunks(4096) {
                            assert!(block.iter().all(|byte| *byte == block[0]), "torn");
                        }
                        let seen = read(&cached[at], offset, 4096).await;
                        assert_eq!(seen, [mine[at][nth as usize]; 4096]);
                        if round % 100 == id {
                            cached[at]
                                .commit(WriterId(id), 0, 0, CommitLevel::Data)
                                .await
                                .expect("commit");
                            unifier.write_back(Duration::from_secs(round)).await;
                        }
                    });
                }
                for cached in cached {
                    block_on(cached.close(WriterId(id))).expect("close");
                }
                mine
            }
        };
        let workers: Vec<_> = (0..4).map(|id| scope.spawn(worker(id))).collect();
        let mine: Vec<_> =
            workers.into_iter().map(|worker| worker.join().expect("worker")).collect();
        done.store(true, Ordering::Relaxed);
        for (id, mine) in mine.iter().enumerate() {
            for (file, blocks) in files.iter().zip(mine) {
                for (nth, byte) in blocks.iter().enumerate() {
                    let at = (nth * 4 + id) * 4096;
                    assert_eq!(file.state().data[at], *byte);
                }
            }
        }
    });
    assert_eq!(unifier.stats().dirty_bytes, 0);
}
