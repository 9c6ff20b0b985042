//! The memory of the cache: how much, in which segments, and whether others may read it.

use std::sync::Arc;

use dafs_fabric::{Address, Arena, ArenaError, Domain};

use crate::config::Config;
use crate::config_keys::ARENA_BYTES_MIN;
use crate::host::memory_bytes;

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
    bytes.max(ARENA_BYTES_MIN as usize)
}

/// The memory of the cache: for others to read, where there is a network that can.
pub(crate) fn arena(
    config: &Config,
    addresses: &[Address],
    domain: &Domain,
    bytes: usize,
) -> Result<Arc<Arena>, ArenaError> {
    let segment = segment_bytes(bytes);
    let shares = |at: &Address| {
        let device = domain.reaches(at).and_then(|device| domain.parts().get(device));
        device.is_some_and(|part| part.attr().shared_memory)
    };
    let is_near = domain.shares_memory() && (config.same_host || addresses.iter().any(shares));
    // Who is squashed may not read, or even open anew to write, what all have cached.
    if is_near && config.shared_cache && !config.squash_root {
        match Arena::for_readers(bytes, segment) {
            Ok(arena) => {
                if let Err(error) = domain.let_peers_read(&arena.span(0, arena.len())) {
                    tracing::warn!(%error, "clients do not read the cache by themselves");
                }
                return Ok(arena);
            }
            Err(error) => tracing::warn!(%error, "the cache is private memory"),
        }
    }
    Arena::in_segments(bytes, segment)
}
