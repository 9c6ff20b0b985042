//! What clients of this host need to read the cache by themselves: its memory, what lies where in it, and that
//! the server lives.

use std::cell::RefCell;
use std::io::Error;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use dafs_fabric::mem::{Life, PAGE_BYTES};
use dafs_fabric::{Arena, ArenaError, Domain, Readers, RegisterError, Rkey, Span};
use dafs_message::ConnId;
use dafs_protocol::{LIFE_SERVER, LIFE_SESSIONS};
use dafs_unifier::{CacheDomains, DomainId, Unifier};
use smallvec::SmallVec;

/// Of a session: one for each class of requests.
const CONNECTIONS: usize = 2;

/// How clients read what is cached without asking the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Optimistic {
    /// Those who may map the cache, and could read all of it by themselves, are told where blocks are in it.
    #[default]
    Trusted,
    /// Where the network takes names, by references that are checked at each read; nobody is told of places.
    Checked,
    /// As both, each where it is possible.
    Both,
    /// Nobody is told.
    Off,
}

impl Optimistic {
    /// Clients are told where blocks are.
    pub(crate) fn tells_places(self) -> bool {
        matches!(self, Optimistic::Trusted | Optimistic::Both)
    }

    /// Clients are given references by name.
    pub(crate) fn gives_names(self) -> bool {
        matches!(self, Optimistic::Checked | Optimistic::Both)
    }

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Optimistic::Trusted => "trusted",
            Optimistic::Checked => "checked",
            Optimistic::Both => "both",
            Optimistic::Off => "off",
        }
    }
}

impl std::str::FromStr for Optimistic {
    type Err = String;
    fn from_str(text: &str) -> Result<Optimistic, String> {
        match text {
            "trusted" => Ok(Optimistic::Trusted),
            "checked" => Ok(Optimistic::Checked),
            "both" => Ok(Optimistic::Both),
            "off" => Ok(Optimistic::Off),
            _ => Err("expected trusted, checked, both or off".into()),
        }
    }
}

/// Whose programs map which parts of the cache, and read all that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OptimisticScope {
    /// Those of each user what everybody may open, and the files that are the user's own.
    #[default]
    Owner,
    /// Those of all users who are let in what is cached of any export, whatever the files' modes are.
    Export,
    /// Those of root and of the server's own user alone.
    Root,
}

impl OptimisticScope {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            OptimisticScope::Owner => "owner",
            OptimisticScope::Export => "export",
            OptimisticScope::Root => "root",
        }
    }
}

impl std::str::FromStr for OptimisticScope {
    type Err = String;
    fn from_str(text: &str) -> Result<OptimisticScope, String> {
        match text {
            "owner" => Ok(OptimisticScope::Owner),
            "export" => Ok(OptimisticScope::Export),
            "root" => Ok(OptimisticScope::Root),
            _ => Err("expected owner, export or root".into()),
        }
    }
}

/// What clients may map of one cache domain.
#[derive(Debug)]
pub(crate) struct Shown {
    /// First of all it ends that anybody believes the rest.
    pub life: Life,
    /// The slots, from the first byte on.
    pub cache: Arc<Arena>,
    /// Their entries, behind the words of lives.
    pub entries: Arc<Arena>,
    /// As it stands in the entries.
    pub epoch: u32,
}

/// By which keys a client maps a cache, and its entries.
pub(crate) type Keys = [Rkey; 2];

/// By the numbers of cache domains: what a client may map of them.
type KeysOfAll = Rc<[Option<Keys>]>;

/// What each connection of a session may map, and whether it takes names.
#[derive(Debug, Default)]
pub(crate) struct Mappable<C = ConnId>(RefCell<SmallVec<[(C, KeysOfAll, bool); CONNECTIONS]>>);

impl<C: PartialEq> Mappable<C> {
    /// Of a connection that becomes part of the session.
    pub(crate) fn add(&self, connection: C, keys: KeysOfAll, takes_names: bool) {
        self.0.borrow_mut().push((connection, keys, takes_names));
    }

    /// It is known whether this connection may map this domain, which may have come after it.
    pub(crate) fn has_looked(&self, connection: C, domain: DomainId) -> bool {
        let all = self.0.borrow();
        all.iter().all(|(of, keys, _)| *of != connection || keys.len() > domain.0)
    }

    /// What the connection may map by now, when more domains have come.
    pub(crate) fn look_again(&self, connection: C, keys: impl FnOnce() -> KeysOfAll) {
        let mut all = self.0.borrow_mut();
        if let Some((_, known, _)) = all.iter_mut().find(|(of, ..)| *of == connection) {
            *known = keys();
        }
    }

    /// The connection touches nothing any more.
    pub(crate) fn remove(&self, connection: C) {
        self.0.borrow_mut().retain(|(of, ..)| *of != connection);
    }

    /// What a client uses that has asked by this connection.
    pub(crate) fn keys(&self, connection: C, domain: DomainId) -> Option<Keys> {
        let all = self.0.borrow();
        let (_, keys, _) = all.iter().find(|(of, ..)| *of == connection)?;
        keys.get(domain.0).copied().flatten()
    }

    /// What this connection asks for by name is looked up here.
    pub(crate) fn takes_names(&self, connection: C) -> bool {
        let all = self.0.borrow();
        all.iter().any(|(of, _, takes)| *of == connection && *takes)
    }
}

impl Shown {
    /// Of a cache whose memory, and that of its entries, peers may read; `None`: of another.
    pub(crate) fn new(
        cache: &Arc<Arena>,
        unifier: &Unifier,
        (life, epoch): (Option<Life>, u32),
    ) -> Option<Shown> {
        let entries = unifier.entries()?.clone();
        Some(Shown { life: life?, cache: cache.clone(), entries, epoch })
    }

    /// Memory that the entries take.
    pub(crate) fn entries_bytes(&self) -> Option<u64> {
        self.entries.span(0, 1).shared()?.file.resident_bytes().ok()
    }
}

/// What clients may map, of all cache domains.
#[derive(Debug)]
pub struct ShownCaches(Box<[OnceLock<Option<Shown>>]>);

impl Default for ShownCaches {
    /// Nothing, of any.
    fn default() -> ShownCaches {
        ShownCaches::new(Vec::new())
    }
}

impl ShownCaches {
    /// Of the first ones.
    pub(crate) fn new(all: Vec<Option<Shown>>) -> ShownCaches {
        let rest = CacheDomains::MAX.saturating_sub(all.len());
        let places = all.into_iter().map(OnceLock::from);
        ShownCaches(places.chain((0..rest).map(|_| OnceLock::new())).collect())
    }

    /// Of the one cache of a server, whose entries are shown.
    pub fn one(cache: &Arc<Arena>, unifier: &Unifier, life: Life, epoch: u32) -> ShownCaches {
        ShownCaches::new(vec![Shown::new(cache, unifier, (Some(life), epoch))])
    }

    /// Of one that has come.
    pub(crate) fn add(&self, domain: DomainId, shown: Option<Shown>) {
        if let Some(place) = self.0.get(domain.0) {
            // A domain comes once.
            let _ = place.set(shown);
        }
    }

    fn iter(&self) -> impl Iterator<Item = Option<&Shown>> {
        self.0.iter().map(|place| place.get().and_then(Option::as_ref))
    }

    /// `None`: of this domain clients read nothing by themselves.
    pub(crate) fn of(&self, domain: DomainId) -> Option<&Shown> {
        self.0.get(domain.0)?.get()?.as_ref()
    }

    /// What a peer may map, as `key` says of memory.
    pub(crate) fn keys(&self, key: impl Fn(&Span) -> Option<Rkey>) -> KeysOfAll {
        // A key is of a region: its first page stands for all of it.
        let of = |arena: &Arc<Arena>| key(&arena.span(0, PAGE_BYTES));
        let keys = |shown: &Shown| Some([of(&shown.cache)?, of(&shown.entries)?]);
        let known = self.0.iter().filter(|place| place.get().is_some()).count();
        self.iter().take(known).map(|shown| shown.and_then(keys)).collect()
    }

    /// The one with these entries.
    pub(crate) fn with(&self, entries: &Arc<Arena>) -> Option<(DomainId, &Shown)> {
        let mut all = self.iter().enumerate();
        all.find_map(|(number, shown)| {
            let shown = shown.filter(|shown| Arc::ptr_eq(&shown.entries, entries))?;
            Some((DomainId(number), shown))
        })
    }

    /// From now on nobody believes what he reads by himself.
    pub(crate) fn end(&self) {
        self.iter().flatten().for_each(|shown| shown.life.end());
    }
}

/// Why the entries of a cache are for the server alone.
#[derive(Debug, thiserror::Error)]
pub enum NotShown {
    #[error(transparent)]
    /// There is no such memory.
    Memory(#[from] ArenaError),
    #[error(transparent)]
    /// The network does not take it.
    Register(#[from] RegisterError),
    #[error("the system does not tell who has died: {0}")]
    /// Nobody could tell whether this process lives.
    Life(#[from] Error),
}

/// Memory for the entries of a cache of so many bytes, for the readers of that, who see in it that this server
/// lives. It is told of them behind the cache's.
///
/// # Errors
/// [`NotShown`].
pub fn entries(
    readers: Readers,
    domain: &Domain,
    cache_bytes: usize,
) -> Result<(Arc<Arena>, Life), NotShown> {
    let bytes = Unifier::entries_bytes(cache_bytes);
    let entries = Arena::for_readers(bytes, bytes.next_power_of_two(), readers)?;
    // Before anybody is told: who maps it finds it begun.
    let life = Life::begin(&entries, LIFE_SERVER, LIFE_SESSIONS)?;
    domain.let_peers_read(&entries.span(0, entries.len()))?;
    Ok((entries, life))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_its_keys_as_long_as_it_is_there() {
        let all = Mappable::<u64>::default();
        let keys = |number: u64| -> KeysOfAll { [Some([Rkey(number), Rkey(number + 1)])].into() };
        let has = |connection| all.keys(connection, DomainId::FIRST).is_some();
        (1..=2).for_each(|number| all.add(number, keys(number), number == 1));
        // The second one breaks, and is made again, twice.
        for (broken, next) in [(2, 3), (3, 4)] {
            all.add(next, keys(next), false);
            all.remove(broken);
            assert!(has(1) && has(next) && !has(broken), "{broken}");
        }
        assert!(all.keys(1, DomainId(1)).is_none());
        assert!(all.takes_names(1) && !all.takes_names(4));
    }
}
