//! The system calls of this store, made safe. All `unsafe` of the crate is here.

mod places;
mod process;

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::thread;
use std::time::Duration;

use dafs_fabric::Span;
use dafs_protocol::Status;

pub(crate) use places::*;
pub(crate) use process::*;

/// What a system call answered when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Errno(pub(super) i32);

impl From<Errno> for Status {
    fn from(errno: Errno) -> Status {
        match errno.0 {
            libc::EMFILE => Status::NFile,
            libc::ENOSYS => Status::NotSupp,
            errno => Status::from_errno(errno),
        }
    }
}

pub(super) type Outcome<T> = Result<T, Errno>;

/// Bytes of a kernel file handle, at most (MAX_HANDLE_SZ).
const KERNEL_HANDLE_MAX: usize = 128;
/// The pauses before a handle is asked for again: nothing but the CPU left to others, then these
/// times each twice as long as the one before, a tenth of a second in all.
const HANDLE_PAUSES: u32 = 11;
const HANDLE_PAUSE: Duration = Duration::from_micros(50);
/// Pieces of memory in one vectored call (UIO_MAXIOV).
pub(super) const PIECES_MAX: usize = 1024;

const SYS_FCHMODAT2: libc::c_long = 452;

fn last() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

fn done(result: libc::c_long) -> Outcome<usize> {
    usize::try_from(result).map_err(|_| last())
}

fn nothing(result: libc::c_int) -> Outcome<()> {
    done(result.into()).map(drop)
}

fn descriptor(result: libc::c_long) -> Outcome<OwnedFd> {
    let raw = RawFd::try_from(done(result)?).map_err(|_| Errno(libc::EBADF))?;
    // SAFETY: the kernel just gave us this descriptor, nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn text(bytes: &[u8]) -> Outcome<CString> {
    CString::new(bytes).map_err(|_| Errno(libc::EINVAL))
}

/// The path by which the kernel leads to what a descriptor names.
fn proc_path(fd: &OwnedFd) -> CString {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    CString::new(path).expect("digits have no NUL")
}

pub(super) fn openat2(
    dir: &OwnedFd,
    path: &[u8],
    flags: i32,
    mode: u32,
    resolve: u64,
) -> Outcome<OwnedFd> {
    let path = text(path)?;
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = u64::from((flags | libc::O_CLOEXEC) as u32);
    how.mode = if flags & libc::O_CREAT != 0 { mode.into() } else { 0 };
    how.resolve = resolve;
    let size = std::mem::size_of_val(&how);
    // SAFETY: the path and the structure live over the call and have the sizes told.
    descriptor(unsafe {
        libc::syscall(libc::SYS_openat2, dir.as_raw_fd(), path.as_ptr(), &how, size)
    })
}

/// Opens one name, never what a symlink there points to.
pub(super) fn openat(dir: &OwnedFd, name: &[u8], flags: i32, mode: u32) -> Outcome<OwnedFd> {
    open_raw(dir.as_raw_fd(), &text(name)?, flags | libc::O_NOFOLLOW, mode)
}

/// Opens what `fd` names once more, with other flags, under the rights of this thread.
pub(super) fn reopen(fd: &OwnedFd, flags: i32) -> Outcome<OwnedFd> {
    open_raw(libc::AT_FDCWD, &proc_path(fd), flags, 0)
}

/// The same open file by another descriptor.
pub(super) fn duplicate(fd: &OwnedFd) -> Outcome<OwnedFd> {
    fd.try_clone().map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))
}

/// Opens a path of this host, following symlinks.
pub(super) fn open_path(path: &[u8], flags: i32) -> Outcome<OwnedFd> {
    open_raw(libc::AT_FDCWD, &text(path)?, flags, 0)
}

fn open_raw(dir: RawFd, path: &CStr, flags: i32, mode: u32) -> Outcome<OwnedFd> {
    // SAFETY: a path that lives over the call, and numbers.
    descriptor(unsafe { libc::openat(dir, path.as_ptr(), flags | libc::O_CLOEXEC, mode) }.into())
}

pub(super) fn statx(dir: &OwnedFd, name: &[u8], flags: i32, mask: u32) -> Outcome<libc::statx> {
    let name = text(name)?;
    let empty = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    let flags = flags | empty | libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut out: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the name and the structure live over the call.
    nothing(unsafe { libc::statx(dir.as_raw_fd(), name.as_ptr(), flags, mask, &mut out) })?;
    Ok(out)
}

/// A kernel file handle and the mount it was seen through.
#[derive(Debug, Clone, Copy)]
pub(super) struct KernelHandle {
    pub(super) kind: i32,
    pub(super) mount: i32,
    len: usize,
    bytes: [u8; KERNEL_HANDLE_MAX],
}

impl KernelHandle {
    pub(super) fn new(kind: i32, from: &[u8]) -> Option<KernelHandle> {
        let mut bytes = [0; KERNEL_HANDLE_MAX];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(KernelHandle { kind, mount: 0, len: from.len(), bytes })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// `struct file_handle` with room.
#[repr(C)]
struct RawHandle {
    len: u32,
    kind: i32,
    bytes: [u8; KERNEL_HANDLE_MAX],
}

pub(super) fn name_to_handle(dir: &OwnedFd, name: &[u8]) -> Outcome<KernelHandle> {
    let name = text(name)?;
    let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    let bytes = [0; KERNEL_HANDLE_MAX];
    let mut raw = RawHandle { len: KERNEL_HANDLE_MAX as u32, kind: 0, bytes };
    let mut mount = 0;
    let to: *mut RawHandle = &mut raw;
    // SAFETY: the structure has the layout and room that `len` tells; all lives over the call.
    nothing(unsafe {
        libc::name_to_handle_at(dir.as_raw_fd(), name.as_ptr(), to.cast(), &mut mount, flags)
    })?;
    let len = (raw.len as usize).min(KERNEL_HANDLE_MAX);
    Ok(KernelHandle { kind: raw.kind, mount, len, bytes: raw.bytes })
}

/// The kernel says ENOMEM, too, of a file that went away while another gets its inode number: asked
/// again when the other is made, it tells them apart.
pub(super) fn open_by_handle(
    mount: &OwnedFd,
    handle: &KernelHandle,
    flags: i32,
) -> Outcome<OwnedFd> {
    let mut outcome = open_by_handle_once(mount, handle, flags);
    for longer in 0..=HANDLE_PAUSES {
        match (&outcome, longer) {
            (Err(Errno(libc::ENOMEM)), 0) => thread::yield_now(),
            (Err(Errno(libc::ENOMEM)), _) => thread::sleep(HANDLE_PAUSE * (1 << (longer - 1))),
            _ => break,
        }
        outcome = open_by_handle_once(mount, handle, flags);
    }
    outcome
}

fn open_by_handle_once(mount: &OwnedFd, handle: &KernelHandle, flags: i32) -> Outcome<OwnedFd> {
    let mut raw = RawHandle { len: handle.len as u32, kind: handle.kind, bytes: handle.bytes };
    let from: *mut RawHandle = &mut raw;
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: the structure has the layout and the bytes that `len` tells.
    descriptor(unsafe { libc::open_by_handle_at(mount.as_raw_fd(), from.cast(), flags) }.into())
}

pub(super) fn mkdirat(dir: &OwnedFd, name: &[u8], mode: u32) -> Outcome<()> {
    let name = text(name)?;
    // SAFETY: a name that lives over the call.
    nothing(unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), mode) })
}

pub(super) fn mknodat(dir: &OwnedFd, name: &[u8], mode: u32, rdev: u64) -> Outcome<()> {
    let name = text(name)?;
    // SAFETY: a name that lives over the call.
    nothing(unsafe { libc::mknodat(dir.as_raw_fd(), name.as_ptr(), mode, rdev) })
}

pub(super) fn symlinkat(target: &[u8], dir: &OwnedFd, name: &[u8]) -> Outcome<()> {
    let (target, name) = (text(target)?, text(name)?);
    // SAFETY: texts that live over the call.
    nothing(unsafe { libc::symlinkat(target.as_ptr(), dir.as_raw_fd(), name.as_ptr()) })
}

/// A hard link to what `from` names, also to a symlink.
pub(super) fn link(from: &OwnedFd, dir: &OwnedFd, name: &[u8]) -> Outcome<()> {
    let (from, name) = (proc_path(from), text(name)?);
    let flags = libc::AT_SYMLINK_FOLLOW; // only the one in /proc
    // SAFETY: paths that live over the call.
    nothing(unsafe {
        libc::linkat(libc::AT_FDCWD, from.as_ptr(), dir.as_raw_fd(), name.as_ptr(), flags)
    })
}

pub(super) fn unlinkat(dir: &OwnedFd, name: &[u8], directory: bool) -> Outcome<()> {
    let name = text(name)?;
    let flags = if directory { libc::AT_REMOVEDIR } else { 0 };
    // SAFETY: a name that lives over the call.
    nothing(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), flags) })
}

pub(super) fn renameat2(
    from_dir: &OwnedFd,
    from: &[u8],
    to_dir: &OwnedFd,
    to: &[u8],
    flags: u32,
) -> Outcome<()> {
    let (from, to) = (text(from)?, text(to)?);
    let (from_fd, to_fd) = (from_dir.as_raw_fd(), to_dir.as_raw_fd());
    // SAFETY: names that live over the call.
    nothing(unsafe { libc::renameat2(from_fd, from.as_ptr(), to_fd, to.as_ptr(), flags) })
}

/// The target of the symlink that `fd` names.
pub(super) fn readlink(fd: &OwnedFd) -> Outcome<Vec<u8>> {
    let mut target = vec![0; libc::PATH_MAX as usize];
    let (to, room) = (target.as_mut_ptr().cast(), target.len());
    // SAFETY: `to` has `room` bytes.
    let len =
        done(unsafe { libc::readlinkat(fd.as_raw_fd(), c"".as_ptr(), to, room) } as libc::c_long)?;
    target.truncate(len);
    Ok(target)
}

/// Permission bits of what an O_PATH descriptor names.
pub(super) fn chmod(fd: &OwnedFd, mode: u32) -> Outcome<()> {
    let (raw, flags) = (fd.as_raw_fd(), libc::AT_EMPTY_PATH);
    // SAFETY: a static text and numbers.
    let result = unsafe { libc::syscall(SYS_FCHMODAT2, raw, c"".as_ptr(), mode, flags) };
    match done(result) {
        Err(Errno(libc::ENOSYS)) => {}
        other => return other.map(drop),
    }
    let path = proc_path(fd);
    // SAFETY: a path that lives over the call.
    nothing(unsafe { libc::chmod(path.as_ptr(), mode) })
}

pub(super) fn fchmod(fd: &OwnedFd, mode: u32) -> Outcome<()> {
    // SAFETY: numbers.
    nothing(unsafe { libc::fchmod(fd.as_raw_fd(), mode) })
}

/// Owner and group of what any descriptor names; `u32::MAX` stays.
pub(super) fn chown(fd: &OwnedFd, uid: u32, gid: u32) -> Outcome<()> {
    // SAFETY: a static text and numbers.
    nothing(unsafe { libc::fchownat(fd.as_raw_fd(), c"".as_ptr(), uid, gid, libc::AT_EMPTY_PATH) })
}

/// Access and modification time of what any descriptor names.
pub(super) fn set_times(fd: &OwnedFd, times: &[libc::timespec; 2]) -> Outcome<()> {
    let (raw, empty) = (fd.as_raw_fd(), libc::AT_EMPTY_PATH);
    // SAFETY: a static text and an array of the two times that the call reads.
    let result = nothing(unsafe { libc::utimensat(raw, c"".as_ptr(), times.as_ptr(), empty) });
    if result != Err(Errno(libc::EINVAL)) {
        return result;
    }
    // Before Linux 5.8.
    let path = proc_path(fd);
    // SAFETY: a path and an array that live over the call.
    nothing(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), 0) })
}

/// Sets the size of what an O_PATH descriptor names, if this thread may write it.
pub(super) fn truncate(fd: &OwnedFd, size: i64) -> Outcome<()> {
    let path = proc_path(fd);
    // SAFETY: a path that lives over the call.
    nothing(unsafe { libc::truncate(path.as_ptr(), size) })
}

pub(super) fn ftruncate(fd: &OwnedFd, size: i64) -> Outcome<()> {
    // SAFETY: numbers.
    nothing(unsafe { libc::ftruncate(fd.as_raw_fd(), size) })
}

/// May this thread (by its fsuid, fsgid and groups) do all of `mode`?
pub(super) fn access(fd: &OwnedFd, mode: i32) -> Outcome<()> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_EACCESS;
    // SAFETY: a static text and numbers.
    let result =
        unsafe { libc::syscall(libc::SYS_faccessat2, fd.as_raw_fd(), c"".as_ptr(), mode, flags) };
    done(result).map(drop)
}

pub(super) fn xattr(fd: &OwnedFd, name: &[u8], room: usize) -> Outcome<Vec<u8>> {
    let (path, name) = (proc_path(fd), text(name)?);
    let mut value = vec![0u8; room];
    let to = value.as_mut_ptr().cast();
    // SAFETY: `to` has `room` bytes; the texts live over the call.
    let result = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), to, room) };
    let len = done(result as libc::c_long)?;
    value.truncate(len);
    Ok(value)
}

pub(super) fn set_xattr(fd: &OwnedFd, name: &[u8], value: &[u8], flags: i32) -> Outcome<()> {
    let (path, name) = (proc_path(fd), text(name)?);
    let (from, len) = (value.as_ptr().cast(), value.len());
    // SAFETY: `from` has `len` bytes; the texts live over the call.
    nothing(unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), from, len, flags) })
}

pub(super) fn list_xattr(fd: &OwnedFd, room: usize) -> Outcome<Vec<u8>> {
    let path = proc_path(fd);
    let mut list = vec![0u8; room];
    // SAFETY: `list` has `room` bytes; the path lives over the call.
    let result = unsafe { libc::listxattr(path.as_ptr(), list.as_mut_ptr().cast(), room) };
    let len = done(result as libc::c_long)?;
    list.truncate(len);
    Ok(list)
}

pub(super) fn remove_xattr(fd: &OwnedFd, name: &[u8]) -> Outcome<()> {
    let (path, name) = (proc_path(fd), text(name)?);
    // SAFETY: texts that live over the call.
    nothing(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) })
}

/// Raw directory entries (`struct linux_dirent64`) into `buffer`; 0 bytes: the end.
pub(super) fn getdents(fd: &OwnedFd, buffer: &mut [u8]) -> Outcome<usize> {
    let (to, room) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: `to` has `room` bytes.
    done(unsafe { libc::syscall(libc::SYS_getdents64, fd.as_raw_fd(), to, room) })
}

pub(super) fn lseek(fd: &OwnedFd, offset: i64, whence: i32) -> Outcome<u64> {
    // SAFETY: numbers.
    let result = unsafe { libc::lseek(fd.as_raw_fd(), offset, whence) };
    u64::try_from(result).map_err(|_| last())
}

/// A part of a scatter/gather list as the kernel wants it, on the stack or, where it is long,
/// allocated.
pub(super) struct Pieces {
    list: [libc::iovec; 8],
    long: Vec<libc::iovec>,
    len: usize,
}

impl Pieces {
    /// The spans from byte `skip` on, as many as one call takes; with `address` of each.
    pub(super) fn new(
        spans: &[Span],
        mut skip: usize,
        address: impl Fn(&Span) -> *mut u8,
    ) -> Pieces {
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut pieces = Pieces { list: [empty; 8], long: Vec::new(), len: 0 };
        for span in spans {
            if skip >= span.len() {
                skip -= span.len();
                continue;
            }
            if pieces.len == PIECES_MAX {
                break;
            }
            let base = address(span).wrapping_add(skip).cast();
            pieces.push(libc::iovec { iov_base: base, iov_len: span.len() - skip });
            skip = 0;
        }
        pieces
    }

    fn push(&mut self, piece: libc::iovec) {
        match self.list.get_mut(self.len) {
            Some(slot) if self.long.is_empty() => *slot = piece,
            _ => {
                if self.long.is_empty() {
                    self.long.extend_from_slice(&self.list);
                }
                self.long.push(piece);
            }
        }
        self.len += 1;
    }

    pub(super) fn as_ptr(&self) -> *const libc::iovec {
        if self.long.is_empty() { self.list.as_ptr() } else { self.long.as_ptr() }
    }

    pub(super) fn count(&self) -> libc::c_int {
        self.len as libc::c_int // at most PIECES_MAX
    }
}

/// One preadv2 into the spans from byte `skip` on, for file offset `offset`.
pub(super) fn read_vectored(
    fd: &OwnedFd,
    into: &[Span],
    skip: usize,
    offset: i64,
    flags: i32,
) -> Outcome<usize> {
    let pieces = Pieces::new(into, skip, Span::as_mut_ptr);
    let (list, count) = (pieces.as_ptr(), pieces.count());
    // SAFETY: each piece lies in a writable span, which is alive over the call; what others
    // write there meanwhile is theirs to bear.
    done(unsafe { libc::preadv2(fd.as_raw_fd(), list, count, offset, flags) } as libc::c_long)
}

/// One pwritev from the spans from byte `skip` on, to file offset `offset`.
pub(super) fn write_vectored(
    fd: &OwnedFd,
    from: &[Span],
    skip: usize,
    offset: i64,
) -> Outcome<usize> {
    let pieces = Pieces::new(from, skip, |span| span.as_ptr().cast_mut());
    let (list, count) = (pieces.as_ptr(), pieces.count());
    // SAFETY: each piece lies in a span, which is alive over the call and is only read.
    done(unsafe { libc::pwritev(fd.as_raw_fd(), list, count, offset) } as libc::c_long)
}

pub(super) fn fsync(fd: &OwnedFd, data_only: bool) -> Outcome<()> {
    let raw = fd.as_raw_fd();
    if data_only {
        // SAFETY: a number.
        nothing(unsafe { libc::fdatasync(raw) })
    } else {
        // SAFETY: a number.
        nothing(unsafe { libc::fsync(raw) })
    }
}

pub(super) fn syncfs(fd: &OwnedFd) -> Outcome<()> {
    // SAFETY: a number.
    nothing(unsafe { libc::syncfs(fd.as_raw_fd()) })
}

pub(super) fn fallocate(fd: &OwnedFd, mode: i32, offset: i64, len: i64) -> Outcome<()> {
    // SAFETY: numbers.
    nothing(unsafe { libc::fallocate(fd.as_raw_fd(), mode, offset, len) })
}

/// One copy_file_range; 0 bytes: the source ends.
pub(super) fn copy_range(
    from: &OwnedFd,
    mut offset: i64,
    to: &OwnedFd,
    mut to_offset: i64,
    len: usize,
) -> Outcome<usize> {
    let (from, to) = (from.as_raw_fd(), to.as_raw_fd());
    // SAFETY: the offsets live over the call, which writes the new ones there.
    let result = unsafe { libc::copy_file_range(from, &mut offset, to, &mut to_offset, len, 0) };
    done(result as libc::c_long)
}

/// `struct file_clone_range`.
#[repr(C)]
struct CloneRange {
    from: i64,
    offset: u64,
    len: u64,
    to_offset: u64,
}

/// Shares blocks; `len` 0: to the end of the source.
pub(super) fn clone_range(
    from: &OwnedFd,
    offset: u64,
    to: &OwnedFd,
    to_offset: u64,
    len: u64,
) -> Outcome<()> {
    const FICLONERANGE: libc::c_ulong = 0x4020_940d;
    let range = CloneRange { from: from.as_raw_fd().into(), offset, len, to_offset };
    // SAFETY: the structure has the layout that the request tells; the kernel only reads it.
    nothing(unsafe { libc::ioctl(to.as_raw_fd(), FICLONERANGE, &range) })
}

/// Extents that one [`extents`] call answers.
pub(super) const EXTENTS_MAX: usize = 64;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RawExtent {
    pub(super) offset: u64,
    physical: u64,
    pub(super) len: u64,
    reserved: [u64; 2],
    pub(super) flags: u32,
    reserved_flags: [u32; 3],
}

/// `struct fiemap` with room.
#[repr(C)]
struct Fiemap {
    start: u64,
    len: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
    extents: [RawExtent; EXTENTS_MAX],
}

/// Extents of the range, as many as fit; into `out`.
pub(super) fn extents(
    fd: &OwnedFd,
    start: u64,
    len: u64,
    out: &mut Vec<RawExtent>,
) -> Outcome<usize> {
    const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
    let extents = [RawExtent::default(); EXTENTS_MAX];
    let room = EXTENTS_MAX as u32;
    let mut map = Fiemap { start, len, flags: 0, mapped: 0, room, reserved: 0, extents };
    let to: *mut Fiemap = &mut map;
    // SAFETY: the structure has the layout that the request tells, and the room that it says.
    nothing(unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_FIEMAP, to) })?;
    let mapped = map.extents.iter().take(map.mapped as usize);
    let before = out.len();
    out.extend(mapped);
    Ok(out.len() - before)
}

pub(super) fn statvfs(fd: &OwnedFd) -> Outcome<libc::statvfs> {
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut out: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives over the call.
    nothing(unsafe { libc::fstatvfs(fd.as_raw_fd(), &mut out) })?;
    Ok(out)
}

/// The UUID of the file system that has this open file or directory. Since Linux 6.9.
pub(super) fn fs_uuid(fd: &OwnedFd) -> Outcome<[u8; 16]> {
    const FS_IOC_GETFSUUID: libc::c_ulong = 0x8011_1500;
    // Its length, then itself.
    let mut out = [0u8; 17];
    let to = out.as_mut_ptr();
    // SAFETY: the array has the layout and size that the request tells.
    nothing(unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_GETFSUUID, to) })?;
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&out[1..]);
    Ok(uuid)
}

/// The kind of file system, as its magic number.
pub(super) fn fs_magic(fd: &OwnedFd) -> Outcome<i64> {
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut out: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives over the call.
    nothing(unsafe { libc::fstatfs(fd.as_raw_fd(), &mut out) })?;
    Ok(out.f_type)
}

/// Pages of a file that the system has in memory and not on its disk yet: dirty ones, and those
/// that are being written. Since Linux 6.5.
pub(super) fn unwritten_pages(fd: &OwnedFd) -> Outcome<u64> {
    const CACHESTAT: libc::c_long = 451;
    // From the first byte to the last.
    let range = [0u64; 2];
    // Of {cached, dirty, being written, evicted, evicted lately}.
    let mut pages = [0u64; 5];
    let (of, into) = (range.as_ptr(), pages.as_mut_ptr());
    // SAFETY: both arrays have the layout and size that the call expects.
    done(unsafe { libc::syscall(CACHESTAT, fd.as_raw_fd(), of, into, 0u32) })?;
    Ok(pages[1] + pages[2])
}
