//! System calls for mapped files. All unsafe code of this crate beside [`mem`](crate::mem).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::mem::PAGE_BYTES;

/// Pages that one question about residency covers.
const PAGES_ASKED: usize = 256;

/// The first bytes of a file, mapped to be read, for spans that only a kernel reads: see
/// [`Span::of_file`](crate::Span::of_file).
///
/// Whoever cuts the file makes addresses of the mapping bad. A system call answers that with an
/// error, an access by this process would end it; so nothing in this process reads them.
#[derive(Debug)]
pub struct FileMap {
    base: NonNull<u8>,
    len: usize,
    fd: Arc<OwnedFd>,
    by_descriptor: bool,
}

// SAFETY: an address range and a descriptor; nobody dereferences the former.
unsafe impl Send for FileMap {}
// SAFETY: as above.
unsafe impl Sync for FileMap {}

impl FileMap {
    /// Maps the first `len` bytes, which may be more than the file has. With `by_descriptor` the
    /// bytes are to leave by sendfile(2) from the descriptor, and the addresses only name them.
    ///
    /// # Errors
    /// The system's: no such addresses, or a file that cannot be mapped.
    pub fn new(fd: Arc<OwnedFd>, len: usize, by_descriptor: bool) -> io::Result<Arc<FileMap>> {
        let (prot, raw) = (libc::PROT_READ, fd.as_raw_fd());
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, raw, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Arc::new(FileMap { base, len, fd, by_descriptor }))
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: an empty range cannot be mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether all of a range is in memory, so that nobody waits for a disk. Of files that this
    /// process neither owns nor may write, the kernel says that it is.
    pub fn is_resident(&self, offset: usize, len: usize) -> bool {
        assert!(offset <= self.len && len <= self.len - offset, "range outside of the map");
        let end = offset + len;
        let mut at = offset - offset % PAGE_BYTES;
        while at < end {
            let pages = (end - at).div_ceil(PAGE_BYTES).min(PAGES_ASKED);
            let mut answers = [0u8; PAGES_ASKED];
            let start = self.base.as_ptr().wrapping_add(at).cast();
            // SAFETY: the range is mapped, and `answers` has a byte for each of its pages.
            let asked = unsafe { libc::mincore(start, pages * PAGE_BYTES, answers.as_mut_ptr()) };
            if asked != 0 || answers.iter().take(pages).any(|answer| answer & 1 == 0) {
                return false;
            }
            at += pages * PAGE_BYTES;
        }
        true
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The descriptor, if bytes are to leave by it.
    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        self.by_descriptor.then(|| self.fd.as_raw_fd())
    }

    /// Reads by the descriptor; what the file does not have any more is zero.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes.
    pub(crate) unsafe fn read(&self, offset: usize, to: *mut u8, len: usize) {
        let mut done = 0;
        while done < len {
            let Ok(at) = libc::off_t::try_from(offset + done) else { break };
            let (fd, rest) = (self.fd.as_raw_fd(), to.wrapping_add(done).cast());
            // SAFETY: passed on to the caller.
            match unsafe { libc::pread(fd, rest, len - done, at) } {
                more @ 1.. => done += more.cast_unsigned(),
                _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                _ => break,
            }
        }
        // SAFETY: passed on to the caller.
        unsafe { std::ptr::write_bytes(to.wrapping_add(done), 0, len - done) };
    }
}

impl Drop for FileMap {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; no span is left, they hold the `Arc`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
