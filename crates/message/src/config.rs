//! Settings of nodes and connections, and what can fail at once.

use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::{ArenaError, DeviceAttr, PostError};
use thiserror::Error;

use crate::work::CONNECTIONS_MAX;

/// The most bytes of a reply's header.
pub const REPLY_HEADER_BYTES_MAX: usize = 4096;

/// Settings of a [`Node`](crate::Node).
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Bytes of a posted receive: message header, caller's header and inline data fit in it.
    /// 256 to 32768.
    pub header_bytes: usize,
    /// Bytes of the page-aligned data area behind each receive; up to 60 KiB, in whole pages.
    /// `None`: none where the device matches tags, else 16 KiB. Set it where connections are
    /// made without tags on a device that has them, and move much data.
    pub data_area_bytes: Option<usize>,
    /// Connections at a time.
    pub connections_max: usize,
    /// Receives posted at a time, all connections together (the device may allow fewer).
    pub receives_max: usize,
    /// Requests of peers in service (delivered and not replied) at a time; more wait in order.
    /// Those with pushed data do not wait: see [`Node::fetch`](crate::Node::fetch).
    pub requests_in_service_max: usize,
    /// The most data of a request or reply that moves where the device registers nothing more: six
    /// pieces of so many bytes are registered from the start, on devices that need it.
    pub stand_in_bytes: usize,
}

impl Default for NodeConfig {
    fn default() -> NodeConfig {
        NodeConfig {
            header_bytes: 1024,
            data_area_bytes: None,
            connections_max: 4096,
            receives_max: 1 << 18,
            requests_in_service_max: 1 << 16,
            stand_in_bytes: 1 << 20,
        }
    }
}

/// Settings of a connection, ours; the peer has its own.
#[derive(Debug, Clone, Copy)]
pub struct ConnOptions {
    /// Requests that the peer may have under way to us (and one more, for control). 0 to 4096:
    /// 0 where the peer never asks.
    pub credits: u16,
    /// Bytes of request data that the peer may push before we asked for them. 0: all large
    /// request data waits for our `fetch`.
    pub push_bytes: u32,
    /// Data up to this size goes beside the header, where the peer's receives have room.
    pub inline_bytes: u32,
    /// Use tag matching, if our device can. Who connects so refuses a peer that does not; who
    /// accepts does without where the peer did not ask for it.
    pub use_tagged: bool,
    /// Use RDMA reads, if both devices can.
    pub use_rdma_read: bool,
    /// Let replies refer to data where the peer has it, and read it there, where that is memory of one
    /// host.
    pub use_references: bool,
    /// Requests that we have under way to the peer at most (and one more, for control).
    pub requests_max: u16,
}

impl Default for ConnOptions {
    fn default() -> ConnOptions {
        ConnOptions {
            credits: 32,
            push_bytes: 1 << 20,
            inline_bytes: 512,
            use_tagged: true,
            use_rdma_read: true,
            use_references: true,
            requests_max: 32,
        }
    }
}

/// Why a node could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NodeError {
    /// A setting is out of its range.
    #[error("{0}")]
    Config(&'static str),
    /// No memory for receives.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The device did not take the memory for messages.
    #[error(transparent)]
    Register(#[from] dafs_fabric::RegisterError),
    /// The device has no more engines.
    #[error(transparent)]
    Engine(#[from] dafs_fabric::OpenError),
}

/// Why a request was not taken. Nothing of it was done and no span of it is held.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubmitError {
    /// The peer granted no more credits: submit again after a reply.
    #[error("no credit: the peer takes no more requests now")]
    NoCredit,
    /// As many requests as allowed are under way: submit again after a reply.
    #[error("queue full")]
    QueueFull,
    /// The system has no memory for the request or its reply, or the device did not take it, and no
    /// reply will come that gives some back.
    #[error("no memory for a request")]
    NoMemory,
    /// No such connection, or not (or no longer) connected.
    #[error("not connected")]
    NotConnected,
    /// Header, data or number of segments exceed a limit.
    #[error("request too large")]
    TooLarge,
    /// A request with this tag is under way on this connection.
    #[error("tag in use")]
    TagInUse,
    /// The device did not take the work request.
    #[error(transparent)]
    Post(PostError),
}

/// Checks the settings of a node; returns the bytes of the data areas.
///
/// # Errors
/// [`NodeError::Config`].
pub fn data_area_bytes(config: &NodeConfig, attr: &DeviceAttr) -> Result<usize, NodeError> {
    let default = if attr.tag_match { 0 } else { 16 << 10 };
    let area = config.data_area_bytes.unwrap_or(default);
    if !(256..=32768).contains(&config.header_bytes) {
        return Err(NodeError::Config("header_bytes: must be from 256 to 32768"));
    }
    if area > 0 && attr.sge_max < 2 {
        return Err(NodeError::Config("data_area_bytes: the device takes one gather entry alone"));
    }
    if area > 60 << 10 || !area.is_multiple_of(PAGE_BYTES) {
        return Err(NodeError::Config("data_area_bytes: must be whole pages, at most 60 KiB"));
    }
    if !(1..=CONNECTIONS_MAX).contains(&config.connections_max) {
        return Err(NodeError::Config("connections_max: must be from 1 to 16777216"));
    }
    if config.receives_max < 16 || config.receives_max > 1 << 24 {
        return Err(NodeError::Config("receives_max: must be from 16 to 16777216"));
    }
    if config.requests_in_service_max == 0 {
        return Err(NodeError::Config("requests_in_service_max: must be at least 1"));
    }
    Ok(area)
}
