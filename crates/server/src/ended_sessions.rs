//! What is left of sessions that ended.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dafs_protocol::SessionId;

/// Sessions that ended with open files: which are being flushed, and which could not be. Their
/// clients are told when they come back. Bounded: the oldest are forgotten.
#[derive(Debug, Default)]
pub(crate) struct EndedSessions {
    left: Mutex<VecDeque<(SessionId, EndedState)>>,
    /// Files whose data could not be written when the server ended.
    unflushed: AtomicU64,
}

/// What is left of a session that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndedState {
    /// Its files are being flushed.
    Flushing,
    /// Some could not be flushed.
    Lost,
}

const ENDED_SESSIONS_MAX: usize = 65_536;

impl EndedSessions {
    pub(crate) fn flushing(&self, id: SessionId) {
        let mut left = self.left();
        if left.len() >= ENDED_SESSIONS_MAX {
            left.pop_front();
        }
        left.push_back((id, EndedState::Flushing));
    }

    pub(crate) fn lost(&self, id: SessionId) {
        let mut left = self.left();
        left.iter_mut()
            .filter(|(known, _)| *known == id)
            .for_each(|(_, what)| *what = EndedState::Lost);
    }

    pub(crate) fn forget(&self, id: SessionId) {
        self.left().retain(|(known, _)| *known != id);
    }

    pub(crate) fn find(&self, id: SessionId) -> Option<EndedState> {
        self.left().iter().find(|(known, _)| *known == id).map(|(_, what)| *what)
    }

    /// So many files more could not be written when the server ended.
    pub(crate) fn add_unflushed(&self, files: u64) {
        self.unflushed.fetch_add(files, Ordering::SeqCst);
    }

    /// How many.
    pub(crate) fn unflushed(&self) -> u64 {
        self.unflushed.load(Ordering::SeqCst)
    }

    /// Nothing is left that anybody would be told of.
    pub(crate) fn all_is_written(&self) -> bool {
        self.unflushed() == 0 && self.left().is_empty()
    }

    fn left(&self) -> MutexGuard<'_, VecDeque<(SessionId, EndedState)>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
