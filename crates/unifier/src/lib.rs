//! \[UNIFIER\]: one memory for caching and communication. The index that makes arena memory a
//! file cache: pages go from the disk to the wire and from the wire to the disk without a copy.
//!
//! * A read takes a [`PinnedRead`] of cached pages, which the network reads while it is held.
//!   Leases share pages, and no writer waits for one.
//! * A write takes a [`WriteReservation`] of fresh pages, which the network fills. They become
//!   the file's at once by [`CachedFile::commit_write`], and are discarded if the transfer died.
//! * Dirty data has a bound, before which writers wait. It is written back when it is old, when
//!   it is much, at COMMIT and at CLOSE. What cannot be written is told once to each session
//!   that wrote.
//!
//! There is no runtime, clock or thread in here: futures go on when the store's completions wake
//! them, times are given. Work that has begun with the store ends whether or not a caller still
//! waits for it; [`Unifier::write_back`] is to be called now and then.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]
#![deny(missing_docs)]

mod accessed;
mod blocks;
mod change;
mod close;
mod config;
mod deferred_errors;
mod dirty;
mod domains;
mod emptying;
mod entry;
mod file;
mod file_policy;
mod fill;
mod job;
mod keeping;
mod memory;
mod moving;
mod page_read;
mod placement;
#[cfg_attr(not(feature = "planted"), allow(unreachable_pub))]
mod planted;
pub mod policy;
mod pool;
mod query;
mod ranges;
mod read;
mod read_ahead;
mod reading;
mod resize;
pub mod simulate;
mod spares;
#[cfg(test)]
mod tests;
pub mod trace;
mod unifier;
mod wait;
mod write;
mod write_back;

pub use config::{CacheStats, Clock, Config, LEAST_BYTES};
pub use domains::{CacheDomain, CacheDomains};
pub use file::{CachedFile, PageEnd, PageWaiter, PinnedPage};
pub use placement::{DomainId, DomainSet, Placement};
#[cfg(feature = "planted")]
pub use planted::{Defect, plant};
pub use policy::{Class, Policy};
pub use query::Cached;
pub use ranges::FilePosition;
pub use read::{HeldPage, PageLook, PinnedPages, PinnedRead};
pub use read_ahead::Reader;
pub use reading::{PinnedBytes, Reading};
pub use unifier::{AccessedBits, HoldPermit, Unifier};
pub use wait::{FairQueue, Ticket};
pub use write::WriteReservation;

/// A session that writes: late errors are told to each once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriterId(pub u64);

/// What an open did to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// Nothing.
    Existing,
    /// It made the file. Others may have written to it since.
    Created,
    /// It cut the file to nothing.
    Truncated,
}

/// Who writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writer {
    /// The session.
    pub id: WriterId,
    /// Not root: write-back clears setuid and setgid.
    pub clear_privileges: bool,
}

/// A moment, taken by [`Unifier::mark`] before attributes are asked from the store: it tells
/// whether the cache's own writes have overtaken them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);
