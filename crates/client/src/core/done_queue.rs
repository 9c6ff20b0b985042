//! Answers that are to be fetched, in order.

use std::collections::VecDeque;

use dafs_fabric::Buffer;

use super::{CoreDone, Output, Owner};

/// A read that ended well: most answers are these, and take a fraction of the memory of others.
#[derive(Debug)]
pub(super) struct ReadDone {
    pub(super) owner: Owner,
    pub(super) tag: u64,
    pub(super) bytes: usize,
    pub(super) end_of_file: bool,
    pub(super) buffer: Option<Buffer>,
}

/// An answer, but for those that are kept apart.
#[derive(Debug)]
enum Next {
    Read(ReadDone),
    /// The next one of the others.
    Other,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct DoneQueue {
    order: VecDeque<Next>,
    others: VecDeque<CoreDone>,
}

impl DoneQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn push(&mut self, done: CoreDone) {
        self.order.push_back(Next::Other);
        self.others.push_back(done);
    }

    #[inline]
    pub(super) fn push_read(&mut self, done: ReadDone) {
        self.order.push_back(Next::Read(done));
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<CoreDone> {
        let Next::Read(done) = self.order.pop_front()? else { return self.others.pop_front() };
        let ReadDone { owner, tag, bytes, end_of_file, buffer } = done;
        let result = Ok(Output::Read { bytes, end_of_file });
        Some(CoreDone { owner: Some(owner), tag, result, buffer, beside: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_in_order() {
        let mut queue = DoneQueue::default();
        for tag in 0..6 {
            if tag % 3 == 0 {
                let result = Ok(Output::Unit);
                queue.push(CoreDone { owner: None, tag, result, buffer: None, beside: None });
            } else {
                let (owner, buffer) = (Owner(0), Buffer::new(1).ok());
                queue.push_read(ReadDone { owner, tag, bytes: 1, end_of_file: true, buffer });
            }
        }
        for tag in 0..6 {
            let done = queue.pop().expect("one more");
            let is_read = matches!(done.result, Ok(Output::Read { bytes: 1, end_of_file: true }));
            assert_eq!((done.tag, is_read, done.buffer.is_some()), (tag, tag % 3 != 0, is_read));
        }
        assert!(queue.is_empty() && queue.pop().is_none());
    }
}
