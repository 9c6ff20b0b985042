//! What a node tells its owner, and the names it uses for connections and requests.

use std::fmt;

use dafs_fabric::NamedAsk;

/// Of [`CONNECTIONS_MAX`](crate::work::CONNECTIONS_MAX).
const SLOT_BITS: u32 = 24;
const _: () = assert!(crate::work::CONNECTIONS_MAX == 1 << SLOT_BITS, "a place for each");

/// A connection of one node. Numbers carry a generation: a stale one is recognized.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId {
    /// Of the port (upper 8 bits), and the place of the connection there.
    index: u32,
    generation: u32,
}

impl ConnId {
    /// The connection in place `slot` of a port.
    pub(crate) fn new(port: u8, slot: u32, generation: u32) -> ConnId {
        ConnId { index: u32::from(port) << SLOT_BITS | slot, generation }
    }

    /// Which port of its node it goes by.
    #[inline]
    pub(crate) fn port(self) -> usize {
        (self.index >> SLOT_BITS) as usize
    }

    /// Its place there.
    #[inline]
    pub(crate) fn slot(self) -> u32 {
        self.index & ((1 << SLOT_BITS) - 1)
    }

    /// As one number, for tables and logs.
    pub fn as_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }
}

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// A request of a peer, in service here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId {
    pub(crate) conn: ConnId,
    pub(crate) tag: u32,
}

impl RequestId {
    /// The connection on which it came.
    pub fn conn(self) -> ConnId {
        self.conn
    }
}

/// What [`Node::next_short`](crate::Node::next_short) gives: an event with a short header, which is where the
/// message was received.
#[derive(Debug, Clone, Copy)]
pub enum Short {
    /// [`Event::Request`] without data.
    Request {
        /// As of that.
        id: RequestId,
        /// As of that.
        reply_max: u32,
    },
    /// [`Event::Reply`].
    Reply {
        /// As of that.
        conn: ConnId,
        /// As of that.
        tag: u32,
        /// As of that.
        data_len: u32,
    },
}

impl Short {
    /// The same with its header.
    pub fn with_header(self, header: Vec<u8>) -> Event {
        match self {
            Short::Request { id, reply_max } => {
                Event::Request { id, header, data_len: 0, reply_max, pushed: false }
            }
            Short::Reply { conn, tag, data_len } => Event::Reply { conn, tag, header, data_len },
        }
    }
}

/// Named reads of peers, which came by one port.
#[derive(Debug, Default)]
pub struct NamedReads {
    pub(crate) port: usize,
    pub(crate) asks: Vec<NamedAsk>,
}

impl NamedReads {
    /// Those of a connection in their order. Nothing in them is to be believed.
    pub fn asks(&self) -> &[NamedAsk] {
        &self.asks
    }
}

/// What [`Node::next_event`](crate::Node::next_event) gives.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A connection that was begun by [`connect`](crate::Node::connect) stands.
    Connected {
        /// Which.
        conn: ConnId,
        /// What the peer gave to `accept`.
        private_data: Vec<u8>,
    },
    /// A connection was not made; its number is free.
    Refused {
        /// Which.
        conn: ConnId,
        /// True where nobody listens, as opposed to rejected, timed out, unreachable.
        refused: bool,
        /// For people.
        reason: String,
    },
    /// A peer asks. Its data, if any, comes with [`fetch`](crate::Node::fetch).
    Request {
        /// To be given to `fetch` and `reply`.
        id: RequestId,
        /// The caller's header; give it back with [`recycle`](crate::Node::recycle).
        header: Vec<u8>,
        /// Bytes of request data.
        data_len: u32,
        /// Bytes of reply data for which the peer has room.
        reply_max: u32,
        /// Its data is in the path, and stops what is behind it until it is fetched or replied.
        pushed: bool,
    },
    /// A fetch ended; once for each `fetch`. The pages are the caller's again.
    Fetched {
        /// Which request.
        id: RequestId,
        /// Bytes that were placed, from the beginning of what was given to `fetch`: all of the
        /// request's data. `None`: the connection broke or the peer misbehaved, and what the
        /// memory holds is undefined.
        placed: Option<u32>,
    },
    /// A reply left, or never will: the memory of its data is the caller's again. Once for each
    /// reply with data, and for each of [`reply_told`](crate::Node::reply_told). Comes before events of
    /// other kinds, also those that happened earlier.
    ReplySent {
        /// As given to `reply`.
        token: u64,
    },
    /// The peer answered; all memory of the request is the caller's again.
    Reply {
        /// The connection.
        conn: ConnId,
        /// As given to `submit`.
        tag: u32,
        /// The responder's header; give it back with [`recycle`](crate::Node::recycle).
        header: Vec<u8>,
        /// Bytes that were put into `reply_into`, from its beginning.
        data_len: u32,
    },
    /// A named read ended; its memory is the caller's again.
    NamedRead {
        /// The connection.
        conn: ConnId,
        /// As given to [`read_named`](crate::Node::read_named).
        tag: u32,
        /// Bytes that were put there, from its beginning. `None`: the peer has not what was named, or does not
        /// give it.
        bytes: Option<u32>,
    },
    /// All memory of an abandoned request is the caller's again.
    Abandoned {
        /// The connection.
        conn: ConnId,
        /// As given to `submit`.
        tag: u32,
    },
    /// The connection is gone. Requests without an answer get none; their memory is held until
    /// `Quiescent`.
    Disconnected {
        /// Which.
        conn: ConnId,
        /// For people.
        reason: String,
        /// The peer broke the rules, and was disconnected for it.
        peer_fault: bool,
    },
    /// The transport has left all memory of this connection, and its number is free. Comes last,
    /// after `Fetched`, `ReplySent` and `Abandoned` of what was still open.
    Quiescent {
        /// Which.
        conn: ConnId,
    },
}
