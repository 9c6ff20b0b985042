//! What the socket carries: messages of a byte that says which, and what belongs to it.
//!
//! | message | from | what |
//! | --- | --- | --- |
//! | hello | client | magic, nonce |
//! | challenge | server | nonce, proof |
//! | offer | client | proof, limits, bytes that it will share at once, private data; the rings |
//! | accept | server | limits, private data; an eventfd by which it is rung, where it has one |
//! | reject | server | a reason |
//! | bell | both | nothing: look at the rings (to who gave no eventfd) |
//! | table | both | the table of regions |
//! | segment | both | number; its file |
//! | forget | both | number of a segment that has ended |
//! | leave | both | nothing: the connection has ended, but its sender still reads what it was lent, until it hangs up |

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

/// What both ends know.
pub type Token = [u8; 16];
/// What makes a proof good for one handshake.
pub type Nonce = [u8; 16];
/// Of knowing the token.
pub type Proof = [u8; 32];

/// The longest message.
pub const MESSAGE_BYTES_MAX: usize = 512;
const MAGIC: [u8; 8] = *b"DAFSshm3";

/// What one end lets the other share with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Files.
    pub segments: u32,
    /// Bytes of them all.
    pub bytes: u64,
}

/// A message without its descriptors.
#[derive(Debug, PartialEq, Eq)]
pub enum Message<'a> {
    Hello(Nonce),
    Challenge(Nonce, Proof),
    Offer(Proof, Limits, u64, &'a [u8]),
    Accept(Limits, &'a [u8]),
    Reject(&'a [u8]),
    Bell,
    Table,
    Segment(u64),
    Forget(u64),
    Leave,
}

impl<'a> Message<'a> {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let limits = |limits: &Limits| {
            let mut bytes = limits.segments.to_le_bytes().to_vec();
            bytes.extend(limits.bytes.to_le_bytes());
            bytes
        };
        let parts: (u8, Vec<u8>, &[u8]) = match self {
            Message::Hello(nonce) => (1, [&MAGIC[..], nonce].concat(), &[]),
            Message::Challenge(nonce, proof) => (2, [&nonce[..], proof].concat(), &[]),
            Message::Offer(proof, l, shares, data) => {
                (3, [&proof[..], &limits(l), &shares.to_le_bytes()].concat(), data)
            }
            Message::Accept(l, data) => (4, limits(l), data),
            Message::Reject(reason) => (5, Vec::new(), reason),
            Message::Bell => (6, Vec::new(), &[]),
            Message::Table => (7, Vec::new(), &[]),
            Message::Segment(number) => (8, number.to_le_bytes().to_vec(), &[]),
            Message::Forget(number) => (9, number.to_le_bytes().to_vec(), &[]),
            Message::Leave => (10, Vec::new(), &[]),
        };
        let (kind, head, tail) = parts;
        [&[kind][..], &head, tail].concat()
    }

    /// `None`: it is no message.
    pub fn decode(bytes: &'a [u8]) -> Option<Message<'a>> {
        let (kind, rest) = bytes.split_first()?;
        Some(match kind {
            1 => {
                let (magic, nonce) = rest.split_first_chunk()?;
                (*magic == MAGIC).then_some(())?;
                Message::Hello(nonce.try_into().ok()?)
            }
            2 => {
                let (nonce, proof) = rest.split_first_chunk()?;
                Message::Challenge(*nonce, proof.try_into().ok()?)
            }
            3 => {
                let (proof, rest) = rest.split_first_chunk()?;
                let (limits, data) = limits_of(rest)?;
                let (shares, data) = data.split_first_chunk()?;
                Message::Offer(*proof, limits, u64::from_le_bytes(*shares), data)
            }
            4 => {
                let (limits, data) = limits_of(rest)?;
                Message::Accept(limits, data)
            }
            5 => Message::Reject(rest),
            6 if rest.is_empty() => Message::Bell,
            7 if rest.is_empty() => Message::Table,
            8 => Message::Segment(u64::from_le_bytes(rest.try_into().ok()?)),
            9 => Message::Forget(u64::from_le_bytes(rest.try_into().ok()?)),
            10 if rest.is_empty() => Message::Leave,
            _ => return None,
        })
    }
}

fn limits_of(bytes: &[u8]) -> Option<(Limits, &[u8])> {
    let (segments, rest) = bytes.split_first_chunk()?;
    let (bytes, rest) = rest.split_first_chunk()?;
    let (segments, bytes) = (u32::from_le_bytes(*segments), u64::from_le_bytes(*bytes));
    Some((Limits { segments, bytes }, rest))
}

/// The ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

fn keyed(token: &Token, side: Side, client: &Nonce, server: &Nonce) -> Hmac<Sha256> {
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(token).expect("any length will do");
    mac.update(&[match side {
        Side::Client => 1,
        Side::Server => 2,
    }]);
    mac.update(client);
    mac.update(server);
    mac
}

/// That `side` knows the token, if there is one.
pub fn prove(token: Option<&Token>, side: Side, client: &Nonce, server: &Nonce) -> Proof {
    token.map_or([0; 32], |token| keyed(token, side, client, server).finalize().into_bytes().into())
}

/// Whether `side` has proved it. Takes the same time whatever is wrong.
pub fn is_proved(
    proof: &Proof,
    token: Option<&Token>,
    side: Side,
    client: &Nonce,
    server: &Nonce,
) -> bool {
    token.is_none_or(|token| keyed(token, side, client, server).verify_slice(proof).is_ok())
}

/// The name of the socket where whoever knows the token finds the other one: it does not tell the token.
pub fn name_of(token: &Token) -> String {
    let hash = Sha256::new().chain_update(b"dafs shm").chain_update(token).finalize();
    let hex: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("dafs-{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_as_they_were_sent() {
        let limits = Limits { segments: 7, bytes: 1 << 33 };
        let all = [
            Message::Hello([1; 16]),
            Message::Challenge([2; 16], [3; 32]),
            Message::Offer([4; 32], limits, 1 << 20, b"who"),
            Message::Accept(limits, b"welcome"),
            Message::Reject(b"full"),
            Message::Bell,
            Message::Table,
            Message::Segment(9),
            Message::Forget(u64::MAX),
            Message::Leave,
        ];
        for message in all {
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes).as_ref(), Some(&message));
            let short = &bytes[..bytes.len() - 1];
            assert_ne!(Message::decode(short).as_ref(), Some(&message));
        }
        assert_eq!(Message::decode(b""), None);
        assert_eq!(Message::decode(&[6, 0]), None);
        assert_eq!(Message::decode(&[1; 25]), None, "another magic");
    }

    #[test]
    fn a_proof_is_of_one_token_one_side_and_one_handshake() {
        let (token, other) = ([1; 16], [2; 16]);
        let (client, server) = ([3; 16], [4; 16]);
        let proof = prove(Some(&token), Side::Client, &client, &server);
        let holds =
            |token, side, client, server| is_proved(&proof, Some(token), side, client, server);
        assert!(holds(&token, Side::Client, &client, &server));
        assert!(!holds(&other, Side::Client, &client, &server));
        assert!(!holds(&token, Side::Server, &client, &server));
        assert!(!holds(&token, Side::Client, &server, &client));
        assert_ne!(name_of(&token), name_of(&other));
        assert_eq!(name_of(&token).len(), "dafs-".len() + 32);
    }
}
