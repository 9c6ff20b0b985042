//! What a session is to be like, and what it is like.

use std::time::Duration;

use dafs_fabric::Address;
use dafs_protocol::{Features, PROTOCOL_VERSION, SessionAttr, WaitMode, WriteVerifier};

use crate::options::SessionOptions;

/// What the core needs to know of [`SessionOptions`].
#[derive(Clone)]
pub struct CoreConfig {
    /// For people.
    pub(super) address: Address,
    /// For the transport: tried in turn, each time from the first on.
    pub(super) targets: Vec<Address>,
    pub(super) key: Option<Vec<u8>>,
    pub(super) retry: Duration,
    pub(super) wait: WaitMode,
    pub(super) slots: u16,
    pub(super) data_bytes_max: u32,
    pub(super) connections: usize,
    pub(super) tags: bool,
    pub(super) rdma_read: bool,
    pub(super) read_ahead: bool,
    pub(super) export: Vec<u8>,
}

impl CoreConfig {
    /// For a server at `address`.
    pub fn new(address: &Address, options: &SessionOptions) -> CoreConfig {
        let mut options = options.clone();
        options.clamp();
        CoreConfig {
            address: address.clone(),
            targets: std::iter::once(address)
                .chain(&options.also)
                .map(|address| options.address(address))
                .collect(),
            key: options.key,
            retry: options.retry,
            wait: options.wait,
            slots: options.slots,
            data_bytes_max: options.data_bytes_max,
            connections: usize::from(options.connections),
            tags: options.tags,
            rdma_read: options.rdma_read,
            read_ahead: options.read_ahead,
            export: options.export,
        }
    }
}

/// What a session is like, and counters.
#[derive(Debug, Clone)]
#[non_exhaustive]
#[allow(missing_docs, reason = "as SessionInfo")]
pub struct Facts {
    pub attr: SessionAttr,
    pub version: u32,
    pub features: Features,
    pub addresses: Vec<String>,
    pub uid: u32,
    pub way: Way,
    pub verifier: WriteVerifier,
    pub export: Vec<u8>,
    pub reconnects: u64,
    pub new_sessions: u64,
    pub requests: u64,
    pub system_calls: u64,
}

impl Facts {
    /// Before there is a session.
    pub(super) fn before(config: &CoreConfig) -> Facts {
        Facts {
            attr: config.wish(),
            version: PROTOCOL_VERSION,
            features: Features::default(),
            addresses: Vec::new(),
            uid: 0,
            way: Way::Network(""),
            verifier: WriteVerifier::default(),
            export: Vec::new(),
            reconnects: 0,
            new_sessions: 0,
            requests: 0,
            system_calls: 0,
        }
    }
}

/// By what the small requests of a session go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Way {
    /// A network of this name.
    Network(&'static str),
    /// A Unix socket of this host.
    UnixSocket,
}
