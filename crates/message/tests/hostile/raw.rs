//! A peer that posts what it likes.

use super::*;

pub const HEADER: usize = 28;
pub const REQUEST: u8 = 1;
pub const REPLY: u8 = 2;
pub const GRANT: u8 = 3;
pub const PIECE: u8 = 4;
pub const CREDIT: u8 = 5;
pub const NONE: u8 = 0;
pub const INLINE: u8 = 1;
pub const TAGGED: u8 = 2;
pub const READ: u8 = 3;
pub const PUSH_AFTER_GRANT: u8 = 4;
pub const PIECES: u8 = 5;
pub const WRITE: u8 = 6;
pub const REFER: u8 = 7;
pub const MAY_REFER: u8 = 8;

/// The fields of a message header, as an attacker writes them.
#[derive(Clone, Copy)]
pub struct Raw {
    pub kind: u8,
    pub mode: u8,
    pub reply_mode: u8,
    pub flags: u8,
    pub reads: u8,
    pub writes: u8,
    pub releases: u8,
    pub tag: u32,
    pub header_len: u16,
    pub data_len: u32,
    pub room: u32,
    pub credits: u32,
    pub push: u32,
}

impl Raw {
    pub fn new(kind: u8, tag: u32) -> Raw {
        let (mode, reply_mode) = (NONE, if kind == REQUEST { TAGGED } else { NONE });
        Raw {
            kind,
            mode,
            reply_mode,
            flags: 0,
            reads: 0,
            writes: 0,
            releases: 0,
            tag,
            header_len: 0,
            data_len: 0,
            room: 0,
            credits: 9,
            push: 1 << 16,
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = vec![self.kind, self.mode | self.reply_mode << 4, self.flags, self.reads];
        out.extend(self.tag.to_le_bytes());
        out.extend(self.header_len.to_le_bytes());
        out.extend([self.writes, self.releases]);
        for word in [self.data_len, self.room, self.credits, self.push] {
            out.extend(word.to_le_bytes());
        }
        assert_eq!(out.len(), HEADER);
        out
    }
}

/// A set-up block. Flags: 1 tags, 2 reads, 4 writes, 8 references.
pub fn setup_block(flags: u8) -> Vec<u8> {
    let mut setup = vec![0x44, 0x4d, 2, 20];
    // Flags, bytes of receives, requests at a time.
    setup.extend([flags.into(), 1024u16, 9, 0].map(u16::to_le_bytes).as_flattened());
    setup.extend(0u32.to_le_bytes());
    setup.extend((1u32 << 16).to_le_bytes());
    setup
}

pub fn slot(index: u16) -> u32 {
    u32::from(index) << 16
}

pub fn push_tag(tag: u32) -> Tag {
    Tag(1 << 63 | u64::from(tag))
}

pub fn reply_tag(tag: u32) -> Tag {
    Tag(1 << 62 | u64::from(tag))
}
