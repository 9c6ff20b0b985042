//! The choice of how the pages of a file are kept, and what follows from it.

use std::sync::atomic::{AtomicU8, Ordering};

use dafs_protocol::CacheHint;

use crate::file::{CachedFile, Cluster, Inner};
use crate::policy::shares::Share;
use crate::policy::{Class, Key, Origin, Policy};
use crate::pool::{FRAME_SLOTS, Page, units};

impl CachedFile {
    /// The policy that decides which of its pages go.
    pub fn policy(&self) -> Policy {
        self.keeping.policy()
    }

    /// Its class.
    pub fn class(&self) -> Class {
        self.keeping.class()
    }

    /// Chooses its policy, for all who have it open; `None`: the default. What is cached of it
    /// is kept by the new one at once, but for what is being read in.
    pub fn set_policy(&self, policy: Option<Policy>) {
        let number = policy.map_or(0, Policy::number);
        self.choose(&self.lock(), &self.keeping.chosen, number);
    }

    /// Its policy while none is chosen.
    pub fn set_default_policy(&self, policy: Policy) {
        if self.keeping.default.load(Ordering::Relaxed) != policy.number() {
            self.choose(&self.lock(), &self.keeping.default, policy.number());
        }
    }

    /// Chooses its class, as [`set_policy`](Self::set_policy) does.
    pub fn set_class(&self, class: Class) {
        self.choose(&self.lock(), &self.keeping.class, class.number());
    }

    /// Takes over the policy and the class of a wish, where it has them and they are known.
    pub(crate) fn wish_keeping(&self, inner: &Inner, hint: CacheHint) {
        if Policy::wished(hint.policy).is_some() {
            self.choose(inner, &self.keeping.chosen, hint.policy);
        }
        if Class::wished(hint.class).is_some() {
            self.choose(inner, &self.keeping.class, hint.class);
        }
    }

    fn choose(&self, inner: &Inner, place: &AtomicU8, number: u8) {
        let before = self.keeping.share();
        place.store(number, Ordering::Relaxed);
        let share = self.keeping.share();
        if share == before {
            return;
        }
        for (number, cluster) in inner.blocks.clusters.iter() {
            self.move_cluster(number, cluster, share);
        }
    }

    fn move_cluster(&self, number: u64, cluster: &Cluster, share: Share) {
        let base = number * FRAME_SLOTS as u64;
        for unit in units(&cluster.pages) {
            let slot = cluster.pages.iter().position(|page| !page.is_none() && page.unit() == unit);
            let block = if unit.unit_slots() > 1 { 0 } else { slot.unwrap_or(0) as u64 };
            let key = Key { file: self.number(), block: base + block };
            self.core().pool.transfer(unit, share, key);
        }
    }

    /// These pages, of the blocks from `first` on, are the file's and in the store: they may be
    /// evicted. The caller has the file's lock.
    pub(crate) fn may_go(&self, pages: &[Page], first: u64, origin: Origin) {
        let key = Key { file: self.number(), block: first };
        if let [page] = pages
            && page.unit_slots() == 1
            && !page.is_none()
        {
            return self.core().pool.list_one(*page, self.keeping.share(), key, origin);
        }
        self.core().pool.list(pages, self.keeping.share(), key, origin);
    }
}
