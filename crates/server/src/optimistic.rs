//! What clients of this host need to read the cache by themselves: its memory, what lies where in it, and that
//! the server lives.

use std::io::Error;
use std::sync::Arc;

use dafs_fabric::mem::Life;
use dafs_fabric::{Arena, ArenaError, Domain, RegisterError};
use dafs_protocol::{LIFE_SERVER, LIFE_SESSIONS};
use dafs_unifier::{DomainId, Unifier};

/// What clients may map of one cache domain.
#[derive(Debug)]
#[cfg_attr(not(test), expect(dead_code, reason = "for those who tell clients of it"))]
pub(crate) struct Shown {
    /// First of all it ends that anybody believes the rest.
    pub life: Life,
    /// The slots, from the first byte on.
    pub cache: Arc<Arena>,
    /// Their entries, behind the words of lives.
    pub entries: Arc<Arena>,
    /// As it stands in the entries.
    pub epoch: u32,
    /// How many.
    pub slots: usize,
}

impl Shown {
    /// Of a cache whose memory, and that of its entries, peers may read; `None`: of another.
    pub(crate) fn new(
        cache: &Arc<Arena>,
        unifier: &Unifier,
        (life, epoch): (Option<Life>, u32),
    ) -> Option<Shown> {
        let entries = unifier.entries()?.clone();
        Some(Shown { life: life?, cache: cache.clone(), entries, epoch, slots: unifier.slots() })
    }

    /// Memory that the entries take.
    pub(crate) fn entries_bytes(&self) -> Option<u64> {
        self.entries.span(0, 1).shared()?.file.resident_bytes().ok()
    }
}

/// What clients may map, of all cache domains.
#[derive(Debug, Default)]
pub struct ShownCaches(Vec<Option<Shown>>);

impl ShownCaches {
    pub(crate) fn new(all: Vec<Option<Shown>>) -> ShownCaches {
        ShownCaches(all)
    }

    /// `None`: of this domain clients read nothing by themselves.
    pub(crate) fn of(&self, domain: DomainId) -> Option<&Shown> {
        self.0.get(domain.0)?.as_ref()
    }

    /// From now on nobody believes what he reads by himself.
    pub(crate) fn end(&self) {
        self.0.iter().flatten().for_each(|shown| shown.life.end());
    }
}

/// Why the entries of a cache are for the server alone.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotShown {
    #[error(transparent)]
    Memory(#[from] ArenaError),
    #[error(transparent)]
    Register(#[from] RegisterError),
    #[error("the system does not tell who has died: {0}")]
    Life(#[from] Error),
}

/// Memory for the entries of a cache of so many bytes, for the readers of that, who see in it that this server
/// lives. It is told of them behind the cache's.
pub(crate) fn entries(
    make: fn(usize, usize) -> Result<Arc<Arena>, ArenaError>,
    domain: &Domain,
    cache_bytes: usize,
) -> Result<(Arc<Arena>, Life), NotShown> {
    let bytes = Unifier::entries_bytes(cache_bytes);
    let entries = make(bytes, bytes.next_power_of_two())?;
    // Before anybody is told: who maps it finds it begun.
    let life = Life::begin(&entries, LIFE_SERVER, LIFE_SESSIONS)?;
    domain.let_peers_read(&entries.span(0, entries.len()))?;
    Ok((entries, life))
}
