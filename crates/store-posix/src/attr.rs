//! Attributes, from and to the kernel.

use std::os::fd::OwnedFd;

use dafs_protocol::{Attr, FileKind, FsAttr, Identity, SetAttr, SetTime, Status, Timestamp};

use super::sys;
use dafs_store::FileId;

const MASK: u32 = libc::STATX_BASIC_STATS | libc::STATX_BTIME | libc::STATX_MNT_ID;

/// What tells objects that exist at the same time apart: number, and time of birth where it is told.
pub(super) type Born = (FileId, i64, u32);

/// A result of statx.
pub(super) struct Stat(libc::statx);

impl Stat {
    /// Of what a descriptor names. `lazy`: what the kernel knows, without asking a server.
    pub(super) fn of(fd: &OwnedFd, lazy: bool) -> Result<Stat, Status> {
        Stat::at(fd, b"", lazy)
    }

    /// Of a name in a directory; not of what a symlink there points to.
    pub(super) fn at(dir: &OwnedFd, name: &[u8], lazy: bool) -> Result<Stat, Status> {
        let flags = if lazy { libc::AT_STATX_DONT_SYNC } else { 0 };
        Ok(Stat(sys::statx(dir, name, flags, MASK)?))
    }

    pub(super) fn kind(&self) -> FileKind {
        match u32::from(self.0.stx_mode) & libc::S_IFMT {
            libc::S_IFDIR => FileKind::Directory,
            libc::S_IFLNK => FileKind::Symlink,
            libc::S_IFIFO => FileKind::Fifo,
            libc::S_IFSOCK => FileKind::Socket,
            libc::S_IFCHR => FileKind::CharDevice,
            libc::S_IFBLK => FileKind::BlockDevice,
            _ => FileKind::File,
        }
    }

    pub(super) fn id(&self) -> FileId {
        let device = libc::makedev(self.0.stx_dev_major, self.0.stx_dev_minor);
        FileId { device, inode: self.0.stx_ino }
    }

    pub(super) fn born(&self) -> Born {
        let has_birth = self.0.stx_mask & libc::STATX_BTIME != 0;
        let birth = has_birth.then_some(self.0.stx_btime);
        (self.id(), birth.map_or(0, |time| time.tv_sec), birth.map_or(0, |time| time.tv_nsec))
    }

    pub(super) fn links(&self) -> u32 {
        self.0.stx_nlink
    }

    pub(super) fn uid(&self) -> u32 {
        self.0.stx_uid
    }

    pub(super) fn mode(&self) -> u32 {
        u32::from(self.0.stx_mode) & 0o7777
    }

    pub(super) fn mount(&self) -> Option<u64> {
        (self.0.stx_mask & libc::STATX_MNT_ID != 0).then_some(self.0.stx_mnt_id)
    }

    /// The same directory, at the same place of the tree of mounts.
    pub(super) fn is_same_place(&self, other: &Stat) -> bool {
        self.id() == other.id() && self.mount() == other.mount()
    }

    pub(super) fn attr(&self) -> Attr {
        let stat = &self.0;
        let id = self.id();
        let changed = time(&stat.stx_ctime);
        let has_birth = stat.stx_mask & libc::STATX_BTIME != 0;
        Attr {
            kind: self.kind(),
            mode: self.mode(),
            links: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            size: stat.stx_size,
            allocated: stat.stx_blocks.saturating_mul(512),
            inode: id.inode,
            device: id.device,
            number: 0,
            rdev: libc::makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
            block_size: stat.stx_blksize,
            change: change(changed),
            accessed: time(&stat.stx_atime),
            modified: time(&stat.stx_mtime),
            changed,
            created: has_birth.then(|| time(&stat.stx_btime)),
        }
    }
}

fn time(time: &libc::statx_timestamp) -> Timestamp {
    Timestamp { seconds: time.tv_sec, nanoseconds: time.tv_nsec }
}

/// The kernel's own change counter is not told to programs; ctime is what there is.
fn change(changed: Timestamp) -> u64 {
    let seconds = changed.seconds as u64; // wraps before 1970, which grows all the same
    seconds.wrapping_mul(1_000_000_000).wrapping_add(changed.nanoseconds.into())
}

/// A size as the kernel takes it.
pub(super) fn size(size: u64) -> Result<i64, Status> {
    i64::try_from(size).map_err(|_| Status::FBig)
}

/// Refuses, before anything is changed, what will fail for this caller.
fn check(fd: &OwnedFd, kind: FileKind, caller: &Identity, set: &SetAttr) -> Result<(), Status> {
    if set.mode.is_some() && kind == FileKind::Symlink {
        return Err(Status::NotSupp);
    }
    if let Some(bytes) = set.size {
        match kind {
            FileKind::File => drop(size(bytes)?),
            FileKind::Directory => return Err(Status::IsDir),
            _ => return Err(Status::BadType),
        }
    }
    let is_given = |time: Option<SetTime>| matches!(time, Some(SetTime::To(_)));
    let for_owner = set.mode.is_some()
        || set.uid.is_some()
        || set.gid.is_some()
        || is_given(set.accessed)
        || is_given(set.modified);
    if for_owner && caller.uid != 0 && caller.uid != Stat::of(fd, false)?.uid() {
        return Err(Status::Perm);
    }
    Ok(())
}

/// Sets what `fd` names, which is a `kind`, under the rights of this thread, which acts as `caller`.
pub(super) fn set(
    fd: &OwnedFd,
    kind: FileKind,
    caller: &Identity,
    set: &SetAttr,
) -> Result<(), Status> {
    if *set == SetAttr::default() {
        return Ok(());
    }
    let times = times(set)?;
    check(fd, kind, caller, set)?;
    if let Some(bytes) = set.size {
        sys::truncate(fd, size(bytes)?)?;
    }
    // Owner before mode: a change of the owner clears setuid and setgid.
    if set.uid.is_some() || set.gid.is_some() {
        sys::chown(fd, set.uid.unwrap_or(u32::MAX), set.gid.unwrap_or(u32::MAX))?;
    }
    if let Some(mode) = set.mode {
        sys::chmod(fd, mode & 0o7777)?;
    }
    match times {
        Some(times) => Ok(sys::set_times(fd, &times)?),
        None => Ok(()),
    }
}

/// `None`: neither is to be set.
fn times(set: &SetAttr) -> Result<Option<[libc::timespec; 2]>, Status> {
    if set.accessed.is_none() && set.modified.is_none() {
        return Ok(None);
    }
    let spec = |time: Option<SetTime>| match time {
        None => Ok(libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT }),
        Some(SetTime::Now) => Ok(libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW }),
        Some(SetTime::To(time)) if time.nanoseconds < 1_000_000_000 => {
            Ok(libc::timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() })
        }
        Some(SetTime::To(_)) => Err(Status::Inval),
    };
    Ok(Some([spec(set.accessed)?, spec(set.modified)?]))
}

pub(super) fn fs_attr(fd: &OwnedFd, read_only: bool) -> Result<FsAttr, Status> {
    let stat = sys::statvfs(fd)?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Ok(FsAttr {
        bytes_total: bytes(stat.f_blocks),
        bytes_free: bytes(stat.f_bfree),
        bytes_available: bytes(stat.f_bavail),
        files_total: stat.f_files,
        files_free: stat.f_ffree,
        name_bytes_max: u32::try_from(stat.f_namemax).unwrap_or(255),
        block_size: u32::try_from(stat.f_bsize).unwrap_or(4096),
        read_only: read_only || stat.f_flag & libc::ST_RDONLY != 0,
        lease_seconds: 0,
    })
}
