//! Communication buffers: where data lands that the server does not cache.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use dafs_fabric::{ArenaError, Buffer, PostedBuffer, SgList};
use dafs_unifier::Line;
use smallvec::SmallVec;

/// Bytes of one buffer.
pub(super) const BUFFER_BYTES: usize = 64 << 10;

/// A session may have this part of all buffers: one whose peer neither takes replies nor sends
/// the data of its writes leaves the rest to others.
const SHARES: usize = 8;

/// A fixed number of buffers in one mapping, which is all that reads and writes of peers take.
/// Who needs more than is free waits, in order.
pub(super) struct Buffers {
    inner: Mutex<Inner>,
    all: usize,
    line: Line,
}

struct Inner {
    free: Vec<PostedBuffer>,
    /// Given back while the store or the network still had a span of it.
    lingering: Vec<PostedBuffer>,
    /// The first of the line.
    waker: Option<Waker>,
}

/// What one session may take of the buffers.
pub(crate) struct Share {
    pool: Arc<Buffers>,
    /// Its buffers, and the first of the line.
    taken: Mutex<(usize, Option<Waker>)>,
    line: Line,
}

/// Buffers that somebody has; given back when dropped.
pub(crate) struct Taken {
    share: Arc<Share>,
    buffers: SmallVec<[PostedBuffer; 1]>,
}

impl Buffers {
    pub(super) fn new(bytes: usize) -> Result<Arc<Buffers>, ArenaError> {
        let buffers = Buffer::many(bytes / BUFFER_BYTES, BUFFER_BYTES)?;
        let free: Vec<_> = buffers.into_iter().map(Buffer::post).collect();
        let all = free.len();
        let inner = Mutex::new(Inner { free, lingering: Vec::new(), waker: None });
        Ok(Arc::new(Buffers { inner, all, line: Line::default() }))
    }

    /// The share of a session.
    pub(super) fn share(self: &Arc<Self>) -> Arc<Share> {
        Arc::new(Share { pool: self.clone(), taken: Mutex::default(), line: Line::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// Room for `len` bytes, if it is free and nobody waits.
    pub(super) fn try_take(self: &Arc<Self>, len: usize) -> Option<Taken> {
        if !self.line.is_empty() || !self.pool.line.is_empty() || !self.grow(len) {
            return None;
        }
        let taken = self.pool.lock().take(self, len);
        if taken.is_none() {
            self.shrink(len.div_ceil(BUFFER_BYTES));
        }
        taken
    }

    /// Room for `len` bytes, which must not be more than a share.
    pub(super) async fn take(self: &Arc<Self>, len: usize) -> Taken {
        if let Some(taken) = self.try_take(len) {
            return taken;
        }
        let _turn = self.line.turn().await;
        poll_fn(|context| {
            self.lock().1 = Some(context.waker().clone());
            if self.grow(len) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.take_grown(len).await
    }

    /// As `take`, also beyond the share: for one at a time in all, which others wait for.
    pub(super) async fn take_beyond(self: &Arc<Self>, len: usize) -> Taken {
        self.lock().0 += len.div_ceil(BUFFER_BYTES);
        self.take_grown(len).await
    }

    /// What the share counts already.
    async fn take_grown(self: &Arc<Self>, len: usize) -> Taken {
        let grown = Grown { share: self, count: len.div_ceil(BUFFER_BYTES) };
        let _turn = self.pool.line.turn().await;
        let taken = poll_fn(|context| {
            let mut inner = self.pool.lock();
            match inner.take(self, len) {
                Some(taken) => Poll::Ready(taken),
                None => {
                    inner.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await;
        std::mem::forget(grown);
        taken
    }

    fn grow(&self, len: usize) -> bool {
        let mut taken = self.lock();
        let more = taken.0 + len.div_ceil(BUFFER_BYTES);
        let fits = more <= self.pool.all / SHARES;
        if fits {
            taken.0 = more;
        }
        fits
    }

    fn shrink(&self, count: usize) {
        let mut taken = self.lock();
        taken.0 -= count;
        let waker = taken.1.take();
        drop(taken);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, (usize, Option<Waker>)> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Buffers that a share counts, but does not have yet.
struct Grown<'a> {
    share: &'a Share,
    count: usize,
}

impl Drop for Grown<'_> {
    fn drop(&mut self) {
        self.share.shrink(self.count);
    }
}

impl Inner {
    fn take(&mut self, share: &Arc<Share>, len: usize) -> Option<Taken> {
        let count = len.div_ceil(BUFFER_BYTES);
        if self.free.len() < count {
            for buffer in std::mem::take(&mut self.lingering) {
                self.give_back(buffer);
            }
        }
        let rest = self.free.len().checked_sub(count)?;
        Some(Taken { share: share.clone(), buffers: self.free.drain(rest..).collect() })
    }

    fn give_back(&mut self, buffer: PostedBuffer) {
        match buffer.take_back() {
            Ok(buffer) => self.free.push(buffer.post()),
            Err(buffer) => self.lingering.push(buffer),
        }
    }
}

impl Taken {
    /// The `len` bytes from `offset` on.
    pub(crate) fn spans(&self, offset: usize, len: usize) -> SgList {
        let end = offset + len;
        let part = |(i, buffer): (usize, &PostedBuffer)| {
            let start = i * BUFFER_BYTES;
            let from = offset.max(start);
            let to = end.min(start + BUFFER_BYTES);
            (from < to).then(|| buffer.span().part(from - start, to - from))
        };
        self.buffers.iter().enumerate().filter_map(part).collect()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let count = self.buffers.len();
        let mut inner = self.share.pool.lock();
        for buffer in self.buffers.drain(..) {
            inner.give_back(buffer);
        }
        let waker = inner.waker.take();
        drop(inner);
        self.share.shrink(count);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use super::*;

    fn share(buffers: usize) -> Arc<Share> {
        Buffers::new(buffers * BUFFER_BYTES).expect("memory").share()
    }

    #[test]
    fn what_is_still_in_use_is_not_given_out_again() {
        let share = share(2 * SHARES);
        let others = share.pool.lock().free.split_off(2);
        let both = share.try_take(BUFFER_BYTES + 1).expect("all of it");
        assert!(share.try_take(1).is_none());
        let used = both.spans(BUFFER_BYTES, 10);
        drop(both);
        assert!(share.try_take(BUFFER_BYTES).is_some(), "one is free");
        assert!(share.try_take(BUFFER_BYTES + 1).is_none(), "one is used");
        drop(used);
        assert!(share.try_take(BUFFER_BYTES + 1).is_some(), "none is used");
        drop(others);
    }

    #[test]
    fn parts_go_over_the_ends_of_buffers() {
        let share = share(4 * SHARES);
        let taken = share.try_take(3 * BUFFER_BYTES).expect("room");
        let lens = |offset, len| -> Vec<usize> {
            taken.spans(offset, len).iter().map(dafs_fabric::Span::len).collect()
        };
        assert_eq!(lens(BUFFER_BYTES - 1, 3), [1, 2]);
        assert_eq!(lens(5, 2 * BUFFER_BYTES), [BUFFER_BYTES - 5, BUFFER_BYTES, 5]);
        assert!(lens(7, 0).is_empty());
    }

    #[test]
    fn a_session_takes_its_share_and_waits_for_more() {
        let first = share(2 * SHARES);
        let second = first.pool.share();
        let mut held = vec![first.try_take(1).expect("room")];
        held.extend(std::iter::from_fn(|| first.try_take(1)));
        assert_eq!(held.len(), 2, "its share");
        let mut more = Box::pin(first.take(BUFFER_BYTES + 1));
        let context = &mut Context::from_waker(Waker::noop());
        assert!(more.as_mut().poll(context).is_pending());
        assert!(second.try_take(2 * BUFFER_BYTES).is_some(), "others are not behind it");
        held.pop();
        assert!(more.as_mut().poll(context).is_pending(), "still more than its share");
        held.pop();
        assert!(more.as_mut().poll(context).is_ready());
        drop(more);
        assert!(first.try_take(2 * BUFFER_BYTES).is_some(), "all was given back");
    }

    #[test]
    fn who_stops_waiting_has_taken_nothing() {
        let share = share(SHARES);
        let others = share.pool.lock().free.split_off(0);
        let context = &mut Context::from_waker(Waker::noop());
        let mut waits = Box::pin(share.take(1));
        assert!(waits.as_mut().poll(context).is_pending());
        drop(waits);
        let mut waits = Box::pin(share.take_beyond(BUFFER_BYTES));
        assert!(waits.as_mut().poll(context).is_pending());
        drop(waits);
        share.pool.lock().free = others;
        assert!(share.try_take(BUFFER_BYTES).is_some());
    }
}
