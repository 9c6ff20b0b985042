//! Answers as the kernel reads them.

use std::io;
use std::time::Duration;

use dafs_fabric::mem::Buffer;
use dafs_protocol::FileKind;
use zerocopy::IntoBytes;

use super::abi::{self, AttrOut, EntryOut, OpenOut};
use super::channel::Channel;
use super::operation::{Answer, Entry, LockKind, NodeAttr, Op, Opened, StatFs};

/// Where an answer goes, to be called once.
///
/// # Errors
/// Of all methods: whatever is there to take it does not.
pub trait Reply {
    /// A structure and bytes, either of which may be empty.
    fn reply(&mut self, head: &[u8], data: &[u8]) -> io::Result<()>;

    /// Bytes that lie in several places.
    fn reply_pieces(&mut self, pieces: &[&[u8]]) -> io::Result<()>;

    /// The first bytes of the call's room; an error where it has not so many.
    fn reply_room(&mut self, len: usize) -> io::Result<()>;

    /// An errno, above 0.
    fn reply_error(&mut self, errno: i32) -> io::Result<()>;
}

/// By the device, where the request came from; the call has this room.
#[derive(Debug)]
pub(super) struct ReplyTo<'a> {
    pub(super) channel: &'a Channel,
    pub(super) unique: u64,
    pub(super) room: &'a Buffer,
}

impl Reply for ReplyTo<'_> {
    fn reply(&mut self, head: &[u8], data: &[u8]) -> io::Result<()> {
        self.channel.reply(self.unique, head, data)
    }

    fn reply_pieces(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        self.channel.reply_pieces(self.unique, pieces)
    }

    fn reply_room(&mut self, len: usize) -> io::Result<()> {
        match self.room.get(..len) {
            Some(data) => self.reply(&[], data),
            None => self.reply_error(libc::EIO),
        }
    }

    fn reply_error(&mut self, errno: i32) -> io::Result<()> {
        self.channel.reply_error(self.unique, errno)
    }
}

/// What an operation may be answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    data_max: usize,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Xattr,
    Ioctl,
    Other,
}

impl Wanted {
    /// By this one.
    pub fn by(op: &Op<'_>) -> Wanted {
        let kind = match op {
            Op::GetXattr { .. } | Op::ListXattr { .. } => Kind::Xattr,
            Op::Ioctl { .. } => Kind::Ioctl,
            _ => Kind::Other,
        };
        Wanted { data_max: data_max(op), kind }
    }

    /// No bytes.
    pub fn nothing() -> Wanted {
        Wanted { data_max: 0, kind: Kind::Other }
    }
}

/// Sends the answer to a call.
///
/// # Errors
/// As of [`Reply`].
pub fn answer(to: &mut impl Reply, wanted: Wanted, answer: &Answer) -> io::Result<()> {
    let mut send = |head: &[u8]| to.reply(head, &[]);
    let size_out = |size| abi::SizeOut { size, padding: 0 };
    match answer {
        Answer::Done => send(&[]),
        Answer::Entry(entry) => send(entry_out(entry).as_bytes()),
        Answer::Created(entry, opened) => {
            let out = abi::CreateOut { entry: entry_out(entry), open: open_out(opened) };
            send(out.as_bytes())
        }
        Answer::Attr(attr, ttl) => {
            let (valid, valid_ns, attr) = (ttl.as_secs(), ttl.subsec_nanos(), attr_out(attr));
            send(abi::AttrReply { valid, valid_ns, padding: 0, attr }.as_bytes())
        }
        Answer::Opened(opened) => send(open_out(opened).as_bytes()),
        Answer::Read(len) if *len <= wanted.data_max => to.reply_room(*len),
        Answer::Read(_) => to.reply_error(libc::EIO),
        Answer::Lent(lent) => {
            let pieces = lent.pieces();
            match pieces.iter().map(|piece| piece.len()).sum::<usize>() <= wanted.data_max {
                true => to.reply_pieces(&pieces),
                false => to.reply_error(libc::EIO),
            }
        }
        Answer::Data(data) => match wanted.kind {
            Kind::Xattr if data.len() > wanted.data_max => to.reply_error(libc::ERANGE),
            _ if data.len() > wanted.data_max => to.reply_error(libc::EIO),
            Kind::Ioctl => to.reply(abi::IoctlOut::default().as_bytes(), data),
            _ => to.reply(&[], data),
        },
        Answer::Size(size) | Answer::Written(size) => send(size_out(*size).as_bytes()),
        Answer::Offset(offset) => send(abi::LSeekOut { offset: *offset }.as_bytes()),
        Answer::Lock(lock) => {
            let kind = match lock.kind {
                LockKind::Read => libc::F_RDLCK,
                LockKind::Write => libc::F_WRLCK,
                LockKind::Unlock => libc::F_UNLCK,
            };
            let kind = kind.cast_unsigned();
            let (start, end, pid) = (lock.start, lock.end, lock.pid);
            send(abi::LockOut { start, end, kind, pid }.as_bytes())
        }
        Answer::StatFs(fs) => send(stat_fs_out(fs).as_bytes()),
        Answer::Error(errno) if (1..512).contains(errno) => to.reply_error(*errno),
        Answer::Error(_) => to.reply_error(libc::EIO),
    }
}

/// The most bytes that may answer `op`.
fn data_max(op: &Op<'_>) -> usize {
    match op {
        Op::Read { size, .. }
        | Op::ReadDir { size, .. }
        | Op::GetXattr { size, .. }
        | Op::ListXattr { size }
        | Op::Ioctl { out_size: size, .. } => *size as usize,
        Op::ReadLink => 4095,
        _ => 0,
    }
}

fn attr_out(attr: &NodeAttr) -> AttrOut {
    AttrOut {
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.seconds.cast_unsigned(),
        mtime: attr.mtime.seconds.cast_unsigned(),
        ctime: attr.ctime.seconds.cast_unsigned(),
        atime_ns: attr.atime.nanoseconds,
        mtime_ns: attr.mtime.nanoseconds,
        ctime_ns: attr.ctime.nanoseconds,
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.blksize,
        flags: 0,
    }
}

fn entry_out(entry: &Entry) -> EntryOut {
    EntryOut {
        node: entry.node,
        generation: entry.generation,
        entry_valid: entry.entry_ttl.as_secs(),
        attr_valid: entry.attr_ttl.as_secs(),
        entry_valid_ns: entry.entry_ttl.subsec_nanos(),
        attr_valid_ns: entry.attr_ttl.subsec_nanos(),
        attr: attr_out(&entry.attr),
    }
}

fn open_out(opened: &Opened) -> OpenOut {
    OpenOut { fh: opened.fh, open_flags: opened.flags, padding: 0 }
}

fn stat_fs_out(fs: &StatFs) -> abi::StatFsOut {
    abi::StatFsOut {
        blocks: fs.blocks,
        bfree: fs.blocks_free,
        bavail: fs.blocks_available,
        files: fs.files,
        ffree: fs.files_free,
        bsize: fs.bsize,
        namelen: fs.name_bytes_max,
        frsize: fs.frsize,
        ..abi::StatFsOut::default()
    }
}

/// A list of a directory, as large as the kernel asked for.
#[derive(Debug)]
pub struct DirBuffer {
    bytes: Vec<u8>,
    size: usize,
}

impl DirBuffer {
    /// For at most `size` bytes.
    pub fn new(size: u32) -> DirBuffer {
        let size = (size as usize).min(super::MAX_WRITE as usize);
        DirBuffer { bytes: Vec::with_capacity(size), size }
    }

    /// Adds a name, after which a list goes on with `cookie`; false: no room, ask again later.
    pub fn add(&mut self, ino: u64, cookie: u64, kind: Option<FileKind>, name: &[u8]) -> bool {
        self.push(&[], ino, cookie, kind.map_or(0, type_bits), name)
    }

    /// As [`add`](Self::add), with attributes. The kernel has one reference more to each node
    /// that was added, but for node 0 (only the name is told; its type from `attr.mode`).
    pub fn add_plus(&mut self, entry: &Entry, cookie: u64, name: &[u8]) -> bool {
        let kind = (entry.attr.mode & libc::S_IFMT) >> 12;
        self.push(entry_out(entry).as_bytes(), entry.attr.ino, cookie, kind, name)
    }

    /// Bytes that are left.
    pub fn room(&self) -> usize {
        self.size - self.bytes.len()
    }

    /// True when nothing was added.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// For [`Answer::Data`].
    pub fn into_vec(self) -> Vec<u8> {
        self.bytes
    }

    fn push(&mut self, head: &[u8], ino: u64, cookie: u64, kind: u32, name: &[u8]) -> bool {
        let Ok(name_len) = u32::try_from(name.len()) else { return false };
        let len = head.len() + size_of::<abi::DirEntOut>() + name.len();
        let Some(len) = len.checked_next_multiple_of(8).filter(|len| *len <= self.room()) else {
            return false;
        };
        let end = self.bytes.len() + len;
        self.bytes.extend_from_slice(head);
        let entry = abi::DirEntOut { ino, cookie, name_len, kind };
        self.bytes.extend_from_slice(entry.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }
}

/// The type of a directory's entry, as `d_type`.
fn type_bits(kind: FileKind) -> u32 {
    let mode = match kind {
        FileKind::File => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    };
    mode >> 12
}

/// A long time, for what never changes.
pub const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_never_larger_than_asked_for() {
        let mut list = DirBuffer::new(64);
        assert!(list.add(5, 1, Some(FileKind::File), b"name"));
        assert_eq!(list.room(), 32);
        assert!(!list.add(6, 2, None, b"nine bytes"), "36 bytes become 40");
        assert!(list.add(6, 2, Some(FileKind::Directory), b"12345678"));
        assert!(!list.add(7, 3, None, b""));
        let bytes = list.into_vec();
        assert_eq!(bytes.len(), 64);
        assert_eq!(&bytes[16..32], [4, 0, 0, 0, 8, 0, 0, 0, b'n', b'a', b'm', b'e', 0, 0, 0, 0]);
    }

    #[test]
    fn attributes_stand_before_a_name() {
        let mut list = DirBuffer::new(200);
        let attr = NodeAttr { ino: 9, mode: libc::S_IFLNK | 0o777, ..NodeAttr::default() };
        let entry = Entry { node: 3, attr, ..Entry::default() };
        assert!(list.add_plus(&entry, 1, b"link"));
        assert!(!list.add_plus(&entry, 2, b"link"));
        let bytes = list.into_vec();
        assert_eq!(bytes.len(), 128 + 32);
        assert_eq!((bytes[0], bytes[128], bytes[128 + 20]), (3, 9, 10));
    }
}
