//! Attributes of files and of file systems.

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// Regular file.
    File = 1,
    /// Directory.
    Directory = 2,
    /// Symbolic link.
    Symlink = 3,
    /// Named pipe.
    Fifo = 4,
    /// Socket.
    Socket = 5,
    /// Character device.
    CharDevice = 6,
    /// Block device.
    BlockDevice = 7,
}

/// The mode of a new object: permission bits, and with them the umask that a directory without a
/// default list (ACL) applies. Bits of a type in `mode` are left out.
pub const fn mode_with_umask(mode: u32, umask: u32) -> u32 {
    (mode & 0o7777) | ((umask & 0o777) << 16)
}

/// Permission bits and umask of [`mode_with_umask`]. Without a umask, that is 0.
pub const fn split_mode(mode: u32) -> (u32, u32) {
    (mode & 0o7777, (mode >> 16) & 0o777)
}

/// Nanosecond time, may be before 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Timestamp {
    /// Seconds since 1970.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanoseconds: u32,
}

/// As statx.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, with setuid, setgid and sticky (07777).
    pub mode: u32,
    /// Hard links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Bytes allocated.
    pub allocated: u64,
    /// Inode number, unique with `device`.
    pub inode: u64,
    /// The file system, as a number. From a server: stays the same for as long as the file system
    /// exists. From a store: this host's, which may be another after a reboot.
    pub device: u64,
    /// A number that no other object of the server has, on whatever file system. A store leaves
    /// it 0.
    pub number: u64,
    /// Of a device node.
    pub rdev: u64,
    /// Preferred I/O size.
    pub block_size: u32,
    /// Grows with each change; derived from ctime where the system has nothing better.
    pub change: u64,
    /// Last access.
    pub accessed: Timestamp,
    /// Last change of data.
    pub modified: Timestamp,
    /// Last change of attributes.
    pub changed: Timestamp,
    /// Creation, where known.
    pub created: Option<Timestamp>,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The server's clock.
    Now,
    /// This.
    To(Timestamp),
}

/// What to change; `None` stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// Truncates or extends (regular files).
    pub size: Option<u64>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub accessed: Option<SetTime>,
    /// Last change of data.
    pub modified: Option<SetTime>,
}

/// As statvfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FsAttr {
    /// Bytes in all.
    pub bytes_total: u64,
    /// Bytes free.
    pub bytes_free: u64,
    /// Bytes free to users other than root.
    pub bytes_available: u64,
    /// Files in all.
    pub files_total: u64,
    /// Files free.
    pub files_free: u64,
    /// Longest name.
    pub name_bytes_max: u32,
    /// Block size.
    pub block_size: u32,
    /// The export takes no changes.
    pub read_only: bool,
    /// The server's lease time, in seconds.
    pub lease_seconds: u32,
}

/// A range of a file that is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileExtent {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Allocated, never written: reads as zeros.
    pub unwritten: bool,
    /// Its blocks are shared with another file.
    pub shared: bool,
}

/// The first byte of every [`Attr::number`], and of few inode numbers.
pub const NUMBER_TOP: u64 = 0x7f;

/// Which object something is, as [`Attr`] says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ObjectId {
    /// As [`Attr::inode`].
    pub inode: u64,
    /// As [`Attr::device`].
    pub device: u64,
    /// As [`Attr::number`].
    pub number: u64,
}

impl Attr {
    /// Which object they are of.
    pub fn id(&self) -> ObjectId {
        ObjectId { inode: self.inode, device: self.device, number: self.number }
    }
}

/// A directory entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// Continue after this entry with this cookie.
    pub cookie: u64,
    /// Any bytes but `/` and NUL.
    pub name: Vec<u8>,
    /// What it is; `None` where the file system does not tell and attributes were not asked.
    pub kind: Option<FileKind>,
    /// If asked for and permitted.
    pub attr: Option<Attr>,
    /// Which object it is, where attributes were not asked for.
    pub id: Option<ObjectId>,
    /// If asked for and permitted.
    pub handle: Option<crate::FileHandle>,
}
