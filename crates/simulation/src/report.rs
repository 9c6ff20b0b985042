//! What a run, or many, did.

use std::collections::BTreeMap;

use dafs_fabric::sim::FaultCounts;

/// Kinds of faults, in the order in which they are told.
pub const FAULTS: [&str; 20] = [
    "connection broken",
    "queue full",
    "late write",
    "registration refused",
    "key revoked",
    "access fault",
    "connection refused",
    "partition",
    "session cut off",
    "client died",
    "server process died",
    "server machine died",
    "server restarted",
    "verifier kept",
    "store error",
    "disk full",
    "slow store",
    "slow node",
    "call given up",
    "memory short",
];

/// What a run did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Calls made.
    pub operations: usize,
    /// Calls answered with an error that had a cause.
    pub excused: usize,
    /// Locks refused since they would wait for ever.
    pub deadlocks: usize,
    /// Reads that were answered by loans.
    pub loans: usize,
    /// Reads without the server.
    pub hits: usize,
    /// Those that found nothing to be believed.
    pub misses: usize,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// A digest of all answers: the same seed must give the same.
    pub digest: u64,
}

impl Report {
    /// A fault happened.
    pub fn fault(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
    }

    /// All faults together.
    pub fn fault_count(&self) -> u64 {
        self.faults.values().sum()
    }

    /// Adds what the network did.
    pub fn count_network(&mut self, counts: &FaultCounts) {
        for (kind, count) in [
            ("connection broken", counts.breaks),
            ("queue full", counts.queue_full),
            ("late write", counts.late_writes),
            ("registration refused", counts.refused_registrations),
            ("key revoked", counts.revoked_keys),
            ("access fault", counts.access_faults),
            ("connection refused", counts.refused_connections),
        ] {
            if count > 0 {
                *self.faults.entry(kind).or_default() += count;
            }
        }
    }

    /// Adds another run.
    pub fn add(&mut self, other: &Report) {
        self.operations += other.operations;
        self.excused += other.excused;
        self.deadlocks += other.deadlocks;
        self.loans += other.loans;
        self.hits += other.hits;
        self.misses += other.misses;
        for (kind, count) in &other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        self.note(other.digest);
    }

    /// Makes a number part of the digest.
    pub fn note(&mut self, number: u64) {
        self.digest = (self.digest ^ number).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    }
}
