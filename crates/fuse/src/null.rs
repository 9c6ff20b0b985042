//! A file system without files: one directory with one file, whose bytes are zeros and keep
//! nothing. What a call through the kernel costs when the file system costs nothing. Large reads are
//! answered out of as much memory as the file has bytes, as those are that a cache answers: what was
//! just read is in the processor's own, and a copy of it costs half as much.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use dafs_fabric::mem::Buffer;
use dafs_protocol::FileKind;

use crate::kernel::{
    Answer, Caller, DirBuffer, Entry, FOREVER, FileSystem, InitOptions, LentData, NodeAttr, Op,
    Opened, Pieces, StatFs, abi,
};

/// The node of the file.
const FILE: u64 = 2;
/// Its name.
const NAME: &[u8] = b"file";

/// Reads of so many bytes are answered out of memory that nothing else is.
const LARGE_MIN: usize = 64 << 10;
/// Beyond that the file is the same memory again: no processor has so much of its own.
const FOOTPRINT_MAX: u64 = 256 << 20;

/// See the module.
#[derive(Debug)]
pub struct NullFs {
    size: u64,
    direct_io: bool,
    /// Of large reads; there is none before the first.
    zeros: OnceLock<Option<Arc<Buffer>>>,
    /// The room of a read had other data before.
    room_is_used: AtomicBool,
}

impl NullFs {
    /// The file has `size` bytes. `direct_io`: the kernel keeps nothing of it.
    pub fn new(size: u64, direct_io: bool) -> NullFs {
        let room_is_used = AtomicBool::new(false);
        NullFs { size, direct_io, zeros: OnceLock::new(), room_is_used }
    }

    /// What a large read is answered with; `None`: there is no memory for that.
    fn large(&self, offset: u64, len: usize) -> Option<Answer> {
        let footprint = usize::try_from(self.size.min(FOOTPRINT_MAX)).ok()?;
        let new = || Buffer::in_huge_pages(footprint).ok().map(Arc::new);
        let zeros = self.zeros.get_or_init(new).clone()?;
        let at = usize::try_from(offset % FOOTPRINT_MAX).ok()?;
        let first = len.min(footprint.checked_sub(at)?);
        let zeros = Zeros { zeros, parts: [(at, first), (0, len - first)] };
        Some(Answer::Lent(LentData::new(zeros)))
    }

    fn attr(&self, node: u64) -> NodeAttr {
        let (mode, size, nlink) = match node {
            FILE => (libc::S_IFREG | 0o666, self.size, 1),
            _ => (libc::S_IFDIR | 0o777, 4096, 2),
        };
        let blocks = size.div_ceil(512);
        NodeAttr { ino: node, size, blocks, mode, nlink, blksize: 4096, ..NodeAttr::default() }
    }

    fn entry(&self, node: u64) -> Entry {
        let attr = self.attr(node);
        Entry { node, generation: 1, attr, attr_ttl: FOREVER, entry_ttl: FOREVER }
    }

    fn list(&self, offset: u64, size: u32, plus: bool) -> Answer {
        let mut list = DirBuffer::new(size);
        if offset == 0 {
            if plus {
                list.add_plus(&self.entry(FILE), 1, NAME);
            } else {
                list.add(FILE, 1, Some(FileKind::File), NAME);
            }
        }
        Answer::Data(list.into_vec())
    }
}

/// The second part is there where the memory ends in between.
struct Zeros {
    zeros: Arc<Buffer>,
    parts: [(usize, usize); 2],
}

impl Pieces for Zeros {
    fn pieces(&self) -> Vec<&[u8]> {
        self.parts.iter().filter_map(|(at, len)| self.zeros.get(*at..at + len)).collect()
    }
}

impl FileSystem for NullFs {
    fn init(&self, kernel: &mut InitOptions) {
        // Locks are the kernel's own: nobody else has this file.
        kernel.set(abi::init::POSIX_LOCKS | abi::init::FLOCK_LOCKS, false);
        // Of rings it is the memory of requests, too.
        let used = kernel.flags & kernel.offered & abi::init::OVER_IO_URING != 0;
        self.room_is_used.store(used, Ordering::Relaxed);
    }

    fn call(&self, _: &Caller, node: u64, op: Op<'_>, room: &mut Buffer) -> Answer {
        match op {
            Op::Lookup { name } if name == NAME => Answer::Entry(self.entry(FILE)),
            Op::Lookup { .. } => Answer::Error(libc::ENOENT),
            Op::GetAttr { .. } | Op::SetAttr(_) => Answer::Attr(self.attr(node), FOREVER),
            Op::Open { .. } => {
                let flags =
                    if self.direct_io { abi::open::DIRECT_IO } else { abi::open::KEEP_CACHE };
                Answer::Opened(Opened { fh: 0, flags })
            }
            Op::OpenDir { .. } => Answer::Opened(Opened::default()),
            // The room is zeros, and nobody else writes to it, or else is made so.
            Op::Read { offset, size, .. } => {
                let left = self.size.saturating_sub(offset).min(size.into());
                let len = usize::try_from(left).unwrap_or(usize::MAX).min(room.len());
                if len >= LARGE_MIN
                    && let Some(answer) = self.large(offset, len)
                {
                    return answer;
                }
                if self.room_is_used.load(Ordering::Relaxed) {
                    room[..len].fill(0);
                }
                Answer::Read(len)
            }
            Op::Write { data, .. } => {
                Answer::Written(u32::try_from(data.len()).unwrap_or(u32::MAX))
            }
            Op::ReadDir { offset, size, plus, .. } => self.list(offset, size, plus),
            Op::StatFs => Answer::StatFs(StatFs { bsize: 4096, frsize: 4096, ..StatFs::default() }),
            Op::Release { .. } | Op::ReleaseDir { .. } | Op::FSync { .. } | Op::FSyncDir { .. } => {
                Answer::Done
            }
            _ => Answer::Error(libc::ENOSYS),
        }
    }

    fn forget(&self, _: u64, _: u64) {}

    fn is_stuck(&self) -> bool {
        false
    }

    fn unmounted(&self) {}
}
