//! Reads that this process does by itself: counted where they are, and told to the server with what it is asked for
//! anyway, so that who looks at the server sees them.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use dafs_protocol::{Features, ToldReads, encode_told_reads};

use super::Core;
use super::work::Work;

/// Counters that threads share out among themselves.
const SHARDS: usize = 8;
/// Requests tell no more often; only the renewal of the lease, and the end of the session, always do.
const PAUSE: Duration = Duration::from_secs(1);

/// Requests that are longer do not tell: beside a shorter one there is room for it in a message of any link, and no call
/// fails, or goes in another form, for what it happens to tell.
const REQUEST_MOST: usize = 128;

/// How a session's reads went that needed no server, or nearly.
#[derive(Debug, Default)]
pub struct OwnReads {
    shards: [Shard; SHARDS],
}

/// In a line of the processor's cache of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Shard {
    pub(crate) hits: AtomicU64,
    pub(crate) unknown: AtomicU64,
    /// Of these, what the second set of the directory told of.
    pub(crate) found_second: AtomicU64,
    pub(crate) stale: AtomicU64,
    /// Questions where blocks are.
    pub(crate) asked: AtomicU64,
}

thread_local! {
    /// The number of this thread's, plus one.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

#[cold]
fn take_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    OWN.set(number + 1);
    number
}

impl OwnReads {
    /// The counters of this thread.
    #[inline]
    pub(crate) fn shard(&self) -> &Shard {
        let number = match OWN.get() {
            number @ 1..=SHARDS => number - 1,
            _ => take_shard(),
        };
        &self.shards[number]
    }

    fn sum(&self, of: fn(&Shard) -> &AtomicU64) -> u64 {
        self.shards.iter().map(|shard| of(shard).load(Ordering::Relaxed)).sum()
    }

    /// So far.
    pub(crate) fn all(&self) -> ToldReads {
        let found = self.sum(|shard| &shard.found_second);
        ToldReads {
            hits: self.sum(|shard| &shard.hits),
            // Each of those found is among these by now.
            unknown: self.sum(|shard| &shard.unknown).saturating_sub(found),
            stale: self.sum(|shard| &shard.stale),
        }
    }

    /// Questions so far.
    pub(crate) fn asked(&self) -> u64 {
        self.sum(|shard| &shard.asked)
    }
}

/// What the server is told of them.
#[derive(Debug, Default)]
pub(super) struct Telling {
    reads: Arc<OwnReads>,
    /// Before this session of the server: they are none of it.
    before: ToldReads,
    due_at: Duration,
}

impl Telling {
    /// The server has made a session, which had none.
    pub(super) fn begin(&mut self, now: Duration) {
        self.before = self.reads.all();
        self.due_at = now + PAUSE;
    }

    /// It is time, or this request tells in any case.
    #[inline]
    fn is_due(&self, now: Duration, work: &Work) -> bool {
        matches!(work, Work::Null | Work::Destroy) || now >= self.due_at
    }

    /// What to tell, if there was ever anything.
    fn next(&mut self, now: Duration) -> Option<ToldReads> {
        self.due_at = now + PAUSE;
        let reads = self.reads.all().since(&self.before);
        (reads != ToldReads::default()).then_some(reads)
    }
}

impl Core {
    /// Where they are counted.
    pub fn own_reads(&self) -> Arc<OwnReads> {
        self.session.telling.reads.clone()
    }

    /// Has a request that is ready tell of them, where it is time for that.
    #[inline]
    pub(super) fn tell_own_reads(&mut self, work: &Work, request: &mut Vec<u8>) {
        if self.session.telling.is_due(self.now, work) && request.len() <= REQUEST_MOST {
            self.tell_due_reads(request);
        }
    }

    #[inline(never)]
    fn tell_due_reads(&mut self, request: &mut Vec<u8>) {
        if self.session.facts.features.has(Features::TOLD_READS)
            && let Some(reads) = self.session.telling.next(self.now)
        {
            let has_room = encode_told_reads(&reads, request);
            debug_assert!(has_room, "after {} bytes", request.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(reads: &OwnReads, hits: u64) {
        reads.shard().hits.fetch_add(hits, Ordering::Relaxed);
    }

    #[test]
    fn all_threads_of_a_session_are_counted_and_none_twice() {
        let reads = OwnReads::default();
        std::thread::scope(|scope| {
            (0..2 * SHARDS).for_each(|_| drop(scope.spawn(|| hit(&reads, 10))));
        });
        reads.shard().stale.fetch_add(1, Ordering::Relaxed);
        reads.shard().asked.fetch_add(3, Ordering::Relaxed);
        let hits = 20 * SHARDS as u64;
        assert_eq!(reads.all(), ToldReads { hits, unknown: 0, stale: 1 });
        assert_eq!(reads.asked(), 3);
    }

    /// Of all that are sent where there is least room.
    #[test]
    fn there_is_room_beside_each_request_that_tells() {
        const MESSAGE_BYTES_LEAST: usize = 256;
        const MESSAGE_HEADER_BYTES: usize = 28;
        let mut request = vec![0; REQUEST_MOST];
        assert!(encode_told_reads(
            &ToldReads { hits: u64::MAX, unknown: 0, stale: 1 },
            &mut request
        ));
        assert!(request.len() + MESSAGE_HEADER_BYTES <= MESSAGE_BYTES_LEAST, "{}", request.len());
    }

    #[test]
    fn a_new_session_of_the_server_is_not_told_of_what_was_before() {
        let mut telling = Telling::default();
        let second = Duration::from_secs(1);
        telling.begin(second);
        assert_eq!(telling.next(2 * second), None, "there was nothing");
        hit(&telling.reads, 7);
        for time in [3, 4] {
            // As much again, so that the server sees that it is no more.
            let told = telling.next(time * second).expect("some");
            assert_eq!((told.hits, telling.due_at), (7, time * second + PAUSE));
        }
        telling.begin(5 * second);
        assert_eq!(telling.next(6 * second), None);
        hit(&telling.reads, 2);
        assert_eq!(telling.next(7 * second).map(|told| told.hits), Some(2));
    }
}
