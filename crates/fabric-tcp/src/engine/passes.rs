//! Passes: which queue pairs are looked at, where a pass begins, and when all were looked at.

use dafs_fabric::epoll::READY_MAX;

/// Passes over the warm queue pair alone between passes over all, while nobody sleeps.
const PARTIAL_MAX: usize = 7;
/// Bytes that may come meanwhile: who sends much does not keep the others waiting.
const PARTIAL_BYTES_MAX: usize = 64 * 1024;

/// How the passes over the queue pairs go.
#[derive(Default)]
pub struct Passes {
    /// Where the next one begins.
    turn: usize,
    /// The queue pair that brought something last, and passes since all were looked at.
    warm: u32,
    partial: usize,
    /// Times that all were looked at, and those that this one has looked at.
    rounds: u64,
    looked_at: usize,
    /// The last pass left something to receive.
    more: bool,
}

impl Passes {
    /// A pass begins.
    pub fn begin(&mut self) {
        self.more = false;
    }

    /// Something is left to receive.
    pub fn leave_some(&mut self) {
        self.more = true;
    }

    /// The last pass left something.
    pub fn left_some(&self) -> bool {
        self.more
    }

    /// The slot to look at alone, of several, when so many bytes came since all were looked at: who
    /// spins looks mostly where something came last, as a look costs a system call.
    pub fn partial(&mut self, taken: usize) -> Option<u32> {
        let is_early = self.partial < PARTIAL_MAX && taken < PARTIAL_BYTES_MAX;
        is_early.then(|| {
            self.partial += 1;
            self.warm
        })
    }

    /// The next pass is one over all.
    pub fn look_at_all_next(&mut self) {
        self.partial = usize::MAX;
    }

    /// A pass over all begins: where.
    pub fn begin_all(&mut self) -> usize {
        self.partial = 0;
        self.turn
    }

    /// A slot brought something.
    pub fn brought(&mut self, slot: u32) {
        self.warm = slot;
    }

    /// A pass over all ends; the next one begins with another slot.
    pub fn end_all(&mut self) {
        self.turn = self.turn.wrapping_add(1);
    }

    /// All were looked at.
    pub fn round_ends(&mut self) {
        self.rounds += 1;
        self.looked_at = 0;
    }

    /// Those that epoll has told of go behind the others: when it told of so many, of all.
    pub fn note_looks(&mut self, told: usize, is_all: bool, live: usize) {
        self.looked_at += told;
        if is_all || self.looked_at >= live + READY_MAX {
            self.round_ends();
        }
    }

    /// Times that all were looked at.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }
}
