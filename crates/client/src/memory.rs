//! Buffers that the session's network reaches without a copy.

use dafs_fabric::Buffer;

use crate::error::{Error, Result};
use crate::handle::Handle;
use crate::session::Session;

impl Session {
    /// A zeroed buffer of so many bytes for calls of this session ([`Call::Read`](crate::Call::Read),
    /// [`Call::Write`](crate::Call::Write)). Where the session goes by shared memory, and the server is
    /// root's or this user's, the server reaches it as it is: other buffers cost a copy there. Everywhere else it
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
        let shared = self.shares_memory().then(|| self.shared.buffer(bytes)).flatten();
        match shared {
            Some(buffer) => Ok(buffer),
            None => Buffer::new(bytes).map_err(|error| Error::Local(error.to_string())),
        }
    }

    fn shares_memory(&self) -> bool {
        self.inner.lock().core.shares_memory()
    }
}
