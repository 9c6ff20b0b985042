//! Records of fixed sizes, each with a checksum, as they stand in the file of the log.

use dafs_protocol::{ClientId, RequestOutcome, SessionId, Status};

use crate::locks::Client;

/// Bytes of every record.
pub(super) const RECORD_BYTES: usize = 64;

/// Of a file of this layout: with intents.
const HEAD: [u8; 4] = *b"DAF2";

/// A record as bytes.
pub(super) type Bytes = [u8; RECORD_BYTES];

/// Bytes of a checksum, which stands last.
const SUM_BYTES: usize = 8;

/// What stands first in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// The run of the machine.
    pub machine: [u8; 8],
    /// Slots of each place.
    pub slots: u16,
}

/// What stands first in a place: whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub session: SessionId,
    pub client: Client,
    /// When a server found that the session had ended, in milliseconds of the machine's run;
    /// 0: it is alive, or ended with its server.
    pub ended: u64,
}

/// The last logged request of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    /// What an earlier session left in the place is none of this one's.
    pub session: SessionId,
    pub sequence: u32,
    /// [`RequestOutcome::Begun`] or [`RequestOutcome::Done`].
    pub request_outcome: RequestOutcome,
}

/// What stands in the place of a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found<T> {
    Nothing,
    Damaged,
    Record(T),
}

impl Head {
    pub(super) fn encode(&self) -> Bytes {
        let mut body = Body::new(HEAD);
        body.put(self.machine);
        body.put(self.slots.to_le_bytes());
        body.end()
    }

    pub(super) fn decode(bytes: &Bytes) -> Found<Head> {
        decode(bytes, HEAD, |body| {
            Some(Head { machine: body.take()?, slots: u16::from_le_bytes(body.take()?) })
        })
    }
}

impl Owner {
    pub(super) fn encode(&self) -> Bytes {
        let mut body = Body::new(*b"sess");
        body.put(self.session.0);
        body.put(self.client.id.0);
        body.put(self.client.uid.to_le_bytes());
        body.put(self.ended.to_le_bytes());
        body.end()
    }

    pub(super) fn decode(bytes: &Bytes) -> Found<Owner> {
        decode(bytes, *b"sess", |body| {
            let session = SessionId(body.take()?);
            let id = ClientId(body.take()?);
            let client = Client { id, uid: u32::from_le_bytes(body.take()?) };
            Some(Owner { session, client, ended: u64::from_le_bytes(body.take()?) })
        })
    }
}

impl Record {
    pub(super) fn encode(&self) -> Bytes {
        let mut body = Body::new(*b"slot");
        body.put(self.session.0);
        body.put(self.sequence.to_le_bytes());
        if let RequestOutcome::Done { operations, status, value, created } = self.request_outcome {
            body.put([1 + u8::from(created)]);
            body.put(operations.to_le_bytes());
            body.put(status.err().map_or(0, Status::code).to_le_bytes());
            body.put(value.to_le_bytes());
        }
        body.end()
    }

    pub(super) fn decode(bytes: &Bytes) -> Found<Record> {
        decode(bytes, *b"slot", |body| {
            let session = SessionId(body.take()?);
            let sequence = u32::from_le_bytes(body.take()?);
            let request_outcome = match body.take()? {
                [0] => RequestOutcome::Begun,
                [done @ (1 | 2)] => {
                    let operations = u16::from_le_bytes(body.take()?);
                    let status = match u32::from_le_bytes(body.take()?) {
                        0 => Ok(()),
                        code => Err(Status::from_code(code)),
                    };
                    let value = u64::from_le_bytes(body.take()?);
                    RequestOutcome::Done { operations, status, value, created: done == 2 }
                }
                _ => return None,
            };
            Some(Record { session, sequence, request_outcome })
        })
    }
}

/// A record of `N` bytes that grows, or is read. Four letters say its kind.
pub(super) struct Body<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Body<N> {
    pub(super) fn new(kind: [u8; 4]) -> Body<N> {
        let mut body = Body { bytes: [0; N], at: 0 };
        body.put(kind);
        body
    }

    pub(super) fn put<const M: usize>(&mut self, value: [u8; M]) {
        self.put_all(&value);
    }

    pub(super) fn put_all(&mut self, value: &[u8]) {
        let place = self.bytes.get_mut(self.at..self.at + value.len());
        // not payload: fields of a record
        place.expect("records have room for their fields").copy_from_slice(value);
        self.at += value.len();
    }

    pub(super) fn take<const M: usize>(&mut self) -> Option<[u8; M]> {
        self.take_all(M)?.first_chunk().copied()
    }

    pub(super) fn take_all(&mut self, len: usize) -> Option<&[u8]> {
        let value = self.bytes.get(self.at..self.at + len)?;
        self.at += len;
        Some(value)
    }

    pub(super) fn end(mut self) -> [u8; N] {
        let sum = checksum(&self.bytes);
        self.at = N - SUM_BYTES;
        self.put(sum.to_le_bytes());
        self.bytes
    }
}

pub(super) fn decode<T, const N: usize>(
    bytes: &[u8; N],
    kind: [u8; 4],
    read: impl FnOnce(&mut Body<N>) -> Option<T>,
) -> Found<T> {
    if *bytes == [0; N] {
        return Found::Nothing;
    }
    let sum = bytes.last_chunk().map(|sum| u64::from_le_bytes(*sum));
    let mut body = Body { bytes: *bytes, at: 0 };
    if sum != Some(checksum(bytes)) || body.take() != Some(kind) {
        return Found::Damaged;
    }
    read(&mut body).map_or(Found::Damaged, Found::Record)
}

/// FNV-1a over the body, a word at a time: against torn and foreign bytes, not against malice.
fn checksum(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<SUM_BYTES>();
    words.iter().take(words.len() - 1).fold(0xcbf2_9ce4_8422_2325, |sum, word| {
        let mixed = (sum ^ u64::from_le_bytes(*word)).wrapping_mul(0x0000_0100_0000_01b3);
        // High bits of a word would not reach the low ones of the product.
        mixed ^ (mixed >> 29)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionId = SessionId([7; 16]);

    fn done(status: Result<(), Status>, created: bool) -> Record {
        let request_outcome =
            RequestOutcome::Done { operations: 3, status, value: u64::MAX - 1, created };
        Record { session: SESSION, sequence: u32::MAX, request_outcome }
    }

    #[test]
    fn records_survive_and_damage_shows() {
        let begun =
            Record { session: SESSION, sequence: 9, request_outcome: RequestOutcome::Begun };
        for record in [begun, done(Ok(()), true), done(Ok(()), false), done(Err(Status::Io), false)]
        {
            let bytes = record.encode();
            assert_eq!(Record::decode(&bytes), Found::Record(record));
            for bit in 0..8 * RECORD_BYTES {
                let mut bytes = bytes;
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Record::decode(&bytes), Found::Damaged, "bit {bit}");
            }
        }
        assert_eq!(Record::decode(&[0; RECORD_BYTES]), Found::Nothing);
    }

    #[test]
    fn a_record_is_of_one_kind() {
        let client = Client { id: ClientId([1; 16]), uid: 3 };
        let owner = Owner { session: SESSION, client, ended: 5 };
        let head = Head { machine: [2; 8], slots: 64 };
        assert_eq!(Owner::decode(&owner.encode()), Found::Record(owner));
        assert_eq!(Head::decode(&head.encode()), Found::Record(head));
        assert_eq!(Record::decode(&owner.encode()), Found::Damaged);
        assert_eq!(Owner::decode(&head.encode()), Found::Damaged);
    }
}
