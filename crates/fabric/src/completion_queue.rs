//! Completions and events, in the order in which they are to be told.

use std::collections::VecDeque;

use crate::types::{QueuePairEvent, WorkCompletion};

/// What an engine has to tell. An event is told after the completions that were queued before it.
#[derive(Debug, Default)]
pub struct CompletionQueue {
    completions: Vec<WorkCompletion>,
    /// So many of these were polled.
    taken: usize,
    /// Completions ever queued, and ever polled.
    queued: u64,
    polled: u64,
    /// Each event after so many completions.
    events: VecDeque<(u64, QueuePairEvent)>,
}

impl CompletionQueue {
    /// Queues a completion.
    #[inline]
    pub fn push(&mut self, completion: WorkCompletion) {
        self.queued += 1;
        self.completions.push(completion);
    }

    /// Queues an event after the completions so far.
    pub fn push_event(&mut self, event: QueuePairEvent) {
        self.events.push_back((self.queued, event));
    }

    /// Completions ever queued.
    #[inline]
    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// Completions ever polled.
    #[inline]
    pub fn polled(&self) -> u64 {
        self.polled
    }

    /// Completions that were not polled.
    pub fn len(&self) -> usize {
        self.completions.len() - self.taken
    }

    /// There is no completion; there may be events.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// There is nothing to tell.
    pub fn is_drained(&self) -> bool {
        self.is_empty() && self.events.is_empty()
    }

    /// Gives out up to `max` completions; how many.
    #[inline]
    pub fn poll(&mut self, completions: &mut Vec<WorkCompletion>, max: usize) -> usize {
        if self.is_empty() { 0 } else { self.give_out(completions, max) }
    }

    fn give_out(&mut self, completions: &mut Vec<WorkCompletion>, max: usize) -> usize {
        let count = self.len().min(max);
        let end = self.taken + count;
        if count == self.completions.len() && completions.is_empty() {
            // All of them, and the memory is used by turns.
            std::mem::swap(&mut self.completions, completions);
        } else {
            completions.extend_from_slice(&self.completions[self.taken..end]);
            self.taken = end;
        }
        if self.taken == self.completions.len() {
            self.completions.clear();
            self.taken = 0;
        }
        self.polled += count as u64;
        count
    }

    /// The next event, if the completions before it were polled.
    pub fn next_event(&mut self) -> Option<QueuePairEvent> {
        let (after, _) = self.events.front()?;
        if *after > self.polled {
            return None;
        }
        self.events.pop_front().map(|(_, event)| event)
    }
}
