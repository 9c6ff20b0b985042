//! Whose process is at the other end of a Unix socket, by the kernel's word.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

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

/// The process at the other end of a Unix socket, as long as it runs: its number alone may be another
/// process's by now.
#[derive(Debug)]
pub enum PeerProcess {
    /// By a descriptor, which is readable when it has ended.
    Known(OwnedFd),
    /// It had ended when it was asked for.
    Ended,
    /// The system does not tell.
    Unknown,
}

impl PeerProcess {
    /// Whose process connected, or called listen(2).
    pub fn of(socket: BorrowedFd<'_>) -> PeerProcess {
        match peer_pidfd(socket.as_raw_fd()) {
            Ok(descriptor) => PeerProcess::Known(descriptor),
            Err(error) => match error.raw_os_error() {
                // Nobody has its number any more, or somebody who is no process.
                Some(libc::ESRCH | libc::EINVAL) => PeerProcess::Ended,
                // Before Linux 6.5.
                Some(libc::ENOPROTOOPT) => PeerProcess::by_number(socket),
                _ => PeerProcess::Unknown,
            },
        }
    }

    /// By its number: where another process has that already, the peer has ended, and is taken for ended
    /// when that one does.
    fn by_number(socket: BorrowedFd<'_>) -> PeerProcess {
        match peer_credentials(socket) {
            // Of another namespace, without a number in this one.
            Ok((0, ..)) | Err(_) => PeerProcess::Unknown,
            Ok((pid, ..)) => match pidfd_open(pid) {
                Ok(descriptor) => PeerProcess::Known(descriptor),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => PeerProcess::Ended,
                Err(_) => PeerProcess::Unknown,
            },
        }
    }

    /// Readable when it has ended.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            PeerProcess::Known(descriptor) => Some(descriptor.as_fd()),
            PeerProcess::Ended | PeerProcess::Unknown => None,
        }
    }

    /// It is known to have ended. Descriptors and memory that it had may be a child's.
    pub fn has_ended(&self) -> bool {
        match self {
            PeerProcess::Known(descriptor) => is_readable(descriptor.as_raw_fd()),
            PeerProcess::Ended => true,
            PeerProcess::Unknown => false,
        }
    }
}

fn peer_pidfd(socket: RawFd) -> io::Result<OwnedFd> {
    let mut descriptor: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let out = (&raw mut descriptor).cast();
    // SAFETY: the buffer is as long as `len` says.
    let rc =
        unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERPIDFD, out, &mut len) };
    check(rc)?;
    // SAFETY: the system just gave us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(check(descriptor)?) })
}

fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: numbers only.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let descriptor = check(libc::c_int::try_from(descriptor).unwrap_or(-1))?;
    // SAFETY: the system just gave us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn is_readable(descriptor: RawFd) -> bool {
    let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, and no time to wait.
    let count = unsafe { libc::poll(&raw mut poll, 1, 0) };
    count == 1 && poll.revents & libc::POLLIN != 0
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::process::{Command, Stdio};

    use super::*;

    fn wait_for_end(descriptor: BorrowedFd<'_>) {
        let mut poll =
            libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        unsafe { libc::poll(&raw mut poll, 1, 60_000) };
    }

    #[test]
    fn a_process_is_known_by_its_socket_until_it_ends() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a listener");
        let script = "import socket, sys; s = socket.socket(socket.AF_UNIX); \
                      s.connect(sys.argv[1]); sys.stdin.read()";
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(&path).stdin(Stdio::piped());
        let Ok(mut child) = command.spawn() else { return println!("no python3: left out") };
        listener.set_nonblocking(true).expect("a flag");
        let socket = loop {
            match listener.accept() {
                Ok((socket, _)) => break socket,
                Err(_) if child.try_wait().expect("a child").is_some() => {
                    return println!("no python3 that works: left out");
                }
                Err(_) => std::thread::yield_now(),
            }
        };
        let ways = [PeerProcess::of(socket.as_fd()), PeerProcess::by_number(socket.as_fd())];
        for process in &ways {
            assert!(matches!(process, PeerProcess::Known(_)) && !process.has_ended());
        }
        child.kill().expect("killed");
        for process in &ways {
            wait_for_end(process.descriptor().expect("known"));
            assert!(process.has_ended());
        }
        child.wait().expect("ends");
        // Nobody waits for it any more: it has no number now.
        assert!(PeerProcess::of(socket.as_fd()).has_ended());
        assert!(matches!(PeerProcess::by_number(socket.as_fd()), PeerProcess::Ended));
    }
}
