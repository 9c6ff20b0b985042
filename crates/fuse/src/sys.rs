//! The system calls that the standard library lacks.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

fn check(rc: libc::c_int) -> io::Result<()> {
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The user that the system checks rights for.
pub fn effective_uid() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() }
}

/// The group that goes with it.
pub fn effective_gid() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::getegid() }
}

/// `mount(2)`.
pub fn mount(source: &CStr, dir: &CStr, kind: &CStr, flags: u64, data: &CStr) -> io::Result<()> {
    let data = data.as_ptr().cast();
    // SAFETY: four C strings and flags.
    check(unsafe { libc::mount(source.as_ptr(), dir.as_ptr(), kind.as_ptr(), flags, data) })
}

/// `umount2(2)`.
pub fn unmount(dir: &CStr, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: a C string and flags.
    check(unsafe { libc::umount2(dir.as_ptr(), flags) })
}

/// Receives a descriptor that comes with one byte. `None`: the other end closed without.
pub fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0u8; 1];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // Aligned as a control message has to be, and large enough for one with a descriptor.
    let mut control = [0u64; 8];
    // SAFETY: a message header is plain data; zero is an empty one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header names memory of this function, with its lengths.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the header that the call filled in.
    let first = unsafe { libc::CMSG_FIRSTHDR(&message) };
    // SAFETY: null, or a control message within `control`.
    let Some(head) = (unsafe { first.as_ref() }) else { return Ok(None) };
    // SAFETY: a number.
    let least = unsafe { libc::CMSG_LEN(size_of::<RawFd>() as u32) };
    let is_rights = head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_RIGHTS;
    if !is_rights || head.cmsg_len < least as usize {
        return Ok(None);
    }
    // SAFETY: the control message has a descriptor, as just checked.
    let data = unsafe { libc::CMSG_DATA(first) };
    // SAFETY: as above; it may lie at any address.
    let fd = unsafe { data.cast::<RawFd>().read_unaligned() };
    // SAFETY: the kernel made it for this process, and nobody else has it.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }))
}
