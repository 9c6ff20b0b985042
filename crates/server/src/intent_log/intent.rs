//! What a change is about to do to names, so that the next server can look whether it was done.

use dafs_protocol::{FileHandle, RequestOutcome, SessionId};
use dafs_store::FileId;

use super::record::{self, Body, Found};
use crate::planted::{Defect, planted};

/// Bytes of an intent, after the record of its slot.
pub(super) const INTENT_BYTES: usize = 704;

const NAME_BYTES_MAX: usize = u8::MAX as usize;

/// A name of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    pub dir: FileHandle,
    pub name: Vec<u8>,
}

/// What becomes of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Intent {
    /// This object gets another name in place of this one.
    Rename { object: FileId, from: Name, to: Name },
    /// This object loses a name.
    Remove { object: FileId, from: Name },
    /// This object gets a name, which nothing has.
    Link { object: FileId, to: Name },
    /// Something new gets a name, which nothing has.
    Make { to: Name },
    /// Nothing, since this name is there, or is not.
    Fail { name: Name, there: bool },
}

/// An intent as it is logged: it belongs to the request of this record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Logged {
    pub session: SessionId,
    pub sequence: u32,
    /// Of the request; all others change nothing.
    pub operations: u16,
    pub intent: Intent,
}

/// Tells what a name is of now; the outer `None`: that cannot be told.
pub(crate) type Look<'a> = &'a dyn Fn(&Name) -> Option<Option<FileId>>;

impl Intent {
    /// Whether it was done, by what is there before anybody else changes names: the object that
    /// it made or moved. `None`: that cannot be told.
    fn outcome(&self, look: Look<'_>) -> Option<Option<FileId>> {
        match self {
            Intent::Rename { object, from, to } => match (look(from)?, look(to)?) {
                (old, Some(new)) if new == *object && old != Some(*object) => Some(Some(new)),
                (Some(old), new) if old == *object && new != Some(*object) => Some(None),
                _ => None,
            },
            Intent::Remove { object, from } => match look(from)? {
                None => Some(Some(*object)),
                Some(there) if there == *object => Some(None),
                Some(_) => None,
            },
            Intent::Link { object, to } => match look(to)? {
                None => Some(None),
                Some(there) if there == *object => Some(Some(there)),
                Some(_) => None,
            },
            Intent::Make { to } => look(to),
            Intent::Fail { name, there } => (look(name)?.is_some() == *there).then_some(None),
        }
    }
}

impl Logged {
    /// What became of the request; `None`: that cannot be told.
    pub(super) fn request_outcome(&self, look: Look<'_>) -> Option<RequestOutcome> {
        let mut outcome = self.intent.outcome(look)?;
        if planted(Defect::BegunBelievedDone) {
            outcome = outcome.or(Some(FileId { device: 0, inode: 0 }));
        }
        let Some(object) = outcome else { return Some(RequestOutcome::NotBegun) };
        let tells = matches!(self.intent, Intent::Link { .. } | Intent::Make { .. });
        Some(RequestOutcome::Done {
            operations: self.operations,
            status: Ok(()),
            value: if tells { object.inode } else { 0 },
            created: matches!(self.intent, Intent::Make { .. }),
        })
    }

    /// `None`: a name is too long for any file system.
    pub(super) fn encode(&self) -> Option<[u8; INTENT_BYTES]> {
        let mut body = Body::new(*b"want");
        body.put(self.session.0);
        body.put(self.sequence.to_le_bytes());
        body.put(self.operations.to_le_bytes());
        let (kind, object, names): (u8, _, [Option<&Name>; 2]) = match &self.intent {
            Intent::Rename { object, from, to } => (1, Some(object), [Some(from), Some(to)]),
            Intent::Remove { object, from } => (2, Some(object), [Some(from), None]),
            Intent::Link { object, to } => (3, Some(object), [Some(to), None]),
            Intent::Make { to } => (4, None, [Some(to), None]),
            Intent::Fail { name, there } => (5 + u8::from(*there), None, [Some(name), None]),
        };
        body.put([kind]);
        if let Some(object) = object {
            body.put(object.device.to_le_bytes());
            body.put(object.inode.to_le_bytes());
        }
        for name in names.into_iter().flatten() {
            body.put(name.dir.0);
            body.put([u8::try_from(name.name.len()).ok()?]);
            body.put_all(&name.name);
        }
        Some(body.end())
    }

    pub(super) fn decode(bytes: &[u8; INTENT_BYTES]) -> Found<Logged> {
        record::decode(bytes, *b"want", |body| {
            let session = SessionId(body.take()?);
            let sequence = u32::from_le_bytes(body.take()?);
            let operations = u16::from_le_bytes(body.take()?);
            let object = |body: &mut Body<INTENT_BYTES>| {
                let device = u64::from_le_bytes(body.take()?);
                Some(FileId { device, inode: u64::from_le_bytes(body.take()?) })
            };
            let name = |body: &mut Body<INTENT_BYTES>| {
                let dir = FileHandle(body.take()?);
                let [len] = body.take()?;
                let name = body.take_all(len.into())?.to_vec(); // not payload: a name
                Some(Name { dir, name })
            };
            let intent = match body.take()? {
                [1] => Intent::Rename { object: object(body)?, from: name(body)?, to: name(body)? },
                [2] => Intent::Remove { object: object(body)?, from: name(body)? },
                [3] => Intent::Link { object: object(body)?, to: name(body)? },
                [4] => Intent::Make { to: name(body)? },
                [5] => Intent::Fail { name: name(body)?, there: false },
                [6] => Intent::Fail { name: name(body)?, there: true },
                _ => return None,
            };
            Some(Logged { session, sequence, operations, intent })
        })
    }
}

const _: () = assert!(4 + 16 + 4 + 2 + 1 + 16 + 2 * (64 + 1 + NAME_BYTES_MAX) + 8 <= INTENT_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u8, len: usize) -> Name {
        Name { dir: FileHandle([number; 64]), name: vec![number; len] }
    }

    fn object(inode: u64) -> FileId {
        FileId { device: 3, inode }
    }

    fn logged(intent: Intent) -> Logged {
        Logged { session: SessionId([7; 16]), sequence: 9, operations: 2, intent }
    }

    #[test]
    fn intents_survive_and_damage_shows() {
        let intents = [
            Intent::Rename { object: object(5), from: name(1, 255), to: name(2, 255) },
            Intent::Remove { object: object(5), from: name(1, 1) },
            Intent::Link { object: object(5), to: name(1, 20) },
            Intent::Make { to: name(1, 20) },
            Intent::Fail { name: name(1, 20), there: false },
            Intent::Fail { name: name(1, 20), there: true },
        ];
        for intent in intents {
            let logged = logged(intent);
            let bytes = logged.encode().expect("it fits");
            assert_eq!(Logged::decode(&bytes), Found::Record(logged));
            for at in 0..INTENT_BYTES {
                let mut bytes = bytes;
                bytes[at] ^= 1;
                assert_eq!(Logged::decode(&bytes), Found::Damaged, "byte {at}");
            }
        }
        assert_eq!(logged(Intent::Make { to: name(1, 256) }).encode(), None);
    }

    /// What a look at names 1 and 2 tells, for an intent of object 5.
    fn told(intent: Intent, first: Option<u64>, second: Option<u64>) -> Option<bool> {
        let look = |name: &Name| Some((if name.name[0] == 1 { first } else { second }).map(object));
        let request_outcome = logged(intent).request_outcome(&look)?;
        Some(matches!(request_outcome, RequestOutcome::Done { operations: 2, status: Ok(()), .. }))
    }

    #[test]
    fn what_is_there_tells_what_was_done() {
        let rename = || Intent::Rename { object: object(5), from: name(1, 4), to: name(2, 4) };
        assert_eq!(told(rename(), Some(5), None), Some(false));
        assert_eq!(told(rename(), Some(5), Some(6)), Some(false));
        assert_eq!(told(rename(), None, Some(5)), Some(true));
        assert_eq!(told(rename(), Some(6), Some(5)), Some(true), "exchanged");
        assert_eq!(told(rename(), Some(5), Some(5)), None, "two names of one object");
        assert_eq!(told(rename(), None, None), None);
        assert_eq!(told(rename(), Some(6), Some(7)), None);
        let remove = || Intent::Remove { object: object(5), from: name(1, 4) };
        assert_eq!(told(remove(), None, None), Some(true));
        assert_eq!(told(remove(), Some(5), None), Some(false));
        assert_eq!(told(remove(), Some(6), None), None);
        let link = || Intent::Link { object: object(5), to: name(1, 4) };
        assert_eq!(told(link(), None, None), Some(false));
        assert_eq!(told(link(), Some(5), None), Some(true));
        assert_eq!(told(link(), Some(6), None), None);
        let make = || Intent::Make { to: name(1, 4) };
        assert_eq!(told(make(), None, None), Some(false));
        assert_eq!(told(make(), Some(6), None), Some(true));
        assert_eq!(logged(make()).request_outcome(&|_| None), None);
        let fail = |there| Intent::Fail { name: name(1, 4), there };
        assert_eq!(told(fail(true), Some(6), None), Some(false));
        assert_eq!(told(fail(false), None, None), Some(false));
        assert_eq!(told(fail(true), None, None), None);
        assert_eq!(told(fail(false), Some(6), None), None);
    }

    #[test]
    fn what_was_made_is_told() {
        let request_outcome = |intent| logged(intent).request_outcome(&|_| Some(Some(object(5))));
        let told = |intent| match request_outcome(intent) {
            Some(RequestOutcome::Done { value, created, .. }) => (value, created),
            other => panic!("{other:?}"),
        };
        assert_eq!(told(Intent::Make { to: name(1, 4) }), (5, true));
        assert_eq!(told(Intent::Link { object: object(5), to: name(1, 4) }), (5, false));
    }
}
