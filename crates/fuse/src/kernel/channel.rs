//! `/dev/fuse`: one read is one request, one write one reply.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use zerocopy::IntoBytes;

use super::abi::{self, OutHeader};

/// The kernel's end of a mount.
#[derive(Debug, Clone)]
pub struct Channel {
    device: Arc<File>,
}

impl Channel {
    /// Opens the device; the descriptor is to be named to `mount`.
    ///
    /// # Errors
    /// There is no such device, or it is not for this user.
    pub fn open() -> io::Result<Channel> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        Ok(Channel { device: Arc::new(device) })
    }

    /// A device that another program opened and mounted.
    pub fn from_fd(fd: OwnedFd) -> Channel {
        Channel { device: Arc::new(File::from(fd)) }
    }

    /// Waits for a request. `None`: nothing is mounted any more.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn read(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match (&*self.device).read(into) {
                Ok(0) => return Ok(None),
                Ok(len) => return Ok(Some(len)),
                Err(error) => match error.raw_os_error() {
                    // ENOENT: the caller gave up before it was read.
                    Some(libc::EINTR | libc::EAGAIN | libc::ENOENT) => {}
                    Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(None),
                    _ => return Err(error),
                },
            }
        }
    }

    /// Writes a reply of a structure and bytes, either of which may be empty.
    ///
    /// # Errors
    /// The device's. ENOENT: nobody waits for it any more.
    pub(super) fn reply(&self, unique: u64, head: &[u8], data: &[u8]) -> io::Result<()> {
        self.send(unique, 0, head, data)
    }

    /// Writes a reply that says `errno` (above 0).
    pub(super) fn reply_error(&self, unique: u64, errno: i32) -> io::Result<()> {
        self.send(unique, -errno, &[], &[])
    }

    fn send(&self, unique: u64, error: i32, head: &[u8], data: &[u8]) -> io::Result<()> {
        let len = size_of::<OutHeader>() + head.len() + data.len();
        let len = u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        let header = OutHeader { len, error, unique };
        let parts = [header.as_bytes(), head, data].map(IoSlice::new);
        (&*self.device).write_vectored(&parts).map(|_| ())
    }

    /// Writes a reply of bytes that lie in several places.
    ///
    /// # Errors
    /// As of [`reply`](Self::reply).
    pub(super) fn reply_pieces(&self, unique: u64, pieces: &[&[u8]]) -> io::Result<()> {
        let len = size_of::<OutHeader>() + pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let len = u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        let header = OutHeader { len, error: 0, unique };
        let all = std::iter::once(header.as_bytes()).chain(pieces.iter().copied());
        let parts: Vec<IoSlice<'_>> = all.map(IoSlice::new).collect();
        (&*self.device).write_vectored(&parts).map(|_| ())
    }

    /// To tell the kernel what changed.
    pub fn notifier(&self) -> Notifier {
        Notifier { channel: self.clone() }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// Tells the kernel that what it keeps is not true any more. Whoever lets it forget data waits for
/// pages that it reads in just then: another thread must be there to answer.
#[derive(Debug, Clone)]
pub struct Notifier {
    channel: Channel,
}

impl Notifier {
    /// Attributes of `node` changed, and the data of `len` bytes from `offset` (0: all from
    /// there; `offset` below 0: no data).
    ///
    /// # Errors
    /// ENOENT: the kernel does not know the node. Others: the device's.
    pub fn inval_inode(&self, node: u64, offset: i64, len: i64) -> io::Result<()> {
        let out = abi::InvalInodeOut { node, offset, len };
        self.channel.send(0, abi::NOTIFY_INVAL_INODE, out.as_bytes(), &[])
    }

    /// `name` in `parent` means something else, or nothing.
    ///
    /// # Errors
    /// ENOENT: the kernel does not know the name. Others: the device's.
    pub fn inval_entry(&self, parent: u64, name: &[u8]) -> io::Result<()> {
        let name_len = u32::try_from(name.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let out = abi::InvalEntryOut { parent, name_len, flags: 0 };
        let mut ended = Vec::with_capacity(name.len() + 1);
        ended.extend_from_slice(name);
        ended.push(0);
        self.channel.send(0, abi::NOTIFY_INVAL_ENTRY, out.as_bytes(), &ended)
    }
}
