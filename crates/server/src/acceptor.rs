//! From a connection request to the worker that has its session.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dafs_fabric::{Incoming, Listener, PeerInfo};
use dafs_message::incoming_private_data;
use dafs_protocol::Identity;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::identity::{self, IdentityError, Proof, Word};
use crate::mailbox::{Mailbox, Message};
use crate::shared::{Shared, tick};
use crate::users::Users;

/// Takes connections, proves whose they are, and gives each to a worker.
pub(crate) struct Acceptor {
    pub(crate) listeners: Vec<Box<dyn Listener>>,
    pub(crate) mailboxes: Vec<Arc<Mailbox>>,
    /// Who gets the next session.
    pub(crate) next: usize,
    pub(crate) anonymous: Option<Identity>,
    pub(crate) users: Users,
    /// As whom a peer acts that the kernel knows.
    pub(crate) squash: fn(Identity) -> Identity,
    pub(crate) stopping: Arc<AtomicBool>,
    pub(crate) shared: Arc<Shared>,
}

impl Acceptor {
    /// Until the server stops.
    pub(crate) fn run(mut self) {
        while !self.stopping.load(Ordering::SeqCst) {
            wait_readable(&self.listeners);
            for i in 0..self.listeners.len() {
                while let Some(incoming) = self.listeners.get_mut(i).and_then(|l| l.poll_accept()) {
                    self.give(incoming);
                }
            }
        }
    }

    /// Proves the peer and gives the connection to the worker that has its session.
    fn give(&mut self, incoming: Incoming) {
        let Some(mailbox) = self.mailbox_of(&incoming) else { return };
        let refused = Refused { peer: incoming.peer.clone(), shared: self.shared.clone() };
        let squash = self.squash;
        match self.prove(&incoming) {
            Ok(Word::Proof(Proof::Kernel(who))) => {
                mailbox.put(Message::Accept(incoming, Proof::Kernel(squash(who))));
            }
            Ok(Word::Proof(proof)) => mailbox.put(Message::Accept(incoming, proof)),
            Ok(Word::User(uid)) => self.users.find(uid, move |found| {
                let proof = found.map(squash).map(Proof::Kernel);
                let proof = proof.unwrap_or_else(|error| refused.proof(error));
                mailbox.put(Message::Accept(incoming, proof));
            }),
            Err(error) => mailbox.put(Message::Accept(incoming, refused.proof(error.to_string()))),
        }
    }

    fn prove(&self, incoming: &Incoming) -> Result<Word, IdentityError> {
        let has_key = self.shared.greeting.is_keyed();
        let (peer, inner) = (&incoming.peer, &incoming.inner);
        let (owner, up) = (|| inner.owner(), || inner.is_established());
        identity::prove(peer, owner, up, has_key, self.anonymous.as_ref())
    }

    fn mailbox_of(&mut self, incoming: &Incoming) -> Option<Arc<Mailbox>> {
        let count = self.mailboxes.len();
        let private = incoming_private_data(incoming);
        let named = private.and_then(|p| p.first_chunk::<2>()).map(|n| u16::from_le_bytes(*n));
        let number = match named {
            Some(number) if usize::from(number) < count => usize::from(number),
            _ => {
                self.next = (self.next + 1) % count;
                self.next
            }
        };
        self.mailboxes.get(number).cloned()
    }
}

/// Tells of a connection that is refused.
struct Refused {
    peer: PeerInfo,
    shared: Arc<Shared>,
}

impl Refused {
    fn proof(&self, error: String) -> Proof {
        tick(&self.shared.counters.refused);
        tracing::info!(peer = ?self.peer, %error, "connection refused");
        Proof::Refused(error)
    }
}

/// Waits until a connection request may be there, or a moment has passed.
fn wait_readable(listeners: &[Box<dyn Listener>]) {
    let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let mut fds: Vec<_> =
        listeners.iter().filter_map(|listener| listener.event_fd()).map(readable).collect();
    let _ = poll(&mut fds, PollTimeout::from(200u16));
}
