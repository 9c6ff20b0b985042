//! The operations of a group, in parts.

use std::collections::VecDeque;
use std::thread::ThreadId;

use dafs_client::{Call, Done, Error};

use super::Endings;
use crate::failure::Failure;

/// What the lock of a group protects.
#[derive(Default)]
pub struct Queue {
    operations: Vec<Operation>,
    /// How many there are: a group's depth at most.
    made: u32,
    free: Vec<u32>,
    serial: u32,
    /// Operations that have not ended.
    pub under_way: usize,
    pub ended: Endings,
    /// Calls that the session had no room for, in their order.
    pub backlog: VecDeque<(u64, Call)>,
    /// A thread waits for the session.
    pub led: bool,
    /// Threads that wait for the leader.
    pub waiters: usize,
    /// Somebody was refused since the group was full.
    pub refused: bool,
    /// It has, or had, a thread that collects.
    pub collected: bool,
    /// That thread, until it ends.
    pub collector: Option<ThreadId>,
    /// Results go to a callback.
    pub called_back: bool,
    pub stopping: bool,
    /// Memory for answers.
    pub scratch: Vec<Done>,
}

/// Bytes of an operation that one call moves.
#[derive(Clone, Copy)]
pub struct Part {
    /// Bytes of the operation before it.
    pub start: u32,
    /// How many.
    pub bytes: u32,
}

#[derive(Default)]
struct Operation {
    /// 0: free.
    id: u64,
    op: u32,
    user: u64,
    parts: Vec<Part>,
    /// Parts without an answer.
    left: u32,
    /// Bytes moved without a gap.
    end: u32,
    failure: Option<Failure>,
}

/// What is taken from a group.
pub enum Event {
    /// An operation ended.
    Ended(Ended),
    /// Another operation can be submitted.
    Room,
}

/// An operation that ended.
pub struct Ended {
    pub id: u64,
    pub op: u32,
    pub user: u64,
    /// Bytes.
    pub result: Result<u32, Failure>,
}

/// The place of an operation, from its name or the tag of one of its calls.
fn index_of(id: u64) -> u32 {
    id as u32
}

impl Queue {
    /// A new operation without parts: its name and its place.
    pub fn begin(&mut self, op: u32, user: u64) -> (u64, u32) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.operations.push(Operation::default());
            self.made += 1;
            self.made - 1
        });
        self.serial = self.serial.wrapping_add(1).max(1);
        let id = u64::from(self.serial) << 32 | u64::from(index);
        if let Some(operation) = self.at(index) {
            (operation.id, operation.op, operation.user) = (id, op, user);
            (operation.left, operation.end, operation.failure) = (0, 0, None);
            operation.parts.clear();
        }
        self.under_way += 1;
        (id, index)
    }

    /// A further part; the tag of its call.
    pub fn add(&mut self, index: u32, part: Part) -> u64 {
        let Some(operation) = self.at(index) else { return 0 };
        let number = operation.parts.len() as u64;
        operation.parts.push(part);
        operation.left += 1;
        operation.end = part.start.saturating_add(part.bytes);
        number << 32 | u64::from(index)
    }

    /// An operation that moves nothing ends at once.
    pub fn end_without_parts(&mut self, index: u32) {
        if self.at(index).is_some_and(|operation| operation.left == 0) {
            self.end(index);
        }
    }

    /// A call was answered.
    pub fn end_part(&mut self, done: Done) {
        let result = done.bytes().map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        self.answer(done.tag, result);
    }

    fn answer(&mut self, tag: u64, result: Result<u32, Error>) {
        let index = index_of(tag);
        let Some(operation) = self.at(index) else { return };
        let Some(part) = operation.parts.get((tag >> 32) as usize) else { return };
        match result {
            // The end of the file, as it was for this part.
            Ok(bytes) if bytes < part.bytes => {
                operation.end = operation.end.min(part.start.saturating_add(bytes));
            }
            Ok(_) => {}
            Err(error) => {
                operation.failure.get_or_insert_with(|| error.into());
            }
        }
        operation.left = operation.left.saturating_sub(1);
        if operation.left == 0 {
            self.end(index);
        }
    }

    fn end(&mut self, index: u32) {
        let Some(operation) = self.at(index) else { return };
        let result = match operation.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(operation.end),
        };
        let id = std::mem::take(&mut operation.id);
        let (op, user) = (operation.op, operation.user);
        self.ended.push_back(Event::Ended(Ended { id, op, user, result }));
        self.free.push(index);
        self.under_way -= 1;
        if std::mem::take(&mut self.refused) {
            self.ended.push_back(Event::Room);
        }
    }

    fn at(&mut self, index: u32) -> Option<&mut Operation> {
        self.operations.get_mut(index as usize)
    }

    /// The operation with this name, while it has not ended.
    fn named(&self, id: u64) -> Option<&Operation> {
        let operation = self.operations.get(index_of(id) as usize)?;
        (id != 0 && operation.id == id).then_some(operation)
    }

    /// It has not ended.
    pub fn is_under_way(&self, id: u64) -> bool {
        self.named(id).is_some()
    }

    fn position(&self, id: u64) -> Option<usize> {
        let is = |event: &Event| matches!(event, Event::Ended(ended) if ended.id == id);
        self.ended.iter().position(is)
    }

    /// It has ended, and nobody took it.
    pub fn has_ended(&self, id: u64) -> bool {
        self.position(id).is_some()
    }

    /// The result of one operation.
    pub fn take(&mut self, id: u64) -> Option<Ended> {
        let position = self.position(id)?;
        match self.ended.remove(position) {
            Some(Event::Ended(ended)) => Some(ended),
            _ => None,
        }
    }

    /// The tags of an operation's calls.
    pub fn tags(&self, id: u64) -> Vec<u64> {
        let parts = self.named(id).map_or(0, |operation| operation.parts.len() as u64);
        (0..parts).map(|part| part << 32 | u64::from(index_of(id))).collect()
    }

    /// Ends the calls of an operation that the session has not got; false: there are none.
    pub fn cancel_backlog(&mut self, id: u64) -> bool {
        let index = index_of(id);
        let backlog = std::mem::take(&mut self.backlog);
        let (dropped, kept): (VecDeque<_>, VecDeque<_>) =
            backlog.into_iter().partition(|(tag, _)| index_of(*tag) == index);
        self.backlog = kept;
        let any = !dropped.is_empty();
        for (tag, _) in dropped {
            self.answer(tag, Err(Error::Interrupted));
        }
        any
    }
}
