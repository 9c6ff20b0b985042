//! How a connection becomes part of a session: hello, proof, session create or bind.
//!
//! One round trip where the kernel vouches for the peer; two where a pre-shared key does:
//! `Hello` → `Challenge` → `Prove` → `Ready`. Both ends prove the key (`Ready.proof`). The reply
//! to a bind is sent only when all work of the session's broken connections is quiescent.

use crate::handle::{ClientId, SessionId, WriteVerifier};
use crate::status::Status;

/// Both ends must have the same one in 0.x.
pub const PROTOCOL_VERSION: u32 = 5;
/// Bytes of the text of a refusal.
pub const REFUSAL_BYTES_MAX: usize = 200;
/// A nonce of the challenge.
pub type Nonce = [u8; 32];
/// HMAC-SHA256 over role, both nonces and the session wish.
pub type Proof = [u8; 32];
/// Known to client and server of one session only; a bind must show it.
pub type SessionSecret = [u8; 16];

/// How an end waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum WaitMode {
    /// Spin for a budget that adapts, then sleep.
    #[default]
    Adaptive = 0,
    /// Never sleep while a session wants this.
    Polled = 1,
    /// Sleep at once.
    Sleeping = 2,
}

/// Which requests a connection is for, so that bulk does not delay small ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum SizeClass {
    /// All (the only connection).
    #[default]
    Any = 0,
    /// Requests that move little data.
    Small = 1,
    /// Requests that move much.
    Bulk = 2,
}

/// What a client wishes and a server grants (the smaller of both; \[IB-DAFS\] IV.B.2: attributes
/// are chosen at set-up and can be queried).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionAttr {
    /// Requests under way.
    pub slots: u16,
    /// Bytes of data of one request, each way.
    pub data_bytes_max: u32,
    /// Data up to this goes beside the header.
    pub inline_bytes: u32,
    /// How the server should wait while this session is busy.
    pub wait: WaitMode,
    /// Milliseconds of silence after which the server forgets the session (granted only).
    pub lease_ms: u32,
    /// Replies carry tagged data (the transport matches tags).
    pub tagged: bool,
    /// The server may fetch request data by RDMA read.
    pub rdma_read: bool,
    /// The server reads ahead for the session's files.
    pub read_ahead: bool,
}

impl SessionAttr {
    /// What a server with these `limits` grants to a `wish`: the smaller of both. The lease is
    /// the server's; a server that sleeps at once does not spin because a client wishes so.
    pub fn agree(wish: &SessionAttr, limits: &SessionAttr) -> SessionAttr {
        SessionAttr {
            slots: wish.slots.clamp(1, limits.slots.max(1)),
            data_bytes_max: wish.data_bytes_max.min(limits.data_bytes_max),
            inline_bytes: wish.inline_bytes.min(limits.inline_bytes),
            wait: if limits.wait == WaitMode::Sleeping { limits.wait } else { wish.wait },
            lease_ms: limits.lease_ms,
            tagged: wish.tagged && limits.tagged,
            rdma_read: wish.rdma_read && limits.rdma_read,
            read_ahead: wish.read_ahead && limits.read_ahead,
        }
    }
}

/// What the connection is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Makes a session; this is its first connection.
    Create {
        /// The wish.
        attr: SessionAttr,
        /// Whose session it is.
        client: ClientId,
    },
    /// Joins (or, after a break, replaces) a connection of a session.
    Bind {
        /// Which session.
        session: SessionId,
        /// Shown to prove that it is ours.
        secret: SessionSecret,
    },
}

/// First messages of a client on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetupRequest {
    /// The very first.
    Hello {
        /// [`PROTOCOL_VERSION`].
        version: u32,
        /// Random.
        nonce: Nonce,
        /// Size class of this connection.
        class: SizeClass,
        /// The client has a key: the server must prove that it has the same one, also where
        /// the kernel vouches for the client.
        keyed: bool,
        /// Session create or bind.
        purpose: Purpose,
    },
    /// Answers a challenge.
    Prove {
        /// See [`crate::proof_input`].
        proof: Proof,
    },
}

/// The server's answers to them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetupReply {
    /// The connection is part of the session.
    Ready {
        /// The session.
        session: SessionId,
        /// For later binds.
        secret: SessionSecret,
        /// What was granted.
        attr: SessionAttr,
        /// Changes with each start of the server.
        verifier: WriteVerifier,
        /// The server's proof, where a key is used.
        proof: Option<Proof>,
        /// Under whose uid the session acts, for messages to people.
        uid: u32,
    },
    /// Prove the key.
    Challenge {
        /// Random.
        nonce: Nonce,
    },
    /// No.
    Refused {
        /// Why, for programs.
        status: Status,
        /// Why, for people. At most 200 bytes.
        text: String,
    },
}

/// What a proof is an HMAC of: `role` is `b'C'` or `b'S'`.
pub fn proof_input(role: u8, client: &Nonce, server: &Nonce, purpose: &Purpose) -> Vec<u8> {
    let mut bytes = vec![role];
    bytes.extend_from_slice(client);
    bytes.extend_from_slice(server);
    match purpose {
        Purpose::Create { attr, client } => {
            bytes.push(1);
            bytes.extend_from_slice(&client.0);
            crate::codec::setup::put_session_attr(&mut bytes, attr);
        }
        Purpose::Bind { session, .. } => {
            bytes.push(2);
            bytes.extend_from_slice(&session.0);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: SessionAttr = SessionAttr {
        slots: 64,
        data_bytes_max: 4 << 20,
        inline_bytes: 4096,
        wait: WaitMode::Adaptive,
        lease_ms: 30_000,
        tagged: true,
        rdma_read: false,
        read_ahead: true,
    };

    #[test]
    fn the_smaller_of_both_is_granted() {
        let wish = SessionAttr {
            slots: 1000,
            data_bytes_max: 1 << 20,
            inline_bytes: 1 << 16,
            wait: WaitMode::Polled,
            lease_ms: 1,
            tagged: false,
            rdma_read: true,
            read_ahead: true,
        };
        let granted = SessionAttr::agree(&wish, &LIMITS);
        let expected = SessionAttr {
            slots: 64,
            data_bytes_max: 1 << 20,
            inline_bytes: 4096,
            wait: WaitMode::Polled,
            lease_ms: 30_000,
            tagged: false,
            rdma_read: false,
            read_ahead: true,
        };
        assert_eq!(granted, expected);
    }

    #[test]
    fn a_session_has_a_slot() {
        let wish = SessionAttr { slots: 0, ..LIMITS };
        assert_eq!(SessionAttr::agree(&wish, &LIMITS).slots, 1);
        assert_eq!(SessionAttr::agree(&LIMITS, &wish).slots, 1);
    }

    #[test]
    fn a_sleeping_server_stays_one() {
        let (wish, limits) = (
            SessionAttr { wait: WaitMode::Polled, ..LIMITS },
            SessionAttr { wait: WaitMode::Sleeping, ..LIMITS },
        );
        assert_eq!(SessionAttr::agree(&wish, &limits).wait, WaitMode::Sleeping);
    }

    #[test]
    fn a_proof_covers_role_nonces_and_wish() {
        let (a, b) = ([1; 32], [2; 32]);
        let create = |slots| {
            let attr = SessionAttr { slots, ..LIMITS };
            Purpose::Create { attr, client: ClientId([5; 16]) }
        };
        let bind = Purpose::Bind { session: SessionId([3; 16]), secret: [4; 16] };
        let inputs = [
            proof_input(b'C', &a, &b, &create(1)),
            proof_input(b'S', &a, &b, &create(1)),
            proof_input(b'C', &b, &a, &create(1)),
            proof_input(b'C', &a, &b, &create(2)),
            proof_input(b'C', &a, &b, &bind),
        ];
        for (index, input) in inputs.iter().enumerate() {
            assert!(!inputs[index + 1..].contains(input));
        }
    }
}
