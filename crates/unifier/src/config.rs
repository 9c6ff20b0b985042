//! What can be set, and what is counted.

use std::sync::Arc;
use std::time::Duration;

use dafs_fabric::{Arena, Domain};
use dafs_protocol::Timestamp;

use crate::policy::Policy;

/// Gives the time that a write leaves on its file until the store's own time replaces it.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What a cache needs for all that one request may take.
pub const LEAST_BYTES: usize = 16 << 20;

/// Bounds of a cache.
#[derive(Clone)]
pub struct Config {
    /// Data written but not yet in the store, with what is reserved for data to come. Writers
    /// wait at this bound.
    pub dirty_bytes_max: usize,
    /// Data older than this is written back.
    pub dirty_age: Duration,
    /// Replaced pages that slow readers still hold, of all sessions together. Writers wait
    /// beyond this; what one session can hold is bounded by its requests under way.
    pub orphan_bytes_max: usize,
    /// The cache keeps this much of its arena also while memory is short,
    pub least_bytes: usize,
    /// and this part of it: 4 for a quarter.
    pub least_part: usize,
    /// Files that are remembered, with their pages, after their last close; each takes less
    /// than 1 KiB besides its pages.
    pub closed_files_max: usize,
    /// The policy of files for which none is chosen.
    pub policy: Policy,
    /// Names this life of the cache: from 1 to [`EPOCH_MAX`](dafs_protocol::EPOCH_MAX), and another number than
    /// any life had whose readers may still be there.
    pub epoch: u32,
    /// Where it is said of each slot what it holds, for others to read: memory of
    /// [so many](crate::Unifier::entries_bytes) bytes, all zero, of which the words before
    /// [`ENTRIES_FIRST_WORD`](dafs_protocol::ENTRIES_FIRST_WORD) are left alone. `None`: in private memory.
    pub entries: Option<Arc<Arena>>,
    /// Slots are zeros while they are free, for who may read what is cached, and not what was.
    pub erases: bool,
    /// For the times of files with dirty data.
    pub clock: Clock,
    /// The devices that are to know the arena, if one must ([`Domain::register`]): segment by segment,
    /// before each is first used.
    pub domain: Option<Arc<Domain>>,
}

impl Config {
    /// Defaults for an arena of this size: half of it for dirty data, a quarter for orphans, no device.
    pub fn new(arena_bytes: usize, clock: Clock) -> Config {
        Config {
            dirty_bytes_max: arena_bytes / 2,
            dirty_age: Duration::from_secs(5),
            orphan_bytes_max: arena_bytes / 4,
            least_bytes: LEAST_BYTES,
            least_part: 4,
            closed_files_max: 32_768,
            policy: Policy::default(),
            epoch: 1,
            entries: None,
            erases: false,
            clock,
            domain: None,
        }
    }
}

/// What a cache has done and holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Reads answered from the arena.
    pub hits: u64,
    /// Reads that had to wait for the store.
    pub misses: u64,
    /// Bytes of the arena in use, for whatever.
    pub resident_bytes: u64,
    /// Bytes of the arena given back to the system while memory is short.
    pub decommitted_bytes: u64,
    /// How often the system did not take what was to be given back.
    pub decommits_refused: u64,
    /// How often the device did not take a segment: what is in it is copied when it is sent.
    pub registrations_refused: u64,
    /// Bytes written but not in the store yet, and reserved for writes under way.
    pub dirty_bytes: u64,
    /// The bound of those, before which writers wait.
    pub dirty_bytes_max: u64,
    /// Bytes replaced that readers still hold.
    pub orphan_bytes: u64,
    /// Bytes evicted.
    pub evicted_bytes: u64,
    /// Calls of [`dafs_store::File::read_at`] to read in.
    pub fills: u64,
    /// Bytes read in.
    pub filled_bytes: u64,
    /// Calls of [`dafs_store::File::write_at`].
    pub write_backs: u64,
    /// Bytes that these wrote.
    pub written_bytes: u64,
    /// Write-backs that failed.
    pub write_errors: u64,
    /// Dirty bytes given up after errors.
    pub lost_bytes: u64,
    /// Writes refused since not all of their bytes had landed.
    pub short_writes: u64,
    /// Files known, open or not.
    pub files: u64,
}
