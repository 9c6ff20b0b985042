//! Posted receives, in the order in which messages take them.

use std::collections::VecDeque;

use crate::mem::Span;
use crate::types::{SgList, WrId};

/// A receive.
#[derive(Debug)]
pub struct PostedReceive {
    /// As posted.
    pub wr_id: WrId,
    /// Where the message goes.
    pub buffers: SgList,
}

/// A receive, and whether its memory may be kept while it is the caller's again.
#[derive(Debug)]
struct Place {
    receive: PostedReceive,
    may_stay: bool,
}

/// The receives of an engine. One that was filled stays for a while, without a part in the queue, so that it
/// can be posted [again](Self::again) as it was: its memory is neither let go nor listed anew.
#[derive(Debug, Default)]
pub struct ReceiveQueue {
    places: Vec<Place>,
    free: Vec<u32>,
    posted: VecDeque<u32>,
    /// Were filled, in this order.
    filled: VecDeque<u32>,
}

impl ReceiveQueue {
    /// How many are posted.
    pub fn len(&self) -> usize {
        self.posted.len()
    }

    /// None is posted.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    fn put(&mut self, receive: PostedReceive) -> u32 {
        let may_stay = !receive.buffers.iter().any(Span::is_waited_for);
        let place = Place { receive, may_stay };
        if let Some(index) = self.free.pop() {
            self.places[index as usize] = place;
            return index;
        }
        self.places.push(place);
        (self.places.len() - 1) as u32
    }

    /// Puts one behind all others.
    pub fn push_back(&mut self, receive: PostedReceive) {
        let index = self.put(receive);
        self.posted.push_back(index);
    }

    /// Puts one in front of all others.
    pub fn push_front(&mut self, receive: PostedReceive) {
        let index = self.put(receive);
        self.posted.push_front(index);
    }

    /// The one that the next message takes.
    #[inline]
    pub fn front(&self) -> Option<&PostedReceive> {
        self.posted.front().map(|index| &self.places[*index as usize].receive)
    }

    /// Takes it.
    pub fn pop_front(&mut self) -> Option<PostedReceive> {
        let index = self.posted.pop_front()?;
        let receive = &mut self.places[index as usize].receive;
        self.free.push(index);
        Some(PostedReceive { wr_id: receive.wr_id, buffers: std::mem::take(&mut receive.buffers) })
    }

    /// It was filled: its completion is queued now.
    #[inline]
    pub fn fill_front(&mut self) {
        let Some(index) = self.posted.pop_front() else { return };
        match self.places[index as usize].may_stay {
            true => self.filled.push_back(index),
            false => self.let_go(index),
        }
    }

    fn let_go(&mut self, index: u32) {
        self.places[index as usize].receive.buffers.clear();
        self.free.push(index);
    }

    /// Posts the first one that was filled as it was, if it is this one.
    #[inline]
    pub fn again(&mut self, wr_id: WrId) -> bool {
        let Some(index) = self.filled.front().copied() else { return false };
        if self.places[index as usize].receive.wr_id != wr_id {
            return false;
        }
        self.filled.pop_front();
        self.posted.push_back(index);
        true
    }

    /// Some were filled, and not posted again.
    #[inline]
    pub fn has_filled(&self) -> bool {
        !self.filled.is_empty()
    }

    /// Those that were filled are not posted again: lets their memory go.
    #[inline]
    pub fn forget_filled(&mut self) {
        while let Some(index) = self.filled.pop_front() {
            self.let_go(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Arena, PAGE_BYTES, lend_mut};

    fn receive(number: u64, buffers: &[Span]) -> PostedReceive {
        PostedReceive { wr_id: WrId(number), buffers: buffers.iter().cloned().collect() }
    }

    #[test]
    fn what_was_filled_is_posted_again_as_it_was() {
        let arena = Arena::new(PAGE_BYTES).expect("memory");
        let mut queue = ReceiveQueue::default();
        for number in 0..3 {
            queue.push_back(receive(number, &[arena.span(number as usize * 10, 10)]));
        }
        queue.fill_front();
        queue.fill_front();
        assert_eq!(queue.len(), 1);
        assert!(!queue.again(WrId(1)), "not the first one");
        assert!(queue.again(WrId(0)) && queue.again(WrId(1)) && !queue.again(WrId(2)));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop_front())
            .map(|receive| (receive.wr_id.0, receive.buffers[0].addr() - arena.span(0, 1).addr()))
            .collect();
        assert_eq!(order, [(2, 20), (0, 0), (1, 10)]);
    }

    #[test]
    fn what_is_not_posted_again_is_let_go() {
        let arena = Arena::new(PAGE_BYTES).expect("memory");
        let mut queue = ReceiveQueue::default();
        queue.push_back(receive(0, &[arena.span(0, 10)]));
        let holders = arena.span(0, 1).holders();
        queue.fill_front();
        queue.forget_filled();
        assert!(!queue.again(WrId(0)));
        assert_eq!(arena.span(0, 1).holders(), holders.map(|count| count - 1));
        let mut memory = [0; 10];
        lend_mut(&mut memory, |span| {
            queue.push_back(receive(1, &[span.part(0, 5)]));
            queue.fill_front();
            assert!(!queue.again(WrId(1)), "its owner waits until it is let go");
        });
    }
}
