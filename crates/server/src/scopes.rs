//! Cache domains by who may open files: one of what everybody may read, and one of each user's own files. The
//! programs of such a user map them, and read there by themselves.
//!
//! A file is judged by its mode, its owner and its path: at each open, and at each change of those that comes by
//! this server. What may not be where it is goes elsewhere before that is answered. Others than the server itself may
//! change it, too: that is noticed at the next open.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use dafs_protocol::{Attr, FileKind};
use dafs_unifier::{CacheDomain, CacheDomains, DomainId, DomainSet};

use crate::cache_memory::{MADE_MAX, Maker};
use crate::identity::NOBODY;
use crate::optimistic::ShownCaches;

/// Of so many users the files have domains; more may be one person.
const USERS_MAX: usize = MADE_MAX - 1;

const READ_BY_ALL: u32 = 0o444;
const READ_BY_OWNER: u32 = 0o400;
const SEARCH_BY_ALL: u32 = 0o111;

/// Domains of a server that makes them when somebody can use them.
pub struct Scopes {
    maker: Maker,
    everybody: OnceLock<Option<DomainId>>,
    /// In the order in which they came; `None`: there was no room.
    of_users: Mutex<Vec<(u32, Option<DomainId>)>>,
    /// Those that there are.
    all: AtomicU64,
    /// How often it was changed who may open what.
    changes: AtomicU64,
}

/// Where a file is to be, as its attributes tell, and whether everybody may open it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Judged {
    /// Where it must not be.
    pub barred: DomainSet,
    /// Where its owner reads it by himself.
    pub of_owner: Option<DomainId>,
}

impl Scopes {
    /// None yet.
    pub(crate) fn new(maker: Maker) -> Scopes {
        let (everybody, of_users) = (OnceLock::new(), Mutex::default());
        let (all, changes) = (AtomicU64::new(0), AtomicU64::new(0));
        Scopes { maker, everybody, of_users, all, changes }
    }

    /// There are some: files are to be judged.
    pub(crate) fn are_used(&self) -> bool {
        self.all.load(Ordering::SeqCst) != 0
    }

    /// It is one of them.
    pub(crate) fn have(&self, domain: DomainId) -> bool {
        DomainSet::from(self.all.load(Ordering::SeqCst)).contains(domain)
    }

    /// A program of this user is about to map what it may. Takes a while for the first one.
    pub(crate) fn welcome(&self, uid: u32, caches: &CacheDomains, shown: &ShownCaches) {
        self.everybody
            .get_or_init(|| self.add("files that everybody may read".into(), None, caches, shown));
        let mut of_users = self.of_users.lock().unwrap_or_else(PoisonError::into_inner);
        if of_users.len() < USERS_MAX && !of_users.iter().any(|(user, _)| *user == uid) {
            // By that number files may be anybody's who has none here.
            let is_one = uid != NOBODY;
            let add = || self.add(format!("files of user {uid}"), Some(uid), caches, shown);
            of_users.push((uid, is_one.then(add).flatten()));
        }
    }

    fn add(
        &self,
        name: String,
        uid: Option<u32>,
        caches: &CacheDomains,
        shown: &ShownCaches,
    ) -> Option<DomainId> {
        let made = match self.maker.make_for(uid) {
            Ok(made) => made,
            Err(error) => {
                tracing::warn!(name, %error, "no cache is shared with other users");
                return None;
            }
        };
        let Some(domain) = caches.add(CacheDomain::new(name.clone(), made.unifier)) else {
            tracing::warn!(name, "no cache of its own: the whole cache is too small (--arena)");
            return None;
        };
        shown.add(domain, made.shown);
        self.all.fetch_or(1u64.checked_shl(domain.0 as u32).unwrap_or(0), Ordering::SeqCst);
        Some(domain)
    }

    /// That of the files that everybody may read.
    pub(crate) fn everybody(&self) -> Option<DomainId> {
        self.everybody.get().copied().flatten()
    }

    /// That of the files of a user, whose programs have come.
    pub(crate) fn of_user(&self, uid: u32) -> Option<DomainId> {
        let of_users = self.of_users.lock().unwrap_or_else(PoisonError::into_inner);
        of_users.iter().find(|(user, _)| *user == uid)?.1
    }

    /// Programs of this user have come.
    pub(crate) fn has_come(&self, uid: u32) -> bool {
        let of_users = self.of_users.lock().unwrap_or_else(PoisonError::into_inner);
        of_users.iter().any(|(user, _)| *user == uid)
    }

    /// Of a file with these attributes. `for_everybody`: whoever looks for it finds it.
    pub(crate) fn judge(&self, attr: &Attr, for_everybody: bool) -> Judged {
        let is_file = attr.kind == FileKind::File;
        let owner_reads = is_file && attr.mode & READ_BY_OWNER != 0;
        let of_owner = self.of_user(attr.uid).filter(|_| owner_reads);
        let everybody = self.everybody().filter(|_| is_file && for_everybody && all_may_read(attr));
        let allowed = [of_owner, everybody].into_iter().flatten();
        let all = DomainSet::from(self.all.load(Ordering::SeqCst));
        Judged { barred: allowed.fold(all, DomainSet::without), of_owner }
    }

    /// Who may open what has changed, and was not noted yet: whoever has judged a file before, and not opened
    /// it yet, does so again.
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// How often it has.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }
}

/// By its mode; what leads to it, and access control lists, are another matter.
pub(crate) fn all_may_read(attr: &Attr) -> bool {
    attr.mode & READ_BY_ALL == READ_BY_ALL
}

/// By the mode of a directory, everybody finds what is in it.
pub(crate) fn all_may_search(attr: &Attr) -> bool {
    attr.mode & SEARCH_BY_ALL == SEARCH_BY_ALL
}
