//! The memory of the cache: how much, in which segments, and whether others may read it.
//!
//! All exports have one cache domain, but for those that share theirs: each of these has its own. Others are made
//! while the server goes on, for those who may open what is in them.

use std::panic::resume_unwind;
use std::sync::Arc;

use dafs_fabric::mem::Life;
use dafs_fabric::{Address, Arena, ArenaError, Domain, Readers};
use dafs_protocol::WriteVerifier;
use dafs_unifier::{CacheDomain, CacheDomains, DomainId, LEAST_BYTES, Unifier};

use crate::config::{Config, OptimisticScope};
use crate::config_keys::ARENA_BYTES_MIN;
use crate::host::{memory_bytes, wall_clock};
use crate::optimistic::{self, Shown, ShownCaches};
use crate::start_error::StartError;

const _: () = assert!(ARENA_BYTES_MIN == LEAST_BYTES as u64);

/// Of a cache: few enough to be asked one by one, and small enough that one can be missed.
fn segment_bytes(arena_bytes: usize) -> usize {
    let part = arena_bytes / 16;
    let above = part.next_power_of_two();
    let nearest = if above - part > part - above / 2 { above / 2 } else { above };
    nearest.clamp(2 << 20, 64 << 20)
}

/// As a server would have it.
pub(crate) fn arena_bytes(config: &Config) -> usize {
    let bytes = match config.arena_bytes {
        Some(bytes) => usize::try_from(bytes).unwrap_or(usize::MAX),
        None => memory_bytes() / 4,
    };
    bytes.max(LEAST_BYTES * config.cache_domains())
}

/// Clients may come by a network that shares memory.
pub(crate) fn is_near(config: &Config, addresses: &[Address], domain: &Domain) -> bool {
    let shares = |at: &Address| {
        let device = domain.reaches(at).and_then(|device| domain.parts().get(device));
        device.is_some_and(|part| part.attr().shared_memory)
    };
    domain.shares_memory() && (config.same_host || addresses.iter().any(shares))
}

/// Which cache domains there are, and in which of them the files of each export are.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Their names, and who else may read their memory by himself; `None`: nobody.
    domains: Vec<(String, Option<Readers>)>,
    /// By the numbers of the exports.
    of_exports: Vec<DomainId>,
}

impl Layout {
    /// As it is configured, where clients may come by shared memory or not.
    pub(crate) fn new(config: &Config, is_near: bool) -> Layout {
        // Who is squashed may not read, or even open anew to write, what all have cached.
        let is_shown = is_near && config.shared_cache && !config.squash_root;
        let own = is_shown.then_some(Readers::Own);
        let mut domains = Vec::new();
        let mut add = |name: String, readers| {
            domains.push((name, readers));
            DomainId(domains.len() - 1)
        };
        // The first is where what belongs to no domain would be: not one that all read.
        let some_do_not_share = config.exports.iter().any(|e| !(config.shares(e) && is_near));
        let rest = some_do_not_share.then(|| add("private".into(), own));
        let mut of_exports = Vec::new();
        for export in &config.exports {
            of_exports.push(match config.shares(export) && is_near {
                true => add(format!("of {}", export.path.display()), Some(Readers::All)),
                false => rest.unwrap_or_default(),
            });
            if config.shares(export) && !is_near {
                let path = export.path.display();
                tracing::warn!(%path, "no client comes by shared memory: share_cache has no effect");
            }
        }
        Layout { domains, of_exports }
    }

    /// Where the files of an export are.
    pub(crate) fn domain_of(&self, export: usize) -> DomainId {
        self.of_exports.get(export).copied().unwrap_or(DomainId::FIRST)
    }

    /// Whoever is let in may read them there.
    pub(crate) fn shares(&self, export: usize) -> bool {
        let domain = self.domains.get(self.domain_of(export).0);
        domain.is_some_and(|(_, readers)| *readers == Some(Readers::All))
    }

    /// The caches, and what there is for them. `own`: the server's user.
    ///
    /// # Errors
    /// There is no such memory, or the network does not take it.
    pub(crate) fn caches(
        &self,
        config: &Config,
        (domain, own): (&Arc<Domain>, u32),
        (epoch, verifier): (u32, WriteVerifier),
    ) -> Result<Caches, StartError> {
        let bytes = arena_bytes(config);
        let (mut all, mut shown) = (Vec::new(), Vec::new());
        let (mut maker, mut len): (Option<Maker>, _) = (None, bytes);
        for (name, readers) in &self.domains {
            let memory = memory(*readers, domain, bytes)?;
            len = memory.arena.len();
            let least_part = 4 * self.domains.len();
            let first = maker.as_ref().map(|maker| &maker.first);
            let begin = |arena, cache| match first {
                None => Unifier::new(arena, cache, verifier),
                Some(first) => first.beside(arena, cache),
            };
            let made = made(memory, domain, (epoch, least_part, false), begin)?;
            shown.push(made.shown);
            all.push(CacheDomain::new(name.clone(), made.unifier.clone()));
            let (first, domain) = (made.unifier, domain.clone());
            maker.get_or_insert(Maker { domain, first, bytes: len, epoch });
        }
        let is_scoped = config.optimistic_scope == OptimisticScope::Owner && own == 0;
        let has_own =
            self.domains.first().is_some_and(|(_, readers)| *readers == Some(Readers::Own));
        let maker = maker.filter(|_| is_scoped && has_own);
        let more = if maker.is_some() { MADE_MAX } else { 0 };
        let unifier = CacheDomains::new(len as u64, all, more);
        Ok(Caches { unifier, bytes: len, shown: ShownCaches::new(shown), maker })
    }
}

/// All caches.
pub(crate) struct Caches {
    pub unifier: Arc<CacheDomains>,
    /// That they take together at most.
    pub bytes: usize,
    /// What clients read of them by themselves.
    pub shown: ShownCaches,
    /// Makes more of them, where there may be more.
    pub maker: Option<Maker>,
}

/// A cache, and what clients map of it.
pub(crate) struct Made {
    pub unifier: Arc<Unifier>,
    pub shown: Option<Shown>,
}

fn made(
    Memory { arena, entries }: Memory,
    domain: &Arc<Domain>,
    (epoch, least_part, erases): (u32, usize, bool),
    begin: impl FnOnce(Arc<Arena>, dafs_unifier::Config) -> Arc<Unifier>,
) -> Result<Made, StartError> {
    // The other segments when they are used: that takes time, where pages are pinned.
    let segment = arena.segment(0);
    let refused = |source| StartError::Register { bytes: segment.len(), source };
    domain.register(&segment).map_err(refused)?;
    let (entries, life) = entries.unzip();
    let cache = dafs_unifier::Config {
        domain: Some(domain.clone()),
        epoch,
        entries,
        least_part,
        erases,
        ..dafs_unifier::Config::new(arena.len(), Arc::new(wall_clock))
    };
    let unifier = begin(arena.clone(), cache);
    let shown = Shown::new(&arena, &unifier, (life, epoch));
    Ok(Made { unifier, shown })
}

/// So many are made while the server goes on, at most.
pub(crate) const MADE_MAX: usize = 9;

/// Makes caches beside the first one, while the server goes on.
pub(crate) struct Maker {
    domain: Arc<Domain>,
    first: Arc<Unifier>,
    bytes: usize,
    epoch: u32,
}

impl Maker {
    /// What is wanted for one that programs of this user map, or of all who are let in, in bytes.
    pub(crate) fn least_for(&self, uid: Option<u32>) -> u64 {
        let bytes = self.bytes_for(uid);
        let config = dafs_unifier::Config::new(bytes, Arc::new(wall_clock));
        let config = dafs_unifier::Config { least_part: LEAST_PART_OF_MADE, ..config };
        Unifier::least_bytes_of(&config, bytes)
    }

    /// What one user has is not to be described as if it were all.
    fn bytes_for(&self, uid: Option<u32>) -> usize {
        match uid {
            Some(_) => (self.bytes / USER_PART).max(LEAST_BYTES),
            None => self.bytes,
        }
    }

    /// One that programs of this user map, or of all who are let in.
    ///
    /// # Errors
    /// There is no such memory, or nobody could map it.
    pub(crate) fn make_for(&self, uid: Option<u32>) -> Result<Made, StartError> {
        // The caller may act as another user in file systems, whose memory it would be.
        std::thread::scope(|scope| {
            let made = std::thread::Builder::new().spawn_scoped(scope, || {
                nix::unistd::setfsuid(nix::unistd::geteuid());
                self.make_here(uid)
            });
            let refused = |error: std::io::Error| StartError::Node(format!("no thread: {error}"));
            made.map_err(refused)?.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    fn make_here(&self, uid: Option<u32>) -> Result<Made, StartError> {
        let readers = uid.map_or(Readers::All, Readers::User);
        let memory = memory(Some(readers), &self.domain, self.bytes_for(uid))?;
        let begin = |arena, cache| self.first.beside(arena, cache);
        // Who may open a file now may not have been one who could open what was there.
        let how = (self.epoch, LEAST_PART_OF_MADE, true);
        let made = made(memory, &self.domain, how, begin)?;
        match &made.shown {
            Some(_) => Ok(made),
            None => Err(StartError::Node("its memory cannot be shown to others".into())),
        }
    }
}

/// The files of one user have this part of the cache at most.
const USER_PART: usize = 4;
/// One that is made later keeps this part of what it may ever have, at least.
const LEAST_PART_OF_MADE: usize = 64;

/// Of a domain.
struct Memory {
    /// Addresses for all that it may ever take, of which it gets memory for its part.
    arena: Arc<Arena>,
    /// Where it stands what lies there, for whoever reads that.
    entries: Option<(Arc<Arena>, Life)>,
}

fn memory(readers: Option<Readers>, domain: &Domain, bytes: usize) -> Result<Memory, ArenaError> {
    let segment = segment_bytes(bytes);
    let private = || Ok(Memory { arena: Arena::in_segments(bytes, segment)?, entries: None });
    let Some(readers) = readers else { return private() };
    let arena = match Arena::for_readers(bytes, segment, readers) {
        Ok(arena) => arena,
        Err(error) => {
            tracing::warn!(%error, "the cache is private memory");
            return private();
        }
    };
    if let Err(error) = domain.let_peers_read(&arena.span(0, arena.len())) {
        tracing::warn!(%error, "clients do not read the cache by themselves");
        return Ok(Memory { arena, entries: None });
    }
    let entries = optimistic::entries(readers, domain, arena.len());
    if let Err(error) = &entries {
        tracing::warn!(%error, "clients are not told what lies where in the cache");
    }
    Ok(Memory { arena, entries: entries.ok() })
}

#[cfg(test)]
mod tests {
    use dafs_fabric::sim::{SimConfig, SimNet};
    use dafs_fabric::{READABLE_MAX, Words};
    use dafs_protocol::{LIFE_SERVER, LIFE_SESSIONS};

    use super::*;
    use crate::config::ExportConfig;

    fn config(shares: &[bool]) -> Config {
        let mut config = Config::for_directory("/a");
        config.arena_bytes = Some(64 << 20);
        let first = config.exports.remove(0);
        let export = |(number, share_cache): (usize, &bool)| ExportConfig {
            name: number.to_string(),
            path: format!("/{number}").into(),
            share_cache: *share_cache,
            ..first.clone()
        };
        config.exports = shares.iter().enumerate().map(export).collect();
        config
    }

    fn layout(config: &Config, is_near: bool) -> (Vec<Option<Readers>>, Vec<usize>) {
        let layout = Layout::new(config, is_near);
        let readers = layout.domains.iter().map(|domain| domain.1).collect();
        (readers, layout.of_exports.iter().map(|domain| domain.0).collect())
    }

    fn near() -> Arc<Domain> {
        let mut config = SimConfig::new(1);
        (config.attr.tag_match, config.attr.shared_memory) = (false, true);
        (config.attr.local_registration, config.attr.recoverable_access_fault) = (false, true);
        Domain::open(&SimNet::new(config).provider(1)).expect("a device")
    }

    fn caches(layout: &Layout, config: &Config, domain: &Arc<Domain>) -> Caches {
        layout.caches(config, (domain, 0), (7, WriteVerifier([7; 16]))).expect("memory")
    }

    fn readable(domain: &Domain, arena: &Arc<Arena>) -> Option<Readers> {
        Some(domain.parts()[0].readable(&arena.span(0, arena.len()))?.1)
    }

    #[test]
    fn who_may_read_a_cache_may_read_its_entries_and_that_the_server_lives() {
        let (config, domain) = (config(&[false, true]), near());
        let layout = Layout::new(&config, true);
        let Caches { unifier, bytes, shown, .. } = caches(&layout, &config, &domain);
        let mut maps = Vec::new();
        for (number, cache) in unifier.iter().enumerate() {
            let shown = shown.of(DomainId(number)).expect("readers");
            let readers = match cache.name() {
                "private" => Readers::Own,
                _ => Readers::All,
            };
            assert_eq!(readable(&domain, &shown.cache), Some(readers));
            assert_eq!(readable(&domain, &shown.entries), Some(readers));
            assert_eq!(shown.epoch, 7);
            assert!(shown.entries.len() >= Unifier::entries_bytes(bytes));
            let file = shown.entries.span(0, 1).shared().expect("shared").file;
            let words = Words::of_peer(file.for_peers(), file.len()).expect("mapped");
            let resident = file.resident_bytes().expect("asked");
            assert!(resident <= 4096, "{resident} bytes of memory for what nobody has used");
            assert_eq!(shown.life.server().number, LIFE_SERVER);
            assert!(shown.life.server().is_in(&words));
            let mark = shown.life.session().expect("a word");
            assert!(LIFE_SESSIONS.contains(&mark.word().number));
            maps.push((words, shown.life.server()));
        }
        assert!(maps.len() == 2 && shown.of(DomainId(2)).is_none());
        shown.end();
        assert!(maps.iter().all(|(words, life)| !life.is_in(words)));
    }

    #[test]
    fn nobody_is_told_where_the_network_does_not_take_all() {
        // One more can be read, or none.
        for left in [1, 0] {
            let (config, domain) = (config(&[false]), near());
            for _ in left..READABLE_MAX {
                let other = Arena::for_readers(4096, 4096, Readers::Own).expect("memory");
                domain.let_peers_read(&other.span(0, 4096)).expect("room");
            }
            let layout = Layout::new(&config, true);
            let Caches { unifier, shown, .. } = caches(&layout, &config, &domain);
            assert!(shown.of(DomainId(0)).is_none());
            assert_eq!(unifier.iter().count(), 1);
        }
    }

    #[test]
    fn a_cache_without_readers_has_its_entries_for_itself() {
        let (config, domain) = (config(&[false]), near());
        let layout = Layout::new(&config, false);
        assert!(caches(&layout, &config, &domain).shown.of(DomainId(0)).is_none());
    }

    #[test]
    fn each_export_that_shares_has_a_domain_and_all_others_one() {
        const OWN: Option<Readers> = Some(Readers::Own);
        const ALL: Option<Readers> = Some(Readers::All);
        let some = config(&[false, true, false, true]);
        assert_eq!(layout(&some, true), (vec![OWN, ALL, ALL], vec![0, 1, 0, 2]));
        assert_eq!(some.cache_domains(), 3);
        assert_eq!(layout(&some, false), (vec![None], vec![0; 4]));
        assert_eq!(layout(&config(&[true]), true), (vec![ALL], vec![0]));
        assert_eq!(layout(&config(&[false]), true), (vec![OWN], vec![0]));
        assert_eq!(layout(&config(&[true, false]), true), (vec![OWN, ALL], vec![1, 0]));
        let squashed = Config { squash_root: true, ..config(&[false]) };
        assert_eq!(layout(&squashed, true), (vec![None], vec![0]));
        let layout = Layout::new(&some, true);
        assert!(layout.shares(1) && layout.shares(3) && !layout.shares(0) && !layout.shares(2));
    }
}
