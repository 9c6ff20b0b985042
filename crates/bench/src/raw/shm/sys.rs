//! The shared mapping and the system calls of the bare mechanism: the only `unsafe` here.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a huge page.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Memory without a name, of `bytes` zeros, for two processes.
///
/// # Errors
/// The system's.
pub(super) fn memory_file(bytes: usize) -> io::Result<File> {
    // SAFETY: a name that ends in zero, and flags.
    let fd = unsafe { libc::memfd_create(c"dafs-bench".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made, and that nobody else has.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(bytes as u64)?;
    Ok(file)
}

/// A file in memory, mapped as a whole, shared with another process that writes it at any time:
/// reached by atomic words and copies through raw pointers only.
#[derive(Debug)]
pub(super) struct Mapping {
    start: *mut u8,
    len: usize,
    reserved: (*mut libc::c_void, usize),
}

// SAFETY: the memory belongs to the process, not to a thread; all access is by raw pointers.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps all of `file`, at an address that huge pages can have.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn new(file: &File) -> io::Result<Mapping> {
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let room = len + HUGE_PAGE_BYTES;
        let (none, private) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: addresses that nobody has yet, where the system likes.
        let base = unsafe { libc::mmap(ptr::null_mut(), room, none, private, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = base.map_addr(|address| address.next_multiple_of(HUGE_PAGE_BYTES));
        let (both, fixed) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: over addresses that are reserved: `room` is `len` and the most that alignment takes.
        let at = unsafe { libc::mmap(start, len, both, fixed, file.as_raw_fd(), 0) };
        let mapping = Mapping { start: start.cast(), len, reserved: (base, room) };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(mapping) }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Where byte `at` is in this process.
    pub(super) fn address(&self, at: usize) -> usize {
        self.start.addr() + at
    }

    /// Makes huge pages of what can be, and maps all pages; how many bytes are in huge ones.
    pub(super) fn collapse(&self) -> usize {
        let mut huge = 0;
        for at in (0..self.len).step_by(HUGE_PAGE_BYTES) {
            let part = HUGE_PAGE_BYTES.min(self.len - at);
            let start = self.place(at, part).cast();
            // SAFETY: a part of the mapping; what it contains stays.
            let rc = unsafe { libc::madvise(start, part, libc::MADV_COLLAPSE) };
            huge += if rc == 0 && part == HUGE_PAGE_BYTES { part } else { 0 };
        }
        // SAFETY: the whole mapping; what it contains stays. Without it the first use maps them.
        unsafe { libc::madvise(self.start.cast(), self.len, libc::MADV_POPULATE_WRITE) };
        huge
    }

    /// The start of `len` bytes at `at`.
    ///
    /// # Panics
    /// They are not inside: both ends are this program, which asks for no such thing.
    fn place(&self, at: usize, len: usize) -> *mut u8 {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} bytes at {at} of {}", self.len);
        self.start.wrapping_add(at)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        let place = self.place(at, size_of::<u64>()).cast();
        // SAFETY: eight aligned bytes of the mapping (all words are at multiples of eight), which
        // both processes reach as atomic words only.
        unsafe { AtomicU64::from_ptr(place) }
    }

    pub(super) fn load(&self, at: usize, order: Ordering) -> u64 {
        self.word(at).load(order)
    }

    pub(super) fn store(&self, at: usize, value: u64, order: Ordering) {
        self.word(at).store(value, order);
    }

    /// Copies inside of the mapping.
    pub(super) fn copy(&self, from: usize, to: usize, len: usize) {
        let (from, to) = (self.place(from, len), self.place(to, len));
        // SAFETY: both places are inside, as `place` checks; segment and pool do not overlap.
        unsafe { ptr::copy_nonoverlapping(from, to, len) }
    }

    /// Copies out to memory of this process.
    pub(super) fn copy_out(&self, from: usize, to: &mut [u8]) {
        let from = self.place(from, to.len());
        // SAFETY: the place is inside, and is not memory that Rust knows.
        unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }

    /// Writes `byte` all over.
    pub(super) fn fill(&self, at: usize, len: usize, byte: u8) {
        let place = self.place(at, len);
        // SAFETY: the place is inside.
        unsafe { ptr::write_bytes(place, byte, len) }
    }

    /// The sum of the words there, of whole 64 bytes.
    pub(super) fn sum(&self, at: usize, len: usize) -> u64 {
        let start: *const [u64; 8] = self.place(at, len).cast_const().cast();
        let mut sums = [0u64; 8];
        for line in 0..len / 64 {
            let line = start.wrapping_add(line);
            // SAFETY: 64 bytes of those that are inside, as any bits are words; nobody writes them
            // while they are summed.
            let words = unsafe { line.read_unaligned() };
            sums.iter_mut().zip(words).for_each(|(sum, word)| *sum = sum.wrapping_add(word));
        }
        sums.into_iter().fold(0, u64::wrapping_add)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (base, room) = self.reserved;
        // SAFETY: what was mapped and reserved, once; nothing points there any more.
        unsafe { libc::munmap(base, room) };
    }
}

/// Waits for one descriptor to be readable, as an engine waits for many.
#[derive(Debug)]
pub(super) struct Epoll(OwnedFd);

impl Epoll {
    /// For `fd`.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn new(fd: BorrowedFd<'_>) -> io::Result<Epoll> {
        // SAFETY: a flag.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just made, and that nobody else has.
        let epoll = Epoll(unsafe { OwnedFd::from_raw_fd(epoll) });
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        let (own, add) = (epoll.0.as_raw_fd(), libc::EPOLL_CTL_ADD);
        // SAFETY: two open descriptors and an event that is only read.
        let rc = unsafe { libc::epoll_ctl(own, add, fd.as_raw_fd(), &mut event) };
        if rc == 0 { Ok(epoll) } else { Err(io::Error::last_os_error()) }
    }

    /// Sleeps until then, or until a signal comes.
    pub(super) fn wait(&self) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        unsafe { libc::epoll_wait(self.0.as_fd().as_raw_fd(), &mut event, 1, -1) };
    }
}

/// Copies between this process and another one by a system call; `write`: to the other one.
///
/// # Errors
/// The system's: another user's process, or tracing is forbidden.
pub(super) fn process_vm(pid: u32, write: bool, own: &mut [u8], there: usize) -> io::Result<usize> {
    let local = libc::iovec { iov_base: own.as_mut_ptr().cast(), iov_len: own.len() };
    let remote = libc::iovec { iov_base: ptr::without_provenance_mut(there), iov_len: own.len() };
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    let moved = if write {
        // SAFETY: one list each; the local one is a slice, the remote one the other process's.
        unsafe { libc::process_vm_writev(pid, &local, 1, &remote, 1, 0) }
    } else {
        // SAFETY: as above.
        unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) }
    };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}
