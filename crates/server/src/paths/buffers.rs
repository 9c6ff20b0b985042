//! Communication buffers: where data lands that the server does not cache.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};

use dafs_fabric::{ArenaError, Buffer, PostedBuffer, SgList, poison};
use dafs_unifier::FairQueue;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::budget;

/// Bytes of one buffer.
pub(super) const BUFFER_BYTES: usize = 64 << 10;

/// A fixed number of buffers in one mapping, which is all that reads and writes of peers take.
/// Who needs more than is free waits, in order.
pub(super) struct Buffers {
    inner: Mutex<Inner>,
    all: usize,
    queue: FairQueue,
    /// As whom the server runs.
    own_uid: u32,
    /// The shares of users with sessions.
    users: Mutex<FxHashMap<u32, Weak<Share>>>,
}

struct Inner {
    free: Vec<PostedBuffer>,
    /// Given back while the store or the network still had a span of it.
    lingering: Vec<PostedBuffer>,
    /// The first of the line.
    waker: Option<Waker>,
}

/// What one session, or one user, may take of the buffers.
pub(crate) struct Share {
    pool: Arc<Buffers>,
    /// Buffers.
    most: usize,
    /// Those that it has, and the first of the line.
    taken: Mutex<(usize, Option<Waker>)>,
    queue: FairQueue,
    /// Of a session: that of its user.
    of_user: Option<Arc<Share>>,
}

/// Buffers that somebody has; given back when dropped.
pub(crate) struct Taken {
    share: Arc<Share>,
    buffers: SmallVec<[PostedBuffer; 1]>,
}

impl Buffers {
    pub(super) fn new(bytes: usize, own_uid: u32) -> Result<Arc<Buffers>, ArenaError> {
        let buffers = Buffer::many(bytes / BUFFER_BYTES, BUFFER_BYTES)?;
        let free: Vec<_> = buffers.into_iter().map(Buffer::post).collect();
        free.iter().for_each(|buffer| poison::fill(buffer.span()));
        let all = free.len();
        let inner = Mutex::new(Inner { free, lingering: Vec::new(), waker: None });
        let (queue, users) = (FairQueue::default(), Mutex::default());
        Ok(Arc::new(Buffers { inner, all, queue, own_uid, users }))
    }

    /// The share of a session of this user.
    pub(super) fn share(self: &Arc<Self>, uid: u32) -> Arc<Share> {
        let most = budget::user_part(self.all, uid, self.own_uid);
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.retain(|_, share| share.strong_count() > 0);
        let user = users.get(&uid).and_then(Weak::upgrade);
        let user = user.unwrap_or_else(|| Share::new(self, most, None));
        users.insert(uid, Arc::downgrade(&user));
        Share::new(self, budget::session_part(most), Some(user))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    fn new(pool: &Arc<Buffers>, most: usize, of_user: Option<Arc<Share>>) -> Arc<Share> {
        let (pool, queue) = (pool.clone(), FairQueue::default());
        Arc::new(Share { pool, most, taken: Mutex::default(), queue, of_user })
    }

    /// Itself, then that of its user.
    fn levels(&self) -> impl Iterator<Item = &Share> {
        std::iter::once(self).chain(self.of_user.as_deref())
    }

    /// Room for `len` bytes, if it is free and nobody waits.
    pub(super) fn try_take(self: &Arc<Self>, len: usize) -> Option<Taken> {
        let count = len.div_ceil(BUFFER_BYTES);
        let is_waited_for = self.levels().any(|level| !level.queue.is_empty());
        if is_waited_for || !self.pool.queue.is_empty() {
            return None;
        }
        let mut grown = Grown::default();
        for level in self.levels() {
            if !level.grow(count) {
                return None;
            }
            grown.add(level, count);
        }
        let taken = self.pool.lock().take(self, count)?;
        grown.keep();
        Some(taken)
    }

    /// Room for `len` bytes. What is more than a share comes alone.
    pub(super) async fn take(self: &Arc<Self>, len: usize) -> Taken {
        if let Some(taken) = self.try_take(len) {
            return taken;
        }
        let count = len.div_ceil(BUFFER_BYTES);
        let (mut grown, mut tickets) = (Grown::default(), SmallVec::<[_; 2]>::new());
        for level in self.levels() {
            tickets.push(level.queue.enter().await);
            poll_fn(|context| {
                level.lock().1 = Some(context.waker().clone());
                if level.grow(count) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            grown.add(level, count);
        }
        self.take_grown(count, grown).await
    }

    /// As `take`, also beyond the shares: for one at a time in all, which others wait for.
    pub(super) async fn take_beyond(self: &Arc<Self>, len: usize) -> Taken {
        let count = len.div_ceil(BUFFER_BYTES);
        let mut grown = Grown::default();
        for level in self.levels() {
            level.lock().0 += count;
            grown.add(level, count);
        }
        self.take_grown(count, grown).await
    }

    /// What the shares count already.
    async fn take_grown(self: &Arc<Self>, count: usize, grown: Grown<'_>) -> Taken {
        let _ticket = self.pool.queue.enter().await;
        let taken = poll_fn(|context| {
            let mut inner = self.pool.lock();
            match inner.take(self, count) {
                Some(taken) => Poll::Ready(taken),
                None => {
                    inner.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await;
        grown.keep();
        taken
    }

    fn grow(&self, count: usize) -> bool {
        let mut taken = self.lock();
        let fits = taken.0 == 0 || taken.0 + count <= self.most;
        if fits {
            taken.0 += count;
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

/// Buffers that shares count, but that nobody has yet.
#[derive(Default)]
struct Grown<'a>(SmallVec<[(&'a Share, usize); 2]>);

impl<'a> Grown<'a> {
    fn add(&mut self, share: &'a Share, count: usize) {
        self.0.push((share, count));
    }

    /// Somebody has them.
    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Grown<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|(share, count)| share.shrink(*count));
    }
}

impl Inner {
    fn take(&mut self, share: &Arc<Share>, count: usize) -> Option<Taken> {
        if self.free.len() < count {
            for buffer in std::mem::take(&mut self.lingering) {
                self.give_back(buffer);
            }
        }
        let rest = self.free.len().checked_sub(count)?;
        let buffers: SmallVec<[PostedBuffer; 1]> = self.free.drain(rest..).collect();
        buffers.iter().for_each(|buffer| poison::check(buffer.span(), "a buffer"));
        Some(Taken { share: share.clone(), buffers })
    }

    fn give_back(&mut self, buffer: PostedBuffer) {
        match buffer.take_back() {
            Ok(buffer) => {
                let free = buffer.post();
                poison::fill(free.span());
                self.free.push(free);
            }
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
        self.share.levels().for_each(|level| level.shrink(count));
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use super::*;

    /// Of a session that may have an eighth of the buffers.
    const SHARES: usize = 8;

    fn share(buffers: usize) -> Arc<Share> {
        Buffers::new(buffers * BUFFER_BYTES, 1).expect("memory").share(7)
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
        let second = first.pool.share(7);
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
    fn sessions_of_one_user_leave_most_to_others() {
        let first = share(4 * SHARES);
        let (second, third) = (first.pool.share(7), first.pool.share(7));
        let (stranger, root) = (first.pool.share(8), first.pool.share(0));
        let four = 4 * BUFFER_BYTES;
        let held = (first.try_take(four).expect("room"), second.try_take(four).expect("room"));
        assert!(third.try_take(1).is_none(), "a quarter is taken");
        assert!(stranger.try_take(four).is_some());
        assert!(root.try_take(2 * four).is_some());
        drop(held);
        assert!(third.try_take(four).is_some());
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
