//! What keeps a session alive.

use std::sync::Arc;

use crate::leader::Inner;

/// What sessions, files, groups and futures hold. The keeper thread holds only what is inside.
pub(crate) struct Handle {
    /// The session, and who drives it.
    pub(crate) inner: Arc<Inner>,
    /// Streams are read ahead of their users.
    pub(crate) read_ahead: bool,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inner.shut_down();
    }
}
