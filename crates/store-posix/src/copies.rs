//! Copies within the host, and shared blocks.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use dafs_protocol::Status;

use super::attr::{self, Stat};
use super::data::clear;
use super::file::PosixFile;
use super::sys::{self, Errno};
use dafs_store::{Answer, File, Pending};

impl PosixFile {
    pub(super) fn copy(
        &self,
        offset: u64,
        to: &Arc<dyn File>,
        to_offset: u64,
        len: u64,
        clear_privileges: bool,
    ) -> Answer<u64> {
        let (from, to) = match self.both(to) {
            Ok(both) => both,
            Err(status) => return Pending::ready(Err(status)),
        };
        self.inner().call_long(move |inner| {
            let _server = inner.identities.as_server()?;
            let (offset, to_offset) = (attr::size(offset)?, attr::size(to_offset)?);
            if clear_privileges {
                clear(&to)?;
            }
            // Within one file it ends where it ended: the copy makes it longer.
            let size = Stat::of(&from, false)?.attr().size;
            let len = len.min(size.saturating_sub(offset.unsigned_abs()));
            let mut done = 0u64;
            while done < len {
                let more = usize::try_from(len - done).unwrap_or(usize::MAX);
                let at = |start: i64| start.checked_add_unsigned(done).ok_or(Status::FBig);
                match sys::copy_range(&from, at(offset)?, &to, at(to_offset)?, more) {
                    Ok(0) => break,
                    Ok(bytes) => done += bytes as u64,
                    Err(Errno(libc::EINTR)) => {}
                    // What was copied is told; the next call tells what is wrong.
                    Err(_) if done > 0 => break,
                    Err(errno) => return Err(errno.into()),
                }
            }
            Ok(done)
        })
    }

    pub(super) fn clone_to(
        &self,
        offset: u64,
        to: &Arc<dyn File>,
        to_offset: u64,
        len: u64,
        clear_privileges: bool,
    ) -> Answer<()> {
        let (from, to) = match self.both(to) {
            Ok(both) => both,
            Err(status) => return Pending::ready(Err(status)),
        };
        self.inner().call_long(move |inner| {
            let _server = inner.identities.as_server()?;
            sys::clone_range(&from, offset, &to, to_offset, len)?;
            if clear_privileges { clear(&to) } else { Ok(()) }
        })
    }

    /// A descriptor to read this file, and one to write the other.
    fn both(&self, to: &Arc<dyn File>) -> Result<(Arc<OwnedFd>, Arc<OwnedFd>), Status> {
        let to = to.as_any().downcast_ref::<PosixFile>().ok_or(Status::XDev)?;
        Ok((self.reader()?, to.writer()?))
    }
}
