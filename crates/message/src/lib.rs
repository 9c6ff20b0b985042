//! The message processing layer of \[SAN\]: requests, replies and bulk data over any fabric.
//!
//! A [`Node`] owns an engine and its connections. A *request* has a header, data that goes with
//! it, and room for the reply's data; how the data moves (inline, tagged push into announced
//! room, RDMA read, grant and push, gather send, RDMA write) is chosen here, from the device's
//! attributes and the connection's options. Usable alone under any other server: nothing here
//! knows of files.

//!
//! # How data moves
//!
//! Chosen for each request by its sender, the first that can be:
//!
//! | request data | when | how |
//! | --- | --- | --- |
//! | none | | the header alone |
//! | inline | up to `inline_bytes`, and all fits a receive of the peer | beside the header; copied by `fetch` |
//! | pushed | tags match, byte credits are left | a tagged send right behind the request; lands where `fetch` says |
//! | granted | tags match | `fetch` posts where it goes and sends a grant; the peer's node pushes without its caller |
//! | read | both sides read, the memory can stay registered | `fetch` reads it by RDMA |
//! | pieces | otherwise: the emulated read of \[SAN\] III.A.6 | `fetch` grants a few pieces at a time, which are gather sends of {fixed header, data}; copied |
//!
//! | reply data | when | how |
//! | --- | --- | --- |
//! | tagged | tags match | header and data in one tagged message, into the room that `submit` posted |
//! | inline | up to `inline_bytes` | beside the header; copied |
//! | referred to | the request asked for it, its room stands in for other memory, and the data is in memory that the peer may read | the reply says where it is; the requester reads it by RDMA into its own memory, then lets it go by a number in its next message |
//! | written | the room can stay registered, writes are placed before a following send | RDMA writes, then the reply |
//! | pieces | otherwise | messages of {fixed header, data}, then the reply; copied |
//!
//! The set-up, in front of the private data of connect and accept, tells each side what the other
//! can and wants; both must, for a mode to be used. Who connects and asks for tags refuses a peer
//! without them: it would get keys to buffers in their place.
//!
//! # Credits
//!
//! A request takes a credit, and pushed data byte credits, of the connection; every message back
//! tells the limits again, as totals since the beginning. Receives are posted before they are
//! promised, and posted again as soon as their message is copied out. One credit, and one place
//! among our own requests, are kept for [`Node::submit_control`]. Whoever exceeds a limit, sends
//! what was not announced or answers what was not asked is disconnected, as
//! [`Event::Disconnected`] says.
//!
//! # Who owns memory
//!
//! What is given to [`submit`](Node::submit), [`fetch`](Node::fetch) and [`reply`](Node::reply)
//! is the node's until [`Event::Reply`], [`Event::Fetched`], [`Event::ReplySent`]: then neither
//! the node nor the engine holds a span of it. After a break that is so at
//! [`Event::Quiescent`], not before.
//!
//! # Use
//!
//! One thread: `poll`, take all events, act on them, `ring`; when `arm` says so, sleep on the
//! `waiter`.
//!
//! ```
//! use dafs_fabric::sim::{SimConfig, SimNet};
//! use dafs_fabric::{Address, Domain, SgList};
//! use dafs_message::{ConnOptions, Event, Node, NodeConfig};
//!
//! let net = SimNet::new(SimConfig::new(1));
//! let config = NodeConfig { receives_max: 64, ..NodeConfig::default() };
//! let (one, two) = (Domain::open(&net.provider(1))?, Domain::open(&net.provider(2))?);
//! let address = Address::parse("sim://1").expect("an address");
//! let mut listener = one.device().listen(&address)?;
//! let mut server = Node::new(one, config.clone())?;
//! let mut client = Node::new(two, config)?;
//! let conn = client.connect(&address, b"it is me", ConnOptions::default())?;
//! loop {
//!     net.step();
//!     if let Some(incoming) = listener.poll_accept() {
//!         server.accept(incoming, b"welcome", ConnOptions::default())?;
//!     }
//!     client.poll();
//!     match client.next_event() {
//!         Some(Event::Connected { .. }) => {
//!             client.submit(conn, 0, b"how are you?", SgList::new(), SgList::new())?;
//!         }
//!         Some(Event::Reply { header, .. }) => {
//!             assert_eq!(header, b"fine");
//!             break;
//!         }
//!         _ => {}
//!     }
//!     client.ring();
//!     server.poll();
//!     if let Some(Event::Request { id, .. }) = server.next_event() {
//!         server.reply(id, b"fine", SgList::new(), 0);
//!     }
//!     server.ring();
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]
#![deny(missing_docs)]

mod bounce;
mod config;
mod connection;
mod credits;
mod event;
mod fault;
mod header;
mod loan;
mod named;
mod node;
#[cfg_attr(not(feature = "planted"), allow(unreachable_pub))]
mod planted;
mod port;
mod receive_pool;
mod references;
mod referring;
mod registration;
mod requester;
mod requests;
mod responder;
mod segments;
mod service;
mod shared;
mod stats;
mod work;

/// Entry points for fuzzers.
#[doc(hidden)]
pub mod fuzzing {
    use crate::header::{Header, Setup, decode_remotes};

    /// Takes bytes of a peer apart, as a message and as a set-up block. What is taken apart comes
    /// out the same when it is put together again.
    pub fn message_header(bytes: &[u8]) {
        if let Ok(header) = Header::decode(bytes) {
            let mut again = Vec::new();
            header.encode(&mut again);
            assert!(bytes.starts_with(&again), "a header changed");
            let mut remotes = Vec::new();
            let rest = bytes.get(again.len()..).unwrap_or_default();
            decode_remotes(rest.get(..header.descriptor_bytes()).unwrap_or(rest), &mut remotes);
        }
        if let Some((setup, _)) = Setup::decode(bytes) {
            let again = setup.encode(&[]);
            let as_before = Setup::decode(&again) == Some((setup, &[]));
            assert!(as_before, "a set-up block changed");
        }
    }
}

pub use config::{ConnOptions, NodeConfig, NodeError, REPLY_HEADER_BYTES_MAX, SubmitError};
pub use event::{ConnId, Event, NamedReads, RequestId, Short};
pub use loan::Loan;
pub use node::{Node, incoming_private_data};
#[cfg(feature = "planted")]
pub use planted::{Defect, plant};
pub use references::ReferenceQuota;
pub use service::AtOnce;
pub use stats::{Counters, NodeStats};
