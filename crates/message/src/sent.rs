//! Tokens of replies that have left, in their order: many come at a time, and mostly all are taken before more do.

/// A queue that costs no more than a list.
#[derive(Debug, Default)]
pub struct Sent {
    tokens: Vec<u64>,
    /// So many of these were taken.
    taken: usize,
}

impl Sent {
    /// One more.
    #[inline(always)]
    pub fn push_back(&mut self, token: u64) {
        if self.tokens.len() == self.tokens.capacity() {
            self.make_room();
        }
        self.tokens.push(token);
    }

    /// Before the list grows: where some are always left, it has those that were taken as well.
    #[cold]
    fn make_room(&mut self) {
        if self.taken > self.tokens.len() / 2 {
            self.tokens.drain(..self.taken);
            self.taken = 0;
        }
    }

    /// The first one.
    #[inline(always)]
    pub fn pop_front(&mut self) -> Option<u64> {
        let token = self.tokens.get(self.taken).copied()?;
        self.taken += 1;
        if self.taken == self.tokens.len() {
            self.tokens.clear();
            self.taken = 0;
        }
        Some(token)
    }

    /// How many.
    #[inline]
    pub fn len(&self) -> usize {
        self.tokens.len() - self.taken
    }

    /// None.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // The last one that was taken left an empty list.
        self.tokens.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_first_is_told_first() {
        let mut sent = Sent::default();
        assert!(sent.is_empty() && sent.pop_front().is_none());
        for round in 0..3 {
            sent.push_back(round);
            sent.push_back(round + 10);
            assert_eq!((sent.pop_front(), sent.len()), (Some(round), 1));
            sent.push_back(round + 20);
            assert!(!sent.is_empty());
            let rest: Vec<_> = std::iter::from_fn(|| sent.pop_front()).collect();
            assert_eq!(rest, [round + 10, round + 20]);
            assert_eq!((sent.len(), sent.is_empty()), (0, true));
        }
    }

    #[test]
    fn a_queue_that_is_never_empty_does_not_grow() {
        let mut sent = Sent::default();
        (0..3).for_each(|token| sent.push_back(token));
        for token in 3..10_000 {
            sent.push_back(token);
            assert_eq!((sent.pop_front(), sent.len()), (Some(token - 3), 3));
        }
        assert!(sent.tokens.capacity() <= 16, "{}", sent.tokens.capacity());
    }
}
