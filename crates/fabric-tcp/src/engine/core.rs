//! What the queue pairs of an engine share.

use std::collections::VecDeque;
use std::sync::Arc;

use dafs_fabric::{QueuePairEvent, Span, WorkCompletion};

use crate::device::Shared;
use crate::memory_region::Table;
use crate::receive::PostedReceive;
use crate::sys::IoList;
use crate::turns::Turns;

/// Staging memory of an engine: what one system call brings of small messages.
const STAGING_BYTES: usize = 64 * 1024;
/// Staging memories kept for use again.
const STAGING_KEPT: usize = 4;

/// What the queue pairs of an engine share.
pub struct Core {
    pub table: Arc<Table>,
    pub rdma_read: bool,
    pub trash: Span,
    pub zeros: Span,
    pub receives: VecDeque<PostedReceive>,
    pub staging: Box<[u8]>,
    spare: Vec<Box<[u8]>>,
    pub io: IoList,
    pub system_calls: u64,
    pub(crate) completions: VecDeque<WorkCompletion>,
    /// Completions ever queued, and ever polled.
    queued: u64,
    pub(super) polled: u64,
    /// Each event after so many completions.
    pub(super) events: VecDeque<(u64, QueuePairEvent)>,
    sequence: u64,
    /// Bytes received since all queue pairs were looked at.
    pub(crate) taken: usize,
    pub turns: Turns,
}

impl Core {
    pub(super) fn new(shared: &Shared) -> Core {
        Core {
            table: shared.table.clone(),
            rdma_read: shared.attr.rdma_read,
            trash: shared.trash.clone(),
            zeros: shared.zeros.clone(),
            receives: VecDeque::new(),
            staging: vec![0; STAGING_BYTES].into(),
            spare: Vec::new(),
            io: IoList::new(),
            system_calls: 0,
            completions: VecDeque::new(),
            queued: 0,
            polled: 0,
            events: VecDeque::new(),
            sequence: 0,
            taken: 0,
            turns: Turns::new(),
        }
    }

    /// Queues a completion.
    pub fn complete(&mut self, completion: WorkCompletion) {
        self.queued += 1;
        self.completions.push_back(completion);
    }

    /// Queues an event after the completions so far.
    pub fn event(&mut self, event: QueuePairEvent) {
        self.events.push_back((self.queued, event));
    }

    /// Makes sure that there is staging memory for the next read.
    pub fn refill_staging(&mut self) {
        if self.staging.is_empty() {
            self.staging = self.spare.pop().unwrap_or_else(|| vec![0; STAGING_BYTES].into());
        }
    }

    /// Takes staging memory that is free again.
    pub fn keep_staging(&mut self, staging: Box<[u8]>) {
        if staging.len() == STAGING_BYTES && self.spare.len() < STAGING_KEPT {
            self.spare.push(staging);
        }
    }

    pub(super) fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }
}
