//! What the kernel asks of a file system.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use dafs_fabric::mem::Buffer;
use dafs_protocol::Timestamp;

use super::init::InitOptions;
use super::requests::RequestMemory;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// The user that rights are checked for.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The thread; 0 where it cannot be seen from here.
    pub pid: u32,
}

/// A file system, called by many threads.
pub trait FileSystem: Send + Sync + 'static {
    /// Before the first call: what the kernel offers, to be changed to what is wanted.
    fn init(&self, kernel: &mut InitOptions);

    /// Does one operation on `node`, and blocks meanwhile. `room` is this thread's memory for
    /// the data of a READ, as large as the largest; whatever is in it. A call that comes with data or
    /// names may have less.
    fn call(&self, caller: &Caller, node: u64, op: Op<'_>, room: &mut Buffer) -> Answer;

    /// Memory that its calls use best, of so many bytes, whatever is in them: for `room`, and for what
    /// requests are read to.
    ///
    /// # Errors
    /// There is none.
    fn buffer(&self, bytes: usize) -> io::Result<Buffer> {
        Buffer::new(bytes).map_err(io::Error::other)
    }

    /// The kernel gives back `count` of its references to `node`. Does not block.
    fn forget(&self, node: u64, count: u64);

    /// True while calls wait for a server that is lost: any signal ends them then.
    fn is_stuck(&self) -> bool;

    /// Nobody can call any more. What is still open was never released.
    fn unmounted(&self);
}

/// An operation. `dir` is the node of the call where a name is meant.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "fields as in the system call of that name")]
pub enum Op<'a> {
    /// A name of the node. [`Answer::Entry`].
    Lookup { name: &'a [u8] },
    /// [`Answer::Attr`].
    GetAttr { fh: Option<u64> },
    /// [`Answer::Attr`].
    SetAttr(SetAttr),
    /// [`Answer::Data`].
    ReadLink,
    /// [`Answer::Entry`].
    SymLink { name: &'a [u8], target: &'a [u8] },
    /// `mode` with the type, before the umask, as all modes of new objects. [`Answer::Entry`].
    MkNod { name: &'a [u8], mode: u32, rdev: u32, umask: u32 },
    /// [`Answer::Entry`].
    MkDir { name: &'a [u8], mode: u32, umask: u32 },
    /// [`Answer::Done`].
    Unlink { name: &'a [u8] },
    /// [`Answer::Done`].
    RmDir { name: &'a [u8] },
    /// `flags` as of `renameat2`. [`Answer::Done`].
    Rename { name: &'a [u8], to_dir: u64, to: &'a [u8], flags: u32 },
    /// A name for the node `from`. [`Answer::Entry`].
    Link { from: u64, name: &'a [u8] },
    /// Cut by a [`SetAttr`] that follows. [`Answer::Opened`].
    Open { flags: u32 },
    /// [`Answer::Created`].
    Create { name: &'a [u8], flags: u32, mode: u32, umask: u32 },
    /// A file without a name. [`Answer::Created`].
    TmpFile { flags: u32, mode: u32, umask: u32 },
    /// [`Answer::Read`].
    Read { fh: u64, offset: u64, size: u32, flags: u32 },
    /// `from_cache`: written by a memory mapping, nobody knows by whom. `memory`: where the data
    /// lie; they stay there as long as somebody holds it. Without: until the answer.
    /// [`Answer::Written`].
    Write {
        fh: u64,
        offset: u64,
        data: &'a [u8],
        flags: u32,
        from_cache: bool,
        kill_suidgid: bool,
        memory: Option<&'a Arc<RequestMemory>>,
    },
    /// A descriptor is closed; POSIX locks of `owner` end. [`Answer::Done`].
    Flush { fh: u64, owner: u64 },
    /// The last descriptor is gone. [`Answer::Done`].
    Release { fh: u64, flags: u32, owner: u64, flock_unlock: bool },
    /// [`Answer::Done`].
    FSync { fh: u64, data_only: bool },
    /// [`Answer::StatFs`].
    StatFs,
    /// Everything written so far is to be safe. [`Answer::Done`].
    SyncFs,
    /// [`Answer::Done`].
    SetXattr { name: &'a [u8], value: &'a [u8], flags: u32 },
    /// [`Answer::Data`]; where `size` is 0, [`Answer::Size`].
    GetXattr { name: &'a [u8], size: u32 },
    /// Names, each ended by NUL; answered as [`Op::GetXattr`].
    ListXattr { size: u32 },
    /// [`Answer::Done`].
    RemoveXattr { name: &'a [u8] },
    /// [`Answer::Opened`].
    OpenDir { flags: u32 },
    /// What [`DirBuffer`](super::DirBuffer) made, at most `size` bytes; nothing at the end.
    /// [`Answer::Data`].
    ReadDir { fh: u64, offset: u64, size: u32, plus: bool },
    /// [`Answer::Done`].
    ReleaseDir { fh: u64 },
    /// [`Answer::Done`].
    FSyncDir { fh: u64, data_only: bool },
    /// A lock that is in the way of `lock`, or `lock` with [`LockKind::Unlock`].
    /// [`Answer::Lock`].
    GetLk { fh: u64, lock: KernelLock },
    /// `flock`: a lock of the whole file by `flock(2)`. [`Answer::Done`].
    SetLk { fh: u64, lock: KernelLock, wait: bool, flock: bool },
    /// [`Answer::Done`].
    Access { mask: u32 },
    /// [`Answer::Done`].
    FAllocate { fh: u64, mode: u32, offset: u64, len: u64 },
    /// SEEK_DATA and SEEK_HOLE. [`Answer::Offset`].
    LSeek { fh: u64, offset: u64, whence: u32 },
    /// [`Answer::Written`].
    CopyFileRange {
        fh: u64,
        offset: u64,
        to_node: u64,
        to_fh: u64,
        to_offset: u64,
        len: u64,
        flags: u64,
    },
    /// [`Answer::Data`] of at most `out_size` bytes.
    Ioctl { fh: u64, flags: u32, cmd: u32, arg: u64, data: &'a [u8], out_size: u32 },
    /// [`Answer::Size`] with the events that are ready.
    Poll { fh: u64, events: u32 },
}

impl Op<'_> {
    /// Whether it may take until another caller gives something back.
    pub(super) fn waits_for_lock(&self) -> bool {
        matches!(self, Op::SetLk { wait: true, .. })
    }
}

impl<'a> Op<'a> {
    /// The request was read to this memory.
    pub(super) fn lies_in(&mut self, held: &'a Arc<RequestMemory>) {
        if let Op::Write { memory, .. } = self {
            *memory = Some(held);
        }
    }
}

/// What to change; `None` stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// By this open file.
    pub fh: Option<u64>,
    /// Bytes.
    pub size: Option<u64>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of data.
    pub mtime: Option<SetTime>,
    /// Who truncates, as in locks.
    pub lock_owner: Option<u64>,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time at which it is set.
    Now,
    /// This.
    At(Timestamp),
}

/// A lock, by whoever the kernel calls `owner`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelLock {
    /// Equal for those who share their locks.
    pub owner: u64,
    /// First byte.
    pub start: u64,
    /// Last byte, inside; `i64::MAX`: to the end, wherever it is.
    pub end: u64,
    /// What is asked for.
    pub kind: LockKind,
    /// The process.
    pub pid: u32,
}

/// Kinds of locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
    /// None.
    Unlock,
}

/// Bytes that lie in several places, and stay there until it is dropped.
pub trait Pieces: Send + Sync {
    /// Them, in order.
    fn pieces(&self) -> Vec<&[u8]>;
}

/// See [`Pieces`].
#[derive(Clone)]
pub struct LentData(Arc<dyn Pieces>);

impl LentData {
    /// Such bytes.
    pub fn new(pieces: impl Pieces + 'static) -> LentData {
        LentData(Arc::new(pieces))
    }

    pub(super) fn pieces(&self) -> Vec<&[u8]> {
        self.0.pieces()
    }
}

impl PartialEq for LentData {
    fn eq(&self, other: &LentData) -> bool {
        self.pieces() == other.pieces()
    }
}

impl fmt::Debug for LentData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentData").finish_non_exhaustive()
    }
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// It is done.
    Done,
    /// A name's node.
    Entry(Entry),
    /// A new file, open.
    Created(Entry, Opened),
    /// Attributes, and for how long they hold.
    Attr(NodeAttr, Duration),
    /// An open file or directory.
    Opened(Opened),
    /// So many bytes lie at the start of the room.
    Read(usize),
    /// Bytes of a READ that lie elsewhere.
    Lent(LentData),
    /// Bytes.
    Data(Vec<u8>),
    /// How many bytes an extended attribute has.
    Size(u32),
    /// So many bytes were written.
    Written(u32),
    /// Where data or a hole begin.
    Offset(u64),
    /// A lock.
    Lock(KernelLock),
    /// About the whole file system.
    StatFs(StatFs),
    /// An errno, above 0.
    Error(i32),
}

/// A name's node. Node 0: there is nothing, for as long as `entry_ttl` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry {
    /// Number of the node; the kernel has one reference more.
    pub node: u64,
    /// Together with `node` never used twice.
    pub generation: u64,
    /// What it is.
    pub attr: NodeAttr,
    /// How long `attr` holds.
    pub attr_ttl: Duration,
    /// How long the name means this node.
    pub entry_ttl: Duration,
}

/// An open file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Opened {
    /// What later calls name it.
    pub fh: u64,
    /// Of [`open`](super::abi::open).
    pub flags: u32,
}

/// Attributes as `stat` gives them; `mode` with the type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names of stat")]
pub struct NodeAttr {
    pub ino: u64,
    pub size: u64,
    /// Of 512 bytes.
    pub blocks: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub blksize: u32,
}

/// As statvfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatFs {
    /// In all, of `frsize` bytes.
    pub blocks: u64,
    /// Free.
    pub blocks_free: u64,
    /// Free to users other than root.
    pub blocks_available: u64,
    /// Files in all.
    pub files: u64,
    /// Files free.
    pub files_free: u64,
    /// Preferred I/O size.
    pub bsize: u32,
    /// Bytes of a block.
    pub frsize: u32,
    /// Longest name.
    pub name_bytes_max: u32,
}
