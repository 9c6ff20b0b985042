//! Where what is open is, and who is let to it besides what its mode says.

use std::os::fd::{AsRawFd, OwnedFd};

use super::{Errno, Outcome, done, open_path, proc_path, text};

const SYS_GETXATTRAT: libc::c_long = 464;
const ACCESS_LIST: &std::ffi::CStr = c"system.posix_acl_access";

/// `struct xattr_args`.
#[repr(C)]
struct XattrArgs {
    value: u64,
    size: u32,
    flags: u32,
}

/// The descriptors of this process, by which [`path_of`] asks at less cost.
pub(crate) fn own_descriptors() -> Outcome<OwnedFd> {
    open_path(b"/proc/self/fd", libc::O_PATH | libc::O_DIRECTORY)
}

/// The path that the kernel tells of what `fd` names, in `room`; NAMETOOLONG where that may be too
/// little. `own`: [`own_descriptors`], which in a forked process are those of another.
pub(crate) fn path_of<'a>(own: &OwnedFd, fd: &OwnedFd, room: &'a mut [u8]) -> Outcome<&'a [u8]> {
    let name = text(fd.as_raw_fd().to_string().as_bytes())?;
    let (of, to, len) = (own.as_raw_fd(), room.as_mut_ptr().cast(), room.len());
    // SAFETY: `to` has `len` bytes; the name lives over the call.
    let len = done(unsafe { libc::readlinkat(of, name.as_ptr(), to, len) } as libc::c_long)?;
    if len < room.len() { Ok(&room[..len]) } else { Err(Errno(libc::ENAMETOOLONG)) }
}

/// Bytes of the access control list of what any descriptor names; NODATA: it has none.
pub(crate) fn access_list(fd: &OwnedFd) -> Outcome<usize> {
    let (name, raw) = (ACCESS_LIST.as_ptr(), fd.as_raw_fd());
    // SAFETY: a static text and numbers; without room the call writes nothing.
    let result = unsafe { libc::fgetxattr(raw, name, std::ptr::null_mut(), 0) };
    match done(result as libc::c_long) {
        // An O_PATH descriptor.
        Err(Errno(libc::EBADF)) => {}
        other => return other,
    }
    match access_list_of_directory(fd) {
        // Before Linux 6.13, kept from this process, or no directory.
        Err(Errno(libc::ENOSYS | libc::EPERM | libc::ENOTDIR)) => access_list_by_proc(fd),
        other => other,
    }
}

fn access_list_of_directory(fd: &OwnedFd) -> Outcome<usize> {
    let (name, itself) = (ACCESS_LIST.as_ptr(), c".".as_ptr());
    let args = XattrArgs { value: 0, size: 0, flags: 0 };
    let (of, size) = (fd.as_raw_fd(), std::mem::size_of_val(&args));
    // SAFETY: the texts and the structure, which has the layout and size that the call expects, live
    // over it; without room it writes nothing.
    done(unsafe { libc::syscall(SYS_GETXATTRAT, of, itself, 0, name, &args, size) })
}

/// In all kernels, by four names instead of one.
fn access_list_by_proc(fd: &OwnedFd) -> Outcome<usize> {
    let (path, name) = (proc_path(fd), ACCESS_LIST.as_ptr());
    // SAFETY: texts that live over the call; without room it writes nothing.
    let result = unsafe { libc::getxattr(path.as_ptr(), name, std::ptr::null_mut(), 0) };
    done(result as libc::c_long)
}

#[cfg(test)]
mod tests {
    use super::super::set_xattr;
    use super::*;

    #[test]
    fn a_list_is_seen_by_all_ways() {
        let dir = tempfile::tempdir().expect("directory");
        let open = |flags| {
            let path = dir.path().as_os_str().as_encoded_bytes();
            open_path(path, flags | libc::O_DIRECTORY).expect("open")
        };
        let (path, readable) = (open(libc::O_PATH), open(libc::O_RDONLY));
        let asked = || {
            let ways = [access_list(&readable), access_list(&path), access_list_by_proc(&path)];
            let newer = access_list_of_directory(&path);
            assert!(newer == ways[0] || newer == Err(Errno(libc::ENOSYS)));
            assert_eq!(ways, [ways[0]; 3]);
            ways[0]
        };
        if asked() == Err(Errno(libc::EOPNOTSUPP)) {
            return eprintln!("skipped: no access lists here");
        }
        assert_eq!(asked(), Err(Errno(libc::ENODATA)));
        let entries: [(u16, u16, u32); 5] =
            [(1, 7, !0), (2, 0, 12_345), (4, 5, !0), (0x10, 5, !0), (0x20, 5, !0)];
        let mut list = 2u32.to_le_bytes().to_vec();
        for (tag, rights, id) in entries {
            list.extend(tag.to_le_bytes().into_iter().chain(rights.to_le_bytes()));
            list.extend(id.to_le_bytes());
        }
        set_xattr(&path, b"system.posix_acl_access", &list, 0).expect("a list");
        assert_eq!(asked(), Ok(list.len()));
    }
}
