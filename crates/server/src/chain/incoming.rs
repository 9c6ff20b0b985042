//! The data that came with a request.

use dafs_fabric::Span;
use dafs_message::RequestId;

/// Where it is fetched from, and what is left of it.
pub(super) struct Incoming {
    /// The request; another one where it was sent again.
    pub id: RequestId,
    /// Bytes in all.
    pub len: u32,
    /// How many operations bring some.
    operations: usize,
    /// All data, when several operations bring some: what is left of it.
    gathered: Option<Span>,
}

impl Incoming {
    /// Nothing of it is fetched.
    pub(super) fn new(id: RequestId, len: u32, operations: usize) -> Incoming {
        Incoming { id, len, operations, gathered: None }
    }

    /// Several operations bring some.
    pub(super) fn is_of_several(&self) -> bool {
        self.operations > 1
    }

    /// All of it was fetched, to be copied from.
    pub(super) fn is_gathered(&self) -> bool {
        self.gathered.is_some()
    }

    /// All of it is here.
    pub(super) fn gather(&mut self, all: Span) {
        self.gathered = Some(all);
    }

    /// The next bytes of what was gathered.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Span> {
        let rest = self.gathered.take()?;
        self.gathered = Some(rest.part(bytes, rest.len() - bytes));
        Some(rest.part(0, bytes))
    }
}
