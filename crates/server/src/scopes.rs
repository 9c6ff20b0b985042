//! Cache domains by who may open files: one of what everybody may read, and one of each user's own files. The
//! programs of such a user map them, and read there by themselves.
//!
//! A file is judged by its mode, its owner and its path: at each open, and at each change of those that comes by
//! this server. What may not be where it is goes elsewhere before that is answered. Others than the server itself may
//! change it, too: that is noticed at the next open.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use dafs_protocol::{Attr, FileKind};
use dafs_unifier::{CacheDomain, CacheDomains, DomainId, DomainSet};

use crate::cache_memory::{MADE_MAX, Maker};
use crate::identity::NOBODY;
use crate::optimistic::ShownCaches;
use crate::start_error::StartError;

/// Of so many users the files have domains; more may be one person.
const USERS_MAX: usize = MADE_MAX - 1;
/// Where there was no room for one, the others are not asked for it again before: they evict for that.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

const READ_BY_ALL: u32 = 0o444;
const READ_BY_OWNER: u32 = 0o400;
const SEARCH_BY_ALL: u32 = 0o111;

/// Domains of a server that makes them when somebody can use them.
pub struct Scopes {
    maker: Maker,
    everybody: OnceLock<DomainId>,
    of_users: Mutex<OfUsers>,
    /// Those that there are.
    all: AtomicU64,
    /// How often it was changed who may open what.
    changes: AtomicU64,
}

#[derive(Default)]
struct OfUsers {
    /// In the order in which they came.
    all: Vec<(u32, DomainId)>,
    /// When one of these, or that of everybody's files, could not be made.
    failed: Option<Instant>,
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
        let mut of_users = self.of_users();
        if of_users.failed.is_some_and(|failed| failed.elapsed() < AGAIN_AFTER) {
            return;
        }
        let has_failed = if self.everybody.get().is_none() {
            let added = self.add("files that everybody may read".into(), None, caches, shown);
            added.and_then(|domain| self.everybody.set(domain).ok()).is_none()
        } else {
            false
        };
        let has_one = of_users.all.iter().any(|(user, _)| *user == uid);
        // By the one number files may be anybody's who has none here.
        let gets_one = !has_failed && !has_one && of_users.all.len() < USERS_MAX && uid != NOBODY;
        let add = || self.add(format!("files of user {uid}"), Some(uid), caches, shown);
        let added = gets_one.then(add).flatten();
        of_users.all.extend(added.map(|domain| (uid, domain)));
        of_users.failed = (has_failed || gets_one && added.is_none()).then(Instant::now);
    }

    fn of_users(&self) -> MutexGuard<'_, OfUsers> {
        self.of_users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: it was told why not.
    fn add(
        &self,
        name: String,
        uid: Option<u32>,
        caches: &CacheDomains,
        shown: &ShownCaches,
    ) -> Option<DomainId> {
        let mut of_it = None;
        let make = || {
            let made = self.maker.make_for(uid)?;
            of_it = made.shown;
            Ok::<_, StartError>(CacheDomain::new(name.clone(), made.unifier))
        };
        let domain = match caches.add(self.maker.least_for(uid), make) {
            Ok(Some(domain)) => domain,
            Ok(None) => {
                tracing::warn!(
                    name,
                    "no cache of its own: there is no room in the whole (--arena)"
                );
                return None;
            }
            Err(error) => {
                tracing::warn!(name, %error, "no cache is shared with other users");
                return None;
            }
        };
        shown.add(domain, of_it);
        self.all.fetch_or(1u64.checked_shl(domain.0 as u32).unwrap_or(0), Ordering::SeqCst);
        Some(domain)
    }

    /// That of the files that everybody may read.
    pub(crate) fn everybody(&self) -> Option<DomainId> {
        self.everybody.get().copied()
    }

    /// That of the files of a user, whose programs have come.
    pub(crate) fn of_user(&self, uid: u32) -> Option<DomainId> {
        Some(self.of_users().all.iter().find(|(user, _)| *user == uid)?.1)
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
