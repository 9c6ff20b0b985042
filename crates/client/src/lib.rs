//! The client library: sessions, files, directories, blocking and asynchronous calls.
//!
//! A [`Session`] is a connection to one export, shared by threads. Its methods block. Calls with
//! owned buffers ([`Call`]) do not: [`Session::call`] gives a future, [`Session::call_then`] calls back, a
//! [`Group`] collects many.
//! Lost connections are made again and what was under way is asked again, exactly once where
//! that matters; what cannot be known is told as
//! [`OutcomeUnknown`](dafs_protocol::Status::OutcomeUnknown), and lost unstable writes as
//! [`WritesLost`](dafs_protocol::Status::WritesLost), never by silence.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]
// Records of calls are large, and go from queue to slot to answer.
#![allow(clippy::vec_box)]

mod advice;
mod answer;
mod cache;
mod call;
mod callback;
pub mod core;
mod dir;
mod error;
mod file;
mod future;
mod group;
mod handle;
mod handle_calls;
mod hits;
mod interrupt;
mod keep;
mod keeper;
mod leader;
mod lend;
mod loan;
mod memory;
pub mod optimistic;
mod options;
mod planted;
mod reader;
mod session;
mod url;

pub use advice::Advice;
pub use call::{Call, Done, Output};
pub use core::{Advised, KeptMemory, Object, OpenOptions, Opened, SharedBytes};
pub use dir::ReadDir;
pub use error::{Error, Result, SessionError};
pub use file::File;
pub use future::CallFuture;
pub use group::Group;
pub use handle_calls::{Changed, DirAhead};
pub use hits::OptimisticWay;
pub use interrupt::{Interrupt, InterruptGuard};
pub use keep::{FlushAhead, KeptOptions};
pub use lend::Lent;
pub use loan::Loan;
pub use optimistic::OptimisticStats;
pub use options::{
    LocalSocket, OnRetry, ServerUid, SessionOptions, URL_OPTIONS, parse_duration, parse_wait,
};
#[cfg(feature = "planted")]
pub use planted::{Defect, plant};
pub use reader::Reader;
pub use session::{Session, SessionInfo};
pub use url::{DEFAULT_PORT, Url};
