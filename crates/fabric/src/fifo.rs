//! A queue whose entries come many at a time, and are mostly all taken before more do.

/// A first-in first-out queue that then costs no more than a list.
#[derive(Debug)]
pub struct Fifo<T> {
    entries: Vec<T>,
    /// So many of these were taken.
    taken: usize,
}

impl<T> Default for Fifo<T> {
    fn default() -> Fifo<T> {
        Fifo { entries: Vec::new(), taken: 0 }
    }
}

impl<T: Copy> Fifo<T> {
    /// One more.
    #[inline(always)]
    pub fn push_back(&mut self, entry: T) {
        if self.entries.len() == self.entries.capacity() {
            self.make_room();
        }
        self.entries.push(entry);
    }

    /// Before the list grows: where some are always left, it has those that were taken as well.
    #[cold]
    fn make_room(&mut self) {
        if self.taken > self.entries.len() / 2 {
            self.entries.drain(..self.taken);
            self.taken = 0;
        }
    }

    /// The first one.
    #[inline(always)]
    pub fn front(&self) -> Option<T> {
        self.entries.get(self.taken).copied()
    }

    /// Takes the first one.
    #[inline(always)]
    pub fn pop_front(&mut self) -> Option<T> {
        let entry = self.front()?;
        self.taken += 1;
        if self.taken == self.entries.len() {
            self.entries.clear();
            self.taken = 0;
        }
        Some(entry)
    }

    /// How many.
    #[inline]
    pub fn len(&self) -> usize {
        self.entries.len() - self.taken
    }

    /// None.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // The last one that was taken left an empty list.
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_first_is_taken_first() {
        let mut queue = Fifo::default();
        assert!(queue.is_empty() && queue.pop_front().is_none());
        for round in 0..3 {
            queue.push_back(round);
            queue.push_back(round + 10);
            assert_eq!(queue.front(), Some(round));
            assert_eq!((queue.pop_front(), queue.len()), (Some(round), 1));
            queue.push_back(round + 20);
            assert!(!queue.is_empty());
            let rest: Vec<_> = std::iter::from_fn(|| queue.pop_front()).collect();
            assert_eq!(rest, [round + 10, round + 20]);
            assert_eq!((queue.len(), queue.is_empty()), (0, true));
        }
    }

    #[test]
    fn a_queue_that_is_never_empty_does_not_grow() {
        let mut queue = Fifo::default();
        (0..3).for_each(|entry| queue.push_back(entry));
        for entry in 3..10_000 {
            queue.push_back(entry);
            assert_eq!((queue.pop_front(), queue.len()), (Some(entry - 3), 3));
        }
        assert!(queue.entries.capacity() <= 16, "{}", queue.entries.capacity());
    }
}
