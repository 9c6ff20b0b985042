//! The SAN adaption layer: one vocabulary of queue pairs, memory regions and completions for
//! every direct-access network (\[SAN\] II, \[IB-DAFS\] V).
//!
//! * [`mem`]: memory that a network may touch: [`Arena`], [`Span`], [`Buffer`].
//! * [`Provider`], [`Device`], [`Listener`], [`Engine`]: what a transport offers.
//! * [`Domain`]: the open devices of a process and the memory that they are to know.
//! * [`DeviceAttr`]: what it can do, as data. Callers read the data, never a provider's name.
//!
//! # What a completion means
//!
//! A completion at the initiator says that the local buffers of that work request are the
//! caller's again. It never says that the data is visible at the target, unless
//! [`DeviceAttr`] promises so. Nobody learns of data by polling memory: a write is announced by
//! a following send. After a broken connection all posted work comes back with
//! [`Status::Flushed`], and [`QueuePairEvent::Quiescent`] says that the transport has left all
//! memory of that queue pair. Nothing may be reused before.

#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod accept;
mod completion_queue;
pub mod conformance;
pub mod descriptors;
mod domain;
mod engine;
pub mod epoll;
mod error;
mod fifo;
pub mod hazard;
pub mod local;
pub mod mem;
#[cfg_attr(not(feature = "planted"), allow(unreachable_pub))]
mod planted;
pub mod poison;
mod receive_queue;
pub mod sim;
mod spin;
mod sys;
mod threads;
mod types;
pub mod units;
mod waiters;

pub use completion_queue::CompletionQueue;
pub use domain::{Domain, ProtectionDomain, Providers, READABLE_MAX};
pub use engine::{Device, Engine, Listener, Provider, Waiter};
pub use error::{ArenaError, ConnectError, OpenError, PostError, RegisterError};
pub use fifo::Fifo;
pub use mem::{
    Anchor, Arena, Buffer, MemoryRegion, Piece, PoolPiece, PostedBuffer, Readers, Row, SharedFile,
    SharedPart, SharedPool, Span, Views, Word, Words,
};
#[cfg(feature = "planted")]
pub use planted::{Defect, plant};
pub use receive_queue::{PostedReceive, ReceiveQueue};
pub use spin::Spin;
pub use sys::FileMap;
pub use types::*;
pub use waiters::join_waiters;
