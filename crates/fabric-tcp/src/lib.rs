//! `tcp`: a software RDMA NIC over TCP and Unix stream sockets.
//!
//! A queue pair is a stream socket. Work requests are cut into frames of at most 64 KiB
//! (`frame`) which interleave, so that a large transfer never blocks a small request
//! (`send`). Payload goes from the socket to its final place and leaves from where it is, by
//! scatter and gather (`receive`, `sys`). A protection table checks every access of a peer
//! (`memory_region`); a refused one is answered by a fault, and the queue pair lives on.
//!
//! Addresses are `tcp://HOST:PORT` and `unix:/path`. To one of loopback a client says nothing before
//! it knows who listens there (`target`, `owner`).
//!
//! Beside the files that every provider has there are `frame` (the wire); `requests`, `tags`, `send` and
//! `receive_side` (what a queue pair holds); `flush`, `receive` and `receive_prediction`, `deliver` (how
//! bytes leave, how they come, what they mean), `scatter_gather` (shared by them); `core` (what the queue
//! pairs of an engine share), `progress` and `turns` (whose turn it is);
//! `hardware` (the interfaces of this machine, for people).
//!
//! Where it is simpler than hardware, on purpose:
//! * An RDMA write completes when the peer acknowledged it, because only then it is known that
//!   the access was allowed. Its buffers are free then, at the latest.
//! * Messages that fit one frame go before larger ones, and messages of up to 1 MiB are not torn
//!   apart by others of the same lane: eight answers of 1 MiB then arrive one by one, not all
//!   late. Larger ones take turns of 1 MiB.

#![deny(missing_docs, unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod connection;
mod core;
mod deliver;
mod device;
mod engine;
mod flush;
mod frame;
mod hardware;
mod memory_region;
mod named;
mod named_asks;
mod owner;
mod progress;
mod queue_pair;
mod receive;
mod receive_prediction;
mod receive_side;
mod requests;
mod scatter_gather;
mod send;
mod shared;
#[allow(unsafe_code)]
mod sys;
mod tags;
mod target;
mod turns;

pub use device::TcpProvider;
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod tests;
