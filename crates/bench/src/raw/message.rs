//! The 64 bytes in front of everything.

use std::io;

use crate::wait::Wait;

/// Bytes of a message.
pub(super) const MESSAGE_BYTES: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A stretch of measuring begins: `a` = region bytes, `b` = bytes of a write or 0,
    /// `c` = depth, `d` = CPU + 1 or 0.
    Begin,
    /// It ends; answered by `a` = CPU ns so far, `b` = system calls so far.
    End,
    /// Send `b` bytes from `a` on, `c` times one after the other.
    Read,
    /// `b` bytes for `a` follow; answered by 64 bytes.
    Write,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) wait: Wait,
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) c: u64,
    pub(super) d: u64,
}

impl Message {
    pub(super) fn new(kind: Kind, a: u64, b: u64, c: u64) -> Message {
        Message { kind, wait: Wait::Sleeping, a, b, c, d: 0 }
    }

    pub(super) fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = self.wait as u8;
        for (at, value) in [self.a, self.b, self.c, self.d].into_iter().enumerate() {
            bytes[8 + at * 8..16 + at * 8].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8; MESSAGE_BYTES]) -> io::Result<Message> {
        let kinds = [Kind::Begin, Kind::End, Kind::Read, Kind::Write];
        let waits = [Wait::Polled, Wait::Sleeping, Wait::Adaptive];
        let kind = kinds.into_iter().find(|kind| *kind as u8 == bytes[0]);
        let wait = waits.into_iter().find(|wait| *wait as u8 == bytes[1]);
        let (Some(kind), Some(wait)) = (kind, wait) else {
            return Err(violation("unknown message"));
        };
        let mut values = bytes[8..40].chunks_exact(8).map(|chunk| {
            let mut value = [0; 8];
            value.copy_from_slice(chunk);
            u64::from_le_bytes(value)
        });
        let mut next = || values.next().unwrap_or(0);
        Ok(Message { kind, wait, a: next(), b: next(), c: next(), d: next() })
    }
}

pub(super) fn violation(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("raw peer: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_wire() {
        let mut message = Message::new(Kind::Write, 1, u64::MAX, 3);
        message.wait = Wait::Adaptive;
        message.d = 77;
        assert_eq!(Message::decode(&message.encode()).expect("valid"), message);
    }

    #[test]
    fn unknown_kinds_are_refused() {
        let mut bytes = Message::new(Kind::Read, 0, 0, 0).encode();
        bytes[0] = 9;
        assert!(Message::decode(&bytes).is_err());
    }
}
