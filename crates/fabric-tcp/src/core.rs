//! What the queue pairs of an engine share.

use std::sync::Arc;

use dafs_fabric::{QueuePairEvent, ReceiveQueue, Span, WorkCompletion};

use crate::memory_region::Table;
use crate::named_asks::NamedAsks;
use crate::shared::Shared;
use crate::sys::IoList;
use crate::turns::Turns;
use dafs_fabric::CompletionQueue;

/// Staging memory of an engine: what one system call brings of small messages.
const STAGING_BYTES: usize = 64 * 1024;
/// Staging memories kept for use again.
const STAGING_KEPT: usize = 4;

/// Memory for small messages, which is kept with what was not looked at while a queue pair pauses.
pub struct Staging {
    /// For the next read.
    pub bytes: Box<[u8]>,
    spare: Vec<Box<[u8]>>,
}

impl Staging {
    fn new() -> Staging {
        Staging { bytes: vec![0; STAGING_BYTES].into(), spare: Vec::new() }
    }

    /// Makes sure that there is memory for the next read.
    pub fn refill(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = self.spare.pop().unwrap_or_else(|| vec![0; STAGING_BYTES].into());
        }
    }

    /// Takes memory that is free again.
    pub fn keep(&mut self, bytes: Box<[u8]>) {
        if bytes.len() == STAGING_BYTES && self.spare.len() < STAGING_KEPT {
            self.spare.push(bytes);
        }
    }
}

/// What the queue pairs of an engine share.
pub struct Core {
    pub table: Arc<Table>,
    pub rdma_read: bool,
    pub trash: Span,
    pub zeros: Span,
    pub receives: ReceiveQueue,
    pub staging: Staging,
    pub io: IoList,
    pub system_calls: u64,
    pub queue: CompletionQueue,
    /// What peers ask for by name; `None`: it is refused.
    pub asked: Option<NamedAsks>,
    sequence: u64,
    /// Bytes received since all queue pairs were looked at.
    pub taken: usize,
    pub turns: Turns,
}

impl Core {
    /// Nothing is posted.
    pub fn new(shared: &Shared) -> Core {
        Core {
            table: shared.table.clone(),
            rdma_read: shared.attr.rdma_read,
            trash: shared.trash.clone(),
            zeros: shared.zeros.clone(),
            receives: ReceiveQueue::default(),
            staging: Staging::new(),
            io: IoList::new(),
            system_calls: 0,
            queue: CompletionQueue::default(),
            asked: None,
            sequence: 0,
            taken: 0,
            turns: Turns::new(),
        }
    }

    /// Queues a completion.
    pub fn complete(&mut self, completion: WorkCompletion) {
        self.queue.push(completion);
    }

    /// Queues an event after the completions so far.
    pub fn event(&mut self, event: QueuePairEvent) {
        self.queue.push_event(event);
    }

    /// The places of so many that are posted now: the first one.
    pub fn next_sequences(&mut self, count: usize) -> u64 {
        let first = self.sequence + 1;
        self.sequence += count as u64;
        first
    }

    /// The place of what is posted now in the order of all that is.
    pub fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }
}
