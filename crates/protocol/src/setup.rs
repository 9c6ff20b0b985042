//! How a connection becomes part of a session: hello, proof, session create or bind.
//!
//! One round trip where the kernel vouches for the peer; two where a pre-shared key does:
//! `Hello` → `Challenge` → `Prove` → `Ready`. Both ends prove the key (`Ready.proof`). The reply
//! to a bind is sent only when all work of the session's broken connections is quiescent.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::handle::{ClientId, SessionId, WriteVerifier};
use crate::status::Status;

/// The newest version that this end speaks. A new one is for what older ends would take wrongly; what
/// they can ignore, or never see unless they ask for it, is a bit of [`Features`].
pub const PROTOCOL_VERSION: u32 = 6;
/// The oldest version that this end speaks.
pub const PROTOCOL_VERSION_OLDEST: u32 = 6;
/// Addresses that a [`SetupReply::Ready`] tells.
pub const ADDRESSES_MAX: usize = 8;
/// Bytes of one of them.
pub const ADDRESS_BYTES_MAX: usize = 128;
/// Bytes of the text of a refusal.
pub const REFUSAL_BYTES_MAX: usize = 200;
/// A nonce of the challenge.
pub type Nonce = [u8; 32];
/// HMAC-SHA256 of what [`KeyHandshake`] says.
pub type Proof = [u8; 32];
/// Names a server to clients of its host, who find it by that at networks of the host alone: random, another
/// one after each start, and told to nobody else.
pub type SameHostToken = [u8; 16];
/// Known to client and server of one session only; a bind must show it.
pub type SessionSecret = [u8; 16];

/// Parts of the protocol that one end may have and another not, a bit each. An end uses what both have
/// said; bits that it does not know mean nothing to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features(pub u64);

impl Features {
    /// The server tells by REFS_GET where blocks are in its cache.
    pub const REFERENCES: Features = Features(1);
    /// REFS_GET answers with a named reference where the network takes names, and the client reads by it.
    pub const NAMED_REFERENCES: Features = Features(2);
    /// The server shows what clients tell of their own reads ([`ToldReads`](crate::ToldReads)).
    pub const TOLD_READS: Features = Features(4);
    /// Those of this end.
    pub const OURS: Features =
        Features(Features::REFERENCES.0 | Features::NAMED_REFERENCES.0 | Features::TOLD_READS.0);

    /// Has all that are asked for.
    pub fn has(self, asked: Features) -> bool {
        self.and(asked) == asked
    }

    /// Those but these.
    #[must_use]
    pub fn without(self, these: Features) -> Features {
        Features(self.0 & !these.0)
    }

    /// Those that both ends have.
    #[must_use]
    pub fn and(self, other: Features) -> Features {
        Features(self.0 & other.0)
    }
}

/// The version that two ends speak with each other: the newest of both. `None`: there is none.
pub fn agreed_version(newest: u32, oldest: u32) -> Option<u32> {
    let version = newest.min(PROTOCOL_VERSION);
    (version >= oldest && version >= PROTOCOL_VERSION_OLDEST).then_some(version)
}

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
    /// the server's; it never spins longer than its limit says because a client wishes so.
    pub fn agree(wish: &SessionAttr, limits: &SessionAttr) -> SessionAttr {
        SessionAttr {
            slots: wish.slots.clamp(1, limits.slots.max(1)),
            data_bytes_max: wish.data_bytes_max.min(limits.data_bytes_max),
            inline_bytes: wish.inline_bytes.min(limits.inline_bytes),
            wait: match (limits.wait, wish.wait) {
                (WaitMode::Polled, wish) => wish,
                (WaitMode::Adaptive, WaitMode::Polled) => WaitMode::Adaptive,
                (WaitMode::Adaptive, wish) => wish,
                (WaitMode::Sleeping, _) => WaitMode::Sleeping,
            },
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
        /// The newest version that the client speaks.
        version: u32,
        /// The oldest.
        oldest: u32,
        /// What it has.
        features: Features,
        /// Grows with each attempt of this client to connect: what an attempt that the client has given
        /// up says late must not take the place of what came after it.
        attempt: u64,
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
        /// Where the client believes the server to be.
        dialled: Dialled,
        /// See [`KeyHandshake::client_input`].
        proof: Proof,
    },
}

impl SetupRequest {
    /// A hello of this end, with its versions and features; the first attempt.
    pub fn hello(nonce: Nonce, class: SizeClass, keyed: bool, purpose: Purpose) -> SetupRequest {
        SetupRequest::Hello {
            version: PROTOCOL_VERSION,
            oldest: PROTOCOL_VERSION_OLDEST,
            features: Features::OURS,
            attempt: 1,
            nonce,
            class,
            keyed,
            purpose,
        }
    }
}

/// The server's answers to them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetupReply {
    /// The connection is part of the session.
    Ready {
        /// Spoken from here on; see [`agreed_version`].
        version: u32,
        /// Those that both ends have.
        features: Features,
        /// The session.
        session: SessionId,
        /// For later binds.
        secret: SessionSecret,
        /// What was granted.
        attr: SessionAttr,
        /// Changes with each start of the server.
        verifier: WriteVerifier,
        /// The server's proof, where a key is used: see [`KeyHandshake::server_input`].
        proof: Option<Proof>,
        /// Under whose uid the session acts, for messages to people.
        uid: u32,
        /// Where the server listens, as it calls these places: at most [`ADDRESSES_MAX`], of
        /// [`ADDRESS_BYTES_MAX`] bytes without control characters each.
        addresses: Vec<String>,
        /// To a client of the server's host: it may come by a network of this host alone, where it finds
        /// the server by this.
        same_host: Option<SameHostToken>,
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
        /// As of [`Ready`](Self::Ready), where the client has proven the key: that it is the server
        /// who says so.
        proof: Option<Proof>,
    },
}

/// The address of the server that a client has dialled, as an IPv6 address and a port; all zero where
/// it is none of TCP. Proofs cover it, so that nobody at another address can pass them on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dialled(pub [u8; 18]);

impl From<SocketAddr> for Dialled {
    fn from(address: SocketAddr) -> Dialled {
        let ip = match address.ip().to_canonical() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let mut bytes = [0; 18];
        bytes[..16].copy_from_slice(&ip.octets());
        bytes[16..].copy_from_slice(&address.port().to_be_bytes());
        Dialled(bytes)
    }
}

impl fmt::Display for Dialled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Dialled::default() {
            return f.write_str("no TCP address");
        }
        let (ip, port) = self.0.split_at(16);
        let ip = ip.first_chunk().map_or(Ipv6Addr::UNSPECIFIED, |ip| Ipv6Addr::from(*ip));
        let port = port.first_chunk().map_or(0, |port| u16::from_be_bytes(*port));
        SocketAddr::new(IpAddr::V6(ip).to_canonical(), port).fmt(f)
    }
}

/// What both ends say before a key is proven, and what the proofs cover. As bytes, so that what one end
/// does not know is covered too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyHandshake {
    /// The client's first message, whole.
    pub hello: Vec<u8>,
    /// The nonce of the server's challenge.
    pub server: Nonce,
    /// Where the client believes the server to be.
    pub dialled: Dialled,
}

impl KeyHandshake {
    /// What the client's proof is an HMAC of.
    pub fn client_input(&self) -> Vec<u8> {
        self.input(b'C')
    }

    /// What the server's proof is an HMAC of: also all of its answer before the proof, which is the end
    /// of it ([`add_proof`](crate::add_proof), [`before_proof`](crate::before_proof)).
    pub fn server_input(&self, said: &[u8]) -> Vec<u8> {
        let mut bytes = self.input(b'S');
        bytes.extend_from_slice(said);
        bytes
    }

    fn input(&self, role: u8) -> Vec<u8> {
        let len = u16::try_from(self.hello.len()).unwrap_or(u16::MAX);
        let mut bytes = vec![role];
        bytes.extend_from_slice(&self.dialled.0);
        bytes.extend_from_slice(&self.server);
        // What follows it cannot be taken for a part of it.
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(&self.hello);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: SessionAttr = SessionAttr {
        slots: 64,
        data_bytes_max: 4 << 20,
        inline_bytes: 4096,
        wait: WaitMode::Polled,
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
        let limits = SessionAttr { wait: WaitMode::Adaptive, ..LIMITS };
        assert_eq!(SessionAttr::agree(&wish, &limits).wait, WaitMode::Adaptive);
        let wish = SessionAttr { wait: WaitMode::Sleeping, ..LIMITS };
        assert_eq!(SessionAttr::agree(&wish, &limits).wait, WaitMode::Sleeping);
    }

    fn handshakes() -> Vec<KeyHandshake> {
        let hello = |nonce, class, keyed, purpose| {
            let hello = SetupRequest::hello([nonce; 32], class, keyed, purpose);
            let mut bytes = Vec::new();
            crate::codec::encode_setup_request(&hello, &mut bytes);
            bytes
        };
        let create = |slots| {
            let attr = SessionAttr { slots, ..LIMITS };
            Purpose::Create { attr, client: ClientId([5; 16]) }
        };
        let bind = |secret| Purpose::Bind { session: SessionId([3; 16]), secret: [secret; 16] };
        let (small, bulk) = (SizeClass::Small, SizeClass::Bulk);
        let first = KeyHandshake {
            hello: hello(1, small, true, create(1)),
            server: [2; 32],
            dialled: SocketAddr::from(([10, 0, 0, 1], 7)).into(),
        };
        let with = |hello| KeyHandshake { hello, ..first.clone() };
        vec![
            first.clone(),
            with(hello(2, small, true, create(1))),
            with(hello(1, bulk, true, create(1))),
            with(hello(1, small, false, create(1))),
            with(hello(1, small, true, create(2))),
            with(hello(1, small, true, bind(4))),
            with(hello(1, small, true, bind(5))),
            KeyHandshake { server: [1; 32], ..first.clone() },
            KeyHandshake { dialled: SocketAddr::from(([10, 0, 0, 1], 8)).into(), ..first.clone() },
            KeyHandshake { dialled: SocketAddr::from(([10, 0, 0, 2], 7)).into(), ..first.clone() },
            KeyHandshake { dialled: Dialled::default(), ..first.clone() },
        ]
    }

    #[test]
    fn proofs_cover_role_address_and_all_that_was_said() {
        let ready = |slots, uid| {
            let ready = SetupReply::Ready {
                version: PROTOCOL_VERSION,
                features: Features::OURS,
                session: SessionId([1; 16]),
                secret: [2; 16],
                attr: SessionAttr { slots, ..LIMITS },
                verifier: WriteVerifier::default(),
                proof: None,
                uid,
                addresses: Vec::new(),
                same_host: None,
            };
            let mut bytes = Vec::new();
            crate::codec::encode_setup_reply(&ready, &mut bytes);
            bytes
        };
        let mut inputs = Vec::new();
        for handshake in handshakes() {
            inputs.push(handshake.client_input());
            inputs.push(handshake.server_input(&ready(1, 0)));
            inputs.push(handshake.server_input(&ready(2, 0)));
            inputs.push(handshake.server_input(&ready(1, 1)));
        }
        for (index, input) in inputs.iter().enumerate() {
            assert!(!inputs[index + 1..].contains(input));
        }
    }

    #[test]
    fn proofs_cover_what_this_end_does_not_know() {
        let first = handshakes().swap_remove(0);
        let mut longer = first.clone();
        longer.hello.extend_from_slice(&[1, 0, 0, 0]);
        assert_ne!(first.client_input(), longer.client_input());
        assert_ne!(first.server_input(&[1; 8]), first.server_input(&[2; 8]));
        // All that an answer says but the proof itself.
        let mut bytes = Vec::new();
        let refused =
            SetupReply::Refused { status: Status::WritesLost, text: "x".into(), proof: None };
        crate::codec::encode_setup_reply(&refused, &mut bytes);
        let mut covered = Vec::new();
        crate::codec::add_proof(&mut bytes, |said| {
            covered.extend_from_slice(said);
            [7; 32]
        });
        assert_eq!(crate::codec::before_proof(&bytes), covered);
        let proven = crate::codec::decode_setup_reply(&bytes).expect("a refusal");
        assert!(matches!(proven, SetupReply::Refused { proof: Some([7, ..]), .. }), "{proven:?}");
    }

    #[test]
    fn the_newest_version_of_both_is_spoken() {
        let ours = PROTOCOL_VERSION;
        assert_eq!(agreed_version(ours, ours), Some(ours));
        assert_eq!(agreed_version(ours + 3, PROTOCOL_VERSION_OLDEST), Some(ours));
        assert_eq!(agreed_version(ours + 3, ours + 1), None);
        assert_eq!(agreed_version(PROTOCOL_VERSION_OLDEST - 1, 1), None);
    }

    #[test]
    fn an_address_of_ipv4_is_one_however_it_is_written() {
        let dialled = |text: &str| Dialled::from(text.parse::<SocketAddr>().expect("address"));
        assert_eq!(dialled("[::ffff:10.0.0.1]:7"), dialled("10.0.0.1:7"));
        assert_eq!(dialled("10.0.0.1:7").to_string(), "10.0.0.1:7");
        assert_eq!(dialled("[::1]:7").to_string(), "[::1]:7");
        assert_eq!(Dialled::default().to_string(), "no TCP address");
    }
}
