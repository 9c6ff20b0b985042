//! Communication buffers: where data lands that the server does not cache.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use dafs_fabric::{ArenaError, Buffer, PostedBuffer, SgList};
use dafs_unifier::Line;
use smallvec::SmallVec;

/// Bytes of one buffer.
pub(super) const BUFFER_BYTES: usize = 64 << 10;

/// A fixed number of buffers in one mapping, which is all that reads and writes of peers take.
/// Who needs more than is free waits, in order.
pub(super) struct Buffers {
    inner: Mutex<Inner>,
    line: Line,
}

struct Inner {
    free: Vec<PostedBuffer>,
    /// Given back while the store or the network still had a span of it.
    lingering: Vec<PostedBuffer>,
    /// The first of the line.
    waker: Option<Waker>,
}

/// Buffers that somebody has; given back when dropped.
pub(crate) struct Taken {
    pool: Arc<Buffers>,
    buffers: SmallVec<[PostedBuffer; 1]>,
}

impl Buffers {
    pub(super) fn new(bytes: usize) -> Result<Arc<Buffers>, ArenaError> {
        let buffers = Buffer::many(bytes / BUFFER_BYTES, BUFFER_BYTES)?;
        let free = buffers.into_iter().map(Buffer::post).collect();
        let inner = Mutex::new(Inner { free, lingering: Vec::new(), waker: None });
        Ok(Arc::new(Buffers { inner, line: Line::default() }))
    }

    /// Room for `len` bytes, if it is free and nobody waits.
    pub(super) fn try_take(self: &Arc<Self>, len: usize) -> Option<Taken> {
        if self.line.is_empty() { self.lock().take(self, len) } else { None }
    }

    /// Room for `len` bytes, which must not be more than there is.
    pub(super) async fn take(self: &Arc<Self>, len: usize) -> Taken {
        if let Some(taken) = self.try_take(len) {
            return taken;
        }
        let _turn = self.line.turn().await;
        poll_fn(|context| {
            let mut inner = self.lock();
            match inner.take(self, len) {
                Some(taken) => Poll::Ready(taken),
                None => {
                    inner.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn take(&mut self, pool: &Arc<Buffers>, len: usize) -> Option<Taken> {
        let count = len.div_ceil(BUFFER_BYTES);
        if self.free.len() < count {
            for buffer in std::mem::take(&mut self.lingering) {
                self.give_back(buffer);
            }
        }
        let rest = self.free.len().checked_sub(count)?;
        Some(Taken { pool: pool.clone(), buffers: self.free.drain(rest..).collect() })
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
        let mut inner = self.pool.lock();
        for buffer in self.buffers.drain(..) {
            inner.give_back(buffer);
        }
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_still_in_use_is_not_given_out_again() {
        let pool = Buffers::new(2 * BUFFER_BYTES).expect("memory");
        let both = pool.try_take(BUFFER_BYTES + 1).expect("all of it");
        assert!(pool.try_take(1).is_none());
        let used = both.spans(BUFFER_BYTES, 10);
        drop(both);
        assert!(pool.try_take(BUFFER_BYTES).is_some(), "one is free");
        assert!(pool.try_take(BUFFER_BYTES + 1).is_none(), "one is used");
        drop(used);
        assert!(pool.try_take(BUFFER_BYTES + 1).is_some(), "none is used");
    }

    #[test]
    fn parts_go_over_the_ends_of_buffers() {
        let pool = Buffers::new(4 * BUFFER_BYTES).expect("memory");
        let taken = pool.try_take(3 * BUFFER_BYTES).expect("room");
        let lens = |offset, len| -> Vec<usize> {
            taken.spans(offset, len).iter().map(dafs_fabric::Span::len).collect()
        };
        assert_eq!(lens(BUFFER_BYTES - 1, 3), [1, 2]);
        assert_eq!(lens(5, 2 * BUFFER_BYTES), [BUFFER_BYTES - 5, BUFFER_BYTES, 5]);
        assert!(lens(7, 0).is_empty());
    }
}
