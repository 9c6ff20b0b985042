//! What a seed decides before anything runs.

use std::time::Duration;

use dafs_client::SessionOptions;
use dafs_fabric::sim::{FaultConfig, Rng, SimConfig};
use dafs_message::NodeConfig;
use dafs_protocol::WaitMode;
use dafs_server::Limits;

use crate::storage::Pace;

/// Files that all clients read and write.
pub const DATA_FILES: usize = 4;
/// Directories in which names change.
pub const YARDS: usize = 5;
/// Names that several clients make or remove at once.
pub const RACES: usize = 3;
/// Files whose locks the clients share.
pub const LOCK_FILES: usize = 2;
/// Bytes that the store takes.
pub const CAPACITY_BYTES: u64 = 256 << 20;

/// The cache of a server that lends: a client may have four pieces.
const LENDING_BYTES: usize = 32 << 20;

/// One thing that goes wrong at a time of its own, beside what goes wrong at random.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mishap {
    /// All connections of a client, or (0) of the server, break.
    Break,
    /// A client cannot reach the server for a time.
    Partition(Duration),
    /// A client cannot reach the server by one of two networks for a time.
    LoseNetwork(Duration),
    /// The server's process dies and comes back after a time.
    ProcessCrash(Duration),
    /// The server's machine dies: what was not synced is lost.
    MachineCrash(Duration),
    /// The server ends in order and comes back.
    Restart(Duration),
    /// A client dies; another one comes.
    ClientDeath,
    /// The store answers errors for a time.
    StoreErrors(Duration),
    /// The disk is full for a time.
    DiskFull(Duration),
    /// The store is slow for a time.
    SlowStore(Duration),
    /// A node is slow for a time.
    SlowNode(Duration),
    /// A caller gives up a call.
    GiveUp,
    /// A client cannot reach the server until its lease is over and a bit more. The others ask
    /// for nothing until it nearly is, so that they go on with what it had locked.
    OutliveLease,
    /// The next unlock that somebody waits for is not answered: its client is cut off, and the
    /// server's process dies soon after.
    CrashAtUnlock,
    /// After the next commit during which writes were answered that it does not cover, the
    /// server's process dies at once.
    CrashAfterCommit,
    /// The same after a sync.
    CrashAfterSync,
    /// The server's process dies in the midst of the next race for a name.
    CrashInRace,
}

/// Which network cards the nodes of a run have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Devices {
    /// The seed decides; every fourth is hard, or so.
    OfSeed,
    /// They forgive as little as the whole client and server can live with.
    Hard,
}

/// Everything of a run but the random numbers drawn on the way.
pub struct Plan {
    /// The networks.
    pub networks: Vec<SimConfig>,
    /// The server's workers.
    pub workers: u16,
    /// Calls to be made.
    pub operations: usize,
    /// Clients at a time.
    pub clients: usize,
    /// Calls that a client has under way.
    pub depth: usize,
    /// The most bytes of a call.
    pub io_max: u64,
    /// The most bytes of a file, roughly.
    pub file_max: u64,
    /// The server's cache.
    pub arena_bytes: usize,
    /// Of a segment of it.
    pub segment_bytes: usize,
    /// Of it, dirty.
    pub dirty_bytes_max: usize,
    /// Age at which data is written back.
    pub dirty_age: Duration,
    /// The server's limits.
    pub limits: Limits,
    /// Whether a key proves the clients.
    pub key: bool,
    /// The clients' options.
    pub options: SessionOptions,
    /// The message layer of both sides.
    pub node: NodeConfig,
    /// The store's pace.
    pub pace: Pace,
    /// How long a node may be busy with other things.
    pub lag: Duration,
    /// What happens after how many calls.
    pub mishaps: Vec<(usize, Mishap)>,
    /// Percent of calls on open files; the others are about names.
    pub data_percent: u64,
    /// Percent of calls about locks.
    pub lock_percent: u64,
    /// Percent of calls on open files that are about the cache.
    pub cache_percent: u64,
    /// The store's files are direct, so that the server reads ahead.
    pub direct: bool,
    /// The machine becomes short of memory now and then.
    pub resizes: bool,
    /// Bytes that the cache keeps all the same.
    pub least_bytes: usize,
    /// Clients ask for loans.
    pub lends: bool,
    /// They read the server's cache by themselves.
    pub hits: bool,
    /// Whose writes are kept until they are safe from the end of the server's process.
    pub keepers: Keepers,
}

/// Clients that keep their writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keepers {
    /// None.
    Nobody,
    /// Those with an odd number.
    Some,
    /// All.
    All,
}

impl Keepers {
    /// Whether this client does.
    pub fn has(self, who: usize) -> bool {
        match self {
            Keepers::Nobody => false,
            Keepers::Some => who % 2 == 1,
            Keepers::All => true,
        }
    }
}

fn ms(from: u64, to: u64, rng: &mut Rng) -> Duration {
    Duration::from_millis(rng.range(from, to))
}

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64, wanted: Devices) -> Plan {
        let mut rng = Rng::new(seed).fork(100);
        let mut sim = SimConfig::new(seed);
        devices(&mut sim, &mut rng);
        sim.faults = faults(&mut rng);
        harden(&mut sim, wanted);
        let arena_bytes = [128 << 10, 256 << 10, 1 << 20, 4 << 20][rng.index(4)];
        let io_max = (arena_bytes as u64 / 16).min(160 << 10);
        let limits = Limits {
            lease_seconds: rng.range(2, 4) as u32,
            slots: [3, 8, 64][rng.index(3)],
            push_bytes: [0, 16 << 10, 64 << 10, 1 << 20][rng.index(4)],
            setup_seconds: 2,
            ..Limits::default()
        };
        let options = SessionOptions {
            key: rng.coin().then(|| b"a key of sixteen bytes or more".to_vec()),
            retry: Duration::from_secs(20),
            wait: WaitMode::Polled,
            slots: [2, 8, 64][rng.index(3)],
            data_bytes_max: 256 << 10,
            connections: rng.range(1, 2) as u8,
            rdma_read: rng.below(4) > 0,
            ..SessionOptions::default()
        };
        let operations = rng.range(350, 600) as usize;
        let mut plan = Plan {
            networks: vec![sim],
            workers: 1,
            operations,
            clients: rng.range(2, 3) as usize,
            depth: rng.range(1, 6) as usize,
            io_max,
            file_max: (arena_bytes as u64 * 2).min(768 << 10),
            arena_bytes,
            // By the seed alone: plans are what they were.
            segment_bytes: (64 << 10) << (seed % 3),
            dirty_bytes_max: (arena_bytes / [2, 4][rng.index(2)]).max(64 << 10),
            dirty_age: [ms(1, 800, &mut rng), ms(1, 20, &mut rng)][rng.index(2)],
            limits,
            key: options.key.is_some(),
            options,
            node: NodeConfig {
                receives_max: 1024,
                data_area_bytes: [None, Some(0), Some(4096)][rng.index(3)],
                ..NodeConfig::default()
            },
            pace: pace(&mut rng),
            lag: Duration::from_micros([0, 20, 200][rng.index(3)]),
            mishaps: Vec::new(),
            data_percent: [30, 60, 60, 85][rng.index(4)],
            lock_percent: 0,
            keepers: Keepers::Nobody,
            cache_percent: 0,
            direct: false,
            resizes: false,
            least_bytes: arena_bytes,
            lends: false,
            hits: false,
        };
        if plan.networks[0].faults.break_per_million > 2000 {
            // What is long would never get through.
            plan.io_max = plan.io_max.min(8 << 10);
        }
        plan.add_mishaps(&mut rng);
        plan.lock_percent = [0, 0, 20, 50][rng.index(4)];
        plan.keepers = [Keepers::Nobody, Keepers::Some, Keepers::All][rng.index(3)];
        plan.add_traps(&mut rng);
        if rng.coin() {
            plan.steer_cache(&mut rng);
        }
        if rng.coin() {
            for _ in 0..rng.range(1, 4) {
                plan.mishaps.push((rng.index(plan.operations), Mishap::CrashInRace));
            }
            plan.mishaps.sort_by_key(|mishap| mishap.0);
        }
        plan.widen(seed, wanted);
        plan.lend(seed);
        plan.hit(seed);
        plan
    }

    /// Where memory is shared, mostly, and half of those lend nothing: the cache stays small. Drawn apart, too.
    fn hit(&mut self, seed: u64) {
        let mut rng = Rng::new(seed).fork(600);
        self.hits = self.networks.iter().any(|sim| sim.attr.shared_memory) && rng.below(5) > 0;
    }

    /// Where memory is shared, mostly. Of less cache nothing would be lent. Drawn apart, as that is.
    fn lend(&mut self, seed: u64) {
        let mut rng = Rng::new(seed).fork(500);
        self.lends = self.networks.iter().any(|sim| sim.attr.shared_memory) && rng.below(3) > 0;
        self.lends &= Rng::new(seed).fork(501).coin();
        if self.lends {
            self.arena_bytes = LENDING_BYTES;
            self.least_bytes = if self.resizes { self.least_bytes } else { LENDING_BYTES };
        }
    }

    /// Half of the servers have several workers, every third run has two networks. Drawn apart, so that
    /// all else of a seed is as it was.
    fn widen(&mut self, seed: u64, wanted: Devices) {
        let mut rng = Rng::new(seed).fork(300);
        self.workers = [1, 1, 2, 3][rng.index(4)];
        if rng.below(3) > 0 {
            return;
        }
        let mut second = SimConfig::new(seed ^ 0x5eed);
        devices(&mut second, &mut rng);
        second.faults = self.networks[0].faults.clone();
        harden(&mut second, wanted);
        second.attr.schemes = &["other"];
        // Drawn apart, too: the second is found by what the server tells.
        second.same_host = Rng::new(seed).fork(400).coin();
        self.networks.push(second);
        let lease = u64::from(self.limits.lease_seconds) * 1000;
        for _ in 0..rng.range(1, 4) {
            let time = ms(1, [50, lease, lease * 3][rng.index(3)], &mut rng);
            self.mishaps.push((rng.index(self.operations), Mishap::LoseNetwork(time)));
        }
        self.mishaps.sort_by_key(|mishap| mishap.0);
    }

    /// In half of the runs nobody does.
    fn steer_cache(&mut self, rng: &mut Rng) {
        self.direct = rng.below(3) > 0;
        self.options.read_ahead = rng.below(4) > 0;
        self.cache_percent = [5, 30][rng.index(2)];
        self.resizes = rng.below(3) > 0;
        if self.resizes {
            self.least_bytes = [64 << 10, 256 << 10, 1 << 20][rng.index(3)];
        }
    }

    /// The most pages that a server takes in one write: half of its bound of dirty pages, also
    /// when it has as little memory as it may have.
    pub fn write_pages_max(&self) -> u64 {
        let least = (self.arena_bytes / 4).max(self.least_bytes.min(self.arena_bytes));
        (self.dirty_bytes_max / 2).min(least / 4 * 3) as u64 / 4096
    }

    /// What waits for its moment.
    fn add_traps(&mut self, rng: &mut Rng) {
        let mut traps = Vec::new();
        if self.lock_percent > 0 {
            traps.extend([Mishap::CrashAtUnlock; 2]);
            traps.extend((rng.below(3) == 0).then_some(Mishap::OutliveLease));
        }
        if self.keepers != Keepers::All {
            traps.extend([Mishap::CrashAfterCommit, Mishap::CrashAfterSync]);
        }
        for trap in traps {
            // In half of the runs none, so that some have no end of the server.
            if rng.coin() {
                self.mishaps.push((rng.index(self.operations), trap));
            }
        }
        self.mishaps.sort_by_key(|mishap| mishap.0);
    }

    fn add_mishaps(&mut self, rng: &mut Rng) {
        let lease = u64::from(self.limits.lease_seconds) * 1000;
        // Few kinds in one run, so that some runs are without crashes, or without store errors.
        let kinds: Vec<u64> = (0..rng.range(1, 4)).map(|_| rng.below(11)).collect();
        for _ in 0..rng.range(3, 9) {
            let at = rng.index(self.operations);
            let mishap = match kinds[rng.index(kinds.len())] {
                0 => Mishap::Break,
                1 if rng.below(3) == 0 => Mishap::Partition(ms(lease / 2, lease * 3 / 2, rng)),
                1 => Mishap::Partition(ms(1, 50, rng)),
                2 => Mishap::ProcessCrash(ms(0, 300, rng)),
                3 => Mishap::MachineCrash(ms(0, 300, rng)),
                4 => Mishap::Restart(ms(0, 300, rng)),
                5 => Mishap::ClientDeath,
                6 => Mishap::StoreErrors(ms(0, 60, rng)),
                7 => Mishap::DiskFull(ms(0, 60, rng)),
                8 => Mishap::SlowStore(ms(1, 100, rng)),
                9 => Mishap::SlowNode(ms(1, 50, rng)),
                _ => Mishap::GiveUp,
            };
            self.mishaps.push((at, mishap));
        }
        // Whatever else: three of every run.
        for _ in 0..3 {
            self.mishaps.push((rng.index(self.operations), Mishap::Break));
        }
        self.mishaps.sort_by_key(|mishap| mishap.0);
    }
}

fn pace(rng: &mut Rng) -> Pace {
    match rng.below(4) {
        0 => Pace::IMMEDIATE,
        1 => Pace { at_once: 50, least: 1, most: 100 },
        2 => Pace { at_once: 10, least: 1, most: 1000 },
        _ => Pace { at_once: 0, least: 100, most: 20_000 },
    }
}

/// Devices of all kinds that there are, and of some that there could be.
fn devices(sim: &mut SimConfig, rng: &mut Rng) {
    sim.attr.tag_match = rng.coin();
    sim.attr.rdma_read = rng.below(4) > 0;
    sim.attr.rdma_write = rng.below(4) > 0;
    sim.attr.recoverable_access_fault = rng.coin();
    sim.attr.ordered_reads = rng.coin();
    sim.attr.write_before_send = rng.below(4) > 0;
    sim.attr.sge_max = [16, 64][rng.index(2)];
    sim.attr.send_queue_depth = [16, 256][rng.index(2)];
}

/// Hard devices, each of which has most of what a device of verbs has ([`SimConfig::of_verbs`]). Drawn apart, so that all else of a seed is the same with them and without.
fn harden(sim: &mut SimConfig, wanted: Devices) {
    let mut rng = Rng::new(sim.seed).fork(200);
    let is_hard = rng.below(4) == 0 || wanted == Devices::Hard;
    let mut mostly = || rng.below(4) > 0;
    let attr = &mut sim.attr;
    attr.target_cpu_free = mostly();
    if !is_hard {
        // As fabric-shm is, drawn apart once more.
        if Rng::new(sim.seed).fork(201).below(8) == 0 {
            sim.share_memory();
        }
        return;
    }
    attr.tag_match &= !mostly();
    attr.rdma_read &= mostly();
    attr.recoverable_access_fault &= !mostly();
    attr.ordered_reads &= !mostly();
    attr.registration_pins = mostly();
    if mostly() {
        attr.private_data_bytes_max = 56;
    }
    if mostly() {
        attr.sge_max = 2;
    }
    if mostly() {
        // As at a limit of pinned memory: a few fit, most do not.
        sim.faults.refuse_registration_per_million = [100_000, 500_000, 900_000][rng.index(3)];
    }
    sim.attr.local_registration = rng.below(4) > 0;
    if !sim.attr.local_registration && rng.below(4) > 0 {
        sim.share_memory();
    }
}

/// What goes wrong on the network at random.
fn faults(rng: &mut Rng) -> FaultConfig {
    let mut rate = |most: u64| match rng.below(3) {
        0 => 0,
        _ => rng.below(most) as u32,
    };
    FaultConfig {
        break_per_million: rate(1500) * [1, 1, 12][rate(3) as usize],
        queue_full_per_million: rate(100_000),
        late_write_per_million: 700_000,
        refuse_registration_per_million: rate(200_000),
        revoke_per_million: rate(30_000),
        access_fault_per_million: rate(100_000),
        refuse_connection_per_million: rate(300_000),
        delay_max: Duration::from_micros([10, 50, 400][rate(3) as usize]),
        ..FaultConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of 200 seeds have devices of this kind.
    fn count(devices: Devices, of: fn(&SimConfig) -> bool) -> usize {
        (0..200).filter(|seed| of(&Plan::new(*seed, devices).networks[0])).count()
    }

    #[test]
    fn hard_devices_are_among_the_seeds() {
        let kinds: [fn(&SimConfig) -> bool; 5] = [
            |sim| sim.attr.local_registration,
            |sim| sim.attr.sge_max == 2,
            |sim| sim.attr.private_data_bytes_max == 56,
            |sim| sim.attr.registration_pins,
            |sim| sim.faults.refuse_registration_per_million >= 500_000,
        ];
        for (number, kind) in kinds.into_iter().enumerate() {
            let (some, most) = (count(Devices::OfSeed, kind), count(Devices::Hard, kind));
            assert!(
                (10..60).contains(&some) && (80..200).contains(&most),
                "{number} {some} {most}"
            );
        }
        let shared: fn(&SimConfig) -> bool = |sim| sim.attr.shared_memory;
        let (some, most) = (count(Devices::OfSeed, shared), count(Devices::Hard, shared));
        assert!((10..60).contains(&some) && (20..80).contains(&most), "{some} {most}");
    }

    #[test]
    fn all_else_of_a_seed_is_the_same_on_hard_devices() {
        for seed in 0..50 {
            let [some, hard] = [Devices::OfSeed, Devices::Hard].map(|of| Plan::new(seed, of));
            assert_eq!((some.mishaps, some.io_max), (hard.mishaps, hard.io_max));
        }
    }
}
