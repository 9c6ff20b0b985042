//! Requests as the kernel writes them.

use dafs_protocol::Timestamp;
use zerocopy::FromBytes;

use super::abi::{self, InHeader, opcode, setattr};
use super::init::Init;
use super::operation::{KernelLock, LockKind, Op, SetAttr, SetTime};

/// A request that a file system answers, or one for the loop itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Request<'a> {
    /// For the file system.
    Call(Op<'a>),
    /// References given back: of one node.
    Forget(u64),
    /// References given back: as many [`abi::ForgetOne`] as there are.
    BatchForget(&'a [u8]),
    /// The call of this number is to end.
    Interrupt(u64),
    /// The first message.
    Init(Init),
    /// The last message.
    Destroy,
    /// Not known here.
    Unknown,
}

/// A request that is not what the protocol says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// The header of a request, and what follows it, without extensions.
pub fn split(message: &[u8]) -> Result<(InHeader, &[u8]), Malformed> {
    let (header, body) = InHeader::read_from_prefix(message).map_err(|_| Malformed)?;
    if header.len as usize != message.len() {
        return Err(Malformed);
    }
    let len = body.len().checked_sub(usize::from(header.extension_len) * 8).ok_or(Malformed)?;
    Ok((header, body.get(..len).ok_or(Malformed)?))
}

/// Takes structures, names and data from the front of a message, which lies in up to two parts: no
/// structure or name in both.
struct Body<'a>(&'a [u8], &'a [u8]);

impl<'a> Body<'a> {
    fn turn(&mut self) {
        if self.0.is_empty() {
            self.0 = std::mem::take(&mut self.1);
        }
    }

    fn take<T: FromBytes>(&mut self) -> Result<T, Malformed> {
        self.turn();
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| Malformed)?;
        self.0 = rest;
        Ok(value)
    }

    /// Bytes up to a NUL, which is there.
    fn text(&mut self) -> Result<&'a [u8], Malformed> {
        self.turn();
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Malformed)?;
        let (text, rest) = self.0.split_at(end);
        self.0 = rest.get(1..).ok_or(Malformed)?;
        Ok(text)
    }

    /// A name of a directory's entry.
    fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let name = self.text()?;
        if name.is_empty() || name.contains(&b'/') { Err(Malformed) } else { Ok(name) }
    }

    fn bytes(&mut self, len: u32) -> Result<&'a [u8], Malformed> {
        self.turn();
        self.0.get(..len as usize).ok_or(Malformed)
    }
}

/// What a request asks for.
pub fn decode<'a>(header: &InHeader, body: &'a [u8]) -> Result<Request<'a>, Malformed> {
    decode_parts(header, body, &[])
}

/// As [`decode`], where the structure that the opcode names lies in `head`, and what follows it in
/// `data`; neither with extensions.
pub fn decode_parts<'a>(
    header: &InHeader,
    head: &'a [u8],
    data: &'a [u8],
) -> Result<Request<'a>, Malformed> {
    let mut body = Body(head, data);
    match header.opcode {
        opcode::FORGET => Ok(Request::Forget(body.take::<abi::ForgetIn>()?.count)),
        opcode::BATCH_FORGET => {
            let count = body.take::<abi::BatchForgetIn>()?.count;
            let len = u32::try_from(size_of::<abi::ForgetOne>()).map_err(|_| Malformed)?;
            Ok(Request::BatchForget(body.bytes(count.checked_mul(len).ok_or(Malformed)?)?))
        }
        opcode::INTERRUPT => Ok(Request::Interrupt(body.take::<abi::InterruptIn>()?.unique)),
        opcode::INIT => init(&mut body).map(Request::Init),
        opcode::DESTROY => Ok(Request::Destroy),
        _ => Ok(operation(header.opcode, &mut body)?.map_or(Request::Unknown, Request::Call)),
    }
}

fn init(body: &mut Body<'_>) -> Result<Init, Malformed> {
    let first: abi::InitIn = body.take()?;
    let mut flags = u64::from(first.flags);
    if flags & abi::init::INIT_EXT != 0 {
        flags |= u64::from(body.take::<u32>()?) << 32;
    }
    let abi::InitIn { major, minor, max_readahead, .. } = first;
    Ok(Init { major, minor, max_readahead, flags })
}

/// `None` for an opcode that is not known.
fn operation<'a>(code: u32, body: &mut Body<'a>) -> Result<Option<Op<'a>>, Malformed> {
    let op = match code {
        opcode::LOOKUP => Op::Lookup { name: body.name()? },
        opcode::GETATTR => {
            let get: abi::GetAttrIn = body.take()?;
            Op::GetAttr { fh: (get.flags & abi::GETATTR_FH != 0).then_some(get.fh) }
        }
        opcode::SETATTR => Op::SetAttr(set_attr(&body.take()?)),
        opcode::STATFS => Op::StatFs,
        opcode::SYNCFS => Op::SyncFs,
        opcode::ACCESS => Op::Access { mask: body.take::<abi::AccessIn>()?.mask },
        opcode::SETXATTR => {
            let set: abi::SetXattrIn = body.take()?;
            Op::SetXattr { name: body.text()?, value: body.bytes(set.size)?, flags: set.flags }
        }
        opcode::GETXATTR => {
            let get: abi::GetXattrIn = body.take()?;
            Op::GetXattr { name: body.text()?, size: get.size }
        }
        opcode::LISTXATTR => Op::ListXattr { size: body.take::<abi::GetXattrIn>()?.size },
        opcode::REMOVEXATTR => Op::RemoveXattr { name: body.text()? },
        opcode::GETLK | opcode::SETLK | opcode::SETLKW => lock(code, &body.take()?)?,
        _ => {
            return Ok(match names(code, body)? {
                None => files(code, body)?,
                some => some,
            });
        }
    };
    Ok(Some(op))
}

/// Operations that make, remove or follow names.
fn names<'a>(code: u32, body: &mut Body<'a>) -> Result<Option<Op<'a>>, Malformed> {
    let op = match code {
        opcode::READLINK => Op::ReadLink,
        opcode::SYMLINK => Op::SymLink { name: body.name()?, target: body.text()? },
        opcode::MKNOD => {
            let abi::MkNodIn { mode, rdev, umask, .. } = body.take()?;
            Op::MkNod { name: body.name()?, mode, rdev, umask }
        }
        opcode::MKDIR => {
            let abi::MkDirIn { mode, umask } = body.take()?;
            Op::MkDir { name: body.name()?, mode, umask }
        }
        opcode::UNLINK => Op::Unlink { name: body.name()? },
        opcode::RMDIR => Op::RmDir { name: body.name()? },
        opcode::RENAME => {
            let abi::RenameIn { to_dir } = body.take()?;
            Op::Rename { name: body.name()?, to_dir, to: body.name()?, flags: 0 }
        }
        opcode::RENAME2 => {
            let abi::Rename2In { to_dir, flags, .. } = body.take()?;
            Op::Rename { name: body.name()?, to_dir, to: body.name()?, flags }
        }
        opcode::LINK => {
            let abi::LinkIn { from } = body.take()?;
            Op::Link { from, name: body.name()? }
        }
        opcode::CREATE => {
            let abi::CreateIn { flags, mode, umask, .. } = body.take()?;
            Op::Create { name: body.name()?, flags, mode, umask }
        }
        opcode::TMPFILE => {
            let abi::CreateIn { flags, mode, umask, .. } = body.take()?;
            Op::TmpFile { flags, mode, umask }
        }
        _ => return Ok(None),
    };
    Ok(Some(op))
}

/// Operations on what is open, and opening itself.
fn files<'a>(code: u32, body: &mut Body<'a>) -> Result<Option<Op<'a>>, Malformed> {
    let op = match code {
        opcode::READ => {
            let abi::ReadIn { fh, offset, size, flags, .. } = body.take()?;
            Op::Read { fh, offset, size, flags }
        }
        opcode::WRITE => {
            let write: abi::WriteIn = body.take()?;
            let abi::WriteIn { fh, offset, size, write_flags, flags, .. } = write;
            let from_cache = write_flags & abi::WRITE_CACHE != 0;
            let kill_suidgid = write_flags & abi::WRITE_KILL_SUIDGID != 0;
            let data = body.bytes(size)?;
            Op::Write { fh, offset, data, flags, from_cache, kill_suidgid, memory: None }
        }
        opcode::OPEN => {
            let abi::OpenIn { flags, .. } = body.take()?;
            Op::Open { flags }
        }
        opcode::OPENDIR => Op::OpenDir { flags: body.take::<abi::OpenIn>()?.flags },
        opcode::FLUSH => {
            let abi::FlushIn { fh, lock_owner, .. } = body.take()?;
            Op::Flush { fh, owner: lock_owner }
        }
        opcode::RELEASE => {
            let abi::ReleaseIn { fh, flags, release_flags, lock_owner } = body.take()?;
            let flock_unlock = release_flags & abi::RELEASE_FLOCK_UNLOCK != 0;
            Op::Release { fh, flags, owner: lock_owner, flock_unlock }
        }
        opcode::RELEASEDIR => Op::ReleaseDir { fh: body.take::<abi::ReleaseIn>()?.fh },
        opcode::FSYNC | opcode::FSYNCDIR => {
            let abi::SyncIn { fh, flags, .. } = body.take()?;
            let data_only = flags & abi::FSYNC_DATA != 0;
            match code {
                opcode::FSYNC => Op::FSync { fh, data_only },
                _ => Op::FSyncDir { fh, data_only },
            }
        }
        opcode::READDIR | opcode::READDIRPLUS => {
            let abi::ReadIn { fh, offset, size, .. } = body.take()?;
            Op::ReadDir { fh, offset, size, plus: code == opcode::READDIRPLUS }
        }
        opcode::FALLOCATE => {
            let abi::FAllocateIn { fh, offset, len, mode, .. } = body.take()?;
            Op::FAllocate { fh, mode, offset, len }
        }
        opcode::LSEEK => {
            let abi::LSeekIn { fh, offset, whence, .. } = body.take()?;
            Op::LSeek { fh, offset, whence }
        }
        opcode::COPY_FILE_RANGE => {
            let copy: abi::CopyFileRangeIn = body.take()?;
            let abi::CopyFileRangeIn { fh, offset, to_node, to_fh, to_offset, len, flags } = copy;
            Op::CopyFileRange { fh, offset, to_node, to_fh, to_offset, len, flags }
        }
        opcode::IOCTL => {
            let abi::IoctlIn { fh, flags, cmd, arg, in_size, out_size } = body.take()?;
            Op::Ioctl { fh, flags, cmd, arg, data: body.bytes(in_size)?, out_size }
        }
        opcode::POLL => {
            let abi::PollIn { fh, events, .. } = body.take()?;
            Op::Poll { fh, events }
        }
        _ => return Ok(None),
    };
    Ok(Some(op))
}

fn lock<'a>(code: u32, lock: &abi::LockIn) -> Result<Op<'a>, Malformed> {
    let kind = match lock.kind.cast_signed() {
        libc::F_RDLCK => LockKind::Read,
        libc::F_WRLCK => LockKind::Write,
        libc::F_UNLCK => LockKind::Unlock,
        _ => return Err(Malformed),
    };
    if lock.start > lock.end || lock.end > i64::MAX.cast_unsigned() {
        return Err(Malformed);
    }
    let abi::LockIn { fh, owner, start, end, pid, .. } = *lock;
    let flock = lock.flags & abi::LOCK_FLOCK != 0;
    let lock = KernelLock { owner, start, end, kind, pid };
    Ok(match code {
        opcode::GETLK => Op::GetLk { fh, lock },
        // Also locks that are given back come by SETLKW.
        _ => {
            let wait = code == opcode::SETLKW && kind != LockKind::Unlock;
            Op::SetLk { fh, lock, wait, flock }
        }
    })
}

fn set_attr(set: &abi::SetAttrIn) -> SetAttr {
    let has = |flag| set.valid & flag != 0;
    let time = |given, now, seconds: u64, nanoseconds| {
        if has(now) {
            Some(SetTime::Now)
        } else {
            let time = Timestamp { seconds: seconds.cast_signed(), nanoseconds };
            has(given).then_some(SetTime::At(time))
        }
    };
    SetAttr {
        fh: has(setattr::FH).then_some(set.fh),
        size: has(setattr::SIZE).then_some(set.size),
        mode: has(setattr::MODE).then_some(set.mode & 0o7777),
        uid: has(setattr::UID).then_some(set.uid),
        gid: has(setattr::GID).then_some(set.gid),
        atime: time(setattr::ATIME, setattr::ATIME_NOW, set.atime, set.atime_ns),
        mtime: time(setattr::MTIME, setattr::MTIME_NOW, set.mtime, set.mtime_ns),
        lock_owner: has(setattr::LOCK_OWNER).then_some(set.lock_owner),
    }
}

#[cfg(test)]
mod tests;
