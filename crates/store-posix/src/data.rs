//! Data of files by plain calls, which may block.

use std::os::fd::OwnedFd;

use dafs_fabric::{Span, sg_bytes};
use dafs_protocol::Status;

use super::Inner;
use super::attr::{self, Stat};
use super::sys::{self, Errno};

/// Setuid and setgid.
const PRIVILEGES: u32 = 0o6000;
const SETGID: u32 = 0o2000;

/// Reads until the list is full or the file ends; `done` counts.
pub(super) fn read(
    fd: &OwnedFd,
    offset: u64,
    into: &[Span],
    done: &mut usize,
    flags: i32,
) -> Result<(), Errno> {
    let bytes = sg_bytes(into);
    while *done < bytes {
        let at = offset.checked_add(*done as u64).and_then(|at| i64::try_from(at).ok());
        let Some(at) = at else { return Ok(()) }; // no file is that long
        match sys::read_vectored(fd, into, *done, at, flags) {
            Ok(0) => return Ok(()),
            Ok(more) => *done += more,
            Err(Errno(libc::EINTR)) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Writes what is left after the first `done` bytes, as the server.
pub(super) fn write(
    inner: &Inner,
    fd: &OwnedFd,
    offset: u64,
    from: &[Span],
    done: &mut usize,
) -> Result<(), Status> {
    let _server = inner.identities.as_server()?;
    let bytes = sg_bytes(from);
    while *done < bytes {
        let at = offset.checked_add(*done as u64).ok_or(Status::FBig)?;
        match sys::write_vectored(fd, from, *done, attr::size(at)?) {
            // The rest has no room (a limit of the file system that it does not name).
            Ok(0) => return Err(Status::NoSpc),
            Ok(more) => *done += more,
            Err(Errno(libc::EINTR)) => {}
            Err(errno) => return Err(data_error(errno)),
        }
    }
    Ok(())
}

/// What devices say of their data, as programs know it: ENODATA is a medium that cannot be read.
pub(super) fn data_error(errno: Errno) -> Status {
    match errno {
        Errno(libc::ENODATA) => Status::Io,
        errno => errno.into(),
    }
}

/// The kernel does not do this for root's writes. The mode is asked for each time: others change
/// it too. A change of the owner that changes nothing takes setuid, setgid of what a group may run,
/// and capabilities from the mode as it is at that moment: nothing that others set is undone.
///
/// Setgid that runs nothing is left by that, and no call takes it alone: there a change of the mode
/// by others in between is undone.
pub(super) fn clear(fd: &OwnedFd) -> Result<(), Status> {
    let mode = || Ok::<u32, Status>(Stat::of(fd, true)?.mode());
    if mode()? & PRIVILEGES == 0 {
        return Ok(());
    }
    sys::chown(fd, u32::MAX, u32::MAX)?;
    let left = mode()?;
    if left & SETGID != 0 {
        sys::fchmod(fd, left & !SETGID)?;
    }
    Ok(())
}
