//! The frames of the wire: 32 bytes of header, then header bytes, then payload.
//!
//! Decoding checks all that one frame can show by itself; what depends on earlier frames is
//! checked where it is received.

use dafs_fabric::{NAME_BYTES_MAX, NAMED_READ_BYTES_MAX};

/// Bytes of a frame header.
pub const FRAME_HEADER_BYTES: usize = 32;
/// The most payload that one frame carries.
pub const FRAME_PAYLOAD_BYTES_MAX: usize = 64 * 1024;
/// The most `header` bytes that a message carries.
pub const HEADER_BYTES_MAX: usize = 4096;
/// The most bytes of a tagged message, an RDMA read or write.
pub const BULK_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The most frames of one message that follow each other with nothing between them.
pub const RUN_FRAMES_MAX: usize = 16;
/// What a hello begins with.
pub const MAGIC: u64 = u64::from_le_bytes(*b"DAFSnic1");
/// The version of this wire format.
pub const VERSION: u32 = 1;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The first frame of whoever connects: `key` is [`MAGIC`], `id` the version, the payload
    /// private data.
    Hello = 1,
    /// Accepted: as `Hello`.
    HelloAck = 2,
    /// Not accepted: the payload says why.
    Reject = 3,
    /// A whole message, `header_len` bytes of header and then data.
    Send = 4,
    /// A piece of the message for tag `key`: data from `addr` on, of `total` bytes. The first
    /// piece carries the header.
    Tagged = 5,
    /// A piece of RDMA write `id`, to `addr` of region `key`; `total` bytes of it are left,
    /// this frame included.
    Write = 6,
    /// Asks for `total` bytes at `addr` of region `key`, as read `id`.
    ReadRequest = 7,
    /// A piece of the answer to read `id`: data from `addr` on, of `total` bytes.
    ReadResponse = 8,
    /// Read `id` is complete, and access was allowed until the end.
    ReadDone = 9,
    /// All writes up to `id` are placed, but for those that a fault named.
    WriteAck = 10,
    /// The access of write (`key` 0) or read (`key` 1) `id` was refused, or named read (`key` 2) `id`.
    Fault = 11,
    /// Asks for `total` bytes from byte `addr` on of what the header bytes name, as named read `id`.
    NamedRead = 12,
    /// The answer to named read `id`: `total` bytes, all in this frame.
    NamedResponse = 13,
}

/// `key` of a fault that answers a write.
pub const FAULT_WRITE: u64 = 0;
/// `key` of a fault that answers a read.
pub const FAULT_READ: u64 = 1;
/// `key` of a fault that answers a named read.
pub const FAULT_NAMED: u64 = 2;

/// A decoded frame header; the meaning of the fields is told with [`Kind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// What it is.
    pub kind: Kind,
    /// So many frames that continue this message follow at once, with nothing between them.
    pub run: u8,
    /// Header bytes after the frame header.
    pub header_len: u16,
    /// Payload bytes after the header bytes.
    pub payload_len: u32,
    /// Tag, region key, magic.
    pub key: u64,
    /// Address or offset.
    pub addr: u64,
    /// Length of the whole.
    pub total: u32,
    /// Number of a read or write.
    pub id: u32,
}

impl FrameHeader {
    /// A header with all fields zero.
    pub fn new(kind: Kind) -> FrameHeader {
        FrameHeader {
            kind,
            run: 0,
            header_len: 0,
            payload_len: 0,
            key: 0,
            addr: 0,
            total: 0,
            id: 0,
        }
    }

    /// Bytes after the frame header.
    pub fn body_len(&self) -> usize {
        usize::from(self.header_len) + self.payload_len as usize
    }

    /// As on the wire.
    #[inline]
    pub fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut out = [0; FRAME_HEADER_BYTES];
        out[0] = self.kind as u8;
        out[1] = self.run;
        out[2..4].copy_from_slice(&self.header_len.to_le_bytes());
        out[4..8].copy_from_slice(&self.payload_len.to_le_bytes());
        out[8..16].copy_from_slice(&self.key.to_le_bytes());
        out[16..24].copy_from_slice(&self.addr.to_le_bytes());
        out[24..28].copy_from_slice(&self.total.to_le_bytes());
        out[28..32].copy_from_slice(&self.id.to_le_bytes());
        out
    }

    /// From the wire.
    ///
    /// # Errors
    /// What is wrong with it.
    #[inline]
    pub fn decode(bytes: &[u8; FRAME_HEADER_BYTES]) -> Result<FrameHeader, &'static str> {
        let header = FrameHeader {
            kind: kind(bytes[0]).ok_or("unknown kind of frame")?,
            run: bytes[1],
            header_len: u16::from_le_bytes([bytes[2], bytes[3]]),
            payload_len: u32_at(bytes, 4),
            key: u64_at(bytes, 8),
            addr: u64_at(bytes, 16),
            total: u32_at(bytes, 24),
            id: u32_at(bytes, 28),
        };
        if !header.is_whole() {
            header.check()?;
        }
        Ok(header)
    }

    /// The only frame of a message, in which nothing is wrong: what most are.
    #[inline]
    fn is_whole(&self) -> bool {
        let is_of_kind = match self.kind {
            Kind::Send => true,
            Kind::Tagged => self.addr == 0 && self.payload_len == self.total,
            Kind::NamedResponse => self.header_len == 0 && self.payload_len == self.total,
            _ => false,
        };
        is_of_kind
            && self.run == 0
            && usize::from(self.header_len) <= HEADER_BYTES_MAX
            && self.payload_len as usize <= FRAME_PAYLOAD_BYTES_MAX - HEADER_BYTES_MAX
    }

    /// These are the bytes of the only frame of a tagged message, with so many bytes of header and data.
    #[inline(always)]
    pub fn is_whole_tagged(
        bytes: &[u8; FRAME_HEADER_BYTES],
        tag: u64,
        (header_len, total): (u16, u32),
    ) -> bool {
        let first = Kind::Tagged as u64 | u64::from(header_len) << 16 | u64::from(total) << 32;
        u64_at(bytes, 0) == first
            && u64_at(bytes, 8) == tag
            && u64_at(bytes, 16) == 0
            && u32_at(bytes, 24) == total
    }

    /// These are the bytes of the answer to named read `number`, of so many bytes.
    #[inline(always)]
    pub fn is_named_response(bytes: &[u8; FRAME_HEADER_BYTES], number: u32, total: u32) -> bool {
        let first = Kind::NamedResponse as u64 | u64::from(total) << 32;
        u64_at(bytes, 0) == first && u64_at(bytes, 24) == u64::from(total) | u64::from(number) << 32
    }

    /// Bytes of a send without data that comes with these bytes, if it is one in which nothing is wrong.
    #[inline(always)]
    pub fn short_send(bytes: &[u8; FRAME_HEADER_BYTES]) -> Option<u16> {
        let first = u64_at(bytes, 0);
        let header_len = (first >> 16) as u16;
        let is_it = first == Kind::Send as u64 | u64::from(header_len) << 16;
        (is_it && usize::from(header_len) <= HEADER_BYTES_MAX).then_some(header_len)
    }

    /// What a named read asks for that comes with these bytes, if it is one in which nothing is wrong.
    #[inline(always)]
    pub fn named_read(bytes: &[u8; FRAME_HEADER_BYTES]) -> Option<FrameHeader> {
        let (first, total) = (u64_at(bytes, 0), u32_at(bytes, 24));
        let header_len = (first >> 16) as u16;
        let is_it = first == Kind::NamedRead as u64 | u64::from(header_len) << 16
            && usize::from(header_len) <= NAME_BYTES_MAX
            && total as usize <= NAMED_READ_BYTES_MAX;
        let (addr, id) = (u64_at(bytes, 16), u32_at(bytes, 28));
        let header =
            FrameHeader { header_len, addr, total, id, ..FrameHeader::new(Kind::NamedRead) };
        is_it.then_some(header)
    }

    fn check(&self) -> Result<(), &'static str> {
        if self.payload_len as usize > FRAME_PAYLOAD_BYTES_MAX {
            return Err("frame too long");
        }
        let bulk = matches!(self.kind, Kind::Tagged | Kind::Write | Kind::ReadResponse);
        let headed = matches!(self.kind, Kind::Send | Kind::Tagged | Kind::NamedRead);
        if !headed && self.header_len != 0 {
            return Err("header bytes where none belong");
        }
        if bulk {
            return self.check_bulk();
        }
        if self.run != 0 {
            return Err("a run of frames that do not run");
        }
        match self.kind {
            Kind::Send if usize::from(self.header_len) > HEADER_BYTES_MAX => Err("header too long"),
            Kind::Send if self.body_len() > FRAME_PAYLOAD_BYTES_MAX => Err("send too long"),
            Kind::ReadRequest if self.total as usize > BULK_BYTES_MAX => Err("read too long"),
            Kind::NamedRead if usize::from(self.header_len) > NAME_BYTES_MAX => {
                Err("name too long")
            }
            Kind::NamedRead if self.total as usize > NAMED_READ_BYTES_MAX => Err("read too long"),
            Kind::NamedResponse if self.payload_len != self.total => {
                Err("an answer of another length than it says")
            }
            Kind::ReadRequest | Kind::ReadDone | Kind::WriteAck | Kind::Fault | Kind::NamedRead
                if self.payload_len != 0 =>
            {
                Err("payload where none belongs")
            }
            _ => Ok(()),
        }
    }

    /// Tagged, write, read response: a frame is full or the last one, so that the shape of what
    /// follows is known.
    fn check_bulk(&self) -> Result<(), &'static str> {
        if self.total as usize > BULK_BYTES_MAX {
            return Err("message too long");
        }
        let offset = if self.kind == Kind::Write { 0 } else { self.addr };
        let left = u64::from(self.total).checked_sub(offset).ok_or("offset beyond the message")?;
        if u64::from(self.payload_len) != left.min(FRAME_PAYLOAD_BYTES_MAX as u64) {
            return Err("frame is neither full nor the last");
        }
        if left == 0 && offset != 0 {
            return Err("empty frame");
        }
        if self.header_len != 0 && self.addr != 0 {
            return Err("header bytes in a later frame");
        }
        if usize::from(self.header_len) > HEADER_BYTES_MAX {
            return Err("header too long");
        }
        let after = left - u64::from(self.payload_len);
        let frames_after = after.div_ceil(FRAME_PAYLOAD_BYTES_MAX as u64);
        if u64::from(self.run) > frames_after || usize::from(self.run) >= RUN_FRAMES_MAX {
            return Err("run longer than the message");
        }
        Ok(())
    }

    /// The header of the frame that must come next, if this one said that it is in a run.
    pub fn continuation(&self) -> Option<FrameHeader> {
        let run = self.run.checked_sub(1)?;
        let (total, left) = if self.kind == Kind::Write {
            let left = self.total - self.payload_len;
            (left, u64::from(left))
        } else {
            let end = self.addr + u64::from(self.payload_len);
            (self.total, u64::from(self.total) - end)
        };
        Some(FrameHeader {
            run,
            header_len: 0,
            payload_len: left.min(FRAME_PAYLOAD_BYTES_MAX as u64) as u32,
            addr: self.addr.wrapping_add(u64::from(self.payload_len)),
            total,
            ..*self
        })
    }
}

/// The frame that opens or answers a connection. `addr` is room for what an end has beyond this version, a
/// bit each: bits that the other end does not know mean nothing to it, and none is given away yet.
pub fn hello(kind: Kind, private_data: &[u8]) -> Vec<u8> {
    let mut header = FrameHeader::new(kind);
    header.payload_len = private_data.len() as u32;
    header.key = MAGIC;
    header.id = VERSION;
    let mut out = header.encode().to_vec();
    out.extend_from_slice(private_data);
    out
}

/// Checks the header of a frame made by [`hello`].
///
/// # Errors
/// What is wrong with it.
pub fn check_hello(header: &FrameHeader) -> Result<(), &'static str> {
    if header.key != MAGIC {
        return Err("not a DAFS peer");
    }
    if header.id != VERSION {
        return Err("another version of the wire format");
    }
    if header.payload_len as usize > dafs_fabric::PRIVATE_DATA_BYTES_MAX {
        return Err("too much private data");
    }
    Ok(())
}

fn kind(byte: u8) -> Option<Kind> {
    Some(match byte {
        1 => Kind::Hello,
        2 => Kind::HelloAck,
        3 => Kind::Reject,
        4 => Kind::Send,
        5 => Kind::Tagged,
        6 => Kind::Write,
        7 => Kind::ReadRequest,
        8 => Kind::ReadResponse,
        9 => Kind::ReadDone,
        10 => Kind::WriteAck,
        11 => Kind::Fault,
        12 => Kind::NamedRead,
        13 => Kind::NamedResponse,
        _ => return None,
    })
}

fn u32_at(bytes: &[u8; FRAME_HEADER_BYTES], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

fn u64_at(bytes: &[u8; FRAME_HEADER_BYTES], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(addr: u64, payload_len: u32, total: u32, run: u8) -> FrameHeader {
        FrameHeader { run, payload_len, addr, total, key: 7, ..FrameHeader::new(Kind::Tagged) }
    }

    #[test]
    fn headers_survive_the_wire() {
        let header =
            FrameHeader { header_len: 300, id: 0x1234_5678, ..tagged(0, 65536, 200_000, 2) };
        assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn a_run_names_its_frames() {
        let mut header = tagged(0, 65536, 140_000, 2);
        header.header_len = 12;
        let second = header.continuation().expect("second");
        assert_eq!(second, tagged(65536, 65536, 140_000, 1));
        let third = second.continuation().expect("third");
        assert_eq!(third, tagged(131_072, 8928, 140_000, 0));
        assert_eq!(third.continuation(), None);
        for frame in [header, second, third] {
            assert_eq!(FrameHeader::decode(&frame.encode()), Ok(frame));
        }
    }

    #[test]
    fn impossible_frames_are_refused() {
        let refused = |header: FrameHeader| FrameHeader::decode(&header.encode()).unwrap_err();
        assert_eq!(refused(tagged(0, 70_000, 70_000, 0)), "frame too long");
        assert_eq!(refused(tagged(10, 1, 5, 0)), "offset beyond the message");
        assert_eq!(refused(tagged(0, 5, 70_000, 0)), "frame is neither full nor the last");
        assert_eq!(refused(tagged(5, 0, 5, 0)), "empty frame");
        assert_eq!(refused(tagged(0, 65536, 65537, 2)), "run longer than the message");
        assert_eq!(refused(tagged(0, 65536, u32::MAX, 0)), "message too long");
        let header = FrameHeader { header_len: 1, ..tagged(65536, 1, 65537, 0) };
        assert_eq!(refused(header), "header bytes in a later frame");
        let header = FrameHeader { header_len: 5000, ..tagged(0, 1, 1, 0) };
        assert_eq!(refused(header), "header too long");
        let header = FrameHeader { header_len: 5000, ..FrameHeader::new(Kind::Send) };
        assert_eq!(refused(header), "header too long");
        let header =
            FrameHeader { header_len: 1, payload_len: 65536, ..FrameHeader::new(Kind::Send) };
        assert_eq!(refused(header), "send too long");
        let header = FrameHeader { run: 1, ..FrameHeader::new(Kind::Send) };
        assert_eq!(refused(header), "a run of frames that do not run");
        let header = FrameHeader { payload_len: 1, ..FrameHeader::new(Kind::Fault) };
        assert_eq!(refused(header), "payload where none belongs");
        let header = FrameHeader { total: u32::MAX, ..FrameHeader::new(Kind::ReadRequest) };
        assert_eq!(refused(header), "read too long");
        let header = FrameHeader { header_len: 1, ..FrameHeader::new(Kind::WriteAck) };
        assert_eq!(refused(header), "header bytes where none belong");
        let named =
            FrameHeader { header_len: 64, total: 65536, ..FrameHeader::new(Kind::NamedRead) };
        assert_eq!(FrameHeader::decode(&named.encode()), Ok(named));
        assert_eq!(refused(FrameHeader { header_len: 65, ..named }), "name too long");
        assert_eq!(refused(FrameHeader { total: 65537, ..named }), "read too long");
        assert_eq!(refused(FrameHeader { payload_len: 1, ..named }), "payload where none belongs");
        let answer = FrameHeader { payload_len: 9, ..FrameHeader::new(Kind::NamedResponse) };
        assert_eq!(refused(answer), "an answer of another length than it says");
        assert_eq!(FrameHeader::decode(&[0; 32]), Err("unknown kind of frame"));
    }

    #[test]
    fn what_is_whole_needs_no_other_check() {
        for byte in 0..32 {
            for value in 0..=255 {
                for kind in [Kind::Send, Kind::Tagged, Kind::NamedResponse] {
                    let header = FrameHeader { total: 512, ..FrameHeader::new(kind) };
                    let header = FrameHeader { payload_len: 512, header_len: 20, ..header };
                    let mut bytes = header.encode();
                    bytes[byte] = value;
                    let whole = FrameHeader::decode(&bytes).ok().filter(FrameHeader::is_whole);
                    assert!(whole.is_none_or(|whole| whole.check() == Ok(())), "{byte} = {value}");
                }
            }
        }
    }

    #[test]
    fn only_what_is_predicted_looks_so() {
        let tagged = FrameHeader { header_len: 20, ..tagged(0, 512, 512, 0) };
        let answer = FrameHeader {
            payload_len: 512,
            total: 512,
            id: 9,
            ..FrameHeader::new(Kind::NamedResponse)
        };
        for (header, byte, value) in [tagged, answer]
            .into_iter()
            .flat_map(|header| (0..32).map(move |byte| (header, byte)))
            .flat_map(|(header, byte)| (0..=255).map(move |value| (header, byte, value)))
        {
            let mut bytes = header.encode();
            bytes[byte] = value;
            let is_tagged = FrameHeader::is_whole_tagged(&bytes, 7, (20, 512));
            let is_answer = FrameHeader::is_named_response(&bytes, 9, 512);
            let expected = match FrameHeader::decode(&bytes) {
                // Of a tagged message the number says nothing, of an answer key and address.
                Ok(found) if found.kind == Kind::Tagged => {
                    (FrameHeader { id: 0, ..found } == tagged, false)
                }
                Ok(found) => (false, FrameHeader { key: 0, addr: 0, ..found } == answer),
                Err(_) => (false, false),
            };
            assert_eq!((is_tagged, is_answer), expected, "{header:?}: {byte} = {value}");
        }
    }

    #[test]
    fn a_short_send_is_one_in_which_nothing_is_wrong() {
        let short = FrameHeader { header_len: 300, ..FrameHeader::new(Kind::Send) };
        for (byte, value) in (0..32).flat_map(|byte| (0..=255).map(move |value| (byte, value))) {
            let mut bytes = short.encode();
            bytes[byte] = value;
            let found = FrameHeader::decode(&bytes).ok();
            let expected = found.filter(|it| it.kind == Kind::Send && it.payload_len == 0);
            assert_eq!(
                FrameHeader::short_send(&bytes),
                expected.map(|it| it.header_len),
                "{byte} = {value}"
            );
        }
    }

    #[test]
    fn a_named_read_is_one_in_which_nothing_is_wrong() {
        let named = FrameHeader { header_len: 52, total: 512, ..FrameHeader::new(Kind::NamedRead) };
        let named = FrameHeader { addr: 0x1234_5678_9abc, id: 77, ..named };
        for (byte, value) in (0..32).flat_map(|byte| (0..=255).map(move |value| (byte, value))) {
            let mut bytes = named.encode();
            bytes[byte] = value;
            // The key says nothing.
            let expected = FrameHeader::decode(&bytes).ok().filter(|it| it.kind == Kind::NamedRead);
            let expected = expected.map(|header| FrameHeader { key: 0, ..header });
            assert_eq!(FrameHeader::named_read(&bytes), expected, "{byte} = {value}");
        }
    }

    #[test]
    fn a_hello_is_checked() {
        let bytes = hello(Kind::Hello, b"me");
        let mut head = [0; FRAME_HEADER_BYTES];
        head.copy_from_slice(&bytes[..FRAME_HEADER_BYTES]);
        let header = FrameHeader::decode(&head).expect("header");
        assert_eq!(check_hello(&header), Ok(()));
        assert_eq!(check_hello(&FrameHeader { addr: u64::MAX, ..header }), Ok(()));
        assert_eq!(
            check_hello(&FrameHeader { id: 99, ..header }),
            Err("another version of the wire format")
        );
        assert_eq!(check_hello(&FrameHeader { key: 0, ..header }), Err("not a DAFS peer"));
        assert_eq!(
            check_hello(&FrameHeader { payload_len: 257, ..header }),
            Err("too much private data")
        );
    }
}
