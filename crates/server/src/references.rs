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
/// All other users together keep no more than this part of the cache of an export that shares it: one person
/// may be many of them.
const PART_OF_OTHERS: usize = 8;

/// Of each user who has some.
pub(crate) struct Quotas {
    own: u32,
    cache_bytes: usize,
    /// Of all who are neither root nor of the server's own user; `None`: those read nothing by themselves.
    /// And how large the least of their caches is.
    others: Option<(Arc<ReferenceQuota>, usize)>,
    of_users: Mutex<HashMap<u32, Weak<ReferenceQuota>>>,
}

/// When a peer begins to read the server's memory by itself, and how much it keeps of it.
pub(crate) enum Reading {
    /// Root and the server's own user, who could anyway.
    AtOnce(Arc<ReferenceQuota>),
    /// Others, the caches that are for them, when it is proven who they are. Of this user.
    Proven(Arc<ReferenceQuota>, u32),
    Never,
}

impl Quotas {
    /// Of a server of this user, of whose caches the least has about so many bytes; of those that others than root
    /// and the server's own user may read, if there are such, the least has so many.
    pub(crate) fn new(own: u32, cache_bytes: usize, of_others: Option<usize>) -> Quotas {
        let all = |bytes: usize| {
            let all = |part: usize| (usize::MAX, bytes / (PART_OF_OTHERS * part));
            (ReferenceQuota::with_loans(all(1), all(LENT_PART)), bytes)
        };
        Quotas { own, cache_bytes, others: of_others.map(all), of_users: Mutex::default() }
    }

    /// That of a peer.
    pub(crate) fn of(&self, peer: &PeerInfo) -> Reading {
        match peer.credentials.as_ref().map(|who| who.uid) {
            Some(uid) if local::is_ambiguous(uid) => Reading::Never,
            Some(uid) if uid == 0 || uid == self.own => {
                Reading::AtOnce(self.of_user(uid, None, self.cache_bytes))
            }
            Some(uid) => match &self.others {
                Some((all, bytes)) => {
                    Reading::Proven(self.of_user(uid, Some(all.clone()), *bytes), uid)
                }
                None => Reading::Never,
            },
            None => Reading::Never,
        }
    }

    fn of_user(
        &self,
        uid: u32,
        above: Option<Arc<ReferenceQuota>>,
        cache_bytes: usize,
    ) -> Arc<ReferenceQuota> {
        let mut of_users = self.of_users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(quota) = of_users.get(&uid).and_then(Weak::upgrade) {
            return quota;
        }
        let bytes = |cache_bytes: usize| {
            let of_connection = OF_CONNECTION.min(cache_bytes / PART_OF_CONNECTION);
            (of_connection, OF_USER.min(cache_bytes / PART_OF_USER))
        };
        let (read, lent) = (bytes(cache_bytes), bytes(cache_bytes / LENT_PART));
        let quota = ReferenceQuota::within(above, read, lent);
        of_users.retain(|_, quota| quota.strong_count() > 0);
        of_users.insert(uid, Arc::downgrade(&quota));
        quota
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

    fn at_once(quotas: &Quotas, uid: u32) -> Arc<ReferenceQuota> {
        match quotas.of(&peer(Some(uid))) {
            Reading::AtOnce(quota) => quota,
            _ => panic!("{uid} reads by itself"),
        }
    }

    #[test]
    fn only_root_and_the_servers_user_have_one_and_share_it() {
        let quotas = Quotas::new(7, 16 << 20, None);
        for other in [None, Some(8)] {
            assert!(matches!(quotas.of(&peer(other)), Reading::Never), "{other:?}");
        }
        let (root, own) = (at_once(&quotas, 0), at_once(&quotas, 7));
        assert!(!Arc::ptr_eq(&root, &own));
        assert!(Arc::ptr_eq(&own, &at_once(&quotas, 7)));
        assert_eq!((own.left(), own.left_to_lend()), (1 << 20, 1 << 19), "parts of a small cache");
        assert_eq!(at_once(&Quotas::new(7, 1 << 30, None), 0).left(), OF_USER);
    }

    #[test]
    fn others_have_one_where_an_export_shares_its_cache_and_a_bound_together() {
        let quotas = Quotas::new(7, 16 << 20, Some(16 << 20));
        let of = |uid| match quotas.of(&peer(Some(uid))) {
            Reading::Proven(quota, _) => quota,
            _ => panic!("{uid} reads by itself, once it is proven"),
        };
        let (one, other) = (of(8), of(9));
        assert!(Arc::ptr_eq(&one, &of(8)) && !Arc::ptr_eq(&one, &other));
        assert_eq!((one.left(), one.left_to_lend()), (1 << 20, 1 << 19));
        let all = quotas.others.as_ref().expect("a bound");
        assert_eq!((all.0.left(), all.0.left_to_lend()), (2 << 20, 1 << 20));
        assert_eq!(at_once(&quotas, 0).left(), 1 << 20, "root is not one of them");
        assert!(matches!(quotas.of(&peer(None)), Reading::Never));
    }
}
