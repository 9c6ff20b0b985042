//! Message headers and the set-up block: bytes to values and back.
//!
//! Little-endian. A message is: [`Header`], its `reads` then `writes` descriptors of
//! [`REMOTE_SPAN_BYTES`] each, the caller's header, inline data. The set-up block stands in front
//! of the private data of connect and accept.

use dafs_fabric::{RemoteSpan, Rkey, SHORT_MESSAGE_BYTES};

use crate::fault::Fault;

/// Bytes of the set-up block, as this version has it.
pub const SETUP_BYTES: usize = 20;
/// Bytes of a message header.
pub const HEADER_BYTES: usize = 28;
/// Bytes of a descriptor of remote memory.
pub const REMOTE_SPAN_BYTES: usize = 20;
/// A message of so many bytes is put together on the stack.
pub const SMALL_MESSAGE_BYTES: usize = 96;
/// Descriptors of a kind in one message.
pub const REMOTE_SPANS_MAX: usize = 16;
/// Bytes of the number of a reference that is let go.
pub const RELEASE_BYTES: usize = 4;
/// Of those in one message.
pub const RELEASES_MAX: usize = 16;

const SETUP_MAGIC: u16 = 0x4d44;
const SETUP_VERSION: u8 = 2;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Asks; room for the answer's data is described.
    Request = 1,
    /// Answers.
    Reply = 2,
    /// "Push your request's data now": `data_len` bytes from `room`.
    Grant = 3,
    /// A piece of data (or of a reply's header): `data_len` bytes at `room`.
    Piece = 4,
    /// Credits alone.
    Credit = 5,
}

/// How data moves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// There is none.
    #[default]
    None = 0,
    /// In the message.
    Inline = 1,
    /// By tag: pushed behind the request, or with the reply's header in one tagged message.
    Tagged = 2,
    /// The responder reads the requester's memory.
    Read = 3,
    /// By tag, after a grant.
    Grant = 4,
    /// In messages of their own; from the requester after a grant.
    Pieces = 5,
    /// The responder wrote to the requester's memory.
    Write = 6,
    /// Where the responder has it: the requester reads it, and says when it is done.
    Refer = 7,
}

impl Mode {
    fn parse(code: u8) -> Option<Mode> {
        Some(match code {
            0 => Mode::None,
            1 => Mode::Inline,
            2 => Mode::Tagged,
            3 => Mode::Read,
            4 => Mode::Grant,
            5 => Mode::Pieces,
            6 => Mode::Write,
            7 => Mode::Refer,
            _ => return None,
        })
    }
}

/// The requester had too few byte credits to push.
pub const FLAG_STARVED: u8 = 1;
/// A piece of a reply, not of a request.
pub const FLAG_OF_REPLY: u8 = 2;
/// A piece of the caller's header, not of data.
pub const FLAG_OF_HEADER: u8 = 4;
/// The reply may refer to its data where the responder has it.
pub const FLAG_MAY_REFER: u8 = 8;
/// Beside that one: what is referred to is lent for as long as the requester likes, however little it is.
pub const FLAG_MAY_LEND: u8 = 16;
const FLAGS: u8 = FLAG_STARVED | FLAG_OF_REPLY | FLAG_OF_HEADER | FLAG_MAY_REFER | FLAG_MAY_LEND;

/// What every message begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// How its data comes.
    pub mode: Mode,
    /// In a request: how the reply's data can come ([`Mode::Inline`] stands for inline or
    /// pieces).
    pub reply_mode: Mode,
    /// `FLAG_*`.
    pub flags: u8,
    /// Descriptors of the request's data, or of what a reply refers to.
    pub reads: u8,
    /// Descriptors of the room for the reply's data.
    pub writes: u8,
    /// References that are let go.
    pub releases: u8,
    /// Slot (upper half) and generation of the request.
    pub tag: u32,
    /// Bytes of the caller's header in this message.
    pub header_len: u16,
    /// Bytes of data.
    pub data_len: u32,
    /// Request: room for the reply's data. Grant and piece: where the data begins. Reply that refers: the
    /// number of the reference.
    pub room: u32,
    /// Requests that the receiver may have sent in all.
    pub credit_limit: u32,
    /// Bytes that the receiver may have pushed in all.
    pub push_limit: u32,
}

impl Header {
    /// A header without data, descriptors and credits.
    pub fn new(kind: Kind, tag: u32) -> Header {
        Header {
            kind,
            mode: Mode::None,
            reply_mode: Mode::None,
            flags: 0,
            reads: 0,
            writes: 0,
            releases: 0,
            tag,
            header_len: 0,
            data_len: 0,
            room: 0,
            credit_limit: 0,
            push_limit: 0,
        }
    }

    /// Appends the bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes());
    }

    /// The message without descriptors and data, if it is a small one.
    #[inline]
    pub fn with_header<'a>(
        &self,
        caller_header: &[u8],
        into: &'a mut [u8; SMALL_MESSAGE_BYTES],
    ) -> Option<&'a [u8]> {
        let end = HEADER_BYTES + caller_header.len();
        into.get_mut(HEADER_BYTES..end)?.copy_from_slice(caller_header);
        into[..HEADER_BYTES].copy_from_slice(&self.bytes());
        into.get(..end)
    }

    /// The message with one descriptor and without data, if it is a small one.
    #[inline]
    pub fn with_descriptor<'a>(
        &self,
        remote: &RemoteSpan,
        caller_header: &[u8],
        into: &'a mut [u8; SMALL_MESSAGE_BYTES],
    ) -> Option<&'a [u8]> {
        let end = HEADER_BYTES + REMOTE_SPAN_BYTES + caller_header.len();
        into.get_mut(HEADER_BYTES + REMOTE_SPAN_BYTES..end)?.copy_from_slice(caller_header);
        into[..HEADER_BYTES].copy_from_slice(&self.bytes());
        into[HEADER_BYTES..HEADER_BYTES + REMOTE_SPAN_BYTES].copy_from_slice(&remote_bytes(remote));
        into.get(..end)
    }

    #[inline]
    fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = self.mode as u8 | (self.reply_mode as u8) << 4;
        (bytes[2], bytes[3]) = (self.flags, self.reads);
        bytes[4..8].copy_from_slice(&self.tag.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.header_len.to_le_bytes());
        (bytes[10], bytes[11]) = (self.writes, self.releases);
        bytes[12..16].copy_from_slice(&self.data_len.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.room.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.credit_limit.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.push_limit.to_le_bytes());
        bytes
    }

    /// Takes the first bytes of a message apart.
    ///
    /// # Errors
    /// The peer's fault.
    #[inline(always)]
    pub fn decode(bytes: &[u8]) -> Result<Header, Fault> {
        let bytes: &[u8; HEADER_BYTES] = bytes
            .get(..HEADER_BYTES)
            .and_then(|b| b.try_into().ok())
            .ok_or_else(|| Fault::peer("message shorter than its header"))?;
        let word = |at: usize| u32_at(bytes, at);
        let kind = match bytes[0] {
            1 => Kind::Request,
            2 => Kind::Reply,
            3 => Kind::Grant,
            4 => Kind::Piece,
            5 => Kind::Credit,
            _ => return Err(Fault::peer("unknown kind of message")),
        };
        let (Some(mode), Some(reply_mode)) =
            (Mode::parse(bytes[1] & 15), Mode::parse(bytes[1] >> 4))
        else {
            return Err(Fault::peer("unknown mode of data"));
        };
        let (reads, writes, releases) = (bytes[3], bytes[10], bytes[11]);
        if usize::from(reads.max(writes).max(releases)) > REMOTE_SPANS_MAX {
            return Err(Fault::peer("too many descriptors"));
        }
        if bytes[2] & !FLAGS != 0 {
            return Err(Fault::peer("unknown flags"));
        }
        Ok(Header {
            kind,
            mode,
            reply_mode,
            flags: bytes[2],
            reads,
            writes,
            releases,
            tag: word(4),
            header_len: u16::from_le_bytes([bytes[8], bytes[9]]),
            data_len: word(12),
            room: word(16),
            credit_limit: word(20),
            push_limit: word(24),
        })
    }

    /// Takes a message of `len` bytes apart that is a request without data, and names one piece of memory for the
    /// reply's: most short ones are. `None`: it is something else, or wrong, which [`decode`](Self::decode) tells.
    #[inline(always)]
    pub fn decode_one_room(
        bytes: &[u8; SHORT_MESSAGE_BYTES],
        len: usize,
    ) -> Option<(Header, RemoteSpan)> {
        const FORM: u32 = Kind::Request as u32 | (Mode::Write as u32) << 12;
        let word = |at: usize| u32_at(bytes, at);
        let header_len = len.checked_sub(HEADER_BYTES + REMOTE_SPAN_BYTES)?;
        // Kind, modes, any flags that there are, and no descriptors of data; then one of room, and no releases.
        let is_one = word(0) & !(u32::from(FLAGS) << 16) == FORM
            && word(8) as usize == header_len | 1 << 16
            && word(12) == 0;
        if !is_one {
            return None;
        }
        let mut header = Header::new(Kind::Request, word(4));
        (header.reply_mode, header.flags, header.writes) = (Mode::Write, (word(0) >> 16) as u8, 1);
        (header.header_len, header.room) = (header_len as u16, word(16));
        (header.credit_limit, header.push_limit) = (word(20), word(24));
        let remote = bytes[HEADER_BYTES..].first_chunk().map(decode_remote)?;
        Some((header, remote))
    }

    /// As [`decode`](Self::decode), of a reply whose data was written, and that has nothing beside it: what most short
    /// messages are that a client gets.
    #[inline(always)]
    pub fn decode_written_reply(bytes: &[u8]) -> Option<Header> {
        let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
        let word = |at: usize| u32_at(bytes, at);
        // No flags, nor descriptors, nor references.
        let is_plain =
            bytes[..4] == [Kind::Reply as u8, Mode::Write as u8, 0, 0] && bytes[10..12] == [0, 0];
        is_plain.then(|| Header {
            mode: Mode::Write,
            header_len: u16::from_le_bytes([bytes[8], bytes[9]]),
            data_len: word(12),
            room: word(16),
            credit_limit: word(20),
            push_limit: word(24),
            ..Header::new(Kind::Reply, word(4))
        })
    }

    /// Bytes of the descriptors, and of the numbers of references behind them.
    pub fn descriptor_bytes(&self) -> usize {
        (usize::from(self.reads) + usize::from(self.writes)) * REMOTE_SPAN_BYTES
            + usize::from(self.releases) * RELEASE_BYTES
    }
}

/// The slot in a tag on the wire.
pub fn tag_slot(tag: u32) -> usize {
    (tag >> 16) as usize
}

/// A tag on the wire.
pub fn wire_tag(slot: u16, generation: u16) -> u32 {
    u32::from(slot) << 16 | u32::from(generation)
}

#[inline]
fn remote_bytes(remote: &RemoteSpan) -> [u8; REMOTE_SPAN_BYTES] {
    let mut bytes = [0; REMOTE_SPAN_BYTES];
    bytes[..8].copy_from_slice(&remote.rkey.0.to_le_bytes());
    bytes[8..16].copy_from_slice(&remote.addr.to_le_bytes());
    bytes[16..].copy_from_slice(&remote.len.to_le_bytes());
    bytes
}

#[inline(always)]
fn u32_at<const OF: usize>(bytes: &[u8; OF], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
}

/// Appends a descriptor.
pub fn encode_remote(remote: &RemoteSpan, out: &mut Vec<u8>) {
    out.extend_from_slice(&remote_bytes(remote));
}

/// Takes a descriptor apart.
#[inline]
pub fn decode_remote(bytes: &[u8; REMOTE_SPAN_BYTES]) -> RemoteSpan {
    let long = |at: usize| bytes[at..].first_chunk().map_or(0, |long| u64::from_le_bytes(*long));
    RemoteSpan { rkey: Rkey(long(0)), addr: long(8), len: u32_at(bytes, 16) }
}

/// Takes descriptors apart; bytes that are no whole descriptor are left out.
pub fn decode_remotes(bytes: &[u8], out: &mut Vec<RemoteSpan>) {
    out.clear();
    out.extend(bytes.as_chunks().0.iter().map(decode_remote));
}

/// What each side tells the other when they connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// Can and wants to match tags.
    pub tagged: bool,
    /// Can and wants RDMA reads.
    pub rdma_read: bool,
    /// Can RDMA writes that are placed before a following send.
    pub rdma_write: bool,
    /// Reads what a reply refers to, and lets it go; refers to what it has.
    pub refers: bool,
    /// Takes loans, and lends.
    pub lends: bool,
    /// Bytes of its receives.
    pub header_bytes: u16,
    /// Requests that it takes (0, or the window with the one for control).
    pub window: u16,
    /// Bytes of the data area of its receives.
    pub area_bytes: u32,
    /// Bytes that may be pushed to it.
    pub push_bytes: u32,
}

impl Setup {
    /// The block, and behind it the caller's private data.
    pub fn encode(&self, private_data: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(SETUP_BYTES + private_data.len());
        let flag = |on: bool, bit: u8| u16::from(on) << bit;
        let flags = flag(self.tagged, 0)
            | flag(self.rdma_read, 1)
            | flag(self.rdma_write, 2)
            | flag(self.refers, 3)
            | flag(self.lends, 4);
        out.extend_from_slice(&SETUP_MAGIC.to_le_bytes());
        out.extend_from_slice(&[SETUP_VERSION, SETUP_BYTES as u8]);
        for half in [flags, self.header_bytes, self.window, 0] {
            out.extend_from_slice(&half.to_le_bytes());
        }
        out.extend_from_slice(&self.area_bytes.to_le_bytes());
        out.extend_from_slice(&self.push_bytes.to_le_bytes());
        out.extend_from_slice(private_data);
        out
    }

    /// The block in front of private data, and what follows it; `None` when there is none, or one of
    /// another version. What a peer has beyond this (a longer block, more flags) is left out.
    pub fn decode(private_data: &[u8]) -> Option<(Setup, &[u8])> {
        let b: &[u8; SETUP_BYTES] = private_data.first_chunk()?;
        let rest = private_data.get(usize::from(b[3]).max(SETUP_BYTES)..)?;
        let half = |at: usize| u16::from_le_bytes([b[at], b[at + 1]]);
        let word = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let setup = Setup {
            tagged: half(4) & 1 != 0,
            rdma_read: half(4) & 2 != 0,
            rdma_write: half(4) & 4 != 0,
            refers: half(4) & 8 != 0,
            lends: half(4) & 16 != 0,
            header_bytes: half(6),
            window: half(8),
            area_bytes: word(12),
            push_bytes: word(16),
        };
        let known =
            half(0) == SETUP_MAGIC && b[2] == SETUP_VERSION && usize::from(b[3]) >= SETUP_BYTES;
        let sane = (256..=32768).contains(&setup.header_bytes)
            && setup.window <= 4097
            && setup.area_bytes <= 1 << 16
            && setup.push_bytes <= 1 << 30;
        (known && sane).then_some((setup, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Header {
        Header {
            kind: Kind::Request,
            mode: Mode::Read,
            reply_mode: Mode::Write,
            flags: FLAG_STARVED,
            reads: 2,
            writes: 16,
            releases: 3,
            tag: wire_tag(7, 65535),
            header_len: 1000,
            data_len: 1 << 20,
            room: u32::MAX,
            credit_limit: 5,
            push_limit: 6,
        }
    }

    #[test]
    fn headers_survive_the_wire() {
        let mut bytes = Vec::new();
        sample().encode(&mut bytes);
        assert_eq!(bytes.len(), HEADER_BYTES);
        assert_eq!(Header::decode(&bytes).expect("valid"), sample());
        assert_eq!(tag_slot(sample().tag), 7);
    }

    #[test]
    fn bad_headers_are_refused() {
        let mut good = Vec::new();
        sample().encode(&mut good);
        for len in 0..HEADER_BYTES {
            assert!(Header::decode(&good[..len]).is_err());
        }
        for (at, value) in [(0, 0), (0, 6), (1, 8), (1, 0x80), (2, 32), (3, 17), (10, 17), (11, 17)]
        {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(Header::decode(&bad).is_err(), "byte {at} = {value}");
        }
    }

    #[test]
    fn a_request_with_one_room_is_what_the_header_says() {
        let remote = RemoteSpan { rkey: Rkey(1 << 40), addr: 1 << 50, len: 4096 };
        let header = Header {
            reads: 0,
            writes: 1,
            releases: 0,
            mode: Mode::None,
            data_len: 0,
            room: 4096,
            header_len: 42,
            flags: FLAG_MAY_REFER,
            ..sample()
        };
        let len = HEADER_BYTES + REMOTE_SPAN_BYTES + 42;
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        encode_remote(&remote, &mut bytes);
        bytes.resize(SHORT_MESSAGE_BYTES, 0);
        let bytes: [u8; SHORT_MESSAGE_BYTES] = bytes.try_into().expect("as long");
        assert_eq!(Header::decode_one_room(&bytes, len), Some((header, remote)));
        for len in (0..SHORT_MESSAGE_BYTES).filter(|other| *other != len) {
            assert_eq!(Header::decode_one_room(&bytes, len), None, "{len} bytes");
        }
        let mut taken = 0;
        for at in 0..HEADER_BYTES {
            for bit in 0..8 {
                let mut other = bytes;
                other[at] ^= 1 << bit;
                let Some((header, _)) = Header::decode_one_room(&other, len) else { continue };
                assert_eq!(Header::decode(&other), Ok(header), "bit {bit} of {at}");
                assert!(
                    header.kind == Kind::Request
                        && (header.mode, header.reply_mode) == (Mode::None, Mode::Write)
                        && (header.data_len, header.reads, header.writes) == (0, 0, 1)
                        && header.releases == 0
                );
                taken += 1;
            }
        }
        assert_eq!(taken, 16 * 8 + 5, "tag, room, credits and flags may be any");
    }

    #[test]
    fn a_written_reply_is_what_any_header_is() {
        let (kind, mode, reply_mode) = (Kind::Reply, Mode::Write, Mode::None);
        let (flags, reads, writes, releases) = (0, 0, 0, 0);
        let reply = Header { kind, mode, reply_mode, flags, reads, writes, releases, ..sample() };
        let mut good = Vec::new();
        reply.encode(&mut good);
        assert_eq!(Header::decode_written_reply(&good), Some(reply));
        for len in 0..HEADER_BYTES {
            assert_eq!(Header::decode_written_reply(&good[..len]), None);
        }
        for (at, bit) in (0..HEADER_BYTES).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut other = good.clone();
            other[at] ^= 1 << bit;
            match Header::decode_written_reply(&other) {
                Some(header) => assert_eq!(Header::decode(&other).expect("valid"), header),
                None => assert!(at < 4 || at == 10 || at == 11, "bit {bit} of byte {at}"),
            }
        }
    }

    #[test]
    fn descriptors_survive_the_wire() {
        let remote = RemoteSpan { rkey: Rkey(1 << 40), addr: u64::MAX, len: 77 };
        let mut bytes = Vec::new();
        encode_remote(&remote, &mut bytes);
        encode_remote(&remote, &mut bytes);
        let mut out = Vec::new();
        decode_remotes(&bytes[..bytes.len() - 1], &mut out);
        assert_eq!(out, [remote]);
        decode_remotes(&bytes, &mut out);
        assert_eq!(out, [remote, remote]);
    }

    #[test]
    fn set_up_is_checked() {
        let setup = Setup {
            tagged: true,
            rdma_read: false,
            rdma_write: true,
            refers: true,
            lends: false,
            header_bytes: 1024,
            window: 33,
            area_bytes: 16384,
            push_bytes: 1 << 20,
        };
        let bytes = setup.encode(b"mine");
        assert_eq!(&bytes[SETUP_BYTES..], b"mine");
        assert_eq!(Setup::decode(&bytes), Some((setup, &b"mine"[..])));
        assert_eq!(Setup::decode(&bytes[..SETUP_BYTES - 1]), None);
        let too_long = SETUP_BYTES as u8 + 5;
        for (at, value) in
            [(0, 0), (2, 9), (3, 19), (3, too_long), (7, 255), (9, 255), (15, 1), (19, 255)]
        {
            let mut bad = bytes.clone();
            bad[at] = value;
            assert_eq!(Setup::decode(&bad), None, "byte {at} = {value}");
        }
    }

    #[test]
    fn what_later_versions_add_to_the_set_up_is_left_out() {
        let setup = Setup {
            tagged: true,
            rdma_read: true,
            rdma_write: false,
            refers: false,
            lends: true,
            header_bytes: 256,
            window: 2,
            area_bytes: 0,
            push_bytes: 0,
        };
        let mut bytes = setup.encode(b"mine");
        bytes[3] += 2;
        bytes[5] = 0x80;
        bytes[10] = 1;
        bytes.splice(SETUP_BYTES..SETUP_BYTES, [1, 2]);
        assert_eq!(Setup::decode(&bytes), Some((setup, &b"mine"[..])));
    }
}
