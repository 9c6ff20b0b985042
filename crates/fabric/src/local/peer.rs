//! Whose process is at the other end of a Unix socket, by the kernel's word.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use crate::types::{Credentials, PeerInfo};

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Who is at the other end of a Unix socket that is connected.
///
/// # Errors
/// The system's.
pub fn peer_info(socket: BorrowedFd<'_>) -> io::Result<PeerInfo> {
    let (pid, uid, gid) = peer_credentials(socket)?;
    let credentials = Credentials { uid, gid, groups: peer_groups(socket.as_raw_fd())? };
    Ok(PeerInfo { credentials: Some(credentials), ends: None, text: format!("process {pid}") })
}

/// Who is at the other end of a Unix socket: process, user, group. A server is who called listen(2).
///
/// # Errors
/// The system's.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<(i32, u32, u32)> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (fd, out) = (socket.as_raw_fd(), (&raw mut credentials).cast());
    // SAFETY: the buffer is as long as `len` says.
    check(unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, out, &mut len) })?;
    Ok((credentials.pid, credentials.uid, credentials.gid))
}

/// The supplementary groups of the process that connected a Unix socket, as they were then.
fn peer_groups(fd: RawFd) -> io::Result<Vec<u32>> {
    const GROUPS_MAX: usize = 65_536;
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut len = size_of_val(groups.as_slice()) as libc::socklen_t;
        let out = groups.as_mut_ptr().cast();
        // SAFETY: the buffer is as long as `len` says.
        let rc =
            unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERGROUPS, out, &mut len) };
        match check(rc) {
            Ok(_) => {
                groups.truncate(len as usize / size_of::<libc::gid_t>());
                return Ok(groups);
            }
            Err(error)
                if error.raw_os_error() == Some(libc::ERANGE) && groups.len() < GROUPS_MAX =>
            {
                groups.resize(GROUPS_MAX, 0);
            }
            Err(error) => return Err(error),
        }
    }
}

/// As whom this process acts.
pub fn effective_uid() -> u32 {
    // SAFETY: no arguments; it cannot fail.
    unsafe { libc::geteuid() }
}
