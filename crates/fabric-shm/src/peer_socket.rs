//! A socket of a peer. What the system discards it closes at once, in the thread that received or closed: descriptors
//! for which a message had no room, and those still in the queue of a socket that ends. So all are taken
//! out, and what is no memory is [handed over](crate::refused).

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use dafs_fabric::local;
use dafs_fabric::mem::is_memory_file;

use crate::refused::CLOSING;
use crate::sys::{self, Received, Take};

/// Messages that are taken from a socket that ends, before another thread goes on with it.
const LAST_MAX: usize = 1024;

/// A socket of a peer. To drop it waits for nobody.
#[derive(Debug)]
pub struct PeerSocket {
    /// Also of the thread that goes on with it when it is dropped.
    socket: Arc<OwnedFd>,
    /// As whom the peer counts.
    uid: u32,
}

impl PeerSocket {
    /// Of a socket that is connected.
    pub fn new(socket: OwnedFd) -> PeerSocket {
        let uid = local::peer_credentials(socket.as_fd()).map_or(u32::MAX, |(_, uid, _)| uid);
        PeerSocket { socket: Arc::new(socket), uid }
    }

    /// As if its peer were of this user.
    #[cfg(test)]
    pub fn of(socket: OwnedFd, uid: u32) -> PeerSocket {
        PeerSocket { socket: Arc::new(socket), uid }
    }

    /// Whose the peer is.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// # Errors
    /// `PermissionDenied`: too much of what its user sent is still being closed.
    pub fn check(&self) -> io::Result<()> {
        match CLOSING.is_shut_out(self.uid) {
            true => Err(io::Error::new(
                ErrorKind::PermissionDenied,
                format!("descriptors that uid {} has sent do not close", self.uid),
            )),
            false => Ok(()),
        }
    }

    /// Whether no more sockets may be taken for now: too many wait to be closed.
    pub fn are_enough() -> bool {
        CLOSING.is_full()
    }

    /// Receives one message, and never waits: unless it has descriptors for which this process has no room.
    ///
    /// # Errors
    /// The system's, and as of [`check`](Self::check).
    pub fn receive(&self, bytes: &mut [u8]) -> io::Result<Received> {
        self.check()?;
        let received = sys::receive(self.as_fd(), bytes, Take::Message)?;
        Ok(self.memory_of(received))
    }

    /// As [`receive`](Self::receive), also where this process has no room for a descriptor more, which the system would
    /// discard: the message stays then. That costs a call more.
    ///
    /// # Errors
    /// As of [`receive`](Self::receive).
    pub fn receive_carefully(&self, bytes: &mut [u8]) -> io::Result<Received> {
        let received = self.take_carefully(bytes)?;
        Ok(self.memory_of(received))
    }

    /// As [`receive_carefully`](Self::receive_carefully); also an eventfd, where one came.
    ///
    /// # Errors
    /// As of [`receive`](Self::receive).
    pub fn receive_with_bell(&self, bytes: &mut [u8]) -> io::Result<(Received, Option<OwnedFd>)> {
        let mut received = self.take_carefully(bytes)?;
        let is_bell = |fd: &OwnedFd| !is_memory_file(fd.as_fd()) && sys::may_be_eventfd(fd.as_fd());
        let at = received.descriptors.iter().position(is_bell);
        let bell = at.map(|at| received.descriptors.swap_remove(at));
        Ok((self.memory_of(received), bell))
    }

    /// Closes what it has sent, in another thread.
    pub fn refuse(&self, descriptor: OwnedFd) {
        CLOSING.hand_over(self.uid, move || close(vec![descriptor]));
    }

    fn take_carefully(&self, bytes: &mut [u8]) -> io::Result<Received> {
        self.check()?;
        let received = sys::receive(self.as_fd(), bytes, Take::Copy)?;
        if !received.lost {
            sys::discard(self.as_fd())?;
        }
        Ok(received)
    }

    /// Of what came, what is memory.
    fn memory_of(&self, mut received: Received) -> Received {
        let others = take_others(&mut received);
        if !others.is_empty() {
            received.is_cut = true;
            CLOSING.hand_over(self.uid, move || close(others));
        }
        received
    }
}

impl AsFd for PeerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        // The peer knows at once, and nothing comes into its queue any more.
        sys::end(self.socket.as_fd());
        // Nor are there descriptors here for what waits.
        let take = if CLOSING.is_shut_out(self.uid) { Take::Look } else { Take::Copy };
        if let Last::Others(others) = take_last(&self.socket, take) {
            // Whoever lets go of the socket last closes an empty one: this thread may do so only after that.
            let socket = self.socket.clone();
            CLOSING.hand_over(self.uid, move || {
                close(others);
                close_all(&socket);
            });
        }
    }
}

/// What a socket had in its queue.
enum Last {
    /// Nothing is left there.
    Nothing,
    /// Something may be; of this the first has copies here.
    Others(Vec<OwnedFd>),
}

/// Takes out what holds up nobody. A message is looked at first, as there may be no room for its descriptors.
fn take_last(socket: &OwnedFd, look: Take) -> Last {
    for _ in 0..LAST_MAX {
        let Some(mut received) = next_of(socket, look) else { return Last::Nothing };
        let others = take_others(&mut received);
        if received.lost || !others.is_empty() || sys::discard(socket.as_fd()).is_err() {
            return Last::Others(others);
        }
    }
    Last::Others(Vec::new())
}

/// `None`: there is nothing more.
fn next_of(socket: &OwnedFd, take: Take) -> Option<Received> {
    sys::receive(socket.as_fd(), &mut [0], take).ok().filter(|received| !received.is_end)
}

/// What is no memory.
fn take_others(received: &mut Received) -> Vec<OwnedFd> {
    received.descriptors.extract_if(.., |descriptor| !is_memory_file(descriptor.as_fd())).collect()
}

/// Closes descriptors, however long that takes. Sockets are to end at once, but nobody can rely on it: the peer
/// can say otherwise as long as it has them, too.
fn close(descriptors: Vec<OwnedFd>) {
    for descriptor in descriptors {
        sys::do_not_linger(descriptor.as_fd());
    }
}

/// The same for all that is left in a socket.
fn close_all(socket: &OwnedFd) {
    while let Some(received) = next_of(socket, Take::Message) {
        close(received.descriptors);
    }
}
