//! Writes of one open file that are kept until they are safe from an end of the server's process.
//!
//! An acknowledged write is in the server's memory. Its bytes stay here until a flush or commit
//! that was sent after its answer has succeeded; when the server's process dies before that, they
//! are written again in the next session, before any other call goes on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Copies from here on have their memory used again: fresh memory of that size costs more than
/// the copy.
const LARGE: usize = 32 << 10;
/// Bytes of memory that wait to be used again.
const SPARE_BYTES_MAX: usize = 32 << 20;

/// Memory for copies.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    spares: Mutex<Vec<Vec<u8>>>,
}

impl Spares {
    /// Some bytes, of any content.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> KeptBytes {
        let spare = if len >= LARGE { self.lock().pop() } else { None };
        let mut bytes = spare.unwrap_or_default();
        bytes.resize(len, 0);
        KeptBytes { bytes, home: Some(self.clone()) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A copy of written bytes. Its memory goes back to where it came from.
#[derive(Debug)]
pub struct KeptBytes {
    bytes: Vec<u8>,
    home: Option<Arc<Spares>>,
}

impl KeptBytes {
    /// To be filled.
    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl From<Vec<u8>> for KeptBytes {
    fn from(bytes: Vec<u8>) -> KeptBytes {
        KeptBytes { bytes, home: None }
    }
}

impl Drop for KeptBytes {
    fn drop(&mut self) {
        let Some(home) = self.home.take().filter(|_| self.bytes.capacity() >= LARGE) else {
            return;
        };
        let mut spares = home.lock();
        let waiting: usize = spares.iter().map(Vec::capacity).sum();
        if waiting + self.bytes.capacity() <= SPARE_BYTES_MAX {
            spares.push(std::mem::take(&mut self.bytes));
        }
    }
}

use crate::planted::{Defect, planted};

/// Names a kept write; grows from write to write, over all files of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct KeptId(pub(super) u64);

#[derive(Debug)]
struct KeptWrite {
    id: KeptId,
    /// Of an append: not known before its answer.
    offset: Option<u64>,
    /// It is the session's so-manieth acknowledged kept write; `None`: it is under way.
    acknowledged: Option<u64>,
    bytes: KeptBytes,
}

/// The kept writes of a file, in the order in which they were made.
#[derive(Debug, Default)]
pub(super) struct Kept {
    writes: VecDeque<KeptWrite>,
}

impl Kept {
    pub(super) fn add(&mut self, id: KeptId, offset: Option<u64>, bytes: impl Into<KeptBytes>) {
        let bytes = bytes.into();
        self.writes.push_back(KeptWrite { id, offset, acknowledged: None, bytes });
    }

    /// The answer: so-manieth kept write of the session, where it went.
    pub(super) fn acknowledge(&mut self, id: KeptId, number: u64, offset: u64) {
        if let Some(write) = self.writes.iter_mut().find(|write| write.id == id) {
            write.acknowledged = Some(number);
            write.offset = Some(offset);
        }
    }

    /// It failed.
    pub(super) fn remove(&mut self, id: KeptId) {
        self.writes.retain(|write| write.id != id);
    }

    /// A flush or commit succeeded that was sent when `number` kept writes were acknowledged. True
    /// when a write is not kept any more by that.
    pub(super) fn safe(&mut self, number: u64) -> bool {
        let before = self.writes.len();
        self.writes.retain(|write| write.acknowledged.is_none_or(|at| at > number));
        self.writes.len() < before
    }

    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// The first acknowledged write after `after`: what is to be written again, and where.
    pub(super) fn next(&self, after: Option<KeptId>) -> Option<(KeptId, u64, &[u8])> {
        let whole = |write: &KeptWrite| write.acknowledged.and(write.offset);
        let is_later = |write: &&KeptWrite| match planted(Defect::KeptReversed) {
            true => after.is_none_or(|id| write.id < id),
            false => after.is_none_or(|id| write.id > id),
        };
        let mut later = self.writes.iter().filter(is_later);
        let known = |write: &&KeptWrite| whole(write).is_some();
        let write = match planted(Defect::KeptReversed) {
            true => later.rfind(known),
            false => later.find(known),
        }?;
        Some((write.id, whole(write)?, &*write.bytes.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_kept_until_a_later_flush() {
        let mut kept = Kept::default();
        kept.add(KeptId(1), Some(0), vec![1]);
        kept.add(KeptId(2), None, vec![2]);
        kept.acknowledge(KeptId(1), 1, 0);
        assert_eq!(kept.next(None), Some((KeptId(1), 0, &[1][..])));
        assert_eq!(kept.next(Some(KeptId(1))), None, "the append is under way");
        kept.acknowledge(KeptId(2), 2, 700);
        assert!(kept.safe(1));
        assert_eq!(kept.next(None), Some((KeptId(2), 700, &[2][..])));
        assert!(!kept.safe(1) && !kept.is_empty());
        assert!(kept.safe(2) && kept.is_empty());
    }

    #[test]
    fn memory_of_large_copies_is_used_again_and_has_a_limit() {
        let spares = Arc::new(Spares::default());
        let first = spares.take(LARGE);
        let at = first.bytes.as_ptr();
        drop(first);
        let again = spares.take(LARGE);
        assert_eq!(again.bytes.as_ptr(), at);
        drop(spares.take(LARGE - 1));
        assert_eq!(spares.lock().len(), 0, "small ones are given back");
        let many: Vec<KeptBytes> = (0..2).map(|_| spares.take(SPARE_BYTES_MAX / 2 + 1)).collect();
        drop(many);
        assert_eq!(spares.lock().len(), 1);
    }

    #[test]
    fn a_failed_write_is_not_kept() {
        let mut kept = Kept::default();
        kept.add(KeptId(1), Some(0), vec![1]);
        kept.remove(KeptId(1));
        assert!(kept.is_empty());
    }
}
