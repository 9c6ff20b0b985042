//! Buffers that the session's network reaches without a copy.

use dafs_fabric::mem::{lend, lend_mut};
use dafs_fabric::{Buffer, SharedPool, Span};

use crate::error::{Error, Result};
use crate::handle::Handle;
use crate::session::Session;

/// Less than this goes with a request, or is copied, wherever it lies.
const SHARED_MIN: usize = 2048;

impl Session {
    /// A zeroed buffer of so many bytes for calls of this session ([`Call::Read`](crate::Call::Read),
    /// [`Call::Write`](crate::Call::Write)). Where the session goes by shared memory, and the server is
    /// root's or this user's, the server reaches it as it is, also where a part of it is lent to a call
    /// that blocks: other memory costs a copy there. Everywhere else it
    /// is the same as a [`Buffer::new`]. It may outlive the session, and be used with another one.
    ///
    /// A server that has such a buffer may change it at any time, also after the call: that is why it
    /// is given to no stranger's.
    ///
    /// # Errors
    /// [`Error::Local`]: there is no memory.
    pub fn buffer(&self, bytes: usize) -> Result<Buffer> {
        self.handle.buffer(bytes)
    }

    /// As [`buffer`](Self::buffer), but with whatever an earlier one had in it: for who fills it, or has
    /// it filled.
    ///
    /// # Errors
    /// As of that.
    pub fn buffer_to_fill(&self, bytes: usize) -> Result<Buffer> {
        self.handle.buffer_to_fill(bytes)
    }

    /// As [`buffer`](Self::buffer), so many at once.
    ///
    /// # Errors
    /// As of that.
    pub fn buffers(&self, count: usize, bytes: usize) -> Result<Vec<Buffer>> {
        if self.handle.shares_memory() {
            return (0..count).map(|_| self.buffer(bytes)).collect();
        }
        Buffer::many(count, bytes).map_err(|error| Error::Local(error.to_string()))
    }
}

impl Handle {
    pub(crate) fn buffer(&self, bytes: usize) -> Result<Buffer> {
        self.buffer_by(bytes, SharedPool::buffer)
    }

    pub(crate) fn buffer_to_fill(&self, bytes: usize) -> Result<Buffer> {
        self.buffer_by(bytes, SharedPool::buffer_to_fill)
    }

    fn buffer_by(
        &self,
        bytes: usize,
        take: fn(&SharedPool, usize) -> Option<Buffer>,
    ) -> Result<Buffer> {
        let shared = self.shares_memory().then(|| take(&self.shared, bytes)).flatten();
        match shared {
            Some(buffer) => Ok(buffer),
            None => Buffer::new(bytes).map_err(|error| Error::Local(error.to_string())),
        }
    }

    /// As [`lend_mut`]; memory of the session's buffers is lent as the server reaches it. All clones of
    /// the span are gone when `body` returns.
    pub(crate) fn lend_mut<R>(&self, memory: &mut [u8], body: impl FnOnce(&Span) -> R) -> R {
        match self.known(memory) {
            Some(span) => body(&span),
            None => lend_mut(memory, body),
        }
    }

    /// As [`lend`]; see [`lend_mut`](Self::lend_mut).
    pub(crate) fn lend<R>(&self, memory: &[u8], body: impl FnOnce(&Span) -> R) -> R {
        match self.known(memory) {
            Some(span) => body(&span),
            None => lend(memory, body),
        }
    }

    fn known(&self, memory: &[u8]) -> Option<Span> {
        if memory.len() < SHARED_MIN { None } else { self.shared.span_of(memory) }
    }

    fn shares_memory(&self) -> bool {
        self.inner.lock().core.shares_memory()
    }
}
