//! How much of the cache clients may hold that read it by themselves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use dafs_fabric::{PeerInfo, local};
use dafs_message::ReferenceQuota;

/// The most that one connection and one user hold, and the parts of the cache that they never exceed.
const OF_CONNECTION: usize = 16 << 20;
const OF_USER: usize = 64 << 20;
/// Half of a user's and of a session's share of pages (see `budget`), so that stopped clients, which keep theirs,
/// leave something to others of the user. A session has two connections, of which one has the large data.
const PART_OF_CONNECTION: usize = 32;
const PART_OF_USER: usize = 16;
/// What is lent may stay long: half of that, of a small cache.
const LENT_PART: usize = 2;

/// Of each user who has some.
pub(crate) struct Quotas {
    own: u32,
    cache_bytes: usize,
    of_users: Mutex<HashMap<u32, Weak<ReferenceQuota>>>,
}

impl Quotas {
    /// Of a server of this user, with a cache of so many bytes.
    pub(crate) fn new(own: u32, cache_bytes: usize) -> Quotas {
        Quotas { own, cache_bytes, of_users: Mutex::default() }
    }

    /// That of a peer; `None`: it does not read the server's memory by itself. Root and the server's own user
    /// do, who could anyway.
    pub(crate) fn of(&self, peer: &PeerInfo) -> Option<Arc<ReferenceQuota>> {
        let uid = peer.credentials.as_ref()?.uid;
        if uid != 0 && uid != self.own || local::is_ambiguous(uid) {
            return None;
        }
        let mut of_users = self.of_users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(quota) = of_users.get(&uid).and_then(Weak::upgrade) {
            return Some(quota);
        }
        let bytes = |cache_bytes: usize| {
            let of_connection = OF_CONNECTION.min(cache_bytes / PART_OF_CONNECTION);
            (of_connection, OF_USER.min(cache_bytes / PART_OF_USER))
        };
        let (read, lent) = (bytes(self.cache_bytes), bytes(self.cache_bytes / LENT_PART));
        let quota = ReferenceQuota::with_loans(read, lent);
        of_users.insert(uid, Arc::downgrade(&quota));
        Some(quota)
    }

    /// Bytes that clients read by themselves now, and that they were lent.
    pub(crate) fn taken(&self) -> [u64; 2] {
        let of_users = self.of_users.lock().unwrap_or_else(PoisonError::into_inner);
        let live = of_users.values().filter_map(Weak::upgrade).map(|quota| quota.taken());
        live.fold([0; 2], |sum, taken| [sum[0] + taken[0] as u64, sum[1] + taken[1] as u64])
    }
}

#[cfg(test)]
mod tests {
    use dafs_fabric::Credentials;

    use super::*;

    fn peer(uid: Option<u32>) -> PeerInfo {
        let credentials = uid.map(|uid| Credentials { uid, gid: uid, groups: Vec::new() });
        PeerInfo { credentials, ends: None, text: String::new() }
    }

    #[test]
    fn only_root_and_the_servers_user_have_one_and_share_it() {
        let quotas = Quotas::new(7, 16 << 20);
        let of = |uid| quotas.of(&peer(uid));
        assert!(of(None).is_none() && of(Some(8)).is_none() && of(Some(65534)).is_none());
        let (root, own) = (of(Some(0)).expect("root"), of(Some(7)).expect("own"));
        assert!(!Arc::ptr_eq(&root, &own));
        assert!(Arc::ptr_eq(&own, &of(Some(7)).expect("own")));
        assert_eq!((own.left(), own.left_to_lend()), (1 << 20, 1 << 19), "parts of a small cache");
        assert_eq!(Quotas::new(7, 1 << 30).of(&peer(Some(0))).expect("root").left(), OF_USER);
    }
}
