//! What keeps a session alive.

use std::sync::{Arc, Weak};

use dafs_fabric::SharedPool;

use crate::leader::Inner;
use crate::loan::Returns;

/// Of shared buffers; more are private ones, whose data is copied.
const SHARED_BYTES_MAX: usize = 512 << 20;

/// What sessions, files, groups and futures hold. The keeper thread holds only what is inside.
pub(crate) struct Handle {
    /// The session, and who drives it.
    pub(crate) inner: Arc<Inner>,
    /// Streams are read ahead of their users.
    pub(crate) read_ahead: bool,
    /// Memory for buffers that the server reaches, if it may.
    pub(crate) shared: SharedPool,
}

impl Handle {
    pub(crate) fn new(inner: Arc<Inner>, read_ahead: bool) -> Handle {
        Handle { inner, read_ahead, shared: SharedPool::new(SHARED_BYTES_MAX) }
    }

    /// For what was lent, which keeps no session alive.
    pub(crate) fn returns(&self) -> Weak<dyn Returns> {
        let inner: Weak<Inner> = Arc::downgrade(&self.inner);
        inner
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inner.shut_down();
    }
}
