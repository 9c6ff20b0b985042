//! The memory of the cache: how much, in which segments, and whether others may read it.
//!
//! All exports have one cache domain, but for those that share theirs: each of these has its own.

use std::sync::Arc;

use dafs_fabric::{Address, Arena, ArenaError, Domain};
use dafs_protocol::WriteVerifier;
use dafs_unifier::{CacheDomain, CacheDomains, DomainId, LEAST_BYTES, Unifier};

use crate::config::Config;
use crate::config_keys::ARENA_BYTES_MIN;
use crate::host::{memory_bytes, wall_clock};
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

/// Who else may read the memory of a domain by himself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Readers {
    Nobody,
    /// The server's own user and root.
    Own,
    /// Whoever is let in.
    All,
}

/// Which cache domains there are, and in which of them the files of each export are.
#[derive(Debug)]
pub(crate) struct Layout {
    domains: Vec<(String, Readers)>,
    /// By the numbers of the exports.
    of_exports: Vec<DomainId>,
}

impl Layout {
    /// As it is configured, where clients may come by shared memory or not.
    pub(crate) fn new(config: &Config, is_near: bool) -> Layout {
        // Who is squashed may not read, or even open anew to write, what all have cached.
        let own = match is_near && config.shared_cache && !config.squash_root {
            true => Readers::Own,
            false => Readers::Nobody,
        };
        let mut domains = Vec::new();
        let mut add = |name: String, readers| {
            domains.push((name, readers));
            DomainId(domains.len() - 1)
        };
        // The first is where what belongs to no domain would be: not one that all read.
        let some_do_not_share = config.exports.iter().any(|e| !(e.share_cache && is_near));
        let rest = some_do_not_share.then(|| add("private".into(), own));
        let mut of_exports = Vec::new();
        for export in &config.exports {
            of_exports.push(match export.share_cache && is_near {
                true => add(format!("of {}", export.path.display()), Readers::All),
                false => rest.unwrap_or_default(),
            });
            if export.share_cache && !is_near {
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
        domain.is_some_and(|(_, readers)| *readers == Readers::All)
    }

    /// The caches, and the bytes that they take together at most.
    ///
    /// # Errors
    /// There is no such memory, or the network does not take it.
    pub(crate) fn caches(
        &self,
        config: &Config,
        domain: &Arc<Domain>,
        (epoch, verifier): (u32, WriteVerifier),
    ) -> Result<(Arc<CacheDomains>, usize), StartError> {
        let bytes = arena_bytes(config);
        let mut all: Vec<CacheDomain> = Vec::new();
        let (mut first, mut len): (Option<Arc<Unifier>>, _) = (None, bytes);
        for (name, readers) in &self.domains {
            let arena = arena(*readers, domain, bytes)?;
            len = arena.len();
            // The other segments when they are used: that takes time, where pages are pinned.
            let segment = arena.segment(0);
            let refused = |source| StartError::Register { bytes: segment.len(), source };
            domain.register(&segment).map_err(refused)?;
            let cache = dafs_unifier::Config {
                domain: Some(domain.clone()),
                epoch,
                least_part: 4 * self.domains.len(),
                ..dafs_unifier::Config::new(len, Arc::new(wall_clock))
            };
            let unifier = match &first {
                None => Unifier::new(arena, cache, verifier),
                Some(first) => first.beside(arena, cache),
            };
            first.get_or_insert_with(|| unifier.clone());
            all.push(CacheDomain::new(name.clone(), unifier));
        }
        Ok((CacheDomains::new(len as u64, all), len))
    }
}

/// The memory of a domain: addresses for all that it may ever take, of which it gets memory for its part.
fn arena(readers: Readers, domain: &Domain, bytes: usize) -> Result<Arc<Arena>, ArenaError> {
    let segment = segment_bytes(bytes);
    let made = match readers {
        Readers::Nobody => return Arena::in_segments(bytes, segment),
        Readers::Own => Arena::for_readers(bytes, segment),
        Readers::All => Arena::for_all_readers(bytes, segment),
    };
    match made {
        Ok(arena) => {
            if let Err(error) = domain.let_peers_read(&arena.span(0, arena.len())) {
                tracing::warn!(%error, "clients do not read the cache by themselves");
            }
            Ok(arena)
        }
        Err(error) => {
            tracing::warn!(%error, "the cache is private memory");
            Arena::in_segments(bytes, segment)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ExportConfig;

    fn config(shares: &[bool]) -> Config {
        let mut config = Config::for_directory("/a");
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

    fn layout(config: &Config, is_near: bool) -> (Vec<Readers>, Vec<usize>) {
        let layout = Layout::new(config, is_near);
        let readers = layout.domains.iter().map(|domain| domain.1).collect();
        (readers, layout.of_exports.iter().map(|domain| domain.0).collect())
    }

    #[test]
    fn each_export_that_shares_has_a_domain_and_all_others_one() {
        use Readers::{All, Nobody, Own};
        let some = config(&[false, true, false, true]);
        assert_eq!(layout(&some, true), (vec![Own, All, All], vec![0, 1, 0, 2]));
        assert_eq!(some.cache_domains(), 3);
        assert_eq!(layout(&some, false), (vec![Nobody], vec![0; 4]));
        assert_eq!(layout(&config(&[true]), true), (vec![All], vec![0]));
        assert_eq!(layout(&config(&[false]), true), (vec![Own], vec![0]));
        assert_eq!(layout(&config(&[true, false]), true), (vec![Own, All], vec![1, 0]));
        let squashed = Config { squash_root: true, ..config(&[false]) };
        assert_eq!(layout(&squashed, true), (vec![Nobody], vec![0]));
        let layout = Layout::new(&some, true);
        assert!(layout.shares(1) && layout.shares(3) && !layout.shares(0) && !layout.shares(2));
    }
}
