//! What one call was lent.

use std::sync::Weak;

/// Who has the server know of what is returned.
pub(crate) trait Returns: Send + Sync {
    /// Something was.
    fn returned(&self);
}

/// Bytes of a file in the server's cache, as they were when they were read. The server neither changes them nor uses
/// their memory again before this is dropped, in any thread, also after the session. In a child of this process
/// they are not there: to look at them ends it.
pub struct Loan {
    lent: Option<Box<dafs_message::Loan>>,
    /// Not before the user has it.
    session: Option<Weak<dyn Returns>>,
}

impl std::fmt::Debug for Loan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loan").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl Loan {
    pub(crate) fn new(lent: Box<dafs_message::Loan>) -> Loan {
        Loan { lent: Some(lent), session: None }
    }

    pub(crate) fn set_session(&mut self, session: Weak<dyn Returns>) {
        self.session = Some(session);
    }

    /// The bytes, in order: in as many pieces as the cache has them.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.lent.iter().flat_map(|lent| lent.pieces())
    }

    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.lent.as_ref().map_or(0, |lent| lent.bytes())
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        drop(self.lent.take());
        if let Some(session) = self.session.take().and_then(|session| session.upgrade()) {
            session.returned();
        }
    }
}
