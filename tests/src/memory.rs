//! What a server may have resident, as docs/sizing.md says it.

use std::fmt;

use crate::Served;

/// Beside the arena.
const BESIDE: u64 = 64 << 20;
/// Where an export has another data path than the unifier.
const BUFFERS: u64 = 64 << 20;
/// Of each connection.
const PER_CONNECTION: u64 = 70 << 10;
/// Of each connection by shared memory beside that: rings, which are its client's.
const RINGS: u64 = 132 << 10;
/// Of each session with 64 slots, for results that it may be asked for again.
const KEPT_RESULTS: u64 = 256 << 10;

/// The most that it may have.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    arena: u64,
    beside: u64,
    connections: u64,
}

impl Bound {
    /// With an arena of so many bytes, and so many connections at a time.
    pub fn new(arena: u64, connections: u64) -> Bound {
        Bound { arena, beside: BESIDE, connections }
    }

    /// With buffers of another data path.
    #[must_use]
    pub fn with_buffers(mut self) -> Bound {
        self.beside += BUFFERS;
        self
    }

    /// With what sessions keep of requests that changed something, of one session a connection.
    #[must_use]
    pub fn with_kept_results(mut self) -> Bound {
        self.beside += KEPT_RESULTS * self.connections;
        self
    }

    /// Where all connections go by shared memory.
    #[must_use]
    pub fn with_rings(mut self) -> Bound {
        self.beside += RINGS * self.connections;
        self
    }

    /// All of it.
    pub fn bytes(self) -> u64 {
        self.arena + self.beside + PER_CONNECTION * self.connections
    }
}

/// The most that a server had so far, beside its bound.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    peak: u64,
    bound: Bound,
}

impl Check {
    /// Of a server that runs.
    pub fn new(server: &Served, bound: Bound) -> Check {
        Check { peak: server.peak_resident_bytes(), bound }
    }

    /// It kept to its bound.
    pub fn holds(self) -> bool {
        self.peak > 0 && self.peak <= self.bound.bytes()
    }

    /// Bytes up to the bound; 0 beyond it.
    pub fn room(self) -> u64 {
        self.bound.bytes().saturating_sub(self.peak)
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        let Bound { arena, beside, connections } = self.bound;
        let (peak, all) = (mib(self.peak), mib(self.bound.bytes()));
        let (arena, beside, each) = (mib(arena), mib(beside), PER_CONNECTION >> 10);
        write!(f, "{peak} of {all} MiB ({arena} + {beside} + {each} KiB x {connections})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_arena_and_the_rest_and_each_connection() {
        let bound = Bound::new(32 << 20, 1024);
        assert_eq!(bound.bytes(), (32 + 64 + 70) << 20);
        assert_eq!(bound.with_buffers().bytes(), (32 + 128 + 70) << 20);
        let check = |peak| Check { peak, bound };
        assert!(check(166 << 20).holds() && !check((166 << 20) + 1).holds());
        // Of a server that has ended nothing is known.
        assert!(!check(0).holds());
        assert_eq!(check(1).to_string(), "0 of 166 MiB (32 + 64 + 70 KiB x 1024)");
    }
}
