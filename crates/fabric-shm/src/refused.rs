//! Descriptors that are no memory. What a peer sends is in this process's table before anybody can look at it,
//! and the end of a file of a file system in user space waits for that: for its owner's program. So such a
//! descriptor is never asked anything, and another thread closes it. That may never end: a user has few such
//! threads, and then sends descriptors to nobody here any more.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};

use dafs_fabric::local;
use dafs_fabric::mem::is_memory_file;

/// Descriptors of one user that are being closed.
const OF_USER_MAX: usize = 16;

static OF_USERS: Mutex<BTreeMap<u32, usize>> = Mutex::new(BTreeMap::new());
/// Those of all users: mostly none.
static ALL: AtomicUsize = AtomicUsize::new(0);

/// As whom the peer at the other end of a socket counts.
fn user_of(socket: BorrowedFd<'_>) -> u32 {
    local::peer_credentials(socket).map_or(u32::MAX, |(_, uid, _)| uid)
}

fn with_count<T>(uid: u32, change: impl FnOnce(&mut usize) -> T) -> T {
    let mut users = OF_USERS.lock().unwrap_or_else(PoisonError::into_inner);
    let count = users.entry(uid).or_default();
    let result = change(count);
    if *count == 0 {
        users.remove(&uid);
    }
    result
}

/// The peer's user has sent so many that no more are taken, not even to be refused.
pub fn is_shut_out(socket: BorrowedFd<'_>) -> bool {
    ALL.load(Ordering::Relaxed) > 0 && with_count(user_of(socket), |count| *count >= OF_USER_MAX)
}

/// Those that are memory; false: some were none, and are refused.
pub fn memory_of(socket: BorrowedFd<'_>, sent: Vec<OwnedFd>) -> (Vec<OwnedFd>, bool) {
    let (memory, others): (Vec<OwnedFd>, Vec<OwnedFd>) =
        sent.into_iter().partition(|descriptor| is_memory_file(descriptor.as_fd()));
    let all_are = others.is_empty();
    for other in others {
        close(user_of(socket), other);
    }
    (memory, all_are)
}

/// Closes it, without waiting for that.
fn close(uid: u32, descriptor: OwnedFd) {
    with_count(uid, |count| *count += 1);
    ALL.fetch_add(1, Ordering::Relaxed);
    let (hand_over, taken) = mpsc::channel::<OwnedFd>();
    let closing = std::thread::Builder::new().name("dafs-close".into()).spawn(move || {
        drop(taken.recv());
        with_count(uid, |count| *count -= 1);
        ALL.fetch_sub(1, Ordering::Relaxed);
    });
    // Without a thread it stays open, and counts as one that is never closed.
    if closing.is_err() {
        tracing::debug!(uid, "a descriptor of a peer is left open");
        std::mem::forget(descriptor);
    } else if let Err(mpsc::SendError(descriptor)) = hand_over.send(descriptor) {
        std::mem::forget(descriptor);
    }
}
