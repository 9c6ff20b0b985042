//! What the kernel and the file system agree on before the first call.

use super::abi::{self, InitOut, init};
use super::channel::Notifier;
use crate::planted::{Defect, planted};

/// Bytes of data in one request.
pub const MAX_WRITE: u32 = 1 << 20;

/// What is asked of the kernel where it offers it. Not that OPEN cuts a file by itself
/// (`ATOMIC_O_TRUNC`): it would cut a program that runs, before the kernel refuses that. Nor that
/// asynchronous direct I/O leaves it before its end (`ASYNC_DIO`): the kernel then counts it with
/// what reads ahead, of which only so much is under way, and a write that waits until the kernel
/// forgets pages would hold up the reads that fill them. Of direct writes that it waits for the
/// kernel forgets what others read meanwhile only since the end of 2025 (b359af8275a9, "fuse:
/// Invalidate the page cache after FOPEN_DIRECT_IO write"): the file system tells it to.
const WANTED: u64 = init::ASYNC_READ
    | init::POSIX_LOCKS
    | init::FLOCK_LOCKS
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::DO_READDIRPLUS
    | init::PARALLEL_DIROPS
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::HANDLE_KILLPRIV_V2
    | init::INIT_EXT
    | init::DIRECT_IO_ALLOW_MMAP;

fn wanted() -> u64 {
    if planted(Defect::OldBelowDirectWrite) { WANTED | init::ASYNC_DIO } else { WANTED }
}

/// What the kernel offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Init {
    /// Version.
    pub major: u32,
    /// Version.
    pub minor: u32,
    /// Bytes.
    pub max_readahead: u32,
    /// Of [`abi::init`].
    pub flags: u64,
}

/// To be changed by [`FileSystem::init`](super::FileSystem::init).
#[derive(Debug)]
pub struct InitOptions {
    /// The kernel's version of the protocol, after its major one.
    pub minor: u32,
    /// What the kernel can do: flags of [`abi::init`].
    pub offered: u64,
    /// What is asked for; what is not offered is left out.
    pub flags: u64,
    /// Bytes that the kernel reads ahead.
    pub max_readahead: u32,
    /// Requests under way that nobody waits for: reading ahead, asynchronous I/O.
    pub max_background: u16,
    /// Nanoseconds between times that differ.
    pub time_gran: u32,
    notifier: Notifier,
}

impl InitOptions {
    pub(super) fn new(offer: &Init, notifier: Notifier) -> InitOptions {
        InitOptions {
            minor: offer.minor,
            offered: offer.flags,
            flags: wanted(),
            max_readahead: offer.max_readahead.min(1 << 20),
            max_background: 64,
            time_gran: 1,
            notifier,
        }
    }

    /// Asks for `flag`, if `wanted`.
    pub fn set(&mut self, flag: u64, wanted: bool) {
        self.flags = if wanted { self.flags | flag } else { self.flags & !flag };
    }

    /// To tell the kernel that something changed.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// The reply, to a kernel of version `minor`.
    pub(super) fn reply(&self, minor: u32) -> InitOut {
        let flags = self.flags & self.offered;
        let pages = MAX_WRITE as usize / dafs_fabric::mem::PAGE_BYTES;
        InitOut {
            major: abi::MAJOR,
            minor: minor.min(abi::MINOR),
            max_readahead: self.max_readahead,
            flags: (flags & u64::from(u32::MAX)) as u32,
            flags2: (flags >> 32) as u32,
            max_background: self.max_background,
            congestion_threshold: self.max_background / 4 * 3,
            max_write: MAX_WRITE,
            time_gran: self.time_gran,
            max_pages: u16::try_from(pages).unwrap_or(u16::MAX),
            ..InitOut::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Channel;

    /// What would make it wait for what reads ahead, and leave old pages below a direct write.
    #[test]
    fn asynchronous_direct_io_is_not_asked_for() {
        let Ok(channel) = Channel::open() else { return println!("skipped: no /dev/fuse") };
        let offer = Init { major: 7, minor: abi::MINOR, max_readahead: 1 << 20, flags: u64::MAX };
        let reply = InitOptions::new(&offer, channel.notifier()).reply(offer.minor);
        assert_ne!(reply.flags & init::ASYNC_READ as u32, 0);
        assert_eq!(reply.flags & init::ASYNC_DIO as u32, 0);
    }
}
