//! What acceptors and other workers leave for a worker.

use std::sync::{Arc, Mutex, PoisonError};

use dafs_fabric::Incoming;
use dafs_protocol::SessionId;

use crate::budget::Granted;
use crate::identity::Proof;
use crate::locks::Ended;
use crate::ready::Ready;

/// What an acceptor or another worker leaves for a worker.
pub(crate) enum Message {
    /// A connection whose peer is known as far as the proof says.
    Accept(Incoming, Proof),
    /// A wait of one of its sessions is over.
    LockEnded(Ended),
    /// The client of a session has made a new one, of another worker.
    Replaced { session: SessionId, by: SessionId, at: u16 },
    /// The session that a new one replaces has ended.
    Freed { session: SessionId },
    /// Its first delayed request has what it needs.
    Granted(Granted),
}

/// What is on its way to a worker.
#[derive(Default)]
pub(crate) struct Mailbox {
    pub ready: Arc<Ready>,
    messages: Mutex<Vec<Message>>,
}

impl Mailbox {
    /// Leaves something, and wakes the worker.
    pub(crate) fn put(&self, message: Message) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push(message);
        self.ready.wake_worker();
    }

    /// All that was left, in order.
    pub(crate) fn take(&self) -> Vec<Message> {
        std::mem::take(&mut *self.messages.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Nothing was left.
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}
