//! What the thread of a worker does: network and disk by turns, and sleep between.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dafs_fabric::Spin;
use dafs_protocol::WaitMode;
use dafs_store::{Elsewhere, ThreadIo};

use crate::exports::Export;
use crate::shared::Shared;
use crate::worker::Worker;

/// What the stores do in this thread. Where they cannot, their own threads do that.
pub(crate) fn attach_thread(shared: &Shared) -> Vec<Box<dyn ThreadIo>> {
    let attach = |export: &Export| match export.store.attach_thread() {
        Ok(io) => io,
        Err(error) => {
            tracing::warn!(%error, export = %export.path, "its I/O is not in the worker's thread");
            None
        }
    };
    shared.exports.iter().filter_map(attach).collect()
}

/// Looks at all; true if there was any work.
fn poll_all(store_io: &[Box<dyn ThreadIo>]) -> bool {
    store_io.iter().fold(false, |busy, io| io.poll() | busy)
}

/// Drives a worker, and what the stores do in its thread, until the server stops.
pub(crate) fn work(
    mut worker: Worker,
    mut store_io: Vec<Box<dyn ThreadIo>>,
    stopping: &AtomicBool,
) {
    let start = Instant::now();
    let waiter = worker.waiter();
    // A waiter that cannot watch it would sleep over completions: then it is given up.
    store_io.retain(|io| waiter.watch(io.event()).is_ok());
    let mut spin = Spin::default();
    loop {
        let now = start.elapsed();
        let mut busy = worker.progress(now);
        // What was begun is handed over; what has ended makes tasks ready for the next pass.
        busy |= poll_all(&store_io);
        if stopping.load(Ordering::SeqCst) {
            return drain(worker, store_io, start);
        }
        let keep_on = match worker.wait_mode() {
            WaitMode::Polled => true,
            WaitMode::Adaptive if busy => {
                spin.came(now);
                true
            }
            WaitMode::Adaptive => spin.goes_on(now, || worker.peers_are_here()),
            // No second look before the sleep: it costs a system call, and the waiter returns
            // at once when more has come.
            WaitMode::Sleeping => false,
        };
        if keep_on {
            spin_once(!busy && worker.running() > 0);
            continue;
        }
        if worker.prepare_sleep() && store_io.iter().all(|io| io.prepare_sleep()) {
            waiter.wait(Some(worker.next_timeout().saturating_sub(now)));
        }
        worker.awake();
        store_io.iter().for_each(|io| io.awake());
    }
}

/// One look more. Where answers are awaited, threads of the stores may need this very processor, and the system
/// lets who spins go on for milliseconds before it runs them.
fn spin_once(waits: bool) {
    if waits && Elsewhere::is_some() {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// How long a shut-down waits for a disk after the last progress.
const PATIENCE: Duration = Duration::from_secs(30);

/// Closes all sessions and flushes. A disk that does not answer does not hold up the end.
fn drain(mut worker: Worker, store_io: Vec<Box<dyn ThreadIo>>, start: Instant) {
    worker.shut_down();
    let waiter = worker.waiter();
    let mut patience = PATIENCE;
    // Progress is that something has ended or was written: peers and timers go on for ever.
    let mut last = (start.elapsed(), (0, 0));
    while worker.running() > 0 {
        let now = start.elapsed();
        let busy = worker.progress(now) | poll_all(&store_io);
        let cache = worker.shared.unifier.stats();
        let state = (worker.running(), cache.written_bytes);
        if state != last.1 {
            last = (now, state);
        } else if now.saturating_sub(last.0) > PATIENCE {
            let bytes = cache.dirty_bytes;
            tracing::error!(
                "gave up flushing: the file system does not answer; \
                 {bytes} bytes that clients wrote are lost"
            );
            worker.shared.sessions.ended.add_unflushed(state.0 as u64);
            patience = Duration::ZERO;
            break;
        }
        if !busy && worker.prepare_sleep() {
            waiter.wait(Some(Duration::from_millis(5)));
        }
        worker.awake();
    }
    worker.shared.drained();
    // What is lent to clients is pinned by this worker: it goes last, when nobody needs pages any more.
    if worker.has_lent() {
        worker.shared.wait_until_drained((last.0 + PATIENCE).saturating_sub(start.elapsed()));
    }
    for left in store_io.into_iter().filter_map(|io| io.close(patience).err()) {
        tracing::error!("gave up waiting for {left} transfers that the disk does not answer");
    }
}
