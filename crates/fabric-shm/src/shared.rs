//! What the engines of a device share.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use dafs_fabric::mem::MappedOfPeer;
use dafs_fabric::{Arena, DeviceAttr, Span, local};

use crate::admitted::Admitted;
use crate::memory_region::Table;
use crate::peer::{Peer, SEGMENT_BYTES_MAX, SEGMENTS_MAX};
use crate::wire::Limits;

/// Entries of a scatter/gather list.
pub const SGE_MAX: usize = 1024;
/// Receives per engine.
pub const RECEIVE_QUEUE_DEPTH: usize = 1 << 20;
/// Work requests under way per queue pair.
pub const SEND_QUEUE_DEPTH: usize = 1024;
/// Bytes of one RDMA read or write.
pub const BULK_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes that all peers of one user may share with a device: no more than this, and than a part of the
/// machine's memory, since whoever touches a page first pays for it.
const USER_BYTES_MAX: u64 = 16 << 30;
const USER_PART: u64 = 4;
/// All users together share twice as much.
const USERS: u64 = 2;
/// Files of a user, and of all. The system maps 65,530 for a process.
const USER_FILES_MAX: usize = 4096;
const FILES_MAX: usize = 16 * 1024;

/// What the engines of a device share.
#[derive(Debug)]
pub struct Shared {
    pub attr: DeviceAttr,
    pub table: Arc<Table>,
    /// Connections of other users that read by themselves.
    pub admitted: Arc<Admitted>,
    /// What the peers of each user share with this device.
    of_users: Mutex<Users>,
    user_bytes_max: u64,
    /// No peer is believed more than any other, as tests want it that have one user only.
    pub all_are_strangers: bool,
}

/// Mapped files of peers.
#[derive(Debug, Default)]
struct Users {
    bytes: u64,
    files: usize,
    each: HashMap<u32, UserFiles>,
}

/// Mapped files of a user's peers.
#[derive(Debug, Default)]
struct UserFiles {
    bytes: u64,
    /// By device and inode: connections of one program tell of the same files.
    files: HashMap<(u64, u64), Weak<PeerFile>>,
}

impl Shared {
    /// Of a new device.
    pub fn new(attr: DeviceAttr) -> io::Result<Arc<Shared>> {
        Shared::with_share(attr, (local::memory_bytes() / USER_PART).min(USER_BYTES_MAX))
    }

    /// Of a new device with which each user's peers share so much.
    pub fn with_share(attr: DeviceAttr, user_bytes_max: u64) -> io::Result<Arc<Shared>> {
        let table = Table::new()?;
        let (of_users, admitted, all_are_strangers) = (Mutex::default(), Arc::default(), false);
        Ok(Arc::new(Shared { attr, table, admitted, of_users, user_bytes_max, all_are_strangers }))
    }

    fn of_users(&self) -> MutexGuard<'_, Users> {
        self.of_users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a peer may share, if its user's share has room for it.
    pub fn limits(&self) -> Limits {
        Limits { segments: SEGMENTS_MAX, bytes: SEGMENT_BYTES_MAX.min(self.user_bytes_max) }
    }

    /// A peer who is not told of everything is told of what is for its user and for all, unless there are many of
    /// that, or nobody knows who it is.
    pub fn admit(&self, peer: &Peer) {
        let uid = peer.socket().uid();
        if !peer.shares()
            && !is_nobody(uid)
            && let Some(admission) = self.admitted.enter(uid)
        {
            peer.admit(admission);
            self.table.tell_again(peer);
        }
    }

    /// Whether a user's share has room for so much more.
    pub fn has_room(&self, uid: u32, bytes: u64) -> bool {
        self.takes(&self.of_users(), uid, bytes)
    }

    fn takes(&self, users: &Users, uid: u32, bytes: u64) -> bool {
        let (used, files) =
            users.each.get(&uid).map_or((0, 0), |user| (user.bytes, user.files.len()));
        let all = self.user_bytes_max * USERS;
        files < USER_FILES_MAX
            && users.files < FILES_MAX
            && bytes <= self.user_bytes_max.saturating_sub(used)
            && bytes <= all.saturating_sub(users.bytes)
    }
}

/// The system does not say whose it is, or all who have no number here have this one.
fn is_nobody(uid: u32) -> bool {
    uid == u32::MAX || local::is_ambiguous(uid)
}

/// It is this process that has no room for a mapping: no addresses, or a limit of locked memory.
fn is_no_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock)
}

/// Whose files a connection maps.
#[derive(Debug, Clone)]
pub struct Account {
    pub shared: Arc<Shared>,
    pub uid: u32,
}

impl Account {
    /// Maps a file of at most so many bytes, once for all connections of the user; `None`: the user's share is
    /// used up.
    ///
    /// # Errors
    /// It cannot be shared.
    pub fn map(&self, file: OwnedFd, bytes_max: usize) -> io::Result<Option<Arc<PeerFile>>> {
        let file = File::from(file);
        let arena = match Arena::of_peer(file.as_fd(), bytes_max) {
            Err(error) if is_no_room(&error) => return Ok(None),
            mapped => mapped?,
        };
        let found = file.metadata()?;
        let (id, bytes) = ((found.dev(), found.ino()), arena.len() as u64);
        let mut of_users = self.shared.of_users();
        let users = &mut *of_users;
        let known = users.each.get(&self.uid).and_then(|user| user.files.get(&id)?.upgrade());
        if known.is_some() {
            return Ok(known);
        }
        if !self.shared.takes(users, self.uid, bytes) {
            return Ok(None);
        }
        let user = users.each.entry(self.uid).or_default();
        (users.bytes, users.files) = (users.bytes + bytes, users.files + 1);
        let whole = arena.span(0, arena.len());
        let (account, counted) = (Some((self.clone(), id)), MappedOfPeer::new(bytes));
        let mapped = Arc::new(PeerFile { whole, account, _counted: counted });
        user.bytes += bytes;
        user.files.insert(id, Arc::downgrade(&mapped));
        Ok(Some(mapped))
    }
}

/// A peer's file that is mapped, and counted.
#[derive(Debug)]
pub struct PeerFile {
    whole: Span,
    account: Option<(Account, (u64, u64))>,
    _counted: MappedOfPeer,
}

impl PeerFile {
    /// Of a server, which is trusted, of at most so many bytes; `None`: there are no addresses for it.
    ///
    /// # Errors
    /// It cannot be shared.
    pub fn of_server(file: &OwnedFd, bytes_max: usize) -> io::Result<Option<Arc<PeerFile>>> {
        match Arena::span_of_peer(file.as_fd(), bytes_max) {
            Ok(whole) => {
                let counted = MappedOfPeer::new(whole.len() as u64);
                Ok(Some(Arc::new(PeerFile { whole, account: None, _counted: counted })))
            }
            Err(error) if is_no_room(&error) => {
                tracing::warn!(%error, "a server's memory is not mapped");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// All of it.
    pub fn span(&self) -> Span {
        self.whole.clone()
    }
}

impl Drop for PeerFile {
    fn drop(&mut self) {
        let Some((Account { shared, uid }, id)) = &self.account else { return };
        let mut of_users = shared.of_users();
        let users = &mut *of_users;
        let Some(user) = users.each.get_mut(uid) else { return };
        let bytes = self.whole.len() as u64;
        user.bytes -= bytes;
        (users.bytes, users.files) = (users.bytes - bytes, users.files - 1);
        // It may have been mapped again meanwhile.
        if user.files.get(id).is_some_and(|file| file.strong_count() == 0) {
            user.files.remove(id);
        }
        if user.files.is_empty() && user.bytes == 0 {
            users.each.remove(uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use dafs_fabric::mem::PAGE_BYTES;

    use super::*;

    fn file(bytes: usize) -> OwnedFd {
        let part = Arena::shared(bytes).expect("memory").span(0, bytes).shared().expect("a file");
        part.file.as_fd().try_clone_to_owned().expect("a descriptor")
    }

    #[test]
    fn a_user_has_a_share_of_which_files_count_once() {
        let usual = Shared::new(DeviceAttr::none("shm")).expect("a device").user_bytes_max;
        assert!((1..=local::memory_bytes() / USER_PART).contains(&usual));
        let bytes = 10 * PAGE_BYTES as u64;
        let shared = Shared::with_share(DeviceAttr::none("shm"), bytes).expect("a device");
        let [one, other] = [7, 8].map(|uid| Account { shared: shared.clone(), uid });
        let map = |account: &Account, file: &OwnedFd| {
            let file = file.try_clone().expect("a descriptor");
            account.map(file, 1 << 20).expect("a file to be mapped")
        };
        let files = [6, 4, 1].map(|pages| file(pages * PAGE_BYTES));
        let mapped = files.each_ref().map(|file| map(&one, file));
        assert!(mapped[0].is_some() && mapped[1].is_some() && mapped[2].is_none());
        let again = map(&one, &files[0]).expect("it is there");
        assert!(mapped[0].as_ref().is_some_and(|first| Arc::ptr_eq(first, &again)));
        assert!(!shared.has_room(7, 1) && shared.has_room(8, bytes));
        // Others have theirs.
        assert!(map(&other, &files[2]).is_some());
        drop((mapped, again));
        assert!(shared.of_users().each.is_empty() && shared.of_users().bytes == 0);
        assert!(map(&one, &files[2]).is_some());
        assert!(one.map(file(PAGE_BYTES * 2), PAGE_BYTES).is_err(), "more than was agreed");
        assert!(shared.of_users().each.is_empty() && shared.of_users().bytes == 0);
    }

    #[test]
    fn small_files_and_many_users_are_bounded_as_well() {
        let bytes = 1 << 40;
        let shared = Shared::with_share(DeviceAttr::none("shm"), bytes).expect("a device");
        let one = Account { shared: shared.clone(), uid: 7 };
        let page = file(PAGE_BYTES);
        let mapped = one.map(page, PAGE_BYTES).expect("a file").expect("room");
        {
            let mut users = shared.of_users();
            let user = users.each.get_mut(&7).expect("it has one");
            let known = user.files.values().next().expect("that one").clone();
            user.files.extend((1..USER_FILES_MAX as u64).map(|inode| ((0, inode), known.clone())));
        }
        assert!(!shared.has_room(7, 1) && shared.has_room(8, bytes));
        assert!(one.map(file(PAGE_BYTES), PAGE_BYTES).expect("a file").is_none());
        shared.of_users().bytes = USERS * bytes;
        assert!(!shared.has_room(8, 1), "all together have enough");
        shared.of_users().bytes = PAGE_BYTES as u64;
        shared.of_users().files = FILES_MAX;
        assert!(!shared.has_room(8, 1), "of files, too");
        drop(mapped);
    }
}
