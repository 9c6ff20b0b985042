//! The message processing layer of [SAN]: requests, replies and bulk data over any fabric.
//!
//! A [`Node`] owns an engine and its connections. A *request* has a header, data that goes with
//! it, and room for the reply's data; how the data moves (inline, tagged push into announced
//! room, RDMA read, grant and push, gather send, RDMA write) is chosen here, from the device's
//! attributes and the connection's options. Usable alone under any other server: nothing here
//! knows of files.

#![forbid(unsafe_code)]

mod config;
mod connection;
mod credits;
mod event;
mod header;
mod node;
mod receive_pool;
mod registration;
mod requester;
mod responder;
mod segments;
mod shared;
mod stats;
mod work;

pub use config::{
    ConnOptions, NodeConfig, NodeError, PRIVATE_DATA_MAX, REPLY_HEADER_BYTES_MAX, SubmitError,
};
pub use event::{ConnId, Event, RequestId};
pub use node::{Node, incoming_private_data};
pub use stats::{Counters, NodeStats};
