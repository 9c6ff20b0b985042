//! What acceptors and other workers leave for a worker.

use std::sync::atomic::{AtomicBool, Ordering};
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
    /// There may be some: saves who looks often the lock.
    has_some: AtomicBool,
}

impl Mailbox {
    /// Leaves something, and wakes the worker.
    pub(crate) fn put(&self, message: Message) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.push(message);
        self.has_some.store(true, Ordering::Release);
        drop(messages);
        self.ready.wake_worker();
    }

    /// Something may have been left.
    #[inline]
    pub(crate) fn has_some(&self) -> bool {
        self.has_some.load(Ordering::Acquire)
    }

    /// All that was left, in order.
    pub(crate) fn take(&self) -> Vec<Message> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_some.store(false, Ordering::Release);
        std::mem::take(&mut *messages)
    }

    /// Nothing was left.
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}
