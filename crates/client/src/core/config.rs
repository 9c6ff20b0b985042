//! What a session is to be like, and what it is like.

use std::time::Duration;

use dafs_fabric::Address;
use dafs_message::ConnOptions;
use dafs_protocol::{
    CALLBACK_SLOTS, Features, PROTOCOL_VERSION, SessionAttr, WaitMode, WriteVerifier,
};
use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::named::NamedCounts;
use super::same_host::Nearer;
use crate::options::SessionOptions;

/// Data that goes beside headers.
const INLINE_BYTES: u32 = 512;

/// What the core needs to know of [`SessionOptions`].
#[derive(Clone)]
pub struct CoreConfig {
    /// For people.
    pub(super) address: Address,
    /// For the transport: tried in turn, each time from the first on.
    pub(super) targets: Vec<Address>,
    pub(super) nearer: Nearer,
    pub(super) key: Option<Vec<u8>>,
    pub(super) retry: Duration,
    pub(super) wait: WaitMode,
    pub(super) slots: u16,
    pub(super) data_bytes_max: u32,
    pub(super) connections: usize,
    pub(super) tags: bool,
    pub(super) rdma_read: bool,
    pub(super) in_place: bool,
    pub(super) optimistic: bool,
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
            nearer: Nearer::of(address, &options),
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
            in_place: options.in_place,
            optimistic: options.optimistic,
            read_ahead: options.read_ahead,
            export: options.export,
        }
    }
}

impl CoreConfig {
    /// A lost server is looked for without an end.
    pub(super) fn is_hard(&self) -> bool {
        self.retry == Duration::MAX
    }

    /// What the session should be like.
    pub(super) fn wish(&self) -> SessionAttr {
        SessionAttr {
            slots: self.slots,
            data_bytes_max: self.data_bytes_max,
            inline_bytes: INLINE_BYTES,
            wait: self.wait,
            lease_ms: 0,
            tagged: self.tags,
            rdma_read: self.rdma_read,
            read_ahead: self.read_ahead,
        }
    }

    pub(super) fn conn_options(&self) -> ConnOptions {
        ConnOptions {
            credits: CALLBACK_SLOTS,
            push_bytes: 0,
            inline_bytes: INLINE_BYTES,
            use_tagged: self.tags,
            use_rdma_read: self.rdma_read,
            use_references: self.in_place,
            requests_max: self.slots,
        }
    }

    /// Nothing that would make us allocate without bound, or loop.
    pub(super) fn is_sane(&self, attr: &SessionAttr) -> bool {
        (1..=self.slots).contains(&attr.slots)
            && (4096..=self.data_bytes_max).contains(&attr.data_bytes_max)
    }

    pub(super) fn mac(&self, input: &[u8]) -> Hmac<Sha256> {
        let key = self.key.as_deref().unwrap_or(&[]);
        let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
        mac.update(input);
        mac
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
    /// Of the small requests.
    pub transport: &'static str,
    /// The connection of those reaches memory that the server may have.
    pub shares_memory: bool,
    pub same_host_error: Option<String>,
    pub verifier: WriteVerifier,
    pub export: Vec<u8>,
    pub reconnects: u64,
    pub new_sessions: u64,
    pub requests: u64,
    pub named: NamedCounts,
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
            transport: "",
            shares_memory: false,
            same_host_error: None,
            verifier: WriteVerifier::default(),
            export: Vec::new(),
            reconnects: 0,
            new_sessions: 0,
            requests: 0,
            named: NamedCounts::default(),
            system_calls: 0,
        }
    }
}
