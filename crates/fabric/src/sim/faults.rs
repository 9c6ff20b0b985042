//! What goes wrong, as data, and how often it did.

use std::time::Duration;

/// Fault rates. All are off by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultConfig {
    /// The least time until a step is done.
    pub delay_min: Duration,
    /// The most.
    pub delay_max: Duration,
    /// A connection breaks at a step of it.
    pub break_per_million: u32,
    /// A post to a send queue that is not empty finds it full.
    pub queue_full_per_million: u32,
    /// Data still moves after the break of a connection, until `Quiescent`.
    pub late_write_per_million: u32,
    /// A registration is refused.
    pub refuse_registration_per_million: u32,
    /// The key that a peer is about to use is revoked for good.
    pub revoke_per_million: u32,
    /// One access is answered with an access fault although its key is good.
    pub access_fault_per_million: u32,
    /// A connection attempt is refused as if nobody listened.
    pub refuse_connection_per_million: u32,
    /// All steps of this node take [`slow_factor`](Self::slow_factor) times as long.
    pub slow_node: Option<u32>,
    /// See [`slow_node`](Self::slow_node).
    pub slow_factor: u32,
}

impl Default for FaultConfig {
    fn default() -> FaultConfig {
        FaultConfig {
            delay_min: Duration::from_micros(1),
            delay_max: Duration::from_micros(50),
            break_per_million: 0,
            queue_full_per_million: 0,
            late_write_per_million: 0,
            refuse_registration_per_million: 0,
            revoke_per_million: 0,
            access_fault_per_million: 0,
            refuse_connection_per_million: 0,
            slow_node: None,
            slow_factor: 20,
        }
    }
}

/// How often each kind of fault was injected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Connections broken.
    pub breaks: u64,
    /// Posts that found a full queue by injection.
    pub queue_full: u64,
    /// Pieces of data that moved after a break.
    pub late_writes: u64,
    /// Registrations refused.
    pub refused_registrations: u64,
    /// Keys revoked.
    pub revoked_keys: u64,
    /// Access faults with a good key.
    pub access_faults: u64,
    /// Connection attempts refused by injection.
    pub refused_connections: u64,
    /// Steps of a slow node.
    pub slow_steps: u64,
    /// Nodes crashed.
    pub crashes: u64,
    /// Partitions begun.
    pub partitions: u64,
}

impl FaultCounts {
    /// Each kind with its count.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("breaks", self.breaks),
            ("queue_full", self.queue_full),
            ("late_writes", self.late_writes),
            ("refused_registrations", self.refused_registrations),
            ("revoked_keys", self.revoked_keys),
            ("access_faults", self.access_faults),
            ("refused_connections", self.refused_connections),
            ("slow_steps", self.slow_steps),
            ("crashes", self.crashes),
            ("partitions", self.partitions),
        ]
        .into_iter()
    }
}
