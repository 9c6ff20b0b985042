//! DAFS operations, attributes, handles, status codes, and the sans-io state of sessions.
//!
//! No I/O, no clock, no transport: bytes and events in, bytes and decisions out.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod attr;
mod cache;
mod callback;
mod callback_slots;
mod codec;
mod entry;
mod handle;
mod identity;
mod lock;
pub mod opcode;
mod operation;
mod reference;
mod setup;
mod slots;
mod status;
mod told_reads;

pub use attr::*;
pub use cache::*;
pub use callback::*;
pub use callback_slots::CallbackSlots;
pub use codec::*;
pub use entry::*;
pub use handle::*;
pub use identity::*;
pub use lock::*;
pub use operation::*;
pub use reference::*;
pub use setup::*;
pub use slots::*;
pub use status::Status;
pub use told_reads::ToldReads;
