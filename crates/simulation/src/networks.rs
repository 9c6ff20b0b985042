//! The networks of a run: one, or two of different kinds, with one clock.

use std::sync::Arc;
use std::time::Duration;

use dafs_fabric::sim::{FaultConfig, FaultCounts, Rng, SimConfig, SimNet};
use dafs_fabric::{Address, Provider, Providers};

/// Networks that all nodes are on.
#[derive(Debug)]
pub struct Networks {
    all: Vec<Arc<SimNet>>,
}

impl Networks {
    /// One for each configuration, whose schemes differ.
    pub fn new(configs: &[SimConfig]) -> Arc<Networks> {
        Arc::new(Networks { all: configs.iter().cloned().map(SimNet::new).collect() })
    }

    /// The cards of a node, one for each network.
    pub fn providers(&self, node: u32) -> Providers {
        let card = |net: &Arc<SimNet>| Arc::new(net.provider(node)) as Arc<dyn Provider>;
        self.all.iter().map(card).collect::<Vec<_>>().into()
    }

    /// Where a node is, on each network at which it is found by that.
    pub fn addresses(&self, node: u32) -> Vec<Address> {
        let far = self.all.iter().filter(|net| !net.is_of_one_host());
        far.map(|net| net.provider(node).address()).collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// One of them.
    pub fn of(&self, number: usize) -> &SimNet {
        &self.all[number % self.all.len()]
    }

    /// The virtual time since the beginning.
    pub fn now(&self) -> Duration {
        self.all[0].now()
    }

    /// A stream of random numbers.
    pub fn rng(&self, stream: u64) -> Rng {
        self.all[0].rng(stream)
    }

    /// When the next thing happens.
    pub fn next_event_at(&self) -> Option<Duration> {
        self.all.iter().filter_map(|net| net.next_event_at()).min()
    }

    /// Lets the next thing happen and moves the clock there.
    pub fn step(&self) {
        let next = self.all.iter().filter(|net| net.next_event_at().is_some());
        let Some(next) = next.min_by_key(|net| net.next_event_at()) else { return };
        next.step();
        let now = next.now();
        for other in self.all.iter().filter(|other| !Arc::ptr_eq(other, next)) {
            other.advance_to(now);
        }
    }

    /// Lets everything happen up to and including `time`, which is the time then.
    pub fn advance_to(&self, time: Duration) {
        self.all.iter().for_each(|net| net.advance_to(time));
    }

    /// Changes what goes wrong from now on, on each network.
    pub fn change_faults(&self, change: impl Fn(FaultConfig) -> FaultConfig) {
        self.all.iter().for_each(|net| net.set_faults(change(net.faults())));
    }

    /// What nobody can do without when it starts: the networks may refuse memory meanwhile, but not for
    /// ever.
    ///
    /// # Errors
    /// As `start`.
    pub fn gently<R>(&self, start: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
        let before: Vec<_> = self.all.iter().map(|net| net.faults()).collect();
        self.change_faults(|faults| FaultConfig { refuse_registration_per_million: 0, ..faults });
        let started = start();
        self.all.iter().zip(before).for_each(|(net, faults)| net.set_faults(faults));
        started
    }

    /// What has gone wrong so far, for each network.
    pub fn fault_counts(&self) -> Vec<FaultCounts> {
        self.all.iter().map(|net| net.fault_counts()).collect()
    }

    /// The first thing that a real device would not forgive.
    pub fn violation(&self) -> Option<String> {
        self.all.iter().find_map(|net| net.violations().into_iter().next())
    }

    /// Breaks all connections of `node`.
    pub fn break_connections(&self, node: u32) {
        self.all.iter().for_each(|net| net.break_connections(node));
    }

    /// The node dies with all its engines, regions and listeners.
    pub fn crash(&self, node: u32) {
        self.all.iter().for_each(|net| net.crash(node));
    }

    /// Nothing passes between two nodes until [`heal`](Self::heal).
    pub fn partition(&self, a: u32, b: u32) {
        self.all.iter().for_each(|net| net.partition(a, b));
    }

    /// Ends a partition.
    pub fn heal(&self, a: u32, b: u32) {
        self.all.iter().for_each(|net| net.heal(a, b));
    }
}
