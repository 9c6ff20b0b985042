//! `shm`: the network of one host, at the cost of a copy.
//!
//! A queue pair is a Unix socket, two rings of messages in memory that both processes map (`ring`), and what
//! each end lets the other reach: files in memory that it maps (`peer_memory`), and a table that says which
//! parts of them are registered (`memory_region`). Who asks for one-sided access does it by itself: it looks
//! into the peer's table and copies. The socket carries the handshake (`connection`), descriptors, a byte for
//! a peer that sleeps, and the end.
//!
//! Addresses are `shm:/path`, a socket in a directory, and `shm:@TOKEN`, an abstract name made of 16 bytes
//! that both ends know and prove to each other (`target`, `wire`).
//!
//! A mapping is a right: whom a device tells of its memory can touch all of the file in which a registered
//! part lies. So it tells only peers that could do that anyway or that were chosen: processes of its own user
//! and of root, and servers that a client trusts. Of what peers write nothing is believed: each word is
//! loaded once, checked, then used.

#![deny(missing_docs, unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod admitted;
mod bell;
mod connection;
mod device;
mod engine;
mod memory_region;
mod peer;
mod peer_memory;
mod peer_socket;
mod queue_pair;
mod refused;
mod ring;
mod shared;
mod slots;
#[allow(unsafe_code)]
mod sys;
mod target;
mod waiter;
mod wire;

pub use device::ShmProvider;
#[cfg(test)]
mod tests;
