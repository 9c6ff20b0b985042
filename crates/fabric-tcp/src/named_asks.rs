//! Named reads that have come, until the engine's user takes them.

use dafs_fabric::{NamedAsk, QueuePair};

/// Named reads of peers that the engine's user has not taken.
#[derive(Default)]
pub struct NamedAsks {
    asks: Vec<NamedAsk>,
    /// So many of these were taken one by one.
    taken: usize,
}

impl NamedAsks {
    pub fn is_empty(&self) -> bool {
        self.asks.len() == self.taken
    }

    /// One more.
    #[inline(always)]
    pub fn push(&mut self, ask: NamedAsk) {
        self.asks.push(ask);
    }

    /// The next one.
    pub fn next(&mut self) -> Option<NamedAsk> {
        let ask = self.asks.get(self.taken)?.clone();
        self.taken += 1;
        if self.is_empty() {
            self.asks.clear();
            self.taken = 0;
        }
        Some(ask)
    }

    /// All of them; the memory of `into`, which is empty, is used by turns.
    pub fn take(&mut self, into: &mut Vec<NamedAsk>) {
        self.asks.drain(..self.taken);
        self.taken = 0;
        std::mem::swap(&mut self.asks, into);
    }

    /// Those of a queue pair that ends.
    pub fn forget(&mut self, queue_pair: QueuePair) {
        self.asks.drain(..self.taken);
        self.taken = 0;
        self.asks.retain(|ask| ask.queue_pair != queue_pair);
    }
}
