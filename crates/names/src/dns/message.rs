//! The bytes of questions and answers. What comes is anybody's: each length is checked, and a name ends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const HEADER_BYTES: usize = 12;
const LABEL_BYTES_MAX: usize = 63;
const NAME_BYTES_MAX: usize = 253;
const CLASS_INTERNET: u16 = 1;
const ALIAS: u16 = 5;
/// Flags of a question: recursion is desired.
const ASK: u16 = 0x0100;
const IS_ANSWER: u16 = 0x8000;
const IS_CUT: u16 = 0x0200;
const CODE: u16 = 0x000f;
const NO_SUCH_NAME: u16 = 3;
/// So many records of an answer are looked at, so long may a chain of aliases be.
const RECORDS_MAX: usize = 256;
const ALIASES_MAX: usize = 16;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    V4 = 1,
    V6 = 28,
}

/// What a name server has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// None, where the name is there but has none of this kind.
    Addresses(Vec<IpAddr>),
    NoSuchName,
    /// It was too long for a datagram.
    Cut,
    /// It cannot say: its code, or that what it said has no meaning.
    Failed(u16),
    Malformed,
}

/// The bytes of a question; `None` if nothing can have that name.
pub fn question(id: u16, name: &str, kind: Kind) -> Option<Vec<u8>> {
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return None;
    }
    let mut bytes = Vec::new();
    for word in [id, ASK, 1, 0, 0, 0] {
        bytes.extend(word.to_be_bytes());
    }
    for label in name.split('.') {
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if label.is_empty() || label.len() > LABEL_BYTES_MAX || !label.bytes().all(is_host) {
            return None;
        }
        bytes.push(u8::try_from(label.len()).ok()?);
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    bytes.extend((kind as u16).to_be_bytes());
    bytes.extend(CLASS_INTERNET.to_be_bytes());
    Some(bytes)
}

/// What `bytes` answer to a question; `None` if they are no answer to this one.
pub fn reply(bytes: &[u8], id: u16, name: &str, kind: Kind) -> Option<Reply> {
    let mut reader = Reader { bytes, at: 0 };
    let (its_id, flags, questions) = (reader.word()?, reader.word()?, reader.word()?);
    if its_id != id || flags & IS_ANSWER == 0 || questions != 1 {
        return None;
    }
    let answers = reader.word()?;
    reader.at = HEADER_BYTES;
    let asked = reader.name()?;
    let asked_kind = (reader.word()?, reader.word()?);
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    if asked != name || asked_kind != (kind as u16, CLASS_INTERNET) {
        return None;
    }
    Some(match flags & CODE {
        _ if flags & IS_CUT != 0 => Reply::Cut,
        0 => records(&mut reader, answers)
            .map_or(Reply::Malformed, |records| Reply::Addresses(addresses(&records, name, kind))),
        NO_SUCH_NAME => Reply::NoSuchName,
        code => Reply::Failed(code),
    })
}

enum Data {
    Address(IpAddr),
    Alias(String),
}

fn records(reader: &mut Reader<'_>, count: u16) -> Option<Vec<(String, Data)>> {
    let mut list = Vec::new();
    for _ in 0..usize::from(count).min(RECORDS_MAX) {
        let owner = reader.name()?;
        let (kind, class) = (reader.word()?, reader.word()?);
        reader.take(4)?; // For how long it may be kept: it is not.
        let length = usize::from(reader.word()?);
        let start = reader.at;
        let data = reader.take(length)?;
        let data = match kind {
            _ if class != CLASS_INTERNET => continue,
            kind if kind == Kind::V4 as u16 => {
                Data::Address(Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?).into())
            }
            kind if kind == Kind::V6 as u16 => {
                Data::Address(Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?).into())
            }
            ALIAS => Data::Alias(Reader { bytes: reader.bytes, at: start }.name()?),
            _ => continue,
        };
        list.push((owner, data));
    }
    Some(list)
}

/// The addresses of a name, or of what it is another name of.
fn addresses(records: &[(String, Data)], name: String, kind: Kind) -> Vec<IpAddr> {
    let mut names = vec![name];
    while names.len() <= ALIASES_MAX {
        let alias = records.iter().find_map(|(owner, data)| match data {
            Data::Alias(to) if names.contains(owner) && !names.contains(to) => Some(to.clone()),
            _ => None,
        });
        let Some(alias) = alias else { break };
        names.push(alias);
    }
    let of_kind = |ip: &IpAddr| ip.is_ipv4() == (kind == Kind::V4);
    let found = records.iter().filter_map(|(owner, data)| match data {
        Data::Address(ip) if of_kind(ip) && names.contains(owner) => Some(*ip),
        _ => None,
    });
    found.collect()
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn word(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    /// A name in small letters. The rest of one may stand further in front, and only there: it ends.
    fn name(&mut self) -> Option<String> {
        let mut name = String::new();
        let (mut after, mut limit) = (None, self.at);
        loop {
            let length = *self.take(1)?.first()?;
            match length {
                0 => break,
                1..=63 => {
                    let label = self.take(length.into())?;
                    if !name.is_empty() {
                        name.push('.');
                    }
                    name.extend(label.iter().map(|byte| char::from(byte.to_ascii_lowercase())));
                    if name.len() > 2 * NAME_BYTES_MAX {
                        return None;
                    }
                }
                0xc0.. => {
                    let low = *self.take(1)?.first()?;
                    let to = usize::from(u16::from_be_bytes([length & 0x3f, low]));
                    if to >= limit {
                        return None;
                    }
                    after = after.or(Some(self.at));
                    (self.at, limit) = (to, to);
                }
                _ => return None,
            }
        }
        self.at = after.unwrap_or(self.at);
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer to the question for `a.example`: flags, then records as bytes.
    fn answer(flags: u16, records: &[&[u8]]) -> Vec<u8> {
        let mut bytes = question(7, "a.example", Kind::V4).expect("a question");
        bytes[2..4].copy_from_slice(&(IS_ANSWER | flags).to_be_bytes());
        bytes[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
        bytes.extend(records.concat());
        bytes
    }

    fn record(owner: &[u8], kind: u16, data: &[u8]) -> Vec<u8> {
        let length = (data.len() as u16).to_be_bytes();
        [owner, &kind.to_be_bytes(), &[0, 1, 0, 0, 0, 60], &length, data].concat()
    }

    fn read(bytes: &[u8]) -> Option<Reply> {
        reply(bytes, 7, "A.example.", Kind::V4)
    }

    /// The name of the question, by where it stands.
    const SAME: &[u8] = &[0xc0, 12];

    #[test]
    fn addresses_of_a_name_and_of_what_it_stands_for() {
        let alias = record(SAME, ALIAS, b"\x01b\xc0\x0e");
        let of_alias = record(b"\x01b\x07example\x00", 1, &[10, 0, 0, 2]);
        let own = record(SAME, 1, &[10, 0, 0, 1]);
        let foreign = record(b"\x01c\x00", 1, &[10, 0, 0, 3]);
        let other_kind = record(SAME, 28, &[0; 16]);
        let bytes = answer(0, &[&of_alias, &alias, &own, &foreign, &other_kind]);
        let expected = ["10.0.0.2", "10.0.0.1"].map(|ip| ip.parse().expect("address"));
        assert_eq!(read(&bytes), Some(Reply::Addresses(expected.into())));
        assert_eq!(read(&answer(0, &[])), Some(Reply::Addresses(Vec::new())));
    }

    #[test]
    fn what_a_server_cannot_say() {
        assert_eq!(read(&answer(3, &[])), Some(Reply::NoSuchName));
        assert_eq!(read(&answer(2, &[])), Some(Reply::Failed(2)));
        assert_eq!(read(&answer(IS_CUT, &[])), Some(Reply::Cut));
        assert_eq!(read(&answer(0, &[&record(SAME, 1, &[1, 2, 3])])), Some(Reply::Malformed));
    }

    #[test]
    fn an_answer_is_to_what_was_asked() {
        let bytes = answer(0, &[]);
        assert_eq!(reply(&bytes, 8, "a.example", Kind::V4), None);
        assert_eq!(reply(&bytes, 7, "b.example", Kind::V4), None);
        assert_eq!(reply(&bytes, 7, "a.example", Kind::V6), None);
        let question = question(7, "a.example", Kind::V4).expect("a question");
        assert_eq!(read(&question), None);
    }

    #[test]
    fn names_end_and_lengths_are_checked() {
        let at = answer(0, &[]).len() as u8;
        for owner in [[0xc0, at], [0xc0, 0xff], [0xff, 0xff], [0x40, 0]] {
            assert_eq!(read(&answer(0, &[&record(&owner, 1, &[1; 4])])), Some(Reply::Malformed));
        }
        let whole = answer(0, &[&record(SAME, 1, &[1; 4])]);
        for end in 0..whole.len() {
            assert!(matches!(read(&whole[..end]), None | Some(Reply::Malformed)), "{end}");
        }
        // Two aliases of each other.
        let (one, two) = (record(SAME, ALIAS, b"\x01b\x00"), record(b"\x01b\x00", ALIAS, SAME));
        assert_eq!(read(&answer(0, &[&one, &two])), Some(Reply::Addresses(Vec::new())));
    }

    #[test]
    fn what_no_host_is_called_is_not_asked_for() {
        let long = "a".repeat(64);
        let longer = ["a"; 130].join(".");
        for name in ["", ".", "a..b", ".a", "a b", "ä", &long, &longer, "a/b"] {
            assert_eq!(question(1, name, Kind::V4), None, "{name}");
        }
        assert!(question(1, "a_b-c.example.", Kind::V6).is_some());
    }
}
