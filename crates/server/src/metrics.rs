//! What sessions did and how long requests took, for readers in other threads. Workers only add
//! to counters: no lock, no system call but the clock, no allocation.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dafs_protocol::{ClientId, Operation};

use crate::own_reads::OwnReads;

/// Counters of one session, changed by its worker alone.
#[derive(Debug)]
pub(crate) struct SessionMeter {
    /// The session's.
    pub number: u64,
    pub client: ClientId,
    pub uid: u32,
    /// Where its first connection came from.
    pub peer: String,
    pub requests: AtomicU64,
    pub replays: AtomicU64,
    pub bytes_read: AtomicU64,
    pub bytes_written: AtomicU64,
    pub opens: AtomicU64,
    /// Beside requests.
    pub own_reads: OwnReads,
}

impl SessionMeter {
    pub(crate) fn new(number: u64, client: ClientId, uid: u32, peer: String) -> Arc<SessionMeter> {
        let zero = || AtomicU64::new(0);
        Arc::new(SessionMeter {
            number,
            client,
            uid,
            peer,
            requests: zero(),
            replays: zero(),
            bytes_read: zero(),
            bytes_written: zero(),
            opens: zero(),
            own_reads: OwnReads::default(),
        })
    }
}

/// Counters of one worker, which alone changes them: what is counted for each read.
#[derive(Debug, Default)]
pub(crate) struct WorkerCounters {
    pub requests: AtomicU64,
    pub bytes_read: AtomicU64,
    /// Reads that the cache answered at once; the cache itself counts all others.
    pub cache_hits: AtomicU64,
    /// Reads by a reference, which are no requests.
    pub named_reads: AtomicU64,
    /// Those that were refused.
    pub named_refused: AtomicU64,
    /// What these took of the processor's time, estimated.
    pub data_plane_ns: AtomicU64,
}

/// Adds to a counter that this thread alone changes.
#[inline]
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// Of all sessions, by their numbers, and of all requests.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    sessions: Mutex<BTreeMap<u64, Arc<SessionMeter>>>,
    pub latency: Latency,
}

impl Metrics {
    pub(crate) fn enter(&self, meter: Arc<SessionMeter>) {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).insert(meter.number, meter);
    }

    pub(crate) fn leave(&self, number: u64) {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }

    pub(crate) fn sessions(&self) -> Vec<Arc<SessionMeter>> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.values().cloned().collect()
    }
}

/// What a request is counted as: the last of these that an operation of it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Other,
    Attributes,
    Names,
    Lists,
    Opens,
    Locks,
    Syncs,
    Reads,
    Writes,
    /// A READ that the cache answers at once.
    CachedReads,
}

impl Kind {
    pub(crate) const ALL: [(Kind, &str); 10] = [
        (Kind::CachedReads, "cached_reads"),
        (Kind::Reads, "reads"),
        (Kind::Writes, "writes"),
        (Kind::Syncs, "syncs"),
        (Kind::Opens, "opens"),
        (Kind::Names, "names"),
        (Kind::Lists, "lists"),
        (Kind::Attributes, "attributes"),
        (Kind::Locks, "locks"),
        (Kind::Other, "other"),
    ];

    pub(crate) fn of(operations: &[Operation<'_>]) -> Kind {
        operations.iter().map(Kind::of_one).max().unwrap_or(Kind::Other)
    }

    fn of_one(operation: &Operation<'_>) -> Kind {
        use Operation as O;
        match operation {
            O::Read { .. } => Kind::Reads,
            O::Write { .. } | O::Append { .. } => Kind::Writes,
            O::CopyRange { .. } | O::CloneRange { .. } | O::Fallocate { .. } => Kind::Writes,
            O::Commit { .. } | O::SyncFs { .. } | O::SyncDir { .. } => Kind::Syncs,
            O::Lock { .. } | O::LockTest { .. } | O::Unlock { .. } => Kind::Locks,
            O::Open { .. } | O::Close { .. } | O::OpenDowngrade { .. } => Kind::Opens,
            O::ReadDir { .. } | O::ReadLink { .. } | O::Extents { .. } => Kind::Lists,
            O::GetXattr { .. } | O::ListXattr { .. } => Kind::Lists,
            O::GetRoot { .. } | O::Lookup { .. } | O::LookupParent { .. } => Kind::Names,
            O::Create { .. } | O::Link { .. } | O::Remove { .. } | O::Rename { .. } => Kind::Names,
            O::GetAttr { .. } | O::SetAttr { .. } | O::Access { .. } => Kind::Attributes,
            O::StatFs { .. } | O::SetXattr { .. } | O::RemoveXattr { .. } => Kind::Attributes,
            _ => Kind::Other,
        }
    }
}

/// Of requests that the cache answers at once, one in so many is timed: the clock would be a good
/// part of what they cost.
pub(crate) const CACHED_READS_PER_SAMPLE: u64 = 64;

const BUCKETS: usize = 52;
/// The first bucket takes what is shorter than this, in nanoseconds.
const FIRST: u64 = 1 << 10;

/// How long requests took in the server, from their arrival to their reply, by kind.
#[derive(Debug)]
pub(crate) struct Latency {
    kinds: [Histogram; Kind::ALL.len()],
}

#[derive(Debug)]
struct Histogram {
    nanoseconds: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Latency {
    fn default() -> Latency {
        let zero = || AtomicU64::new(0);
        let histogram =
            |_| Histogram { nanoseconds: zero(), buckets: std::array::from_fn(|_| zero()) };
        Latency { kinds: std::array::from_fn(histogram) }
    }
}

impl Latency {
    pub(crate) fn note(&self, kind: Kind, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let Some(histogram) = self.kinds.get(kind as usize) else { return };
        histogram.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        if let Some(bucket) = histogram.buckets.get(bucket(nanoseconds)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sum of the times, and requests by bucket, without empty ones at the end.
    pub(crate) fn of(&self, kind: Kind) -> (u64, Vec<u64>) {
        let Some(histogram) = self.kinds.get(kind as usize) else { return (0, Vec::new()) };
        let mut buckets: Vec<u64> =
            histogram.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        while buckets.last() == Some(&0) {
            buckets.pop();
        }
        (histogram.nanoseconds.load(Ordering::Relaxed), buckets)
    }

    /// What each bucket's times are shorter than, in nanoseconds: two buckets for each power of
    /// two. The last one takes longer times too.
    pub(crate) fn bounds() -> Vec<u64> {
        (0..BUCKETS as u32)
            .map(|index| match (FIRST << (index / 2), index % 2) {
                (base, 0) => base,
                (base, _) => base + base / 2,
            })
            .collect()
    }
}

fn bucket(nanoseconds: u64) -> usize {
    let Some(octave) = (nanoseconds / FIRST).checked_ilog2() else { return 0 };
    let half = (nanoseconds >> (octave + FIRST.ilog2() - 1)) & 1;
    (1 + 2 * octave as usize + half as usize).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_that_it_is_shorter_than() {
        let bounds = Latency::bounds();
        assert!(bounds.is_sorted() && bounds.len() == BUCKETS);
        for (index, bound) in bounds.iter().enumerate() {
            assert_eq!(bucket(bound - 1), index, "{bound}");
            assert_eq!(bucket(*bound), (index + 1).min(BUCKETS - 1), "{bound}");
        }
        assert_eq!((bucket(0), bucket(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn a_chain_counts_as_what_moves_data() {
        let state = dafs_protocol::StateId::PREVIOUS;
        let attributes = Operation::GetAttr { handle: Default::default(), state };
        let close = Operation::Close { state };
        let write =
            Operation::Append { state, bytes: 1, stability: dafs_protocol::Stability::File };
        assert_eq!(Kind::of(std::slice::from_ref(&attributes)), Kind::Attributes);
        assert_eq!(Kind::of(&[close.clone(), attributes]), Kind::Opens);
        assert_eq!(Kind::of(&[write, close]), Kind::Writes);
        let latency = Latency::default();
        latency.note(Kind::Writes, Duration::from_nanos(1500));
        latency.note(Kind::Writes, Duration::from_nanos(10));
        assert_eq!(latency.of(Kind::Writes), (1510, vec![1, 1]));
        assert_eq!(latency.of(Kind::Reads), (0, Vec::new()));
        for (index, (kind, _)) in Kind::ALL.iter().enumerate() {
            assert!((*kind as usize) < Kind::ALL.len(), "{index}");
        }
    }
}
