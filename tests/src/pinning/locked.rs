//! Which pages of this process are locked in memory, and for whom: the kernel counts no holders, so
//! that a page is unlocked when the last one lets go of it.

use std::ops::Range;
use std::sync::Mutex;

use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::{RegisterError, Span};

use super::guard;
use crate::sys;

/// Each lock that is held: its owner and its pages.
static LOCKS: Mutex<Vec<(u64, Range<u64>)>> = Mutex::new(Vec::new());

/// Pages that are locked until this is dropped.
pub(super) struct Lock {
    owner: u64,
    pages: Range<u64>,
}

impl Lock {
    /// Locks the pages of a span, and tells how many bytes the owner then has locked.
    ///
    /// # Errors
    /// [`RegisterError::Refused`]: these would be more than `limit`, or more than the process may.
    pub(super) fn new(span: &Span, owner: u64, limit: u64) -> Result<(Lock, u64), RegisterError> {
        let page = PAGE_BYTES as u64;
        let end = (span.addr() + span.len() as u64).next_multiple_of(page);
        let pages = span.addr() / page * page..end;
        let mut locks = guard(&LOCKS);
        let of_owner = locks.iter().filter(|lock| lock.0 == owner).map(|lock| &lock.1);
        let bytes = union(of_owner.chain([&pages]));
        if bytes > limit {
            return Err(RegisterError::Refused("limit of locked memory"));
        }
        if sys::lock(&pages).is_err() {
            unlock(&locks, &pages);
            return Err(RegisterError::Refused("limit of locked memory of the process"));
        }
        locks.push((owner, pages.clone()));
        Ok((Lock { owner, pages }, bytes))
    }

    /// Pages that are not in memory: somebody gave them back.
    pub(super) fn absent_pages(&self) -> usize {
        sys::absent_pages(&self.pages)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let mut locks = guard(&LOCKS);
        let is = |lock: &(u64, Range<u64>)| lock.0 == self.owner && lock.1 == self.pages;
        if let Some(at) = locks.iter().position(is) {
            locks.swap_remove(at);
        }
        unlock(&locks, &self.pages);
    }
}

/// Unlocks those of these pages that nobody holds.
fn unlock(locks: &[(u64, Range<u64>)], pages: &Range<u64>) {
    let mut held: Vec<_> = locks.iter().map(|lock| lock.1.clone()).collect();
    held.retain(|other| other.start < pages.end && pages.start < other.end);
    held.sort_by_key(|other| other.start);
    let mut at = pages.start;
    for other in held.into_iter().chain(std::iter::once(pages.end..pages.end)) {
        if at < other.start {
            // What is not mapped any more is not locked either.
            let _ = sys::unlock(&(at..other.start));
        }
        at = at.max(other.end);
    }
}

/// Bytes of these ranges, each counted once.
fn union<'a>(ranges: impl Iterator<Item = &'a Range<u64>>) -> u64 {
    let mut ranges: Vec<_> = ranges.cloned().collect();
    ranges.sort_by_key(|range| range.start);
    let (mut bytes, mut end) = (0, 0);
    for range in ranges {
        bytes += range.end.saturating_sub(range.start.max(end));
        end = end.max(range.end);
    }
    bytes
}

pub(super) fn bytes_of(owner: u64) -> u64 {
    union(guard(&LOCKS).iter().filter(|lock| lock.0 == owner).map(|lock| &lock.1))
}

/// Bytes that are locked by all providers of this process, and by the kernel's word (`VmLck`).
///
/// # Panics
/// Without `/proc`.
pub fn locked_bytes_of_process() -> (u64, u64) {
    // Held, so that both are of the same time.
    let locks = guard(&LOCKS);
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    (union(locks.iter().map(|lock| &lock.1)), kib.expect("VmLck") * 1024)
}
