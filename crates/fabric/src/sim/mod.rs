//! A simulated network: one thread, a virtual clock, one seed.
//!
//! A [`SimNet`] holds all nodes. Nothing happens by itself: [`SimNet::step`] performs the next
//! delivery and moves the clock. The seed and the order of calls decide everything, so that a
//! failure is a seed. Between two calls the network does the worst that [`DeviceAttr`] and the
//! contract of [`Engine`](crate::Engine) allow:
//!
//! * one-sided and tagged data moves in pieces, in any order, at any time before its completion;
//!   reads (unless `ordered_reads`, or with a fence) and tagged messages overtake each other, completions too;
//! * where devices want registered memory, what is not registered is refused, and where they pin it,
//!   pages that were given back are written where nobody looks ([`SimNet::violations`]);
//! * source memory is sampled when a piece moves, or copied once before: both happen;
//! * any posted receive may take a message;
//! * where devices are shared memory, work may be done, and seen by the peer, when it is posted;
//! * after a break work comes back in any order and at any time, and data may still move until
//!   `Quiescent`, when the last [`Span`](crate::Span) is dropped;
//! * a node that crashes lets go of all its memory at once.
//!
//! An event holds back the completions behind it until
//! [`poll_event`](crate::Engine::poll_event) has taken it.
//!
//! ```
//! use dafs_fabric::sim::{SimConfig, SimNet};
//! use dafs_fabric::{Address, Provider};
//!
//! let net = SimNet::new(SimConfig::new(7));
//! let address = Address::parse("sim://1").expect("an address");
//! let mut listener = net.provider(1).open()?.listen(&address)?;
//! let mut client = net.provider(2).open()?.engine()?;
//! client.connect(&address, b"hello")?;
//! net.advance_to(std::time::Duration::from_millis(10));
//! assert_eq!(listener.poll_accept().expect("a request").private_data, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod at_once;
mod connection;
mod engine;
mod faults;
#[cfg(test)]
mod lies;
mod loans;
mod memory;
mod named;
mod provider;
mod queue_pair;
mod rng;
#[cfg(test)]
mod stress;
#[cfg(test)]
mod tests;
mod transfer;
mod world;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use engine::SimEngine;
pub use faults::{FaultConfig, FaultCounts};
pub use provider::SimProvider;
pub use rng::Rng;
use world::World;

use crate::types::{DeviceAttr, PRIVATE_DATA_BYTES_MAX};

/// What decides a simulation.
#[derive(Debug, Clone)]
pub struct SimConfig {
    /// Decides all that is random.
    pub seed: u64,
    /// What devices can do, and what they ask for. The simulation honours all flags and limits, but
    /// has no spans of files. A second network has a scheme of its own.
    pub attr: DeviceAttr,
    /// What goes wrong; can be changed later.
    pub faults: FaultConfig,
    /// All nodes are of one host, and find each other by a token ([`Device::same_host`](crate::Device::same_host)).
    pub same_host: bool,
    /// Whose all nodes are to each other. Where that is not root, they read what is for this user, and for all.
    pub peer_uid: u32,
}

impl SimConfig {
    /// Devices that can do all but ordered reads; nothing goes wrong.
    pub fn new(seed: u64) -> SimConfig {
        let attr = DeviceAttr {
            rdma_write: true,
            rdma_read: true,
            tag_match: true,
            recoverable_access_fault: true,
            write_before_send: true,
            target_cpu_free: true,
            verifies_names: true,
            header_bytes_max: 4096,
            send_bytes_max: 64 << 10,
            bulk_bytes_max: 64 << 20,
            sge_max: 64,
            send_queue_depth: 256,
            receive_queue_depth: 4096,
            private_data_bytes_max: PRIVATE_DATA_BYTES_MAX,
            schemes: &["sim"],
            ..DeviceAttr::none("sim")
        };
        SimConfig { seed, attr, faults: FaultConfig::default(), same_host: false, peer_uid: 0 }
    }

    /// Devices that forgive no more than those of verbs do (docs/decisions/0002): memory must be
    /// registered and stays where it was when it was, no tags, reads in any order, a bad access ends
    /// both queue pairs, two gather entries, 56 bytes of private data. Nothing goes wrong.
    pub fn of_verbs(seed: u64) -> SimConfig {
        let mut config = SimConfig::new(seed);
        let attr = &mut config.attr;
        (attr.local_registration, attr.registration_pins) = (true, true);
        (attr.tag_match, attr.ordered_reads, attr.recoverable_access_fault) = (false, false, false);
        (attr.sge_max, attr.private_data_bytes_max, attr.verifies_names) = (2, 56, false);
        config
    }
}

impl SimConfig {
    /// Has devices be as shared memory is: the initiator copies, in order, and only memory that peers can
    /// map is reached by them.
    pub fn share_memory(&mut self) {
        let attr = &mut self.attr;
        (attr.shared_memory, attr.recoverable_access_fault, attr.target_cpu_free) =
            (true, true, true);
        (attr.rdma_write, attr.rdma_read, attr.tag_match) = (true, true, false);
        (attr.ordered_reads, attr.write_before_send) = (true, true);
        (attr.local_registration, attr.registration_pins) = (false, false);
        (attr.sge_max, attr.private_data_bytes_max) = (1024, PRIVATE_DATA_BYTES_MAX);
        attr.verifies_names = false;
    }
}

/// A network with its nodes, clock and dice.
#[derive(Debug)]
pub struct SimNet {
    seed: u64,
    /// What devices say of themselves.
    attr: DeviceAttr,
    /// What they are: the same, but in tests of what finds liars.
    truth: DeviceAttr,
    same_host: bool,
    peer_uid: u32,
    world: Mutex<World>,
}

impl SimNet {
    /// An empty network at time zero.
    pub fn new(config: SimConfig) -> Arc<SimNet> {
        let claims = config.attr.clone();
        SimNet::lying(config, claims)
    }

    /// A network whose devices claim to be something else than they are.
    fn lying(config: SimConfig, claims: DeviceAttr) -> Arc<SimNet> {
        let SimConfig { seed, attr: truth, faults, same_host, peer_uid } = config;
        let world = Mutex::new(World::new(seed, truth.clone(), faults));
        Arc::new(SimNet { seed, attr: claims, truth, same_host, peer_uid, world })
    }

    /// The network card of `node`. All devices opened through it fall with the node.
    pub fn provider(self: &Arc<Self>, node: u32) -> SimProvider {
        SimProvider::new(self.clone(), node)
    }

    /// The virtual time since the beginning.
    pub fn now(&self) -> Duration {
        self.world().now()
    }

    /// When the next thing happens.
    pub fn next_event_at(&self) -> Option<Duration> {
        self.world().next_event_at()
    }

    /// Lets the next thing happen and moves the clock there. False if nothing is scheduled.
    pub fn step(&self) -> bool {
        self.world().step()
    }

    /// Lets everything happen up to and including `time`, which is the time then.
    pub fn advance_to(&self, time: Duration) {
        let mut world = self.world();
        while world.next_event_at().is_some_and(|at| at <= time) {
            world.step();
        }
        world.set_now(time);
    }

    /// A stream of random numbers that depends on the seed and on `stream` only: for the
    /// workload, which then does not change with what the network draws.
    pub fn rng(&self, stream: u64) -> Rng {
        Rng::new(self.seed).fork(stream)
    }

    /// Changes what goes wrong from now on.
    pub fn set_faults(&self, faults: FaultConfig) {
        self.world().faults = faults;
    }

    /// What goes wrong now.
    pub fn faults(&self) -> FaultConfig {
        self.world().faults.clone()
    }

    /// What has gone wrong so far.
    pub fn fault_counts(&self) -> FaultCounts {
        self.world().counts.clone()
    }

    /// What was done that a real device would not forgive, in words: a page given back while it was
    /// registered, a registration that ended under posted work, a receive posted again while a
    /// broken connection may write to it. A run in which this is not empty has failed.
    pub fn violations(&self) -> Vec<String> {
        let mut world = self.world();
        world.look_at_pins();
        world.violations.clone()
    }

    /// Breaks all connections of `node`. Both ends are told, the other one later.
    pub fn break_connections(&self, node: u32) {
        self.world().break_connections(node);
    }

    /// The node dies with all its engines, regions and listeners; they do nothing any more.
    /// Peers learn of it later. Devices opened afterwards belong to the restarted node.
    pub fn crash(&self, node: u32) {
        self.world().crash(node);
    }

    /// Nothing passes between two nodes until [`heal`](Self::heal). Connections stay; attempts to
    /// connect fail after a time.
    pub fn partition(&self, a: u32, b: u32) {
        self.world().partition(a, b);
    }

    /// Ends a partition.
    pub fn heal(&self, a: u32, b: u32) {
        self.world().heal(a, b);
    }

    /// Its nodes find each other by a token.
    pub fn is_of_one_host(&self) -> bool {
        self.same_host
    }

    fn scheme(&self) -> &'static str {
        self.truth.schemes.first().copied().unwrap_or("sim")
    }

    /// The lock serves engines in different threads; a panic in one of them (a failed test)
    /// leaves nothing that others could not use.
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
