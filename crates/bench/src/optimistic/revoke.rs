//! How long reads without the server go on when the right to them has ended: by a close of the file, and of the
//! session.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dafs_client::File;

use super::Bench;
use super::place::{BLOCK, Reader, Way, open};
use super::row::{Row, Seen};
use crate::wait::Wait;

/// Of each kind.
const TRIALS: u64 = 40;
/// Blocks of the file.
const BLOCKS: u64 = 64;
/// A read that succeeds so long after the end is enough to know.
const PATIENCE: Duration = Duration::from_secs(5);

/// What ends the right.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Close,
    Session,
}

/// What a reader beside the end saw.
struct Watched {
    /// When the last read began that succeeded.
    last: Instant,
    /// When the first one ended that did not; `None`: none did.
    refused: Option<Instant>,
}

/// Reads on and on, until it is refused.
fn watch(file: &File, reads: &AtomicBool, ended: &AtomicBool) -> Watched {
    let (mut block, mut last) = (vec![0; BLOCK], Instant::now());
    let mut over = None;
    for number in 0u64.. {
        let began = Instant::now();
        if file.read_at(&mut block, number % BLOCKS * BLOCK as u64).is_err() {
            return Watched { last, refused: Some(Instant::now()) };
        }
        last = began;
        reads.store(true, Ordering::Release);
        if ended.load(Ordering::Relaxed) && *over.get_or_insert(began) + PATIENCE < began {
            break;
        }
    }
    Watched { last, refused: None }
}

/// From the call that ends the right to the first refusal; and how late after the call's return a read began
/// that succeeded. `None`: nothing is read without the server.
fn trial(bench: &Bench<'_>, end: End) -> io::Result<Option<(Duration, Duration)>> {
    let mut reader = Reader::new(bench.place, Way::Optimistic, Wait::Adaptive, BLOCK)?;
    let file = open(&reader.session, &bench.place.path("file"))?;
    if !reader.warm(&[(&file, BLOCKS)], bench.stop)? {
        return Ok(None);
    }
    let session = reader.session.clone();
    drop(reader);
    let (reads, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let beside = file.clone();
    let (called, returned, watched) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&beside, &reads, &ended));
        while !reads.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let called = Instant::now();
        let closed = match end {
            End::Close => file.close().map(drop),
            End::Session => {
                session.clone().close();
                Ok(())
            }
        };
        let returned = Instant::now();
        ended.store(true, Ordering::Relaxed);
        let watched = watcher.join().map_err(|_| io::Error::other("a reader panicked"))?;
        closed?;
        Ok::<_, io::Error>((called, returned, watched))
    })?;
    let refused = watched.refused.ok_or_else(|| {
        io::Error::other("a read succeeded five seconds after its file or session was closed")
    })?;
    let late = watched.last.saturating_duration_since(returned);
    Ok(Some((refused.saturating_duration_since(called), late)))
}

pub(super) fn run(bench: &Bench<'_>, put: &mut dyn FnMut(Row) -> io::Result<()>) -> io::Result<()> {
    bench.place.make("file", BLOCKS * BLOCK as u64, bench.stop)?;
    for (end, name) in [(End::Close, "close"), (End::Session, "session")] {
        bench.say(&format!("revoke: {name}"));
        let base = Row { to: Some(name), path: Way::Optimistic.name(), ..bench.row("revoke") };
        let (mut seen, mut worst) = (Seen::default(), Duration::ZERO);
        for _ in 0..TRIALS {
            if bench.is_over() {
                return Ok(());
            }
            let Some((refused, late)) = trial(bench, end)? else { break };
            seen.slice.latency.record(refused);
            seen.slice.seconds += refused.as_secs_f64();
            seen.slice.ops += 1;
            worst = worst.max(late);
        }
        let mut row = base.with(std::slice::from_ref(&seen));
        // Of trials, not of reads.
        (row.ops_per_s, row.bytes_per_s, row.client_hit_ratio) = (None, None, None);
        row.worst_us = (seen.slice.ops > 0).then_some(worst.as_secs_f64() * 1e6);
        put(row)?;
    }
    bench.place.remove(&bench.place.path("file"))
}
