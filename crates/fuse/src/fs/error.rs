//! What a call can fail with.

use dafs_client::Error;
use dafs_protocol::Status;

/// An errno of this system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Errno(pub i32);

impl Errno {
    pub const BADF: Errno = Errno(libc::EBADF);
    pub const EXIST: Errno = Errno(libc::EEXIST);
    pub const INTR: Errno = Errno(libc::EINTR);
    pub const INVAL: Errno = Errno(libc::EINVAL);
    pub const IO: Errno = Errno(libc::EIO);
    pub const NODATA: Errno = Errno(libc::ENODATA);
    pub const NOENT: Errno = Errno(libc::ENOENT);
    pub const NOSYS: Errno = Errno(libc::ENOSYS);
    pub const NOTTY: Errno = Errno(libc::ENOTTY);
    pub const NXIO: Errno = Errno(libc::ENXIO);
    pub const RANGE: Errno = Errno(libc::ERANGE);
    pub const ROFS: Errno = Errno(libc::EROFS);
    pub const STALE: Errno = Errno(libc::ESTALE);
}

impl From<Error> for Errno {
    fn from(error: Error) -> Errno {
        match error {
            // A soft mount gave up; a hard one never does.
            Error::Connect { .. } | Error::TimedOut => Errno(libc::EIO),
            other => Errno(other.errno()),
        }
    }
}

impl From<Status> for Errno {
    fn from(status: Status) -> Errno {
        Errno(status.errno())
    }
}

/// The server does not know the handle (any more).
pub(super) fn is_stale(error: &Error) -> bool {
    matches!(error.status(), Some(Status::Stale | Status::BadHandle))
}
