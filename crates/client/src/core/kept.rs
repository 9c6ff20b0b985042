//! Writes of one open file that are kept until they are safe from an end of the server's process.
//!
//! An acknowledged write is in the server's memory. Its bytes stay here until a flush or commit
//! that was sent after its answer has succeeded; when the server's process dies before that, they
//! are written again in the next session, before any other call goes on.

use std::collections::VecDeque;

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
    bytes: Vec<u8>,
}

/// The kept writes of a file, in the order in which they were made.
#[derive(Debug, Default)]
pub(super) struct Kept {
    writes: VecDeque<KeptWrite>,
}

impl Kept {
    pub(super) fn add(&mut self, id: KeptId, offset: Option<u64>, bytes: Vec<u8>) {
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
        let mut later = self.writes.iter().filter(|write| after.is_none_or(|id| write.id > id));
        later.find_map(|write| {
            write.acknowledged?;
            Some((write.id, write.offset?, write.bytes.as_slice()))
        })
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
    fn a_failed_write_is_not_kept() {
        let mut kept = Kept::default();
        kept.add(KeptId(1), Some(0), vec![1]);
        kept.remove(KeptId(1));
        assert!(kept.is_empty());
    }
}
