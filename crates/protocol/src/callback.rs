//! Callbacks: what a server asks a client, on slots of their own.
//!
//! A callback names the request it belongs to where its reply may still be on its way
//! (*referring call*): the client takes the reply first. It is sent again after a break until it
//! is answered; the client does it once.

use crate::handle::SlotId;
use crate::lock::LockTicket;
use crate::status::Status;

/// Callbacks under way per session.
pub const CALLBACK_SLOTS: u16 = 4;

/// A callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallbackRequest {
    /// The callback slot, below [`CALLBACK_SLOTS`].
    pub slot: SlotId,
    /// The sequence on it; the first is 1, the same one is the same callback.
    pub sequence: u32,
    /// The request whose reply comes first.
    pub referring: Option<(SlotId, u32)>,
    /// What it says.
    pub what: Callback,
}

/// What a callback says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Callback {
    /// Is anybody there?
    Null,
    /// A wait for a lock is over.
    Lock {
        /// Which.
        ticket: LockTicket,
        /// Granted, or why not.
        result: Result<(), Status>,
    },
}

/// The client's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallbackReply {
    /// Echo.
    pub slot: SlotId,
    /// Echo.
    pub sequence: u32,
    /// NOENT: the client does not know that ticket.
    pub result: Result<(), Status>,
}
